#include "records.h"

#include <math.h>
#include <stdlib.h>

#include "bytes.h"

/* Record headers that are remembered, and the longest of them. A table has a few dozen: a header tells how many bytes each value takes. */
#define PLANS 512
#define LONGEST_PLANNED 64
/* SQLite has no longer headers. */
#define LONGEST_HEADER 98307
#define MOST_COLUMNS 2000
/* Values are loaded as the last bytes of a word: there must be as many bytes before each. Before a record in a page there are its page's
 * header and pointers, and what stands between them and the record. */
#define BEFORE 8
/* All leaves are read if more than one row is chosen of so many, on average. */
#define LEAVES_PER_ROW 4
#define FIRST_REAL 7
#define ZERO 8
#define FIRST_TEXT 12

/* Where a value is in a record. An integer is the big-endian word that ends at `end`, shifted there and back to lose the bytes before it,
 * then `mask` and `add` make constants of those that take no bytes: no branch for any of them. */
typedef struct {
    uint32_t end;
    uint8_t shift, type;
    bool odd;
    int64_t mask, add;
    uint64_t size;
} Place;

/* The places of all columns in the records that begin with a header. */
typedef struct Plan {
    struct Plan *next;    /* of the row behind the last one of this plan, usually that of the next one too */
    uint64_t rows;        /* met since the plan was made: tells how many NULLs there were */
    uint32_t values_end;  /* of the last wanted value */
    uint64_t record_size; /* what the header says of it */
    uint8_t size;
    uint8_t reasons;      /* to note rows */
    uint8_t header[LONGEST_PLANNED];
    Place *places;
} Plan;

struct Decoder {
    const PageFile *file;
    Column *columns;
    size_t count;
    size_t plain;                 /* of `ordered`, so many come first whose values are told by their places, */
    size_t shared;                /* and behind these so many whose types are in the values of `types` */
    size_t types;
    Column **ordered;
    int64_t **plain_values;
    int32_t fields;               /* to look at in a record */
    int32_t *first_of_field;      /* the first column of a field in `ordered`, or -1 */
    int32_t *next_of_field;       /* the next column of the same field */
    Plan *last_plan;              /* of the row before */
    Plan *plans;                  /* PLANS of them by hash, and one more for headers that are too long */
    Place *places;
    Block block, chain;
    uint8_t *record;              /* one that goes on in overflow pages, behind BEFORE bytes */
    size_t record_room;
    uint64_t overflow_pages;      /* read by this decoder */
    uint8_t *met;                 /* pages of the file that were met, where all of a table is checked */
    TakenBytes taken;             /* then, those of the page at hand */
    const uint8_t *rules;         /* then, what each of so many fields cannot have */
    int32_t ruled_fields;
    int64_t first_rowid, last_rowid;  /* met then */
    Outline *outline;             /* then, of all rows, or NULL */
    const int64_t *chosen, *chosen_end;  /* the rowids of the rows to come, NULL for all rows */
};

/* ---- making and freeing ---- */

static bool is_plain(const Column *column) {
    return column->kind == TYPES || (column->kind == INTEGERS && column->field != ROWID);
}

/* Finds which columns of TYPES share the values of the first. Returns whether they have room there. */
static bool share_types(Column *columns, size_t count) {
    const Column *first = NULL;
    size_t sharing = 0;
    for (size_t k = 0; k < count; k++) {
        columns[k].shift = 0;
        if (columns[k].kind != TYPES || !is_plain(&columns[k]))
            continue;
        first = first ? first : &columns[k];
        if (columns[k].values == first->values)
            columns[k].shift = (uint8_t)(TYPE_BITS * sharing++);
    }
    return sharing <= MOST_TYPES;
}

