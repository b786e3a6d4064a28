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

enum { LEAF_PAGE = 13, INTERIOR_PAGE = 5, INDEX_LEAF_PAGE = 10, INDEX_INTERIOR_PAGE = 2 };

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

/* The pages that were met so far, a bit each: no page is in a file's tables twice. */
static inline Status meet_page(uint8_t *met, uint32_t page) {
    uint8_t bit = (uint8_t)(1 << page % 8);
    if (!met)
        return OK;
    if (met[page / 8] & bit)
        return DAMAGED;
    met[page / 8] |= bit;
    return OK;
}

/* Whether the cells of a page, its free blocks and its fragments are all that there is from the first cell to the end of the page.
 * of_cells: bytes of all cells; least: the place of the first one. */
bool fills_page(const uint8_t *page, uint32_t header, uint32_t page_size, uint64_t of_cells, uint32_t least);

/* Finds them by the interior pages alone: that the leaves are leaves is seen when they are read. met: the pages met so far, or NULL.
 * damaged: gets the page that a status other than OK is about. */
Status find_leaves(const PageFile *, uint32_t root, uint8_t *met, Leaves *, uint32_t *damaged);
void free_leaves(Leaves *);
/* Of the leaves that can hold rowids from `first` to `last`: the number of the first, and of the one after the last. */
void leaves_between(const Leaves *, int64_t first, int64_t last, size_t *from, size_t *to);

#endif
