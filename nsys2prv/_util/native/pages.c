#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"

#define FILE_HEADER 100
#define MAGIC "SQLite format 3"
#define UTF_8 1
/* Bytes that are read at a time: more of them cost no less. The fuzz target reads page by page, each into a buffer of its own size. */
#ifndef BLOCK_BYTES
#define BLOCK_BYTES (256 * 1024)
#endif
/* SQLite goes no deeper. */
#define MOST_LEVELS 20
#define LEAST_FREE_BLOCK 4

const char *status_text(Status status) {
    static const char *const texts[] = {"read", "cannot be read", "no memory", "not for this reader", "damaged", "more rows than expected"};
    return texts[status];
}

/* Whether the file's header says something that this reader knows how to read. */
static Status check_header(const uint8_t *header, uint64_t bytes, PageFile *file) {
    if (memcmp(header, MAGIC, sizeof MAGIC))
        return UNSUPPORTED;
    uint32_t size = be16(header + 16);
    file->page_size = size == 1 ? 65536 : size;
    if (file->page_size < 512 || (file->page_size & (file->page_size - 1)))
        return DAMAGED;
    int reserved = header[20], read_version = header[19];
    if (reserved || read_version > 2 || be32(header + 44) > 4 || be32(header + 56) != UTF_8)
        return UNSUPPORTED;
    if (header[21] != 64 || header[22] != 32 || header[23] != 32)
        return DAMAGED;
    uint64_t pages = bytes / file->page_size;
    /* The header's count holds where the same writer wrote it and the change counter last. */
    uint32_t told = be32(header + 28);
    if (told && be32(header + 24) == be32(header + 92)) {
        if (told > pages)
            return DAMAGED;
        pages = told;
    }
    if (pages >= UINT32_MAX)
        return UNSUPPORTED;
    file->pages = (uint32_t)pages;
    return OK;
}