Status new_decoder(const PageFile *file, Column *columns, size_t count, Decoder **made) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    *made = decoder;
    if (!decoder)
        return NO_MEMORY;
    decoder->file = decoder->block.file = decoder->chain.file = file;
    decoder->columns = columns;
    decoder->count = count;
    bool fit = share_types(columns, count);
    for (size_t k = 0; k < count; k++) {
        columns[k].nulls = columns[k].odd = 0;
        if (columns[k].field >= MOST_COLUMNS || count > MOST_COLUMNS || !fit) {
            free_decoder(decoder);
            return UNSUPPORTED;
        }
        if (columns[k].field >= decoder->fields)
            decoder->fields = columns[k].field + 1;
    }
    decoder->ordered = malloc((count + 1) * sizeof *decoder->ordered);
    decoder->plain_values = malloc((count + 1) * sizeof *decoder->plain_values);
    decoder->first_of_field = malloc(((size_t)decoder->fields + 1) * sizeof *decoder->first_of_field);
    decoder->next_of_field = malloc((count + 1) * sizeof *decoder->next_of_field);
    decoder->plans = calloc(PLANS + 1, sizeof *decoder->plans);
    decoder->places = malloc((PLANS + 1) * (count + 1) * sizeof *decoder->places);
    if (!decoder->ordered || !decoder->plain_values || !decoder->first_of_field || !decoder->next_of_field || !decoder->plans
        || !decoder->places) {
        free_decoder(decoder);
        return NO_MEMORY;
    }
    for (size_t k = 0; k <= PLANS; k++) {
        decoder->plans[k].places = decoder->places + k * count;
        decoder->plans[k].next = decoder->plans;
    }
    decoder->last_plan = decoder->plans;
    size_t placed = 0, any_types = 0;
    for (int turn = 0; turn < 3; turn++) {
        for (size_t k = 0; k < count; k++) {
            if (turn != (!is_plain(&columns[k]) ? 2 : columns[k].shift ? 1 : 0))
                continue;
            if (columns[k].kind == TYPES && !turn && !any_types++)
                decoder->types = placed;
            decoder->ordered[placed++] = &columns[k];
        }
        if (turn == 0)
            decoder->plain = placed;
        if (turn == 1)
            decoder->shared = placed - decoder->plain;
    }
    for (size_t k = 0; k < decoder->plain; k++)
        decoder->plain_values[k] = decoder->ordered[k]->values;
    for (int32_t field = 0; field < decoder->fields; field++)
        decoder->first_of_field[field] = -1;
    for (size_t k = 0; k < count; k++) {
        int32_t field = decoder->ordered[k]->field;
        decoder->next_of_field[k] = -1;
        if (field >= 0) {
            decoder->next_of_field[k] = decoder->first_of_field[field];
            decoder->first_of_field[field] = (int32_t)k;
        }
    }
    return OK;
}

void choose_rows(Decoder *decoder, const int64_t *rowids, size_t count) {
    decoder->chosen = rowids;
    decoder->chosen_end = rowids + count;
}

void free_decoder(Decoder *decoder) {
    if (!decoder)
        return;
    free_block(&decoder->block);
    free_block(&decoder->chain);
    free(decoder->ordered);
    free(decoder->plain_values);
    free(decoder->first_of_field);
    free(decoder->next_of_field);
    free(decoder->plans);
    free(decoder->places);
    free(decoder->record);
    free(decoder);
}

/* ---- plans: from the header of a record to the places of its values ---- */

/* The place of a value of this serial type that ends at `end`. */
static Place place_of(const Column *column, uint64_t serial, uint64_t size, uint64_t end) {
    Place place = {.end = (uint32_t)end, .size = size, .mask = 0, .shift = 0, .add = column->null};
    bool is_integer = serial >= 1 && serial <= 9 && serial != FIRST_REAL;
    place.type = !serial ? NULL_TYPE : is_integer ? INTEGER_TYPE : serial == FIRST_REAL ? REAL_TYPE : serial & 1 ? TEXT_TYPE : BLOB_TYPE;
    if (is_integer) {
        /* Of REAL affinity it stands for a real, which is no integer to those who want integers. */
        if (column->holds_reals)
            place.type = REAL_TYPE;
        if (!column->holds_reals || column->kind != INTEGERS) {
            place.mask = size ? -1 : 0;
            place.shift = size ? (uint8_t)(64 - 8 * size) : 0;
            place.add = size ? 0 : (int64_t)serial - 8;
        }
    }
    if (column->kind == TYPES) {
        place.mask = 0;
        place.add = (int64_t)place.type << column->shift;
        return place;
    }
    bool is_number = place.type == INTEGER_TYPE || place.type == REAL_TYPE, is_bytes = place.type == TEXT_TYPE || place.type == BLOB_TYPE;
    if (column->kind == INTEGERS)
        place.odd = place.type == REAL_TYPE || is_bytes;
    else if (column->kind == REALS)
        place.odd = is_bytes;
    else
        place.odd = column->kind == TEXTS && is_number;
    return place;
}

