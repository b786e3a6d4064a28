/* Pages of a file that belong to nothing: where a page of a table is among them, its rows are lost. */
#include "bytes.h"
#include "pages.h"
#include "records.h"

/* Where the header of the file has the first page of the list of free pages, how many these are, and whether there are pointer maps. */
#define FIRST_FREE 32
#define FREE_PAGES 36
#define POINTER_MAPS 52
/* Bytes of an entry of a pointer map. */
#define POINTER_BYTES 5

typedef struct {
    const PageFile *file;
    Block block, chain;
    Leaves level, below;    /* their pages alone */
    uint8_t *met;
    bool damaged_tree;      /* nobody knows all pages of an index */
    uint32_t unlisted;      /* free pages that a damaged list lacks */
    uint32_t pointer_maps;  /* each is the first of so many pages, 0: there are none */
} Search;

static bool is_in_file(const PageFile *file, uint32_t page) { return page && page <= file->pages; }

/* Reads an entry of an index, which begins with its size; false where it is not inside of the page. */
static bool read_entry(const uint8_t *at, const uint8_t *end, uint32_t page_size, Row *row) {
    if (!(row->at = read_varint(at, end, &row->size)) || row->size > LONGEST_RECORD)
        return false;
    row->local = count_local(row->size, (page_size - 12) * 64 / 255 - 23, page_size);
    bool goes_on = row->local < row->size;
    if (row->local + (goes_on ? 4 : 0) > (uint64_t)(end - row->at))
        return false;
    row->overflow_page = goes_on ? be32(row->at + row->local) : 0;
    return true;
}

/* Meets the pages that the cells of a page refer to: those below it and, where leaves are asked for, those that they go on in. */
static Status take_cells(Search *search, const uint8_t *page, uint32_t number, bool with_leaves) {
    const uint32_t page_size = search->file->page_size, header = header_offset(number), cells = be16(page + header + 3);
    const uint8_t kind = page[header], *end = page + page_size;
    const bool interior = kind == INTERIOR_PAGE || kind == INDEX_INTERIOR_PAGE;
    const uint32_t pointers = header + (interior ? 12 : 8);
    Status status = OK;
    if ((!interior && kind != LEAF_PAGE && kind != INDEX_LEAF_PAGE) || pointers + 2 * cells > page_size)
        return DAMAGED;
    for (uint32_t cell = 0; cell < cells && status == OK; cell++) {
        uint32_t offset = be16(page + pointers + 2 * cell);
        const uint8_t *at = page + offset;
        Row row;
        if (offset < pointers + 2 * cells || offset + 4 > page_size)
            return DAMAGED;
        if (interior) {
            status = add_page(&search->below, be32(at), 0);
            at += 4;
        }
        if (status != OK || !with_leaves || kind == INTERIOR_PAGE)
            continue;
        if (!(kind == LEAF_PAGE ? read_row(page, page_size, offset, &row) : read_entry(at, end, page_size, &row)))
            return DAMAGED;
        if (row.overflow_page)
            status = follow_chain(&search->chain, row.overflow_page, row.size - row.local, search->met);
    }
    return status == OK && interior ? add_page(&search->below, be32(page + header + 8), 0) : status;
}

/* Meets the pages of a tree, whatever it is of: a table or an index. Of the leaves the numbers are enough, unless they are asked for. */
static Status take_tree(Search *search, uint32_t root, bool with_leaves) {
    size_t pages = 0;
    search->level.count = 0;
    Status status = add_page(&search->level, root, 0);
    while (status == OK && search->level.count) {
        if ((pages += search->level.count) > search->file->pages)
            return DAMAGED;
        for (size_t k = 0; k < search->level.count; k++) {
            if (!is_in_file(search->file, search->level.page[k]))
                return DAMAGED;
            mark_page(search->met, search->level.page[k]);
        }
        search->below.count = 0;
        for (size_t k = 0; k < search->level.count && status == OK; k++) {
            uint32_t number = search->level.page[k];
            const uint8_t *page = page_in_block(&search->block, number, 1, &status);
            uint8_t kind = page ? page[header_offset(number)] : 0;
            /* All leaves are equally deep. */
            if (!with_leaves && (kind == LEAF_PAGE || kind == INDEX_LEAF_PAGE))
                return OK;
            if (page)
                status = take_cells(search, page, number, with_leaves);
        }
        Leaves above = search->level;
        search->level = search->below;
        search->below = above;
    }
    return status;
}

