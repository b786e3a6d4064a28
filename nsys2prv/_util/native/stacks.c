#include "stacks.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"

#define FIRST_SLOTS 256
/* Odd numbers by which frames are mixed, as in nsys2prv.export.source. */
#define MIX_SYMBOL 0x1e3779b97f4a7c15u
#define MIX_MODULE 0x3f58476d1ce4e5b9u
#define MIX_DEPTH 0x14d049bb133111ebu
#define MIX_LAST 0x2545f4914f6cdd1du
/* Records of frames that are kept before they are decoded, more than stacks have. */
#define KEPT 512
/* A table of no more leaves is read as a whole; of a larger one the order is looked at in about so many. */
#define FEW_LEAVES 16
#define SAMPLED_LEAVES 256

/* Where each sum is among all: its number + 1, 0 where there is none. */
typedef struct {
    uint32_t *number;
    size_t count;
} Slots;

/* A cell in a page. */
typedef struct {
    const uint8_t *page;
    uint32_t offset;
} Cell;

/* The stack whose frames are being read. Most stacks were met before: their records say the same, but for the id, and need no decoding. */
typedef struct {
    Stacks *stacks;
    Decoder *decoder;
    const Column *columns;
    uint32_t page_size;
    int64_t id;
    uint64_t raw_sum;        /* of the records without the id */
    Cell kept[KEPT];         /* frames that are not decoded yet; their pages are in memory */
    size_t kept_count;
    Numbers frames;          /* those that are */
    Numbers raw_sums, raw_codes;  /* of stacks with different records the sum, and the number of the distinct stack that it is */
    Slots by_raw, by_sum;
} Collector;

static bool add(Numbers *numbers, const int64_t *values, size_t count) {
    if (numbers->count + count > numbers->room) {
        size_t room = 2 * (numbers->room + count) + FIRST_SLOTS;
        int64_t *grown = realloc(numbers->values, room * sizeof *grown);
        if (!grown)
            return false;
        numbers->values = grown;
        numbers->room = room;
    }
    if (count)
        memcpy(numbers->values + numbers->count, values, count * sizeof *values);
    numbers->count += count;
    return true;
}

void free_stacks(Stacks *stacks) {
    Numbers *all[] = {&stacks->ids, &stacks->codes, &stacks->sums, &stacks->lengths, &stacks->frames};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]->values);
}

/* The slot of a sum among those that are known, or an empty one. */
static uint32_t *slot_of(const Slots *slots, const Numbers *known, uint64_t sum) {
    size_t slot = sum & (slots->count - 1);
    for (; slots->number[slot]; slot = (slot + 1) & (slots->count - 1))
        if ((uint64_t)known->values[slots->number[slot] - 1] == sum)
            break;
    return &slots->number[slot];
}

/* The number of a sum among those that are known, to which it is added if it is new; -1: no memory. */
static int64_t number_sum(Slots *slots, Numbers *known, uint64_t sum, bool *is_new) {
    if (2 * (known->count + 1) > slots->count) {
        size_t count = slots->count ? 4 * slots->count : FIRST_SLOTS;
        uint32_t *number = known->count < UINT32_MAX / 8 ? calloc(count, sizeof *number) : NULL;
        if (!number)
            return -1;
        free(slots->number);
        *slots = (Slots){number, count};
        for (size_t k = 0; k < known->count; k++)
            *slot_of(slots, known, (uint64_t)known->values[k]) = (uint32_t)k + 1;
    }
    uint32_t *slot = slot_of(slots, known, sum);
    *is_new = !*slot;
    if (*is_new) {
        if (!add(known, (int64_t[]){(int64_t)sum}, 1))
            return -1;
        *slot = (uint32_t)known->count;
    }
    return (int64_t)*slot - 1;
}

/* Decodes the frames that were kept. */
static Status decode_kept(Collector *collector) {
    Status status = OK;
    for (size_t k = 0; k < collector->kept_count && status == OK; k++) {
        Row row;
        int64_t frame[3];
        /* It was read before. */
        read_row(collector->kept[k].page, collector->page_size, collector->kept[k].offset, &row);
        status = decode_row(collector->decoder, &row, 0);
        for (int one = STACK_DEPTH; one < FRAME_COLUMNS; one++)
            frame[one - STACK_DEPTH] = *(const int64_t *)collector->columns[one].values;
        if (status == OK && !add(&collector->frames, frame, 3))
            status = NO_MEMORY;
    }
    collector->kept_count = 0;
    return status;
}