/* Makes the plan of the record whose header stands in `header` as a whole: size bytes. */
static Status make_plan(const Decoder *decoder, const uint8_t *header, uint64_t size, uint64_t record_size, Plan *plan) {
    const uint8_t *end = header + size, *at;
    uint64_t offset = size, serial;
    if (!(at = read_varint(header, end, &serial)))
        return DAMAGED;
    plan->rows = plan->reasons = 0;
    plan->values_end = 0;
    for (size_t k = 0; k < decoder->count; k++)
        if (decoder->ordered[k]->field == ROWID)
            plan->places[k] = (Place){.type = INTEGER_TYPE, .add = (int64_t)INTEGER_TYPE << decoder->ordered[k]->shift};
    int32_t field = 0;
    for (; at < end; field++) {
        if (decoder->rules && field == decoder->ruled_fields)
            return DAMAGED; /* of another table */
        static const uint8_t sizes[FIRST_TEXT] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
        if (!(at = read_varint(at, end, &serial)) || serial == 10 || serial == 11)
            return DAMAGED;
        bool is_number = serial && serial < FIRST_TEXT;
        if (decoder->rules && decoder->rules[field] & (serial ? is_number ? NO_NUMBER : 0 : NOT_NULL))
            return DAMAGED;
        if (decoder->rules && serial && decoder->rules[field] & (serial == ZERO ? NOTED : NOTED | NOTED_UNLESS_ZERO))
            plan->reasons |= decoder->rules[field] >> FIRST_REASON;
        uint64_t value = serial < FIRST_TEXT ? sizes[serial] : (serial - FIRST_TEXT) / 2;
        if (value > record_size - offset)
            return DAMAGED;
        offset += value;
        for (int32_t k = field < decoder->fields ? decoder->first_of_field[field] : -1; k >= 0; k = decoder->next_of_field[k]) {
            plan->places[k] = place_of(decoder->ordered[k], serial, value, offset);
            plan->values_end = (uint32_t)offset;
        }
    }
    for (int32_t lacking = field; lacking < decoder->ruled_fields; lacking++)
        if (decoder->rules[lacking] & NOT_NULL)
            return DAMAGED;
    for (; field < decoder->fields; field++)
        for (int32_t k = decoder->first_of_field[field]; k >= 0; k = decoder->next_of_field[k]) {
            /* The row is older than the column. */
            if (decoder->ordered[k]->has_default)
                return UNSUPPORTED;
            plan->places[k] = place_of(decoder->ordered[k], 0, 0, 0);
        }
    for (size_t k = decoder->plain; k < decoder->plain + decoder->shared; k++)
        plan->places[decoder->types].add |= plan->places[k].add;
    plan->record_size = offset;
    return offset == record_size ? OK : DAMAGED;
}

/* Adds what rows of a plan had of NULLs and of odd values to the columns. */
static void count_rows(const Decoder *decoder, Plan *plan) {
    for (size_t k = 0; k < decoder->count && plan->rows; k++) {
        Column *column = decoder->ordered[k];
        column->nulls += plan->places[k].type == NULL_TYPE ? plan->rows : 0;
        column->odd += plan->places[k].odd ? plan->rows : 0;
    }
    plan->rows = 0;
}

