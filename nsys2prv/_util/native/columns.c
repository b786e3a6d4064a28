/* Inner loops over columns of integers: nsys2prv._util.columns.factorize, and records put together of columns (nsys2prv.table.runs).
 *
 * An installation without a C compiler does without: both modules have the same by numpy, and the tests compare the two.
 */
#include "module.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Columns that are told apart together at most. */
#define MOST_COLUMNS 64
#define FIRST_SLOTS 256
#define EMPTY UINT32_MAX

/* A column of int64, at any distance. */
typedef struct {
    const char *values;
    Py_ssize_t stride;
} Strided;

/* The distinct rows met: `width` values of each, one after the other, the row that each was met at first, and a hash table of their numbers. */
typedef struct {
    int64_t *keys, *first;
    uint32_t *slots;
    size_t width, count, room, slot_count;
    int shift;  /* 64 less the bits of a slot's number */
} Distinct;

static inline int64_t value_at(const Strided *column, size_t row) {
    int64_t value;
    memcpy(&value, column->values + (Py_ssize_t)row * column->stride, 8);
    return value;
}

static inline uint64_t hash_of(const int64_t *key, size_t width) {
    uint64_t hash = 0;
    /* No product waits for another one. */
    for (size_t c = 0; c < width; c++) {
        uint64_t product = (uint64_t)key[c] * 0x9e3779b97f4a7c15u;
        hash += product << (11 * c & 63) | product >> ((64 - 11 * c) & 63);
    }
    return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
}

static inline bool same_key(const int64_t *one, const int64_t *other, size_t width) {
    for (size_t c = 0; c < width; c++)
        if (one[c] != other[c])
            return false;
    return true;
}

/* Makes room for one more, in the table for twice as many. -1: no memory, or too many. */
static int grow(Distinct *known) {
    if (known->count == known->room) {
        size_t room = 2 * known->room;
        int64_t *keys = realloc(known->keys, room * known->width * sizeof *keys);
        if (keys)
            known->keys = keys;
        int64_t *first = realloc(known->first, room * sizeof *first);
        if (first)
            known->first = first;
        if (!keys || !first || room >= EMPTY / 2)
            return -1;
        known->room = room;
    }
    if (2 * (known->count + 1) <= known->slot_count)
        return 0;
    size_t slot_count = 4 * known->slot_count;
    uint32_t *slots = malloc(slot_count * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xff, slot_count * sizeof *slots);
    free(known->slots);
    known->slots = slots;
    known->slot_count = slot_count;
    known->shift -= 2;
    for (size_t k = 0; k < known->count; k++) {
        size_t slot = hash_of(known->keys + k * known->width, known->width) >> known->shift;
        while (slots[slot] != EMPTY)
            slot = (slot + 1) & (slot_count - 1);
        slots[slot] = (uint32_t)k;
    }
    return 0;
}

/* Puts into `codes` the number of each row among the distinct ones, as they are met. -1: no memory. */
static inline int number_rows(Distinct *known, const Strided *columns, size_t width, size_t rows, int64_t *codes) {
    int64_t key[MOST_COLUMNS];
    size_t code = 0;
    for (size_t row = 0; row < rows; row++) {
        for (size_t c = 0; c < width; c++)
            key[c] = value_at(&columns[c], row);
        if (!row || !same_key(key, known->keys + code * width, width)) {
            size_t slot = hash_of(key, width) >> known->shift;
            for (;; slot = (slot + 1) & (known->slot_count - 1)) {
                code = known->slots[slot];
                if (code == EMPTY || same_key(key, known->keys + code * width, width))
                    break;
            }
            if (code == EMPTY) {
                code = known->count;
                known->slots[slot] = (uint32_t)code;
                memcpy(known->keys + code * width, key, width * sizeof *key);
                known->first[code] = (int64_t)row;
                known->count++;
                if (grow(known) < 0)
                    return -1;
            }
        }
        codes[row] = (int64_t)code;
    }
    return 0;
}

static int find_distinct(Distinct *known, const Strided *columns, size_t rows, int64_t *codes) {
    known->room = known->slot_count = FIRST_SLOTS;
    known->shift = 56;
    known->keys = malloc(known->room * known->width * sizeof *known->keys);
    known->first = malloc(known->room * sizeof *known->first);
    known->slots = malloc(known->slot_count * sizeof *known->slots);
    if (!known->keys || !known->first || !known->slots)
        return -1;
    memset(known->slots, 0xff, known->slot_count * sizeof *known->slots);
    /* A loop of its own for each usual number of columns. */
    return known->width == 1   ? number_rows(known, columns, 1, rows, codes)
           : known->width == 2 ? number_rows(known, columns, 2, rows, codes)
           : known->width == 3 ? number_rows(known, columns, 3, rows, codes)
                               : number_rows(known, columns, known->width, rows, codes);
}

static inline bool is_less(const Distinct *known, int64_t one, int64_t other) {
    const int64_t *a = known->keys + (size_t)one * known->width, *b = known->keys + (size_t)other * known->width;
    size_t c = 0;
    while (c + 1 < known->width && a[c] == b[c])
        c++;
    return a[c] < b[c];
}

