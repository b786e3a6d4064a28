/* Sorts the lines of a window by time: the inner loop of nsys2prv.writers.paraver.prv.merge_lines.
 *
 * An installation without a C compiler does without: prv.py has the same by numpy, and the tests compare the two.
 */
#include "module.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bits of a time that one pass sorts by, and passes that a time may need. */
#define DIGIT 11
#define BUCKETS (1 << DIGIT)
#define MOST_PASSES ((64 + DIGIT - 1) / DIGIT)

/* A line: its time since the first of all, and its batch and row. */
typedef struct {
    uint64_t time, line;
} Line;

/* A line among those of equal time. place: where it stands among them. */
typedef struct {
    int64_t tie;
    uint64_t place, line;
} Tied;

/* The lines of a batch. ties is NULL where they have none. */
typedef struct {
    Py_buffer times, ties;
    size_t count;
} Source;

static int compare_tied(const void *first, const void *second) {
    const Tied *one = first, *other = second;
    if (one->tie != other->tie)
        return one->tie < other->tie ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

/* Sorts the lines by their times, those of equal time as they stand; returns where they are then: `lines` or `spare`, which has as much room. */
static Line *sort_lines(Line *lines, Line *spare, size_t count, uint64_t longest, size_t (*counts)[BUCKETS]) {
    int passes = 0;
    while (longest >> (passes * DIGIT)) {
        passes++;
        if (passes * DIGIT >= 64)
            break;
    }
    memset(counts, 0, sizeof *counts * (size_t)passes);
    for (size_t k = 0; k < count; k++)
        for (int pass = 0; pass < passes; pass++)
            counts[pass][lines[k].time >> (pass * DIGIT) & (BUCKETS - 1)]++;
    for (int pass = 0; pass < passes; pass++) {
        size_t *next = counts[pass], before = 0;
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            size_t here = next[bucket];
            next[bucket] = before;
            before += here;
        }
        for (size_t k = 0; k < count; k++)
            spare[next[lines[k].time >> (pass * DIGIT) & (BUCKETS - 1)]++] = lines[k];
        Line *sorted = spare;
        spare = lines;
        lines = sorted;
    }
    return lines;
}

/* Sorts, among lines of equal time, those that have ties by them; the others keep their places. -1: no memory. */
static int sort_ties(Line *lines, size_t count, const Source *sources) {
    Tied *tied = NULL;
    size_t room = 0;
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && lines[end].time == lines[first].time; end++) {}
        if (end - first < 2)
            continue;
        if (end - first > room) {
            room = 2 * (end - first);
            Tied *larger = realloc(tied, room * sizeof *tied);
            if (!larger) {
                free(tied);
                return -1;
            }
            tied = larger;
        }
        size_t found = 0;
        for (size_t k = first; k < end; k++) {
            const Source *source = &sources[lines[k].line >> ROW_BITS];
            if (source->ties.buf) {
                const int64_t *ties = source->ties.buf;
                tied[found] = (Tied){ties[lines[k].line & ROW_MASK], k, lines[k].line};
                found++;
            }
        }
        if (found < 2)
            continue;
        qsort(tied, found, sizeof *tied, compare_tied);
        size_t taken = 0;
        for (size_t k = first; taken < found && k < end; k++)
            if (sources[lines[k].line >> ROW_BITS].ties.buf)
                lines[k].line = tied[taken++].line;
    }
    free(tied);
    return 0;
}

/* Puts the lines of all batches into `out`, by time. -1: no memory. */
static int order_sources(const Source *sources, size_t batches, size_t count, uint64_t *out) {
    Line *lines = malloc((count + 1) * sizeof *lines), *spare = malloc((count + 1) * sizeof *spare);
    size_t(*counts)[BUCKETS] = malloc(sizeof *counts * MOST_PASSES);
    int status = lines && spare && counts ? 0 : -1;
    if (!status) {
        int64_t first = INT64_MAX;
        uint64_t longest = 0;
        bool tied = false;
        for (size_t b = 0; b < batches; b++) {
            const int64_t *times = sources[b].times.buf;
            for (size_t k = 0; k < sources[b].count; k++)
                first = times[k] < first ? times[k] : first;
            tied |= sources[b].ties.buf != NULL;
        }
        size_t filled = 0;
        for (size_t b = 0; b < batches; b++) {
            const int64_t *times = sources[b].times.buf;
            for (size_t k = 0; k < sources[b].count; k++, filled++) {
                lines[filled] = (Line){(uint64_t)times[k] - (uint64_t)first, (uint64_t)b << ROW_BITS | k};
                longest |= lines[filled].time;
            }
        }
        Line *sorted = sort_lines(lines, spare, count, longest, counts);
        if (tied)
            status = sort_ties(sorted, count, sources);
        for (size_t k = 0; k < count; k++)
            out[k] = sorted[k].line;
    }
    free(lines);
    free(spare);
    free(counts);
    return status;
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
