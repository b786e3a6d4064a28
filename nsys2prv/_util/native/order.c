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
 * Returns whether they are in `spare` then: not where too many lie together, or without memory. */
static bool sort_near(uint64_t *keys, uint64_t *spare, size_t count, int bits) {
    int shift = bits - bits_of(count / KEYS_PER_BUCKET);
    shift = shift < 0 ? 0 : shift;
    size_t buckets = ((size_t)1 << (bits - shift)) + 1, before = 0;
    uint32_t *next = count < UINT32_MAX ? calloc(buckets, sizeof *next) : NULL;
    if (!next)
        return false;
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
        return false;
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
    return true;
}

/* Lines of equal time that have ties. */
typedef struct {
    Tied *lines;
    size_t room;
} Ties;

/* Sorts, among `count` lines of equal time, those that have ties by them; the others keep their places. -1: no memory. */
static int sort_ties(const Source *sources, uint64_t *lines, size_t count, Ties *ties) {
    if (count > ties->room) {
        Tied *larger = realloc(ties->lines, 2 * count * sizeof *larger);
        if (!larger)
            return -1;
        ties->lines = larger;
        ties->room = 2 * count;
    }
    size_t found = 0, taken = 0;
    for (size_t k = 0; k < count; k++) {
        const int64_t *own = sources[lines[k] >> ROW_BITS].ties.buf;
        if (own)
            ties->lines[found++] = (Tied){own[lines[k] & ROW_MASK], k, lines[k]};
    }
    if (found > 1)
        qsort(ties->lines, found, sizeof *ties->lines, compare_tied);
    for (size_t k = 0; taken < found && k < count; k++)
        if (sources[lines[k] >> ROW_BITS].ties.buf)
            lines[k] = ties->lines[taken++].line;
    return 0;
}

/* Makes lines of keys, which are sorted, where they are. -1: no memory. */
static int make_lines(const Source *sources, uint64_t *keys, size_t count, int batch_bits, int row_bits, Ties *ties) {
    const uint64_t rows = ((uint64_t)1 << row_bits) - 1, batches = ((uint64_t)1 << batch_bits) - 1;
    uint64_t time = 0;
    for (size_t k = 0, first = 0; k <= count; k++) {
        uint64_t key = k < count ? keys[k] : 0, own = key >> row_bits >> batch_bits;
        if (k == count || own != time) {
            if (ties && k - first > 1 && sort_ties(sources, keys + first, k - first, ties) < 0)
                return -1;
            first = k;
            time = own;
        }
        if (k < count)
            keys[k] = (key >> row_bits & batches) << ROW_BITS | (key & rows);
    }
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
    const int time_bits = count ? bits_of((uint64_t)last - (uint64_t)first) : 0, batch_bits = bits_of(batches), row_bits = bits_of(longest);
    const int below = batch_bits + row_bits;
    const bool fit = time_bits + below <= 64;
    Ties ties = {0};
    /* Keys of the time, the batch and the row, from the highest bits down, are sorted into `out`; where they do not fit into one number,
     * lines are sorted as they are. */
    uint64_t *keys = malloc((fit ? 1 : 2) * (count + 1) * sizeof *keys);
    Line *whole = (Line *)keys;
    if (!keys)
        return -1;
    for (size_t b = 0; b < batches; b++) {
        const int64_t *times = sources[b].times.buf;
        for (size_t k = 0; k < sources[b].count; k++, filled++) {
            uint64_t time = (uint64_t)times[k] - (uint64_t)first;
            if (fit)
                keys[filled] = time << below | (uint64_t)b << row_bits | k;
            else
                whole[filled] = (Line){time, (uint64_t)b << ROW_BITS | k};
        }
    }
    int status = 0;
    if (fit) {
        if (!sort_near(keys, out, count, below + time_bits) && sort_keys(keys, out, count, below, time_bits) != out)
            memcpy(out, keys, count * sizeof *keys);
        status = make_lines(sources, out, count, batch_bits, row_bits, tied ? &ties : NULL);
    } else {
        qsort(whole, count, sizeof *whole, compare_lines);
        for (size_t k = 0, from = 0; k <= count; k++) {
            if (k == count || whole[k].time != whole[from].time) {
                if (tied && status == 0 && k - from > 1)
                    status = sort_ties(sources, out + from, k - from, &ties);
                from = k;
            }
            if (k < count)
                out[k] = whole[k].line;
        }
    }
    free(keys);
    free(ties.lines);
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
