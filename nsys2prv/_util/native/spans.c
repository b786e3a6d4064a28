/* The inner loops of nsys2prv._util.intervals: how much of a set of times lies before each of many times, what two sets have in common, and
 * which ranges lie within which.
 *
 * An installation without a C compiler does without: intervals.py has the same by numpy, and the tests compare the two.
 */
#include "replay.h"

#include <stdlib.h>

/* The number of `values`, ascending, that are at most `time`. `near` is where it is likely to be: from there on steps grow, so that ascending
 * times take no search each. */
static size_t count_until(const int64_t *values, size_t count, int64_t time, size_t near) {
    size_t low = 0, high = count, step = 1;
    if (near < count && values[near] <= time) {
        for (low = near + 1; low < count && values[low] <= time; step *= 2) {
            near = low;
            low = step < count - low ? low + step : count;
        }
        high = low;
        low = near + 1;
    } else if (near) {
        for (high = near; high && values[high - 1] > time; step *= 2) {
            near = high - 1;
            high = step < high ? high - step : 0;
        }
        low = high;
        high = near;
    } else
        return 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (values[middle] <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Of so many intervals the lengths are added up for each asked time; before these there are sums. */
enum { TOGETHER = 32 };

/* Sums wrap around, as numpy's do. */
static void sum_before(const int64_t *begin, const int64_t *end, size_t count, const int64_t *times, size_t asked, uint64_t *sums, int64_t *out) {
    uint64_t sum = 0;
    for (size_t k = 0; k < count; k++) {
        if (k % TOGETHER == 0)
            sums[k / TOGETHER] = sum;
        sum += (uint64_t)end[k] - (uint64_t)begin[k];
    }
    if (count % TOGETHER == 0)
        sums[count / TOGETHER] = sum;
    size_t near = 0;
    for (size_t k = 0; k < asked; k++) {
        near = count_until(begin, count, times[k], near);
        sum = sums[near / TOGETHER];
        for (size_t other = near - near % TOGETHER; other < near; other++)
            sum += (uint64_t)end[other] - (uint64_t)begin[other];
        uint64_t beyond = near && end[near - 1] > times[k] ? (uint64_t)end[near - 1] - (uint64_t)times[k] : 0;
        out[k] = (int64_t)(sum - beyond);
    }
}

PyObject *time_before(PyObject *self, PyObject *arguments) {
    PyObject *times, *out;
    (void)self;
    Buffers held = {.count = 0};
    int64_t count, asked = -1;
    void *column[2], *time, *length;
    if (!PyArg_ParseTuple(arguments, "OOO", &arguments, &times, &out))
        return NULL;
    if (get_columns(&held, arguments, "88", &count, column) && get_column(&held, times, 8, &asked, &time) && get_column(&held, out, 8, &asked, &length)) {
        uint64_t *sums = malloc(((size_t)count / TOGETHER + 1) * sizeof *sums);
        if (sums) {
            Py_BEGIN_ALLOW_THREADS
            sum_before(column[0], column[1], (size_t)count, time, (size_t)asked, sums, length);
            Py_END_ALLOW_THREADS
            free(sums);
        } else
            PyErr_NoMemory();
    }
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Puts what two sets have in common into `begin` and `end`, if there are such columns; returns how many intervals that is. Of a few intervals and many
 * only those of the many are looked at that reach into the few. */
static size_t intersect(const Py_buffer *sides, int64_t *begin, int64_t *end) {
    int small = sides[0].len > sides[2].len ? 2 : 0;
    const int64_t *begins = sides[small].buf, *ends = sides[small + 1].buf, *others = sides[2 - small].buf, *until = sides[3 - small].buf;
    size_t count = (size_t)sides[small].len / 8, many = (size_t)sides[2 - small].len / 8, near = 0, found = 0;
    for (size_t k = 0; k < count; k++) {
        near = count_until(until, many, begins[k], near);
        for (size_t other = near; other < many && others[other] < ends[k]; other++, found++)
            if (begin) {
                begin[found] = others[other] > begins[k] ? others[other] : begins[k];
                end[found] = until[other] < ends[k] ? until[other] : ends[k];
            }
    }
    return found;
}

/* Puts the intervals that two lists by their begins make together, empty ones apart, into `begin` and `end`, if there are such columns; returns how many. */
static size_t unite(const Py_buffer *sides, int64_t *begin, int64_t *end) {
    size_t count[2] = {(size_t)sides[0].len / 8, (size_t)sides[2].len / 8}, at[2] = {0, 0}, found = 0;
    int64_t reached = 0;
    while (at[0] < count[0] || at[1] < count[1]) {
        int from = at[0] >= count[0] || (at[1] < count[1] && ((int64_t *)sides[2].buf)[at[1]] < ((int64_t *)sides[0].buf)[at[0]]);
        int64_t first = ((int64_t *)sides[2 * from].buf)[at[from]], last = ((int64_t *)sides[2 * from + 1].buf)[at[from]];
        at[from]++;
        if (last <= first)
            continue;
        if (!found || first > reached) {
            if (begin)
                begin[found] = first;
            found++;
            reached = last;
        } else if (last > reached)
            reached = last;
        if (begin)
            end[found - 1] = reached;
    }
    return found;
}

/* Puts the times of one set that are not in another into `begin` and `end`, if there are such columns; returns how many intervals that is. */
static size_t subtract(const Py_buffer *sides, int64_t *begin, int64_t *end) {
    const int64_t *begins = sides[0].buf, *ends = sides[1].buf, *others = sides[2].buf, *until = sides[3].buf;
    size_t count = (size_t)sides[0].len / 8, many = (size_t)sides[2].len / 8, near = 0, found = 0;
    for (size_t k = 0; k < count; k++) {
        int64_t at = begins[k];
        near = count_until(until, many, at, near);
        for (size_t other = near; at < ends[k]; other++) {
            int64_t next = other < many && others[other] < ends[k] ? others[other] : ends[k];
            if (next > at) {
                if (begin) {
                    begin[found] = at;
                    end[found] = next;
                }
                found++;
            }
            at = next < ends[k] ? until[other] : next;
        }
    }
    return found;
}

/* Two sets of up to so many intervals are gone through once, with room for all that may be made of them. */
enum { FEW = 1 << 18 };

/* What a function makes of two sets of times. Of many intervals it first tells how many that is. */
static PyObject *make_spans(PyObject *arguments, size_t (*make)(const Py_buffer *, int64_t *, int64_t *)) {
    Py_buffer sides[4];
    PyObject *begin = NULL, *end = NULL, *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*", &sides[0], &sides[1], &sides[2], &sides[3]))
        return NULL;
    if (sides[0].len != sides[1].len || sides[2].len != sides[3].len)
        PyErr_SetString(PyExc_ValueError, "an end of each begin");
    else {
        Py_ssize_t size, most = (sides[0].len + sides[2].len) / 8;
        int64_t *room = most <= FEW ? malloc((size_t)most * 16 + 1) : NULL;
        Py_BEGIN_ALLOW_THREADS
        size = (Py_ssize_t)make(sides, room, room ? room + most : NULL) * 8;
        Py_END_ALLOW_THREADS
        begin = PyBytes_FromStringAndSize((char *)room, size);
        end = PyBytes_FromStringAndSize(room ? (char *)(room + most) : NULL, size);
        free(room);
        if (begin && end && room)
            result = PyTuple_Pack(2, begin, end);
        else if (begin && end) {
            Py_BEGIN_ALLOW_THREADS
            make(sides, (int64_t *)PyBytes_AsString(begin), (int64_t *)PyBytes_AsString(end));
            Py_END_ALLOW_THREADS
            result = PyTuple_Pack(2, begin, end);
        }
    }
    Py_XDECREF(begin);
    Py_XDECREF(end);
    for (int k = 0; k < 4; k++)
        PyBuffer_Release(&sides[k]);
    return result;
}

PyObject *intersect_spans(PyObject *self, PyObject *arguments) {
    (void)self;
    return make_spans(arguments, intersect);
}

PyObject *subtract_spans(PyObject *self, PyObject *arguments) {
    (void)self;
    return make_spans(arguments, subtract);
}

PyObject *unite_spans(PyObject *self, PyObject *arguments) {
    (void)self;
    return make_spans(arguments, unite);
}

/* Ends of ranges that are open, the first one first (a heap), and of each depth the last range. */
typedef struct {
    int64_t *ends;
    int32_t *last;
    int64_t count, room;
} Open;

static bool make_space(Open *open) {
    if (open->count + 2 < open->room)
        return true;
    int64_t room = open->room ? 2 * open->room : 64;
    int64_t *ends = realloc(open->ends, (size_t)room * 8);
    open->ends = ends ? ends : open->ends;
    int32_t *last = realloc(open->last, (size_t)room * 4);
    open->last = last ? last : open->last;
    if (!ends || !last)
        return false;
    for (int64_t k = open->room; k < room; k++)
        last[k] = -1;
    open->room = room;
    return true;
}

static void push_end(Open *open, int64_t end) {
    int64_t at = open->count++;
    for (; at && open->ends[(at - 1) / 2] > end; at = (at - 1) / 2)
        open->ends[at] = open->ends[(at - 1) / 2];
    open->ends[at] = end;
}

static void pop_end(Open *open) {
    int64_t end = open->ends[--open->count], at = 0;
    for (int64_t child; (child = 2 * at + 1) < open->count; at = child) {
        child += child + 1 < open->count && open->ends[child + 1] < open->ends[child];
        if (open->ends[child] >= end)
            break;
        open->ends[at] = open->ends[child];
    }
    open->ends[at] = end;
}

/* Ranges by thread, begin, longer first. A range is as deep as there are open ones that began before it, and its parent is the last of them that is less
 * deep by one. Empty ranges count as over before all that begin with them. Returns false without memory. */
static bool nest_ranges(const int32_t *thread, const int64_t *begin, const int64_t *end, int64_t count, int32_t *depths, int32_t *parent, Open *open) {
    int64_t first = 0;
    for (int64_t k = 0, after; k < count; k = after) {
        int64_t empty = 0;
        if (k && thread[k] != thread[k - 1]) {
            open->count = 0;
            first = k;
        }
        while (open->count && open->ends[0] <= begin[k])
            pop_end(open);
        for (after = k; after < count && thread[after] == thread[k] && begin[after] == begin[k]; after++)
            empty += end[after] <= begin[k];
        int64_t before = open->count;
        for (int64_t row = k; row < after; row++) {
            if (!make_space(open))
                return false;
            int64_t depth = before + (row - k) - empty;
            int32_t above = depth > 0 ? open->last[depth - 1] : -1;
            depths[row] = (int32_t)depth;
            parent[row] = above >= first ? above : -1;
            if (depth >= 0)
                open->last[depth] = (int32_t)row;
            if (end[row] > begin[row])
                push_end(open, end[row]);
        }
    }
    return true;
}

PyObject *find_parents(PyObject *self, PyObject *arguments) {
    (void)self;
    Buffers held = {.count = 0};
    Open open = {0};
    int64_t count;
    void *column[5];
    bool done = true;
    if (get_columns(&held, arguments, "48844", &count, column)) {
        Py_BEGIN_ALLOW_THREADS
        done = nest_ranges(column[0], column[1], column[2], count, column[3], column[4], &open);
        Py_END_ALLOW_THREADS
    }
    free(open.ends);
    free(open.last);
    release_buffers(&held);
    if (!done)
        return PyErr_NoMemory();
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
