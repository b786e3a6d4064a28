/* What the parts of nsys2prv.replay that are compiled have in common. */
#ifndef NSYS2PRV_REPLAY_H
#define NSYS2PRV_REPLAY_H

#include "module.h"

#include <stdbool.h>
#include <stdint.h>

/* Kinds of dependencies, as nsys2prv/replay/graph.py numbers them; NO_KIND: an edge that is left out, a node without work. */
enum { KERNEL, COPY, GAP, CALL, NCCL, MPI, LAUNCH, RETURN, STREAM, EVENT, MEET, HANDOFF, QUEUE, OTHER, OUTSIDE, NO_KIND = 255 };
/* Places between two calls are numbered by both names, as nsys2prv/replay/unit_graph.py does. */
#define PLACE 32768
#define BIT(kind) (1u << (kind))
/* Times: before all others. Weights: one that stands in a table of long ones (ns), and one that does not hold. */
#define NOTHING INT64_MIN
#define LONG INT32_MAX
#define NOT_HELD INT32_MIN
/* The last part of a copy of pageable memory, which is still copied when the call returns, takes no longer than this (ns; 20 to 150 us are usual). */
#define LAST_PART 250000
/* Typical weights that are not known yet: to be estimated; as recorded; from here on downwards the group by which it is estimated. */
#define TO_ESTIMATE (-1)
#define AS_RECORDED (-2)
#define FIRST_GROUP (-3)

/* Buffers of the arguments of a function, released together. */
typedef struct {
    Py_buffer buffers[40];
    int count;
} Buffers;

/* A column of items of `size` bytes. count: how many there must be, or -1, and then it takes how many there are. */
bool get_column(Buffers *held, PyObject *object, int size, int64_t *count, void *column);
/* Columns of one length, of a tuple. sizes: bytes of the items of each, a digit for each column. Takes the length. */
bool get_columns(Buffers *held, PyObject *tuple, const char *sizes, int64_t *count, void **columns);
/* A new column of so many items of `size` bytes, and where these are. */
PyObject *make_column(int64_t count, int size, void *column);
void release_buffers(Buffers *held);
bool are_within(const int32_t *numbers, int64_t count, int64_t least, int64_t most);
/* Numbers of distinct keys, in the order in which they come. */
typedef struct {
    uint64_t *key;
    int32_t *number;
    uint64_t *distinct;
    int64_t count, room;
} Codes;

/* The number of a key, -1 without memory. */
int32_t find_code(Codes *codes, uint64_t key);
void free_codes(Codes *codes);
/* The k-th smallest of durations, which it reorders: those before it are not greater, those behind it not less. */
int64_t select_kth(int64_t *durations, int64_t count, int64_t k);
/* The median of durations, which it reorders; NAN of none. */
double find_median(int64_t *durations, int64_t count);

/* Operations of devices by their launches, calls of host threads by their begins, and what rows about events and synchronisation say. Moments: begins of
 * operations, their ends, begins of calls, their ends, in this order. Of each row of the trace its process and device. */
typedef struct {
    int64_t operations, calls, markers, rows, moments;
    const int64_t *begin, *end, *call_begin, *call_end, *marker_time;
    const int32_t *stream, *call, *name, *call_thread, *call_name, *marker_thread, *marker_stream, *marker_event, *process, *device;
    const uint8_t *work, *does, *is_mpi, *marker;
} Unit;

/* Edges between moments of a unit, then between its nodes. typical: a weight (ns), or TO_ESTIMATE or AS_RECORDED. */
typedef struct {
    int32_t *target, *source, *typical;
    uint8_t *kind;
    int64_t count, room;
    bool failed;
} Edges;

/* What each call and operation waits for; edges.failed without memory. */
void find_dependencies(const Unit *in, Edges *edges);
void free_edges(Edges *edges);
/* Sorts moments by time; those of equal time stay as they are. Returns where they are then: `moments` or `spare`. */
int32_t *sort_moments(const Unit *in, int32_t *moments, int32_t *spare, int64_t count);

#endif
