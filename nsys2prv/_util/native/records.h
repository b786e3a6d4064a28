/* Columns of the rows of a table, decoded from its leaf pages. */
#ifndef NSYS2PRV_RECORDS_H
#define NSYS2PRV_RECORDS_H

#include <stdbool.h>

#include "bytes.h"
#include "pages.h"
#include "texts.h"

typedef enum {
    INTEGERS,  /* int64_t: `null` for NULL and for what is no integer */
    REALS,     /* double: NaN for NULL and for texts and blobs */
    TYPES,     /* int64_t: what type each value has; columns that share the values of the first of them have TYPE_BITS each, upwards */
    TEXTS,     /* int64_t: numbers of texts or blobs; those of no bytes for NULL and for numbers */
    VALUES,    /* int64_t: an integer, the bits of a real, or the number of a text or blob, as `types` says */
} Kind;

/* What TYPES have, and what `types` says of a row. */
enum { NULL_TYPE, INTEGER_TYPE, REAL_TYPE, TEXT_TYPE, BLOB_TYPE };

#define TYPE_BITS 3
#define MOST_TYPES (63 / TYPE_BITS)

/* The field of a column that is the rowid itself (INTEGER PRIMARY KEY): whatever the records hold there means nothing. */
#define ROWID (-1)

/* What is wanted of a column, where it goes, and what is found. */
typedef struct {
    int32_t field;       /* its place in a record, from 0 */
    Kind kind;
    bool holds_reals;    /* of REAL affinity: integers in the records stand for reals */
    bool has_default;    /* records that end before the field do not mean NULL: the reader stands aside */
    int64_t null;
    void *values;
    uint8_t *types;      /* of VALUES only */
    Texts *texts;        /* of TEXTS and VALUES */
    uint8_t shift;       /* of TYPES that share values: where theirs stand; decoders set it */
    uint64_t nulls, odd; /* found: rows with NULL, and rows whose value is of another kind than the column */
} Column;

/* SQLite's default limit of a row. */
#define LONGEST_RECORD 1000000000u
/* SQLite reserves no less for a cell. */
#define LEAST_CELL 4

/* A row, or an entry of an index, as its page has it. */
typedef struct {
    int64_t rowid;
    uint64_t size;           /* of the whole record */
    uint32_t local;          /* bytes of it in the leaf */
    uint32_t cell;           /* bytes of the whole cell */
    const uint8_t *at;
    uint32_t overflow_page;  /* where it goes on */
} Row;

/* Bytes of a record that stand in its page, where that has at most `most` of them. */
static inline uint32_t count_local(uint64_t size, uint32_t most, uint32_t page_size) {
    uint32_t least = (page_size - 12) * 32 / 255 - 23;
    if (size <= most)
        return (uint32_t)size;
    uint32_t fits = least + (uint32_t)((size - least) % (page_size - 4));
    return fits <= most ? fits : least;
}

/* Reads a cell of a leaf; false where it is not inside of the page. */
static inline bool read_row(const uint8_t *page, uint32_t page_size, uint32_t offset, Row *row) {
    const uint8_t *end = page + page_size, *at;
    uint64_t rowid;
    if (!(at = read_varint(page + offset, end, &row->size)) || !(at = read_varint(at, end, &rowid)))
        return false;
    row->rowid = (int64_t)rowid;
    row->at = at;
    uint32_t most = page_size - 35;
    if (row->size <= most) {
        row->local = (uint32_t)row->size;
        row->overflow_page = 0;
        row->cell = (uint32_t)(at - page) - offset + row->local;
        row->cell = row->cell < LEAST_CELL ? LEAST_CELL : row->cell;
        return row->size && row->size <= (uint64_t)(end - at);
    }
    if (row->size > LONGEST_RECORD)
        return false;
    row->local = count_local(row->size, most, page_size);
    if (row->local + 4 > (uint64_t)(end - at))
        return false;
    row->overflow_page = be32(at + row->local);
    row->cell = (uint32_t)(at - page) - offset + row->local + 4;
    return true;
}

/* What decodes leaves, one range after the other, into the same columns. One thread at a time uses it. */
typedef struct Decoder Decoder;

/* The columns must outlive the decoder. */
Status new_decoder(const PageFile *, Column *columns, size_t count, Decoder **);
void free_decoder(Decoder *);
/* Has it decode the rows with these rowids alone, which ascend, in the ranges that follow. */
void choose_rows(Decoder *, const int64_t *rowids, size_t count);
/* Puts the rows of leaves from..to - 1 whose rowids are from `first` to `last` into the columns, the first of them at index *row, and
 * leaves there the index behind the last. room: rows that the columns have room for. damaged: gets the leaf that a status other than OK is
 * about. */
Status decode_leaves(Decoder *, const Leaves *, size_t from, size_t to, int64_t first, int64_t last, size_t *row, size_t room,
                     uint32_t *damaged);

/* Puts a single row into the columns at `place`. decode_leaves tells of it as of its own rows when it is next called. */
Status decode_row(Decoder *, const Row *, size_t place);