static inline uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* The last bytes of a header, as a word with as many before them as it takes: there are BEFORE at least. */
static inline uint64_t last_word(const uint8_t *header, uint32_t size) { return word_at(header + size - 8) >> 8 * (8 - (size & 7)); }

static inline uint32_t hash_of_header(const uint8_t *header, uint32_t size) {
    uint64_t hash = size;
    /* Words are mixed without waiting for products: what is mixed badly costs a second look, no more. */
    for (uint32_t at = 0; at + 8 <= size; at += 8)
        hash = (hash << 23 | hash >> 41) ^ word_at(header + at);
    if (size & 7)
        hash = (hash << 23 | hash >> 41) ^ last_word(header, size);
    hash *= 0x9e3779b97f4a7c15ull;
    return (uint32_t)((hash ^ hash >> 32) >> 16);
}

/* Whether a plan is of this header. */
static inline bool is_of(const Plan *plan, const uint8_t *header, uint32_t size) {
    if (plan->size != size || !size)
        return false;
    if (size < 8)
        return !((word_at(plan->header + size - 8) ^ word_at(header + size - 8)) >> (64 - 8 * size));
    uint64_t differ = word_at(plan->header + size - 8) ^ word_at(header + size - 8);
    for (uint32_t at = 0; at + 8 <= size; at += 8)
        differ |= word_at(plan->header + at) ^ word_at(header + at);
    return !differ;
}

/* ---- records that go on in overflow pages ---- */

/* The first `wanted` bytes of a record; NULL with a status where they cannot be had. What is allocated grows with what is read, whatever
 * the record says of its size. */
static const uint8_t *gathered(Decoder *decoder, const Row *row, uint64_t wanted, Status *status) {
    uint64_t have = row->local;
    uint32_t next = row->overflow_page, part = decoder->file->page_size - 4;
    for (bool first = true; first || have < wanted; first = false) {
        if (decoder->record_room < BEFORE + have + part) {
            size_t room = 2 * (BEFORE + have + part);
            uint8_t *record = realloc(decoder->record, room);
            if (!record) {
                *status = NO_MEMORY;
                return NULL;
            }
            decoder->record = record;
            decoder->record_room = room;
        }
        if (first) {
            memset(decoder->record, 0, BEFORE);
            memcpy(decoder->record + BEFORE, row->at, row->local);
            continue;
        }
        const uint8_t *page = page_in_block(&decoder->chain, next, 1, status);
        /* A table has each page once; it is read for a record's header, and again for its values. */
        if (!page || ++decoder->overflow_pages > 2 * (uint64_t)decoder->file->pages) {
            *status = page ? DAMAGED : *status;
            return NULL;
        }
        uint64_t taken = wanted - have < part ? wanted - have : part;
        memcpy(decoder->record + BEFORE + have, page + 4, taken);
        next = be32(page);
        have += taken;
    }
    return decoder->record + BEFORE;
}

/* ---- rows ---- */

/* The plan of a row's record by its header: remembered, or made. */
static Plan *look_up_plan(Decoder *decoder, const Row *row, Status *status) {
    uint64_t size = row->at[0];
    const uint8_t *header = row->at;
    Plan *plan = &decoder->plans[PLANS];
    if (size <= LONGEST_PLANNED && size <= row->local) {
        /* A size in one byte is below 128, and so are those of plans. */
        uint32_t hash = hash_of_header(header, (uint32_t)size);
        /* One of two places; a new plan takes an empty one, or that of either. */
        Plan *pair = &decoder->plans[hash % PLANS & ~1u];
        plan = is_of(&pair[0], header, (uint32_t)size) ? &pair[0] : &pair[1];
        if (plan == &pair[0] || is_of(plan, header, (uint32_t)size)) {
            if (plan->record_size == row->size)
                return plan;
            *status = DAMAGED;
            return NULL;
        }
        plan = &pair[pair[0].size && (!pair[1].size || hash >> 31)];
    } else {
        /* The varint of the size may itself be longer than what there is of the record here. */
        if (!read_varint(row->at, row->at + row->local, &size))
            *status = DAMAGED;
        else if (size > row->size || size > LONGEST_HEADER)
            *status = DAMAGED;
        else if (size > row->local)
            header = gathered(decoder, row, size, status);
        if (*status != OK)
            return NULL;
    }
    count_rows(decoder, plan);
    plan->size = 0;
    if ((*status = make_plan(decoder, header, size, row->size, plan)) != OK)
        return NULL;
    if (plan != &decoder->plans[PLANS]) {
        plan->size = (uint8_t)size;
        memcpy(plan->header, header, size);
    }
    return plan;
}

