/* Columns of the rows of a table, decoded from its leaf pages. */
#ifndef NSYS2PRV_RECORDS_H
#define NSYS2PRV_RECORDS_H

#include <stdbool.h>

#include "pages.h"
#include "texts.h"

typedef enum {
    INTEGERS,  /* int64_t: `null` for NULL and for what is no integer */
    REALS,     /* double: NaN for NULL and for texts and blobs */
    TYPES,     /* int64_t: what type each value has */
    TEXTS,     /* int64_t: numbers of texts or blobs; those of no bytes for NULL and for numbers */
    VALUES,    /* int64_t: an integer, the bits of a real, or the number of a text or blob, as `types` says */
} Kind;

/* What TYPES have, and what `types` says of a row. */
enum { NULL_TYPE, INTEGER_TYPE, REAL_TYPE, TEXT_TYPE, BLOB_TYPE };

/* The field of a column that is the rowid itself. */
#define ROWID (-1)

/* What is wanted of a column, where it goes, and what is found. */
typedef struct {
    int32_t field;       /* its place in a record, from 0 */
    Kind kind;
    bool is_rowid;       /* INTEGER PRIMARY KEY: the records hold NULL and mean the rowid */
    bool holds_reals;    /* of REAL affinity: integers in the records stand for reals */
    bool has_default;    /* records that end before the field do not mean NULL: the reader stands aside */
    int64_t null;
    void *values;
    uint8_t *types;      /* of VALUES only */
    Texts *texts;        /* of TEXTS and VALUES */
    uint64_t nulls, odd; /* found: rows with NULL, and rows whose value is of another kind than the column */
} Column;

/* What decodes leaves, one range after the other, into the same columns. One thread at a time uses it. */
typedef struct Decoder Decoder;

/* The columns must outlive the decoder. */
Status new_decoder(const PageFile *, Column *columns, size_t count, Decoder **);
void free_decoder(Decoder *);
/* Puts the rows of leaves from..to - 1 whose rowids are from `first` to `last` into the columns, the first of them at index *row, and
 * leaves there the index behind the last. room: rows that the columns have room for. damaged: gets the leaf that a status other than OK is
 * about. */
Status decode_leaves(Decoder *, const Leaves *, size_t from, size_t to, int64_t first, int64_t last, size_t *row, size_t room,
                     uint32_t *damaged);

/* How many rows a table has, and its least and greatest rowid; these mean nothing without rows. */
typedef struct {
    size_t rows;
    int64_t first, last;
} Extent;

/* Reads all of a table and finds its extent: whether each of its pages is met once and full of cells, each header says how long its record
 * is, and each record ends where its chain of overflow pages does and has values for the table's columns. required: for each of `fields` of
 * them whether it cannot be NULL. met, damaged: as of find_leaves. */
Status check_table(const PageFile *, uint32_t root, const uint8_t *required, size_t fields, uint8_t *met, Extent *found, uint32_t *damaged);

#endif