/* Meets the pages of the list of free pages from `next` on, and counts them. */
static Status take_free_pages(Search *search, uint32_t next, uint32_t *found) {
    Status status = OK;
    while (next && status == OK) {
        const uint8_t *page = page_in_block(&search->block, next, 1, &status);
        if (!page || (status = meet_page(search->met, next)) != OK)
            return status;
        ++*found;
        next = be32(page);
        uint32_t count = be32(page + 4);
        if (count > search->file->page_size / 4 - 2)
            return DAMAGED;
        for (uint32_t k = 0; k < count && status == OK; k++) {
            uint32_t leaf = be32(page + 8 + 4 * k);
            status = is_in_file(search->file, leaf) ? meet_page(search->met, leaf) : DAMAGED;
            *found += status == OK;
        }
    }
    return status;
}

/* Whether the file has this page for itself: a pointer map, or the page with the bytes that are locked. */
static bool is_reserved(const Search *search, uint32_t number) {
    const uint32_t locked = LOCK_BYTE / search->file->page_size + 1, every = search->pointer_maps;
    if (number == locked)
        return true;
    /* A pointer map that would be there is behind it. */
    return every && ((number - 2) % every == 0 || (number == locked + 1 && (locked - 2) % every == 0));
}

/* Finds the first page that nothing was found to have. */
static Status find_unmet_page(Search *search, uint32_t *lost) {
    uint32_t unlisted = search->unlisted;
    Status status = OK;
    for (uint32_t number = 2; number <= search->file->pages && status == OK; number++) {
        if (is_met(search->met, number) || is_reserved(search, number))
            continue;
        const uint8_t *page = search->damaged_tree ? page_in_block(&search->block, number, 1, &status) : NULL;
        if (page && *page != LEAF_PAGE && *page != INTERIOR_PAGE)
            continue; /* it may be of an index */
        if (unlisted) {
            unlisted--;
            continue;
        }
        *lost = number;
        break;
    }
    return status;
}

Status find_lost_page(const PageFile *file, const uint32_t *roots, size_t count, uint8_t *met, uint32_t *lost) {
    Search search = {.file = file, .block.file = file, .chain.file = file, .met = met};
    Status status = OK;
    const uint8_t *first = page_in_block(&search.block, 1, 1, &status);
    *lost = 0;
    if (first) {
        uint32_t free_pages = be32(first + FREE_PAGES), found = 0;
        search.pointer_maps = be32(first + POINTER_MAPS) ? file->page_size / POINTER_BYTES + 1 : 0;
        if ((status = take_free_pages(&search, be32(first + FIRST_FREE), &found)) == DAMAGED) {
            search.unlisted = free_pages > found ? free_pages - found : 0;
            status = OK;
        }
    }
    /* What leaves go on in is looked at only where something is amiss without it. */
    for (int with_leaves = 0; with_leaves < 2 && status == OK && (!with_leaves || *lost); with_leaves++) {
        *lost = 0;
        for (size_t k = 0; k < count && status == OK; k++)
            if ((status = take_tree(&search, roots[k], with_leaves)) == DAMAGED) {
                search.damaged_tree = true;
                status = OK;
            }
        if (status == OK)
            status = find_unmet_page(&search, lost);
    }
    free_block(&search.block);
    free_block(&search.chain);
    free_leaves(&search.level);
    free_leaves(&search.below);
    return status;
}