/* How many rows a table has, and its least and greatest rowid; these mean nothing without rows. */
typedef struct {
    size_t rows;
    int64_t first, last;
} Extent;

/* Rules of a column: no NULL; no numbers, which SQLite makes texts where the affinity is TEXT. And what is no rule: an outline notes the rows
 * with a value, or with one that does not stand for 0 by its type; the bits above tell the reason, which the caller knows. */
enum { NOT_NULL = 1, NO_NUMBER = 2, NOTED = 4, NOTED_UNLESS_ZERO = 8, FIRST_REASON = 4 };
/* Bits of the reasons of a noted row, and of its group above them, where the greatest number stands for all others. */
enum { REASON_BITS = 4, GROUP_BITS = 8, OTHER_GROUPS = (1 << GROUP_BITS) - 1 };

/* Columns of an outline: times, an id, a type, which tells the traits of a row, and a group. The least number stands for NULL. */
enum { BEGIN, END, ID, TYPE, GROUP, OUTLINED };

/* Of each block: its least begin, the greatest begin or end, the least and the greatest id, and the traits of any of its rows. Without rows the
 * least are the greatest number, and the greatest are the least. */
enum { LEAST, GREATEST, LOW, HIGH, TRAITS, BOUNDS };

/* A row lasts, one has no begin, one that lasts no end, and one is noted; other bits are the caller's. */
enum { IS_RANGE = 1, IS_UNDATED = 2, IS_OPEN = 4, IS_NOTED = 8 };

/* Series of samples that are told from each other, and room for them (a power of 2). */
enum { MOST_SERIES = 512, SERIES_ROOM = 1024 };

/* Bounds of blocks of a table, of 1 << block_bits rowids each from the first one on. */
typedef struct {
    uint32_t block_bits;
    size_t most_blocks;
    const uint8_t *traits;  /* of so many types; of no types if each row lasts */
    size_t types;
    int64_t *bounds;
    size_t blocks, room;
    int64_t *block;         /* the bounds of the block of the row before, which ends before block_end; `beyond` where there are too many */
    uint64_t block_end;
    int64_t beyond[BOUNDS];
    int64_t *noted;         /* of rows with IS_NOTED: the rowid less the first one, above the group and the reasons; no more than most_noted of so many are kept */
    size_t most_noted, noted_count, noted_room;
    bool by_series;         /* id and type tell the series of a sample: its first row is noted, and each row if there are more than MOST_SERIES */
    size_t series_count;
    int64_t series[SERIES_ROOM][2];
    bool is_series[SERIES_ROOM];
    int64_t near_id;        /* of the row before; and of the types below 64, those of which it is known to have a series */
    uint64_t near_types;
    Column *columns;        /* OUTLINED of them, of INTEGERS in records */
} Outline;

/* Finds the bounds of the block of a row. Rows come in order. */
Status enter_block(Outline *, uint64_t row);
/* Notes a row. */
Status keep_noted(Outline *, uint64_t row, uint32_t reasons);
/* Whether a row is the first one of a series, as far as is known. */
bool begins_series(Outline *, int64_t id, int64_t type);

/* Adds a row with these values. row: its rowid less the first one; reasons: to note it, below its group. */
static inline Status note_row(Outline *outline, uint64_t row, uint32_t reasons, int64_t begin, int64_t end, int64_t id, int64_t type) {
    if (row >= outline->block_end && enter_block(outline, row) != OK)
        return NO_MEMORY;
    const bool is_near = id == outline->near_id && (uint64_t)type < 64 && outline->near_types >> type & 1;
    if (outline->by_series && !is_near && begins_series(outline, id, type))
        reasons = 1;
    if (reasons && keep_noted(outline, row, reasons) != OK)
        return NO_MEMORY;
    int64_t *block = outline->block;
    const int64_t greatest = end > begin ? end : begin;
    const uint8_t traits = !outline->types ? IS_RANGE : (uint64_t)type < outline->types ? outline->traits[type] : 0;
    block[TRAITS] |= traits | (reasons ? IS_NOTED : 0) | (begin == INT64_MIN ? IS_UNDATED : 0) | (end == INT64_MIN && traits & IS_RANGE ? IS_OPEN : 0);
    if (begin < block[LEAST] && begin != INT64_MIN)
        block[LEAST] = begin;
    if (greatest > block[GREATEST])
        block[GREATEST] = greatest;
    if (id < block[LOW] && id != INT64_MIN)
        block[LOW] = id;
    if (id > block[HIGH])
        block[HIGH] = id;
    return OK;
}

/* Reads all of a table and finds its extent: whether each of its pages is met once and full of cells, each header says how long its record
 * is, and each record ends where its chain of overflow pages does and has values that the table's columns can have. rules: for each of `fields` of
 * them what it cannot have; NULL: the interior pages alone are read, and nothing is found. outline: gets bounds, or NULL. met, damaged: as of
 * find_leaves. */
Status check_table(const PageFile *, uint32_t root, const uint8_t *rules, size_t fields, uint8_t *met, Outline *, Extent *found,
                   uint32_t *damaged);

#endif