/* The number of the distinct stack whose frames were decoded, which is added if it is new; -1: no memory. */
static int64_t number_frames(Collector *collector) {
    Stacks *stacks = collector->stacks;
    const Numbers *frames = &collector->frames;
    uint64_t sum = 0;
    for (size_t k = 0; k < frames->count; k += 3) {
        uint64_t mixed = (uint64_t)frames->values[k] * MIX_DEPTH + (uint64_t)frames->values[k + 1] * MIX_SYMBOL
                         + (uint64_t)frames->values[k + 2] * MIX_MODULE;
        sum += (mixed ^ mixed >> 31) * MIX_LAST;
    }
    bool is_new;
    int64_t code = number_sum(&collector->by_sum, &stacks->sums, sum, &is_new);
    if (code >= 0 && is_new && (!add(&stacks->frames, frames->values, frames->count) || !add(&stacks->lengths, (int64_t[]){(int64_t)frames->count / 3}, 1)))
        return -1;
    return code;
}

/* Adds the stack whose frames were read to the others. */
static Status end_stack(Collector *collector) {
    if (!collector->kept_count && !collector->frames.count)
        return OK;
    bool is_new;
    int64_t raw = number_sum(&collector->by_raw, &collector->raw_sums, collector->raw_sum, &is_new);
    if (raw >= 0 && is_new) {
        Status status = decode_kept(collector);
        int64_t code = status == OK ? number_frames(collector) : -1;
        if (status != OK || code < 0 || !add(&collector->raw_codes, &code, 1))
            return status == OK ? NO_MEMORY : status;
    }
    collector->kept_count = collector->frames.count = 0;
    collector->raw_sum = 0;
    return raw >= 0 && add(&collector->stacks->ids, &collector->id, 1) && add(&collector->stacks->codes, &collector->raw_codes.values[raw], 1)
               ? OK : NO_MEMORY;
}

static inline uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* Both halves of the product. */
static inline uint64_t mix_words(uint64_t one, uint64_t other) {
    __extension__ unsigned __int128 product = (unsigned __int128)(one ^ MIX_SYMBOL) * (other ^ MIX_MODULE);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t mix_bytes(uint64_t sum, const uint8_t *at, uint32_t size) {
    for (; size > 16; at += 16, size -= 16)
        sum = mix_words(sum ^ word_at(at), word_at(at + 8));
    if (size > 8)
        return mix_words(sum ^ word_at(at), word_at(at + size - 8));
    /* The last bytes, with as many before them as make a word: in a page there are that many. */
    return mix_words(sum, size ? word_at(at + size - 8) >> 8 * (8 - size) : 0);
}

/* Reads the id of a frame, its first value, and the sum of the rest of its record; false where the record is not such. */
static inline bool read_id(const Row *row, int64_t *id, uint64_t *sum) {
    static const uint8_t sizes[10] = {0, 1, 2, 3, 4, 6, 8, 0, 0, 0};
    const uint8_t *at = row->at;
    uint32_t header = at[0], serial = row->local > 1 ? at[1] : 0;
    if (row->overflow_page || header < 2 || header > 127 || !serial || serial == 7 || serial > 9)
        return false;
    uint32_t size = sizes[serial];
    if (header + size > row->local)
        return false;
    uint64_t word = be64(at + header + size - 8);
    *id = size ? (int64_t)(word << (64 - 8 * size)) >> (64 - 8 * size) : (int64_t)serial - 8;
    *sum = mix_bytes(mix_bytes(header, at + 2, header - 2), at + header + size, row->local - header - size);
    return true;
}

/* Takes the frames of a leaf. before, upper: its rowids are above the one and up to the other. sorted: gets whether they are in the order
 * of their ids; beyond: whether one is beyond `high`. */
static Status take_leaf(Collector *collector, const uint8_t *page, uint32_t number, int64_t before, int64_t upper, int64_t low, int64_t high,
                        bool *sorted, bool *beyond) {
    const uint32_t page_size = collector->page_size;
    uint32_t header = header_offset(number), pointers = header + 8, cells = be16(page + header + 3);
    TakenBytes taken;
    Status status = OK;
    if (page[header] != LEAF_PAGE || pointers + 2 * cells > page_size)
        return DAMAGED;
    begin_page(&taken, page_size);
    for (uint32_t cell = 0; cell < cells && status == OK; cell++) {
        uint32_t offset = be16(page + pointers + 2 * cell);
        Row row;
        int64_t id;
        uint64_t sum;
        if (offset < pointers + 2 * cells || offset >= page_size || !read_row(page, page_size, offset, &row) || row.rowid <= before
            || row.rowid > upper || !take_bytes(&taken, offset, row.cell))
            return DAMAGED;
        before = row.rowid;
        if (!(*sorted = read_id(&row, &id, &sum)))
            return OK;
        if (id != collector->id) {
            *sorted = id > collector->id;
            if ((status = end_stack(collector)) != OK || !*sorted)
                return status;
            collector->id = id;
        }
        *beyond = id > high;
        if (id < low || id > high)
            continue;
        collector->raw_sum += sum;
        collector->kept[collector->kept_count++] = (Cell){page, offset};
        if (collector->kept_count == KEPT)
            status = decode_kept(collector);
    }
    return status == OK && !fills_page(page, header, page_size, &taken) ? DAMAGED : status;
}

/* Finds whether the first ids of leaves all over the table ascend: frames of one stack may also lie far apart. */
static Status sample_order(Decoder *decoder, const Column *id, const Leaves *leaves, bool *sorted, uint32_t *damaged) {
    int64_t before = INT64_MIN;
    for (size_t leaf = 0; leaf < leaves->count && *sorted; leaf += 1 + leaves->count / SAMPLED_LEAVES) {
        size_t row = 0;
        Status status = decode_leaves(decoder, leaves, leaf, leaf + 1, INT64_MIN, INT64_MAX, &row, 1, damaged);
        if (status != OK && status != NO_ROOM)
            return status;
        if (row) {
            *sorted = *(const int64_t *)id->values >= before;
            before = *(const int64_t *)id->values;
        }
    }
    return OK;
}

/* Finds the first leaf that may hold a row with an id of `low` or above, by the first id of each. */
static Status find_first_leaf(Decoder *decoder, const Column *id, const Leaves *leaves, int64_t low, size_t *found, uint32_t *damaged) {
    size_t from = 0, to = leaves->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2, row = 0;
        Status status = decode_leaves(decoder, leaves, middle, middle + 1, INT64_MIN, INT64_MAX, &row, 1, damaged);
        if (status != OK && status != NO_ROOM)
            return status;
        if (row && *(const int64_t *)id->values < low)
            from = middle + 1;
        else
            to = middle;
    }
    *found = from ? from - 1 : 0;
    return OK;
}

