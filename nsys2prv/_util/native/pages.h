/* The pages of an SQLite file, and which of them hold the rows of a table.
 *
 * Nothing here trusts the file: whatever is not plainly as the file format says ends in a status other than OK. What is sound and only
 * not for this reader is left to SQLite; damage is not. https://www.sqlite.org/fileformat2.html has the words used here.
 */
#ifndef NSYS2PRV_PAGES_H
#define NSYS2PRV_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    OK = 0,
    CANNOT_READ,  /* the operating system refuses, or the file is shorter than it was */
    NO_MEMORY,
    UNSUPPORTED,  /* sound as far as one can see, and not for this reader */
    DAMAGED,      /* against the file format */
    NO_ROOM,      /* more rows than the caller has room for */
} Status;

/* What a status means, for people. */
const char *status_text(Status);

enum { LEAF_PAGE = 13, INTERIOR_PAGE = 5, INDEX_LEAF_PAGE = 10, INDEX_INTERIOR_PAGE = 2, LARGEST_PAGE = 65536 };

/* SQLite locks bytes from here on; the page that holds them is left out of every table. */
#define LOCK_BYTE 0x40000000u

/* An open file. It does not change, so that many threads may read from it at once. */
typedef struct {
    int descriptor;
    uint32_t page_size;
    uint32_t pages;  /* they are numbered from 1 */
} PageFile;

Status open_page_file(const char *path, PageFile *);
void close_page_file(PageFile *);

/* Bytes before the header of a page: the first page begins with that of the file. */
static inline uint32_t header_offset(uint32_t number) { return number == 1 ? 100 : 0; }

/* Some consecutive pages in memory. One thread at a time uses it. */
typedef struct {
    const PageFile *file;
    uint8_t *data;
    uint32_t first, count, room;
} Block;

/* A page, read together with up to `together` - 1 pages that follow it unless it is in memory already. NULL where there is none. */
const uint8_t *page_in_block(Block *, uint32_t number, uint32_t together, Status *);
void free_block(Block *);
/* The most pages that are read together. */
uint32_t pages_of_block(const PageFile *);

/* The leaf pages of a table in the order of their rowids. Leaf k holds rowids from last[k - 1] + 1 to last[k]. */
typedef struct {
    uint32_t *page;
    int64_t *last;
    size_t count, room;
} Leaves;

/* Adds a page to some. */
Status add_page(Leaves *, uint32_t page, int64_t last);

/* The pages that were met so far, a bit each. */
static inline bool is_met(const uint8_t *met, uint32_t page) { return met[page / 8] >> page % 8 & 1; }
static inline void mark_page(uint8_t *met, uint32_t page) { met[page / 8] |= (uint8_t)(1 << page % 8); }

/* Meets a page that must not have been met before: no page is in a file's tables twice. */
static inline Status meet_page(uint8_t *met, uint32_t page) {
    if (!met)
        return OK;
    if (is_met(met, page))
        return DAMAGED;
    mark_page(met, page);
    return OK;
}

/* The bytes of a page that are part of a cell or of a free block: all from `solid` on, where cells stand one before the other as SQLite
 * puts them, and a bit for each before it; how many they are, and the first of them. */
typedef struct {
    uint32_t count, first, solid;
    uint64_t bits[LARGEST_PAGE / 64];
} TakenBytes;

static inline void begin_page(TakenBytes *taken, uint32_t page_size) {
    taken->count = 0;
    taken->first = taken->solid = page_size;
    memset(taken->bits, 0, page_size / 8);
}

/* Takes bytes first..first + size - 1, one at least; false where they are not all in the page and free. */
static inline bool take_bytes(TakenBytes *taken, uint32_t first, uint32_t size) {
    uint32_t last = first + size - 1;
    if (first + size == taken->first && taken->first == taken->solid) {
        taken->count += size;
        taken->first = taken->solid = first;
        return true;
    }
    if (last >= taken->solid)
        return false;
    for (uint32_t word = first / 64; word <= last / 64; word++) {
        uint64_t bits = UINT64_MAX;
        if (word == first / 64)
            bits <<= first % 64;
        if (word == last / 64)
            bits &= UINT64_MAX >> (63 - last % 64);
        if (taken->bits[word] & bits)
            return false;
        taken->bits[word] |= bits;
    }
    taken->count += size;
    taken->first = first < taken->first ? first : taken->first;
    return true;
}

/* Whether the cells of a page, its free blocks and its fragments are all that there is behind the pointers to the cells, and no two of
 * them overlap. taken: the bytes of the cells. */
bool fills_page(const uint8_t *page, uint32_t header, uint32_t page_size, TakenBytes *taken);

/* Meets the overflow pages from `page` on that `bytes` of a record go on in. */
Status follow_chain(Block *, uint32_t page, uint64_t bytes, uint8_t *met);

/* Finds a page that has no use, 0 where there is none: one of no table, no index, and not free. met: the pages of the tables that were
 * read; gets the others. roots: the first pages of what else there is, and of tables of which the leaves were not read. Where indexes or
 * the list of free pages are damaged, nobody knows what they had: then it finds pages that cannot have been theirs. */
Status find_lost_page(const PageFile *, const uint32_t *roots, size_t count, uint8_t *met, uint32_t *lost);

/* Finds them by the interior pages alone: that the leaves are leaves is seen when they are read. met: the pages met so far, or NULL.
 * damaged: gets the page that a status other than OK is about. */
Status find_leaves(const PageFile *, uint32_t root, uint8_t *met, Leaves *, uint32_t *damaged);
void free_leaves(Leaves *);
/* Of the leaves that can hold rowids from `first` to `last`: the number of the first, and of the one after the last. */
void leaves_between(const Leaves *, int64_t first, int64_t last, size_t *from, size_t *to);

#endif