/* Puts the numbers of the distinct rows into `order`, by their values; merges ever longer runs. spare: room for as many. */
static int64_t *sort_distinct(const Distinct *known, int64_t *order, int64_t *spare) {
    size_t count = known->count;
    for (size_t k = 0; k < count; k++)
        order[k] = (int64_t)k;
    for (size_t length = 1; length < count; length *= 2) {
        for (size_t start = 0; start < count; start += 2 * length) {
            size_t middle = start + length < count ? start + length : count;
            size_t end = middle + length < count ? middle + length : count;
            for (size_t k = start, left = start, right = middle; k < end; k++)
                spare[k] = left < middle && (right == end || !is_less(known, order[right], order[left])) ? order[left++] : order[right++];
        }
        int64_t *sorted = spare;
        spare = order;
        order = sorted;
    }
    return order;
}

/* Numbers the distinct rows in the order of their values instead. -1: no memory. */
static int arrange_distinct(Distinct *known, size_t rows, int64_t *codes) {
    size_t count = known->count;
    int64_t *room = malloc(3 * count * sizeof *room + 1);
    if (!room)
        return -1;
    const int64_t *order = sort_distinct(known, room, room + count);
    int64_t *ranks = room + 2 * count;
    for (size_t k = 0; k < count; k++)
        ranks[order[k]] = (int64_t)k;
    for (size_t row = 0; row < rows; row++)
        codes[row] = ranks[codes[row]];
    for (size_t k = 0; k < count; k++)
        ranks[k] = known->first[order[k]];
    memcpy(known->first, ranks, count * sizeof *ranks);
    free(room);
    return 0;
}

PyObject *number_distinct(PyObject *self, PyObject *arguments) {
    PyObject *given, *result = NULL;
    Py_buffer out = {0}, held[MOST_COLUMNS] = {{0}};
    Strided columns[MOST_COLUMNS];
    Distinct known = {0};
    int ascend = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!w*|p", &PyTuple_Type, &given, &out, &ascend))
        return NULL;
    Py_ssize_t width = PyTuple_Size(given), rows = out.len / 8;
    bool fits = width > 0 && width <= MOST_COLUMNS;
    for (Py_ssize_t c = 0; fits && c < width; c++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(given, c), &held[c], PyBUF_STRIDES) < 0)
            goto done;
        fits = held[c].ndim == 1 && held[c].itemsize == 8 && held[c].shape[0] == rows;
        columns[c] = (Strided){held[c].buf, held[c].ndim == 1 ? held[c].strides[0] : 0};
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "give up to %d columns of int64, and room for as many codes", MOST_COLUMNS);
        goto done;
    }
    known.width = (size_t)width;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = find_distinct(&known, columns, (size_t)rows, out.buf);
    if (status == 0 && ascend && known.count > 1)
        status = arrange_distinct(&known, (size_t)rows, out.buf);
    Py_END_ALLOW_THREADS
    result = status < 0 ? PyErr_NoMemory() : PyBytes_FromStringAndSize((const char *)known.first, (Py_ssize_t)(known.count * sizeof *known.first));
done:
    for (Py_ssize_t c = 0; c < width && c < MOST_COLUMNS; c++)
        PyBuffer_Release(&held[c]);
    PyBuffer_Release(&out);
    free(known.keys);
    free(known.first);
    free(known.slots);
    return result;
}

PyObject *find_bounds(PyObject *self, PyObject *arguments) {
    PyObject *given;
    Py_buffer held;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O", &given) || PyObject_GetBuffer(given, &held, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return NULL;
    int64_t least = INT64_MAX, greatest = INT64_MIN;
    bool fits = held.ndim == 1 && held.itemsize == 8 && held.format && strchr("lq", held.format[0]);
    if (fits) {
        const Strided column = {held.buf, held.strides[0]};
        size_t rows = (size_t)held.shape[0];
        Py_BEGIN_ALLOW_THREADS
        for (size_t row = 0; row < rows; row++) {
            int64_t value = value_at(&column, row);
            least = value < least ? value : least;
            greatest = value > greatest ? value : greatest;
        }
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "give a column of int64");
    PyBuffer_Release(&held);
    return fits ? Py_BuildValue("LL", (long long)least, (long long)greatest) : NULL;
}

PyObject *map_times(PyObject *self, PyObject *arguments) {
    PyObject *given;
    Py_buffer times = {0}, out;
    long long open, opened, offset, pivot;
    double drift;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OLLLdLw*", &given, &open, &opened, &offset, &drift, &pivot, &out))
        return NULL;
    size_t count = (size_t)out.len / 8;
    if (PyObject_GetBuffer(given, &times, PyBUF_STRIDES) == 0) {
        if (times.ndim != 1 || times.itemsize != 8 || (size_t)times.shape[0] != count)
            PyErr_SetString(PyExc_ValueError, "times of int64, and room for as many");
        else {
            const Strided column = {times.buf, times.strides[0]};
            uint64_t *mapped = out.buf;
            Py_BEGIN_ALLOW_THREADS
            for (size_t k = 0; k < count; k++) {
                int64_t time = value_at(&column, k);
                mapped[k] = time == open ? (uint64_t)opened : (uint64_t)time + (uint64_t)offset;
                if (drift != 0 && time != open)
                    mapped[k] += (uint64_t)(int64_t)floor((double)(int64_t)((uint64_t)time - (uint64_t)pivot) * drift);
            }
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&times);
    PyBuffer_Release(&out);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
