/* Call stacks: the distinct ones of a table that has a row for each frame. */
#ifndef NSYS2PRV_STACKS_H
#define NSYS2PRV_STACKS_H

#include "records.h"

/* The columns of a frame, in the order in which they are given. */
enum { STACK_ID, STACK_DEPTH, STACK_SYMBOL, STACK_MODULE, FRAME_COLUMNS };

/* Numbers, one after the other. */
typedef struct {
    int64_t *values;
    size_t count, room;
} Numbers;

/* Stacks that were read, and the distinct ones among them, numbered from 0 as they are met. */
typedef struct {
    Numbers ids, codes;     /* of each stack its id, ascending, and the number of the one that it is */
    Numbers sums, lengths;  /* of each distinct stack what tells it from others, and how many frames it has */
    Numbers frames;         /* of each frame of these its depth, symbol and module */
} Stacks;

/* Reads the stacks with ids from `low` to `high` of a table whose rows are in the order of its ids; sorted: gets whether they are, and
 * whether all values are integers. damaged: as of decode_leaves. */
Status read_stacks(const PageFile *, const Leaves *, Column columns[FRAME_COLUMNS], int64_t low, int64_t high, Stacks *, bool *sorted,
                   uint32_t *damaged);
void free_stacks(Stacks *);

#endif