Status read_stacks(const PageFile *file, const Leaves *leaves, Column columns[FRAME_COLUMNS], int64_t low, int64_t high, Stacks *stacks,
                   bool *sorted, uint32_t *damaged) {
    int64_t values[FRAME_COLUMNS];
    Collector *collector = calloc(1, sizeof *collector);
    Block block = {.file = file};
    size_t leaf = 0, row = 0;
    bool beyond = false;
    if (!(*sorted = columns[STACK_ID].field == 0) || !collector) {
        free(collector);
        return *sorted ? NO_MEMORY : OK;
    }
    for (size_t k = 0; k < FRAME_COLUMNS; k++)
        columns[k].values = &values[k];
    collector->stacks = stacks;
    collector->columns = columns;
    collector->page_size = file->page_size;
    collector->id = INT64_MIN;
    Status status = new_decoder(file, columns, FRAME_COLUMNS, &collector->decoder);
    if (status == OK && leaves->count > FEW_LEAVES)
        status = sample_order(collector->decoder, &columns[STACK_ID], leaves, sorted, damaged);
    if (status == OK && leaves->count > FEW_LEAVES)
        status = find_first_leaf(collector->decoder, &columns[STACK_ID], leaves, low, &leaf, damaged);
    for (; status == OK && leaf < leaves->count && *sorted && !(beyond && leaves->count > FEW_LEAVES); leaf++) {
        uint32_t number = *damaged = leaves->page[leaf], together = 1;
        if (number < block.first || number - block.first >= block.count) {
            /* What was kept goes when other pages come, those that follow each other in the file together. */
            status = decode_kept(collector);
            while (leaf + together < leaves->count && together < pages_of_block(file) && leaves->page[leaf + together] == number + together)
                together++;
        }
        const uint8_t *page = status == OK ? page_in_block(&block, number, together, &status) : NULL;
        if (page)
            status = take_leaf(collector, page, number, leaf ? leaves->last[leaf - 1] : INT64_MIN, leaves->last[leaf], low, high, sorted, &beyond);
    }
    if (status == OK && *sorted)
        status = end_stack(collector);
    if (status == OK)
        status = decode_leaves(collector->decoder, leaves, 0, 0, 0, 0, &row, 0, damaged);
    for (size_t k = 0; k < FRAME_COLUMNS; k++)
        *sorted = *sorted && !columns[k].odd && !columns[k].nulls;
    free_decoder(collector->decoder);
    free_block(&block);
    Numbers *held[] = {&collector->frames, &collector->raw_sums, &collector->raw_codes};
    for (size_t k = 0; k < sizeof held / sizeof *held; k++)
        free(held[k]->values);
    free(collector->by_raw.number);
    free(collector->by_sum.number);
    free(collector);
    return status;
}