/* The plan of a row's record. */
static inline Plan *plan_of(Decoder *decoder, const Row *row, Status *status) {
    /* Looking at the likely plan first, the processor need not wait for the hash. */
    Plan *plan = decoder->last_plan->next;
    if (row->at[0] > row->local || !is_of(plan, row->at, row->at[0]) || plan->record_size != row->size) {
        if (!(plan = look_up_plan(decoder, row, status)))
            return NULL;
        decoder->last_plan->next = plan;
    }
    decoder->last_plan = plan;
    return plan;
}

static inline int64_t integer_at(const uint8_t *record, const Place *place) {
    uint64_t word = be64(record + place->end - 8);
    return (((int64_t)(word << place->shift) >> place->shift) & place->mask) + place->add;
}

/* Puts the value of a column that is not plain. */
static Status put_value(Column *column, size_t row, int64_t rowid, const uint8_t *record, const Place *place) {
    int64_t *values = column->values;
    uint8_t type = place->type;
    if (column->field == ROWID) {
        values[row] = rowid;
        if (column->kind == REALS)
            ((double *)column->values)[row] = (double)rowid;
        else if (column->kind == TEXTS) {
            column->odd++;
            values[row] = number_of_text(column->texts, record, 0);
            return values[row] < 0 ? NO_MEMORY : OK;
        }
    } else if (column->kind == INTEGERS)
        values[row] = integer_at(record, place);
    else if (type == TEXT_TYPE || type == BLOB_TYPE || column->kind == TEXTS) {
        bool is_bytes = type == TEXT_TYPE || type == BLOB_TYPE;
        if (column->kind == REALS)
            ((double *)column->values)[row] = NAN;
        else if ((values[row] = number_of_text(column->texts, record + place->end - (is_bytes ? place->size : 0),
                                               is_bytes ? place->size : 0)) < 0)
            return NO_MEMORY;
    } else if (type == NULL_TYPE && column->kind == REALS)
        ((double *)column->values)[row] = NAN;
    else if (type == REAL_TYPE || column->kind == REALS) {
        /* An integer here stands for a real, or is wanted as one. */
        bool stored_as_integer = place->mask || !place->size;
        double value = stored_as_integer ? (double)integer_at(record, place) : real_from_bits(be64(record + place->end - 8));
        memcpy(&values[row], &value, 8);
    } else
        values[row] = type == NULL_TYPE ? column->null : integer_at(record, place);
    if (column->kind == VALUES)
        column->types[row] = type;
    return OK;
}

/* Puts the values of a row into the columns at `place`. */
static inline Status put_row(Decoder *decoder, const Row *found, size_t place) {
    Status status = OK;
    Plan *plan = plan_of(decoder, found, &status);
    if (!plan)
        return status;
    const uint8_t *record = found->at;
    if (plan->values_end > found->local && !(record = gathered(decoder, found, plan->values_end, &status)))
        return status;
    plan->rows++;
    for (size_t k = 0; k < decoder->plain; k++)
        decoder->plain_values[k][place] = integer_at(record, &plan->places[k]);
    for (size_t k = decoder->plain + decoder->shared; k < decoder->count && status == OK; k++)
        status = put_value(decoder->ordered[k], place, found->rowid, record, &plan->places[k]);
    return status;
}

Status decode_row(Decoder *decoder, const Row *found, size_t place) { return put_row(decoder, found, place); }

