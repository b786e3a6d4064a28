/* The states of rows over time, for nsys2prv.conversion.states: a row is in the state of the innermost range that is open on it. */
#include "module.h"

#include <stdint.h>
#include <stdlib.h>

enum { OBJECT, BEGIN, END, STATE, YIELDS, HELD_OBJECT, HELD_TIME, HELD_STATE, OUTSIDE, SINCE, CURRENT, COLUMNS };

/* Ranges that are open on a row, the innermost last; those that have ended are taken off once they are the last. */
typedef struct {
    int64_t *rows;
    size_t count;
} Open;

static void drop_ended(Open *open, const int64_t *end, int64_t time) {
    while (open->count && end[open->rows[open->count - 1]] <= time)
        open->count--;
}

static int64_t next_end(const Open *open, const int64_t *end, int64_t next) {
    if (!open->count)
        return next;
    int64_t time = end[open->rows[open->count - 1]];
    return time < next ? time : next;
}

/* Puts the states that end before the limit into `out` (object, begin, end, state), of objects one after the other; returns how many. */
static size_t sweep(int64_t *const *at, const size_t *count, int64_t first, int64_t limit, int64_t *const *out, Open *open) {
    size_t range = 0, held = 0, made = 0;
    while (range < count[OBJECT] || held < count[HELD_OBJECT]) {
        int64_t object = range < count[OBJECT] ? at[OBJECT][range] : INT64_MAX;
        if (held < count[HELD_OBJECT] && at[HELD_OBJECT][held] < object)
            object = at[HELD_OBJECT][held];
        open[0].count = open[1].count = 0;
        for (;;) {
            int64_t time = next_end(&open[1], at[END], next_end(&open[0], at[END], limit));
            if (range < count[OBJECT] && at[OBJECT][range] == object && at[BEGIN][range] < time)
                time = at[BEGIN][range];
            if (held < count[HELD_OBJECT] && at[HELD_OBJECT][held] == object && at[HELD_TIME][held] < time)
                time = at[HELD_TIME][held];
            if (time >= limit)
                break;
            /* What began before the window begins with it. */
            time = time < first ? first : time;
            drop_ended(&open[0], at[END], time);
            drop_ended(&open[1], at[END], time);
            for (; range < count[OBJECT] && at[OBJECT][range] == object && at[BEGIN][range] <= time; range++) {
                Open *own = &open[at[YIELDS][range] != 0];
                own->rows[own->count++] = (int64_t)range;
            }
            for (; held < count[HELD_OBJECT] && at[HELD_OBJECT][held] == object && at[HELD_TIME][held] <= time; held++)
                at[OUTSIDE][object] = at[HELD_STATE][held];
            drop_ended(&open[0], at[END], time);
            drop_ended(&open[1], at[END], time);
            const Open *deciding = &open[open[0].count ? 0 : 1];
            int64_t state = deciding->count ? at[STATE][deciding->rows[deciding->count - 1]] : at[OUTSIDE][object];
            if (state == at[CURRENT][object])
                continue;
            if (at[SINCE][object] < time) {
                const int64_t record[] = {object, at[SINCE][object], time, at[CURRENT][object]};
                for (int column = 0; column < 4; column++)
                    out[column][made] = record[column];
                made++;
            }
            at[SINCE][object] = time;
            at[CURRENT][object] = state;
        }
        /* What begins at the limit or later is of the next window. */
        while (range < count[OBJECT] && at[OBJECT][range] == object)
            range++;
        while (held < count[HELD_OBJECT] && at[HELD_OBJECT][held] == object)
            held++;
    }
    return made;
}

PyObject *find_states(PyObject *self, PyObject *arguments) {
    Py_buffer view[COLUMNS];
    long long first, limit;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "(y*y*y*y*y*)(y*y*y*)(w*w*w*)LL", &view[OBJECT], &view[BEGIN], &view[END], &view[STATE], &view[YIELDS],
                          &view[HELD_OBJECT], &view[HELD_TIME], &view[HELD_STATE], &view[OUTSIDE], &view[SINCE], &view[CURRENT], &first, &limit))
        return NULL;
    int64_t *at[COLUMNS], *out[4] = {NULL, NULL, NULL, NULL};
    size_t count[COLUMNS];
    for (int k = 0; k < COLUMNS; k++) {
        at[k] = view[k].buf;
        count[k] = (size_t)view[k].len / 8;
    }
    int fits = count[SINCE] == count[OUTSIDE] && count[CURRENT] == count[OUTSIDE];
    for (int k = BEGIN; k <= YIELDS; k++)
        fits = fits && count[k] == count[OBJECT];
    for (int k = HELD_TIME; k <= HELD_STATE; k++)
        fits = fits && count[k] == count[HELD_OBJECT];
    for (size_t k = 0; fits && k < count[OBJECT]; k++)
        fits = at[OBJECT][k] >= 0 && (uint64_t)at[OBJECT][k] < count[OUTSIDE] && (!k || at[OBJECT][k] >= at[OBJECT][k - 1]);
    for (size_t k = 0; fits && k < count[HELD_OBJECT]; k++)
        fits = at[HELD_OBJECT][k] >= 0 && (uint64_t)at[HELD_OBJECT][k] < count[OUTSIDE] && (!k || at[HELD_OBJECT][k] >= at[HELD_OBJECT][k - 1]);
    /* Each begin and each end of a range, and each state held, changes one state at most. */
    size_t room = 2 * count[OBJECT] + count[HELD_OBJECT] + 1, made = 0;
    Open open[2] = {{malloc(8 * (count[OBJECT] + 1)), 0}, {malloc(8 * (count[OBJECT] + 1)), 0}};
    int has_room = open[0].rows && open[1].rows;
    for (int k = 0; k < 4; k++)
        has_room = (out[k] = malloc(8 * room)) && has_room;
    PyObject *result = NULL;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "ranges and states by objects, and columns of equal length");
    else if (!has_room)
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        made = sweep(at, count, first, limit, out, open);
        Py_END_ALLOW_THREADS
        Py_ssize_t size = (Py_ssize_t)(8 * made);
        result = Py_BuildValue("(y#y#y#y#)", (char *)out[0], size, (char *)out[1], size, (char *)out[2], size, (char *)out[3], size);
    }
    for (int k = 0; k < 4; k++)
        free(out[k]);
    free(open[0].rows);
    free(open[1].rows);
    for (int k = 0; k < COLUMNS; k++)
        PyBuffer_Release(&view[k]);
    return result;
}
