#include "stacks.h"

#include <stdlib.h>
#include <string.h>

/* Leaves whose rows are decoded at a time: their columns stay in the processor's cache. */
#define LEAVES_AT_ONCE 16
#define FIRST_SLOTS 256
/* Odd numbers by which frames are mixed, as in nsys2prv.export.stacks. */
#define MIX_SYMBOL 0x1e3779b97f4a7c15u
#define MIX_MODULE 0x3f58476d1ce4e5b9u
#define MIX_DEPTH 0x14d049bb133111ebu
#define MIX_LAST 0x2545f4914f6cdd1du

/* The stack whose frames are being read, and where each distinct stack is by its sum: its number + 1, 0 where there is none. */
typedef struct {
    Stacks *stacks;
    Numbers frames;
    int64_t id;
    uint64_t sum;
    uint32_t *slots;
    size_t slot_count;
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

/* The slot of a sum: that of its stack, or an empty one. */
static uint32_t *slot_of(const Collector *collector, uint64_t sum) {
    size_t slot = sum & (collector->slot_count - 1);
    for (; collector->slots[slot]; slot = (slot + 1) & (collector->slot_count - 1))
        if ((uint64_t)collector->stacks->sums.values[collector->slots[slot] - 1] == sum)
            break;
    return &collector->slots[slot];
}

/* Makes room for one more distinct stack. */
static bool grow_slots(Collector *collector) {
    size_t known = collector->stacks->sums.count;
    if (2 * (known + 1) <= collector->slot_count)
        return true;
    size_t slot_count = collector->slot_count ? 4 * collector->slot_count : FIRST_SLOTS;
    uint32_t *slots = known < UINT32_MAX / 8 ? calloc(slot_count, sizeof *slots) : NULL;
    if (!slots)
        return false;
    free(collector->slots);
    collector->slots = slots;
    collector->slot_count = slot_count;
    for (size_t k = 0; k < known; k++)
        *slot_of(collector, (uint64_t)collector->stacks->sums.values[k]) = (uint32_t)k + 1;
    return true;
}

/* Adds the stack whose frames were read to the others. */
static bool end_stack(Collector *collector) {
    Stacks *stacks = collector->stacks;
    if (!collector->frames.count)
        return true;
    if (!grow_slots(collector))
        return false;
    uint32_t *slot = slot_of(collector, collector->sum);
    if (!*slot) {
        int64_t sum = (int64_t)collector->sum, length = (int64_t)collector->frames.count / 3;
        if (!add(&stacks->frames, collector->frames.values, collector->frames.count) || !add(&stacks->sums, &sum, 1)
            || !add(&stacks->lengths, &length, 1))
            return false;
        *slot = (uint32_t)stacks->sums.count;
    }
    int64_t code = (int64_t)*slot - 1;
    collector->frames.count = 0;
    collector->sum = 0;
    return add(&stacks->ids, &collector->id, 1) && add(&stacks->codes, &code, 1);
}

/* Takes rows of the table; false where memory is short. done: gets whether one is beyond `high`. */
static bool take_rows(Collector *collector, const Column *columns, size_t rows, int64_t low, int64_t high, bool *sorted, bool *done) {
    const int64_t *id = columns[STACK_ID].values, *depth = columns[STACK_DEPTH].values, *symbol = columns[STACK_SYMBOL].values,
                  *module = columns[STACK_MODULE].values;
    for (size_t row = 0; row < rows && *sorted && !*done; row++) {
        if (id[row] != collector->id) {
            if (!end_stack(collector))
                return false;
            *sorted = id[row] > collector->id;
            *done = id[row] > high;
            collector->id = id[row];
        }
        if (id[row] < low || *done)
            continue;
        uint64_t mixed = (uint64_t)symbol[row] * MIX_SYMBOL + (uint64_t)module[row] * MIX_MODULE + (uint64_t)depth[row] * MIX_DEPTH;
        collector->sum += (mixed ^ mixed >> 31) * MIX_LAST;
        if (!add(&collector->frames, (int64_t[]){depth[row], symbol[row], module[row]}, 3))
            return false;
    }
    return true;
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
    /* No cell takes less than four bytes, with its pointer. */
    size_t room = LEAVES_AT_ONCE * (file->page_size / 4), leaf;
    int64_t *values = malloc(FRAME_COLUMNS * room * sizeof *values);
    Collector collector = {.stacks = stacks, .id = INT64_MIN};
    Decoder *decoder = NULL;
    bool done = false;
    Status status = values ? OK : NO_MEMORY;
    *sorted = true;
    for (size_t k = 0; k < FRAME_COLUMNS; k++)
        columns[k].values = values + k * room;
    if (status == OK && (status = new_decoder(file, columns, FRAME_COLUMNS, &decoder)) == OK)
        status = find_first_leaf(decoder, &columns[STACK_ID], leaves, low, &leaf, damaged);
    for (; status == OK && leaf < leaves->count && *sorted && !done; leaf += LEAVES_AT_ONCE) {
        size_t rows = 0, end = leaves->count - leaf > LEAVES_AT_ONCE ? leaf + LEAVES_AT_ONCE : leaves->count;
        status = decode_leaves(decoder, leaves, leaf, end, INT64_MIN, INT64_MAX, &rows, room, damaged);
        if (status == OK && !take_rows(&collector, columns, rows, low, high, sorted, &done))
            status = NO_MEMORY;
    }
    if (status == OK && !end_stack(&collector))
        status = NO_MEMORY;
    for (size_t k = 0; k < FRAME_COLUMNS; k++)
        *sorted = *sorted && !columns[k].odd && !columns[k].nulls;
    free_decoder(decoder);
    free(collector.frames.values);
    free(collector.slots);
    free(values);
    return status;
}