static int read_fully(int descriptor, uint8_t *out, size_t size, uint64_t offset) {
    while (size) {
        ssize_t got = pread(descriptor, out, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        out += got;
        size -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

Status open_page_file(const char *path, PageFile *file) {
    uint8_t header[FILE_HEADER];
    struct stat about;
    Status status = CANNOT_READ;
    *file = (PageFile){.descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file->descriptor < 0)
        return status;
    if (fstat(file->descriptor, &about) == 0 && S_ISREG(about.st_mode) && read_fully(file->descriptor, header, sizeof header, 0) == 0)
        status = check_header(header, (uint64_t)about.st_size, file);
    if (status != OK)
        close_page_file(file);
    return status;
}

void close_page_file(PageFile *file) {
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
}

/* ---- pages in memory ---- */

uint32_t pages_of_block(const PageFile *file) {
    return BLOCK_BYTES > file->page_size ? BLOCK_BYTES / file->page_size : 1;
}

const uint8_t *page_in_block(Block *block, uint32_t number, uint32_t together, Status *status) {
    const PageFile *file = block->file;
    if (!number || number > file->pages || number == LOCK_BYTE / file->page_size + 1) {
        *status = DAMAGED;
        return NULL;
    }
    if (number < block->first || number - block->first >= block->count) {
        uint32_t most = pages_of_block(file);
        if (together > most)
            together = most;
        if (together > file->pages - number + 1)
            together = file->pages - number + 1;
        if (together > block->room) {
            free(block->data);
            block->room = 0;
            if (!(block->data = malloc((size_t)together * file->page_size))) {
                *status = NO_MEMORY;
                return NULL;
            }
            block->room = together;
        }
        block->count = 0;
        if (read_fully(file->descriptor, block->data, (size_t)together * file->page_size, (uint64_t)(number - 1) * file->page_size) < 0) {
            *status = CANNOT_READ;
            return NULL;
        }
        block->first = number;
        block->count = together;
    }
    return block->data + (size_t)(number - block->first) * file->page_size;
}

void free_block(Block *block) {
    free(block->data);
    *block = (Block){.file = block->file};
}

Status follow_chain(Block *block, uint32_t next, uint64_t bytes, uint8_t *met) {
    Status status = OK;
    uint32_t part = block->file->page_size - 4;
    for (uint64_t have = 0; have < bytes && status == OK; have += part) {
        const uint8_t *page = page_in_block(block, next, 1, &status);
        if (page && (status = meet_page(met, next)) == OK)
            next = be32(page);
    }
    return status == OK && next ? DAMAGED : status;
}

/* ---- the leaves of a table ---- */

Status add_page(Leaves *level, uint32_t page, int64_t last) {
    if (level->count == level->room) {
        size_t room = level->room ? 2 * level->room : 64;
        uint32_t *pages = realloc(level->page, room * sizeof *pages);
        if (!pages)
            return NO_MEMORY;
        level->page = pages;
        int64_t *lasts = realloc(level->last, room * sizeof *lasts);
        if (!lasts)
            return NO_MEMORY;
        level->last = lasts;
        level->room = room;
    }
    level->page[level->count] = page;
    level->last[level->count++] = last;
    return OK;
}

bool fills_page(const uint8_t *page, uint32_t header, uint32_t page_size, TakenBytes *taken) {
    uint32_t content = be16(page + header + 5), block = be16(page + header + 1), fragments = page[header + 7], before = 0;
    content = content ? content : LARGEST_PAGE;
    while (block) {
        uint32_t size = block + 4 > page_size ? 0 : be16(page + block + 2);
        if (block <= before || size < LEAST_FREE_BLOCK || !take_bytes(taken, block, size))
            return false;
        before = block;
        block = be16(page + block);
    }
    return content <= page_size && taken->first >= content && taken->count + fragments == page_size - content;
}

/* Adds the children of an interior page, whose rowids are beyond `before` and not beyond `last`, to the level below it. */
static Status add_children(const uint8_t *page, uint32_t number, uint32_t page_size, int64_t before, int64_t last, Leaves *below) {
    uint32_t header = header_offset(number), pointers = header + 12, cells = be16(page + header + 3);
    Status status = OK;
    TakenBytes taken;
    begin_page(&taken, page_size);
    if (page[header] != INTERIOR_PAGE || pointers + 2 * cells > page_size || (!cells && number != 1))
        return DAMAGED;
    for (uint32_t cell = 0; cell < cells && status == OK; cell++) {
        uint32_t offset = be16(page + pointers + 2 * cell);
        uint64_t key;
        const uint8_t *end;
        if (offset < pointers + 2 * cells || offset + 5 > page_size || !(end = read_varint(page + offset + 4, page + page_size, &key)))
            return DAMAGED;
        if (!take_bytes(&taken, offset, (uint32_t)(end - page) - offset))
            return DAMAGED;
        /* Strictly ascending keys make it certain that each row is met once and in its place. */
        if ((int64_t)key > last || ((int64_t)key <= before && before != INT64_MIN))
            return DAMAGED;
        before = (int64_t)key;
        status = add_page(below, be32(page + offset), before);
    }
    if (status == OK && !fills_page(page, header, page_size, &taken))
        return DAMAGED;
    return status == OK ? add_page(below, be32(page + header + 8), last) : status;
}

Status find_leaves(const PageFile *file, uint32_t root, uint8_t *met, Leaves *leaves, uint32_t *damaged) {
    Block block = {.file = file};
    Leaves level = {0}, below = {0};
    size_t pages = 1;
    Status status = add_page(&level, root, INT64_MAX);
    for (int depth = 0; status == OK; depth++) {
        const uint8_t *page = page_in_block(&block, *damaged = level.page[0], 1, &status);
        /* All leaves of a tree are equally deep, so that the first page tells what the others of its level are. */
        uint8_t kind = page ? page[header_offset(level.page[0])] : 0;
        for (size_t k = 0; k < level.count && status == OK; k++)
            if (level.page[k] <= file->pages)
                status = meet_page(met, *damaged = level.page[k]);
        if (status != OK || kind == LEAF_PAGE)
            break;
        if (!depth && (kind == INDEX_LEAF_PAGE || kind == INDEX_INTERIOR_PAGE))
            status = UNSUPPORTED; /* a table without rowids */
        if (depth == MOST_LEVELS)
            status = DAMAGED;
        below.count = 0;
        for (size_t k = 0; k < level.count && status == OK; k++) {
            if ((page = page_in_block(&block, *damaged = level.page[k], 1, &status)))
                status = add_children(page, level.page[k], file->page_size, k ? level.last[k - 1] : INT64_MIN, level.last[k], &below);
            /* No page is in a table twice: this ends whatever circles the pages make. */
            if (status == OK && pages + below.count > file->pages)
                status = DAMAGED;
        }
        pages += below.count;
        Leaves above = level;
        level = below;
        below = above;
    }
    free_block(&block);
    free_leaves(&below);
    if (status != OK)
        free_leaves(&level);
    *leaves = level;
    return status;
}

void free_leaves(Leaves *leaves) {
    free(leaves->page);
    free(leaves->last);
    *leaves = (Leaves){0};
}

/* The number of the first leaf whose rowids go up to `rowid` at least. */
static size_t leaf_of(const Leaves *leaves, int64_t rowid) {
    size_t low = 0, high = leaves->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (leaves->last[middle] < rowid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void leaves_between(const Leaves *leaves, int64_t first, int64_t last, size_t *from, size_t *to) {
    *from = leaf_of(leaves, first);
    *to = leaf_of(leaves, last);
    if (*to < leaves->count)
        ++*to;
    if (first > last)
        *to = *from;
}
