/* Sorts the lines of a window by time: the inner loop of nsys2prv.writers.paraver.prv.merge_lines.
 *
 * An installation without a C compiler does without: prv.py has the same by numpy, and the tests compare the two.
 */
#include "module.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bits of a time that one pass sorts by at most, and passes that a time may need. */
#define DIGIT 11
#define BUCKETS (1 << DIGIT)
#define MOST_PASSES ((64 + DIGIT - 1) / DIGIT)

/* A line: its time since the first of all, or its tie, and its batch and row. */
typedef struct {
    uint64_t key, line;
} Line;

/* The lines of a batch. ties is NULL where they have none. */
typedef struct {
    Py_buffer times, ties;
    size_t count;
} Source;

static int compare_lines(const void *first, const void *second) {
    const Line *one = first, *other = second;
    if (one->key != other->key)
        return one->key < other->key ? -1 : 1;
    return one->line < other->line ? -1 : one->line > other->line;
}

/* Sorts lines by their keys, of so many bits; those of equal ones stay as they are. Returns where they are then: `lines` or `spare`, which has as
 * much room. */
static Line *sort_lines(Line *lines, Line *spare, size_t count, int bits) {
    size_t counts[MOST_PASSES][BUCKETS];
    int passes = (bits + DIGIT - 1) / DIGIT, digit = passes ? (bits + passes - 1) / passes : 0;
    const uint64_t mask = ((uint64_t)1 << digit) - 1;
    memset(counts, 0, sizeof *counts * (size_t)passes);
    for (size_t k = 0; k < count; k++)
        for (int pass = 0; pass < passes; pass++)
            counts[pass][lines[k].key >> (pass * digit) & mask]++;
    for (int pass = 0; pass < passes; pass++) {
        size_t *next = counts[pass], before = 0;
        for (uint64_t bucket = 0; bucket <= mask; bucket++) {
            size_t here = next[bucket];
            next[bucket] = before;
            before += here;
        }
        for (size_t k = 0; k < count; k++)
            spare[next[lines[k].key >> (pass * digit) & mask]++] = lines[k];
        Line *sorted = spare;
        spare = lines;
        lines = sorted;
    }
    return lines;
}

/* Sorts, among `count` lines of equal time, those that have ties by them; the others keep their places. tied: room for as many. */
static void sort_ties(const Source *sources, uint64_t *lines, size_t count, Line *tied) {
    size_t found = 0, taken = 0;
    for (size_t k = 0; k < count; k++) {
        const int64_t *own = sources[lines[k] >> ROW_BITS].ties.buf;
        if (own)
            tied[found++] = (Line){(uint64_t)own[lines[k] & ROW_MASK] ^ (uint64_t)1 << 63, lines[k]};
    }
    if (found > 1)
        qsort(tied, found, sizeof *tied, compare_lines);
    for (size_t k = 0; taken < found && k < count; k++)
        if (sources[lines[k] >> ROW_BITS].ties.buf)
            lines[k] = tied[taken++].line;
}

/* Puts the lines of all batches into `out`, by time. -1: no memory. */
static int order_sources(const Source *sources, size_t batches, size_t count, uint64_t *out) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    size_t filled = 0;
    for (size_t b = 0; b < batches; b++) {
        const int64_t *times = sources[b].times.buf;
        for (size_t k = 0; k < sources[b].count; k++) {
            first = times[k] < first ? times[k] : first;
            last = times[k] > last ? times[k] : last;
        }
    }
    Line *given = malloc(2 * (count + 1) * sizeof *given);
    if (!given)
        return -1;
    for (size_t b = 0; b < batches; b++) {
        const int64_t *times = sources[b].times.buf;
        for (size_t k = 0; k < sources[b].count; k++)
            given[filled++] = (Line){(uint64_t)times[k] - (uint64_t)first, (uint64_t)b << ROW_BITS | k};
    }
    uint64_t span = count ? (uint64_t)last - (uint64_t)first : 0;
    Line *lines = sort_lines(given, given + count, count, span ? 64 - __builtin_clzll(span) : 0), *spare = lines == given ? given + count : given;
    for (size_t k = 0, begin = 0; k < count; k++) {
        out[k] = lines[k].line;
        if (k + 1 < count && lines[k + 1].key == lines[k].key)
            continue;
        if (k > begin)
            sort_ties(sources, out + begin, k + 1 - begin, spare);
        begin = k + 1;
    }
    free(given);
    return 0;
}

PyObject *order_lines(PyObject *self, PyObject *arguments) {
    PyObject *given, *times, *ties, *result = NULL;
    Py_buffer out = {0};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!w*", &PyList_Type, &given, &out))
        return NULL;
    Py_ssize_t batches = PyList_Size(given);
    Source *sources = PyMem_Calloc(batches ? batches : 1, sizeof *sources);
    size_t count = 0;
    bool fits = batches < (Py_ssize_t)1 << (64 - ROW_BITS);
    if (!sources) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t b = 0; b < batches && fits; b++) {
        Source *source = &sources[b];
        PyObject *batch = PyList_GetItem(given, b);
        if (!PyTuple_Check(batch) || !PyArg_ParseTuple(batch, "OO", &times, &ties)) {
            PyErr_SetString(PyExc_TypeError, "times and ties of each batch");
            goto done;
        }
        if (PyObject_GetBuffer(times, &source->times, PyBUF_SIMPLE) < 0)
            goto done;
        if (ties != Py_None && PyObject_GetBuffer(ties, &source->ties, PyBUF_SIMPLE) < 0)
            goto done;
        source->count = (size_t)source->times.len / 8;
        count += source->count;
        fits = source->count <= ROW_MASK && (ties == Py_None || source->ties.len == source->times.len);
    }
    if (!fits || (size_t)out.len != 8 * count) {
        PyErr_SetString(PyExc_ValueError, "a tie for each time, and room for each line");
        goto done;
    }
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = order_sources(sources, (size_t)batches, count, out.buf);
    Py_END_ALLOW_THREADS
    if (status < 0)
        PyErr_NoMemory();
    else
        result = Py_NewRef(Py_None);
done:
    for (Py_ssize_t b = 0; sources && b < batches; b++) {
        PyBuffer_Release(&sources[b].times);
        PyBuffer_Release(&sources[b].ties);
    }
    PyMem_Free(sources);
    PyBuffer_Release(&out);
    return result;
}