/* The cells of a leaf. Their rowids ascend from above `before`, if there is a leaf before, up to `upper`. */
typedef struct {
    const uint8_t *page;
    uint32_t page_size, header, pointers, cells;
    int64_t before, upper;
    bool any_before;
} Leaf;

/* False where the page is no leaf, or empty though there are others: only a table without rows has an empty leaf. */
static inline bool open_leaf(const Decoder *decoder, const uint8_t *page, const Leaves *leaves, size_t number, Leaf *leaf) {
    const uint32_t header = header_offset(leaves->page[number]), cells = be16(page + header + 3);
    *leaf = (Leaf){.page = page, .page_size = decoder->file->page_size, .header = header, .pointers = header + 8, .cells = cells,
                   .before = number ? leaves->last[number - 1] : INT64_MIN, .upper = leaves->last[number], .any_before = number > 0};
    return page[header] == LEAF_PAGE && leaf->pointers + 2 * cells <= leaf->page_size && (cells || leaves->count == 1);
}

/* Reads a cell, and where it is. False where it is damaged. */
static inline bool read_cell(const Leaf *leaf, uint32_t cell, uint32_t *offset, Row *found) {
    *offset = be16(leaf->page + leaf->pointers + 2 * cell);
    return *offset >= leaf->pointers + 2 * leaf->cells && *offset < leaf->page_size && read_row(leaf->page, leaf->page_size, *offset, found);
}

/* Whether a row may be the next one. */
static inline bool follows(Leaf *leaf, const Row *found) {
    if ((leaf->any_before && found->rowid <= leaf->before) || found->rowid > leaf->upper)
        return false;
    leaf->before = found->rowid;
    leaf->any_before = true;
    return true;
}

/* Checks all of a leaf, and adds its rows to the outline. */
static Status check_leaf(Decoder *decoder, const uint8_t *page, const Leaves *leaves, size_t number, size_t *rows) {
    Leaf leaf;
    Status status = OK;
    if (!open_leaf(decoder, page, leaves, number, &leaf))
        return DAMAGED;
    begin_page(&decoder->taken, leaf.page_size);
    for (uint32_t cell = 0, offset; cell < leaf.cells; cell++) {
        Row found;
        if (!read_cell(&leaf, cell, &offset, &found) || !follows(&leaf, &found) || !take_bytes(&decoder->taken, offset, found.cell))
            return DAMAGED;
        decoder->first_rowid = *rows ? decoder->first_rowid : found.rowid;
        Plan *plan = plan_of(decoder, &found, &status);
        if (!plan)
            return status;
        plan->rows++;
        if (decoder->outline) {
            const uint8_t *record = plan->values_end <= found.local ? found.at : gathered(decoder, &found, plan->values_end, &status);
            int64_t values[GROUP];
            /* Many tables lack some of the columns. */
            for (size_t k = 0; k < GROUP && record; k++)
                values[k] = decoder->columns[k].field < decoder->ruled_fields ? integer_at(record, &plan->places[k]) : INT64_MIN;
            uint32_t reasons = plan->reasons;
            if (reasons && record) {
                const uint64_t group = (uint64_t)integer_at(record, &plan->places[GROUP]);
                reasons |= (uint32_t)(group < OTHER_GROUPS ? group : OTHER_GROUPS) << REASON_BITS;
            }
            if (!record || (status = note_row(decoder->outline, (uint64_t)found.rowid - (uint64_t)decoder->first_rowid, reasons, values[BEGIN], values[END],
                                              values[ID], values[TYPE])) != OK)
                return status;
        }
        if (found.overflow_page
            && (status = follow_chain(&decoder->chain, found.overflow_page, found.size - found.local, decoder->met)) != OK)
            return status;
        ++*rows;
    }
    decoder->last_rowid = leaf.before;
    return fills_page(page, leaf.header, leaf.page_size, &decoder->taken) ? OK : DAMAGED;
}

