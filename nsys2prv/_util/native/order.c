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

/* Buckets of keys that lie near each other hold a few each; where on average a key has more than CROWDED beside it, digits are faster. */
#define KEYS_PER_BUCKET 2
#define CROWDED 24

/* A line: its time since the first of all, and its batch and row. */
typedef struct {
    uint64_t time, line;
} Line;

/* Lines by time, those of equal time by batch and row: as keys of the time, the batch and the row in so many bits, from the highest down,
 * where these fit into one number; else as they are. */
typedef struct {
    uint64_t *keys;
    Line *lines;
    int time_bits, batch_bits, row_bits;
} Lines;

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

static int compare_lines(const void *first, const void *second) {
    const Line *one = first, *other = second;
    if (one->time != other->time)
        return one->time < other->time ? -1 : 1;
    return one->line < other->line ? -1 : one->line > other->line;
}

static int compare_tied(const void *first, const void *second) {
    const Tied *one = first, *other = second;
    if (one->tie != other->tie)
        return one->tie < other->tie ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

static int bits_of(uint64_t greatest) { return greatest ? 64 - __builtin_clzll(greatest) : 0; }

static inline uint64_t time_at(const Lines *lines, size_t k) {
    return lines->keys ? lines->keys[k] >> lines->batch_bits >> lines->row_bits : lines->lines[k].time;
}

static inline uint64_t line_at(const Lines *lines, size_t k) {
    if (!lines->keys)
        return lines->lines[k].line;
    uint64_t rows = ((uint64_t)1 << lines->row_bits) - 1, batches = ((uint64_t)1 << lines->batch_bits) - 1;
    return (lines->keys[k] >> lines->row_bits & batches) << ROW_BITS | (lines->keys[k] & rows);
}

/* Sorts keys by so many bits from the bit `low` on, the highest that they have; returns where they are then: `keys` or `spare`, which has as much room. */
static uint64_t *sort_keys(uint64_t *keys, uint64_t *spare, size_t count, int low, int bits) {
    size_t counts[MOST_PASSES][BUCKETS];
    int passes = (bits + DIGIT - 1) / DIGIT, digit = passes ? (bits + passes - 1) / passes : 0;
    const uint64_t mask = ((uint64_t)1 << digit) - 1;
    memset(counts, 0, sizeof *counts * (size_t)passes);
    for (size_t k = 0; k < count; k++)
        for (int pass = 0; pass < passes; pass++)
            counts[pass][keys[k] >> (low + pass * digit) & mask]++;
    for (int pass = 0; pass < passes; pass++) {
        size_t *next = counts[pass], before = 0;
        const int shift = low + pass * digit;
        for (uint64_t bucket = 0; bucket <= mask; bucket++) {
            size_t here = next[bucket];
            next[bucket] = before;
            before += here;
        }
        for (size_t k = 0; k < count; k++)
            spare[next[keys[k] >> shift & mask]++] = keys[k];
        uint64_t *sorted = spare;
        spare = keys;
        keys = sorted;
    }
    return keys;
}

/* Sorts keys of so many bits likewise, by their place in that range: those of a batch mostly ascend, so that they are put into places that follow each other.
 * Returns NULL where too many lie together, or without memory. */
static uint64_t *sort_near(uint64_t *keys, uint64_t *spare, size_t count, int bits) {
    int shift = bits - bits_of(count / KEYS_PER_BUCKET);
    shift = shift < 0 ? 0 : shift;
    size_t buckets = ((size_t)1 << (bits - shift)) + 1, before = 0;
    uint32_t *next = count < UINT32_MAX ? calloc(buckets, sizeof *next) : NULL;
    if (!next)
        return NULL;
    for (size_t k = 0; k < count; k++)
        next[keys[k] >> shift]++;
    uint64_t beside = 0;
    for (size_t bucket = 0; bucket < buckets; bucket++) {
        uint64_t here = next[bucket];
        next[bucket] = (uint32_t)before;
        before += here;
        beside += here * here;
    }
    if (beside / CROWDED > count) {
        free(next);
        return NULL;
    }
    for (size_t k = 0; k < count; k++)
        spare[next[keys[k] >> shift]++] = keys[k];
    free(next);
    uint64_t greatest = 0;
    for (size_t k = 0; k < count; k++) {
        uint64_t key = spare[k];
        if (key >= greatest) {
            greatest = key;
            continue;
        }
        size_t to = k;
        for (; to && spare[to - 1] > key; to--)
            spare[to] = spare[to - 1];
        spare[to] = key;
    }
    return spare;
}

/* Sorts, among lines of equal time, those that have ties by them; the others keep their places. out: gets the lines. -1: no memory. */
static int sort_ties(const Lines *lines, size_t count, const Source *sources, uint64_t *out) {
    Tied *tied = NULL;
    size_t room = 0;
    for (size_t first = 0, end; first < count; first = end) {
        uint64_t time = time_at(lines, first);
        for (end = first + 1; end < count && time_at(lines, end) == time; end++) {}
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
            const Source *source = &sources[out[k] >> ROW_BITS];
            if (source->ties.buf) {
                const int64_t *ties = source->ties.buf;
                tied[found] = (Tied){ties[out[k] & ROW_MASK], k, out[k]};
                found++;
            }
        }
        if (found < 2)
            continue;
        qsort(tied, found, sizeof *tied, compare_tied);
        size_t taken = 0;
        for (size_t k = first; taken < found && k < end; k++)
            if (sources[out[k] >> ROW_BITS].ties.buf)
                out[k] = tied[taken++].line;
    }
    free(tied);
    return 0;
}

/* Puts the lines of all batches into `out`, by time. -1: no memory. */
static int order_sources(const Source *sources, size_t batches, size_t count, uint64_t *out) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    size_t longest = 0, filled = 0;
    bool tied = false;
    for (size_t b = 0; b < batches; b++) {
        const int64_t *times = sources[b].times.buf;
        for (size_t k = 0; k < sources[b].count; k++) {
            first = times[k] < first ? times[k] : first;
            last = times[k] > last ? times[k] : last;
        }
        longest = sources[b].count > longest ? sources[b].count : longest;
        tied |= sources[b].ties.buf != NULL;
    }
    Lines lines = {.time_bits = count ? bits_of((uint64_t)last - (uint64_t)first) : 0, .batch_bits = bits_of(batches), .row_bits = bits_of(longest)};
    const int below = lines.batch_bits + lines.row_bits;
    const bool fit = lines.time_bits + below <= 64;
    /* Keys are sorted from one half to the other; lines take both. */
    uint64_t *room = malloc((2 * count + 1) * sizeof *room), *keys = fit ? room : NULL;
    Line *whole = (Line *)room;
    if (!room)
        return -1;
    for (size_t b = 0; b < batches; b++) {
        const int64_t *times = sources[b].times.buf;
        for (size_t k = 0; k < sources[b].count; k++, filled++) {
            uint64_t time = (uint64_t)times[k] - (uint64_t)first;
            if (fit)
                keys[filled] = time << below | (uint64_t)b << lines.row_bits | k;
            else
                whole[filled] = (Line){time, (uint64_t)b << ROW_BITS | k};
        }
    }
    if (fit) {
        lines.keys = sort_near(keys, keys + count, count, below + lines.time_bits);
        if (!lines.keys)
            lines.keys = sort_keys(keys, keys + count, count, below, lines.time_bits);
    } else
        qsort(lines.lines = whole, count, sizeof *whole, compare_lines);
    for (size_t k = 0; k < count; k++)
        out[k] = line_at(&lines, k);
    int status = tied ? sort_ties(&lines, count, sources, out) : 0;
    free(room);
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