/* Decodes the rows of a leaf whose rowids are from `first` to `last`. */
static Status decode_leaf(Decoder *decoder, const uint8_t *page, const Leaves *leaves, size_t number, int64_t first, int64_t last,
                          size_t *row, size_t room) {
    Leaf leaf;
    Status status = OK;
    if (!open_leaf(decoder, page, leaves, number, &leaf))
        return DAMAGED;
    for (uint32_t cell = 0, offset; cell < leaf.cells; cell++) {
        Row found;
        if (decoder->chosen_end) {
            /* Cells stand in the order of their rowids: whatever is skipped is before the next chosen one. */
            uint32_t beyond = leaf.cells;
            while (decoder->chosen != decoder->chosen_end && cell < beyond) {
                uint32_t middle = cell + (beyond - cell) / 2;
                if (!read_cell(&leaf, middle, &offset, &found))
                    return DAMAGED;
                if (found.rowid < *decoder->chosen)
                    cell = middle + 1;
                else
                    beyond = middle;
            }
            if (cell == leaf.cells)
                break;
        }
        if (!read_cell(&leaf, cell, &offset, &found) || !follows(&leaf, &found))
            return DAMAGED;
        if (found.rowid < first)
            continue;
        if (found.rowid > last)
            return OK;
        while (decoder->chosen != decoder->chosen_end && *decoder->chosen < found.rowid)
            decoder->chosen++;
        if (decoder->chosen_end && (decoder->chosen == decoder->chosen_end || *decoder->chosen != found.rowid))
            continue;
        if (*row >= room)
            return NO_ROOM;
        if ((status = put_row(decoder, &found, *row)) != OK)
            return status;
        ++*row;
    }
    return OK;
}

Status decode_leaves(Decoder *decoder, const Leaves *leaves, size_t from, size_t to, int64_t first, int64_t last, size_t *row,
                     size_t room, uint32_t *damaged) {
    Status status = OK;
    uint32_t together = 1;
    if (from > to || to > leaves->count)
        return DAMAGED;
    const bool is_dense = !decoder->chosen_end || (size_t)(decoder->chosen_end - decoder->chosen) > (to - from) / LEAVES_PER_ROW;
    decoder->overflow_pages = 0;
    for (size_t leaf = from; leaf < to && status == OK; leaf++) {
        uint32_t number = *damaged = leaves->page[leaf];
        if (decoder->chosen_end && (decoder->chosen == decoder->chosen_end || *decoder->chosen > leaves->last[leaf])) {
            together -= together > 1;
            continue;
        }
        /* Leaves that follow each other in the file are read together. */
        if (together > 1)
            together--;
        else if (is_dense)
            while (leaf + together < to && together < pages_of_block(decoder->file) && leaves->page[leaf + together] == number + together)
                together++;
        const uint8_t *page = page_in_block(&decoder->block, number, together, &status);
        if (page)
            status = decoder->met ? check_leaf(decoder, page, leaves, leaf, row) : decode_leaf(decoder, page, leaves, leaf, first, last, row, room);
    }
    for (size_t k = 0; k <= PLANS; k++)
        count_rows(decoder, &decoder->plans[k]);
    return status;
}

Status check_table(const PageFile *file, uint32_t root, const uint8_t *rules, size_t fields, uint8_t *met, Outline *outline, Extent *found,
                   uint32_t *damaged) {
    Decoder *decoder = NULL;
    Leaves leaves;
    Status status = find_leaves(file, root, met, &leaves, damaged);
    *found = (Extent){0};
    if (status == OK && rules && (status = new_decoder(file, outline ? outline->columns : NULL, outline ? OUTLINED : 0, &decoder)) == OK) {
        decoder->met = met;
        decoder->outline = outline;
        decoder->rules = rules;
        decoder->ruled_fields = (int32_t)fields;
        status = decode_leaves(decoder, &leaves, 0, leaves.count, INT64_MIN, INT64_MAX, &found->rows, SIZE_MAX, damaged);
        found->first = decoder->first_rowid;
        found->last = decoder->last_rowid;
    }
    free_decoder(decoder);
    free_leaves(&leaves);
    return status;
}
