/* The loops of nsys2prv.replay: what each call and operation of a unit waits for, an order of the moments, and times along it. */
#include "module.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NOTHING INT64_MIN
/* How far apart host and device times of one report may be (ns), and what is as good as at once. */
#define CLOCKS_APART 20000
#define AT_ONCE 10000
/* A thread that pauses for so long may have been woken by another. */
#define LONG_PAUSE 60000

/* Kinds of dependencies, as nsys2prv/replay/graph.py numbers them. */
enum { KERNEL, COPY, GAP, CALL, NCCL, MPI, LAUNCH, RETURN, STREAM, EVENT, MEET, HANDOFF, QUEUE, OTHER, OUTSIDE };
/* What a call may do, and what a row of the tables about events and synchronisation says. */
enum { SYNCHRONISES = 1, FREES = 2, COPIES = 4, POLLS = 8 };
enum { RECORD, WAIT_STREAM, WAIT_CONTEXT, WAIT_EVENT, HOLD_STREAM };

/* Columns of one call of find_dependencies. */
typedef struct {
    const int64_t *call_begin, *call_end, *begin, *end, *marker_time;
    const int32_t *call_thread, *stream, *call, *marker_thread, *marker_stream, *marker_event, *process;
    const uint8_t *does, *copy, *marker;
    int64_t calls, operations, markers, rows;
} Input;

typedef struct {
    int32_t *target, *source;
    uint8_t *kind;
    int64_t count, room;
    bool failed;
} Edges;

static void add_edge(Edges *edges, int kind, int64_t target, int64_t source) {
    if (edges->count == edges->room) {
        int64_t room = edges->room ? edges->room * 2 : 1 << 16;
        int32_t *target_ = realloc(edges->target, (size_t)room * 4);
        if (target_)
            edges->target = target_;
        int32_t *source_ = realloc(edges->source, (size_t)room * 4);
        if (source_)
            edges->source = source_;
        uint8_t *kind_ = realloc(edges->kind, (size_t)room);
        if (kind_)
            edges->kind = kind_;
        if (!target_ || !source_ || !kind_) {
            edges->failed = true;
            return;
        }
        edges->room = room;
    }
    edges->target[edges->count] = (int32_t)target;
    edges->source[edges->count] = (int32_t)source;
    edges->kind[edges->count++] = (uint8_t)kind;
}

/* The last operation of a stream so far and the one whose end it must wait for besides, the last call of a thread and the one before, and the rows
 * of each process in a list. */
typedef struct {
    int32_t *last_operation, *held, *last_call, *call_before, *next_row, *first_row, *recorded, *next_call;
    bool *synchronised;
    int64_t processes, events;
} State;

static bool make_state(State *state, const Input *in) {
    memset(state, 0, sizeof *state);
    for (int64_t row = 0; row < in->rows; row++)
        if (in->process[row] >= state->processes)
            state->processes = in->process[row] + 1;
    for (int64_t k = 0; k < in->markers; k++)
        if (in->marker_event[k] >= state->events)
            state->events = in->marker_event[k] + 1;
    int32_t **columns[] = {&state->last_operation, &state->held, &state->last_call, &state->call_before, &state->next_row};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        if (!(*columns[k] = malloc((size_t)(in->rows + 1) * 4)))
            return false;
    state->first_row = malloc((size_t)(state->processes + 1) * 4);
    state->recorded = malloc((size_t)(state->events + 1) * 4);
    state->next_call = malloc((size_t)(in->calls + 1) * 4);
    state->synchronised = calloc((size_t)in->calls + 1, sizeof *state->synchronised);
    if (!state->first_row || !state->recorded || !state->next_call || !state->synchronised)
        return false;
    for (int64_t k = 0; k < state->processes; k++)
        state->first_row[k] = -1;
    for (int64_t k = 0; k < state->events; k++)
        state->recorded[k] = -1;
    for (int64_t row = in->rows - 1; row >= 0; row--) {
        state->last_operation[row] = state->held[row] = state->last_call[row] = state->call_before[row] = -1;
        state->next_row[row] = state->first_row[in->process[row]];
        state->first_row[in->process[row]] = (int32_t)row;
    }
    for (int64_t k = in->calls - 1; k >= 0; k--) {
        int32_t thread = in->call_thread[k];
        state->next_call[k] = state->last_call[thread];
        state->last_call[thread] = (int32_t)k;
    }
    for (int64_t row = 0; row < in->rows; row++)
        state->last_call[row] = -1;
    return true;
}

static void free_state(State *state) {
    void *columns[] = {state->last_operation, state->held, state->last_call, state->call_before, state->next_row,
                       state->first_row, state->recorded, state->next_call, state->synchronised};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        free(columns[k]);
}

/* A call returns after the end of an operation, if it can have waited for it. */
static void add_return(Edges *edges, const Input *in, int64_t call, int32_t operation) {
    if (operation >= 0 && in->end[operation] <= in->call_end[call] + CLOCKS_APART)
        add_edge(edges, RETURN, 2 * in->operations + in->calls + call, in->operations + operation);
}

static void return_after_process(Edges *edges, const Input *in, const State *state, int64_t call) {
    for (int32_t row = state->first_row[in->process[in->call_thread[call]]]; row >= 0; row = state->next_row[row])
        add_return(edges, in, call, state->last_operation[row]);
}

/* A synchronising call of which no table says what it waits for: after what was launched before and ended last within it. */
static void return_after_last(Edges *edges, const Input *in, const State *state, int64_t call) {
    int32_t last = -1;
    for (int32_t row = state->first_row[in->process[in->call_thread[call]]]; row >= 0; row = state->next_row[row]) {
        int32_t one = state->last_operation[row];
        if (one >= 0 && in->end[one] > in->call_begin[call] && in->end[one] <= in->call_end[call] + CLOCKS_APART
            && (last < 0 || in->end[one] > in->end[last]))
            last = one;
    }
    add_return(edges, in, call, last);
}

/* The call of another thread of the process that ended last before this time, which none that only looks is; -1 for none. */
static int32_t find_waker(const Input *in, const State *state, int32_t thread, int64_t time) {
    int32_t waker = -1;
    for (int32_t row = state->first_row[in->process[thread]]; row >= 0; row = state->next_row[row]) {
        if (row == thread)
            continue;
        int32_t one = state->last_call[row];
        if (one >= 0 && in->call_end[one] > time)
            one = state->call_before[row];
        if (one >= 0 && !(in->does[one] & POLLS) && in->call_end[one] <= time && (waker < 0 || in->call_end[one] > in->call_end[waker]))
            waker = one;
    }
    return waker;
}

/* The begin of a call: after the one before on its thread; where that is long ago, after the call of another thread that woke it: both pause, and
 * this one goes on shortly after the other one ends. */
static void begin_call(Edges *edges, const Input *in, const State *state, int64_t call) {
    int32_t thread = in->call_thread[call], before = state->last_call[thread];
    int64_t begin = in->call_begin[call], begins = 2 * in->operations, ends = begins + in->calls;
    int64_t pause = before < 0 ? INT64_MAX : begin - in->call_end[before];
    if (pause > LONG_PAUSE) {
        int32_t waker = find_waker(in, state, thread, begin);
        if (waker >= 0 && before < 0)
            add_edge(edges, HANDOFF, begins + call, ends + waker);
        else if (waker >= 0 && in->call_end[waker] > in->call_end[before]) {
            int64_t delay = begin - in->call_end[waker], rest = delay > AT_ONCE ? delay : AT_ONCE;
            int32_t next = state->next_call[waker];
            if ((next < 0 || in->call_begin[next] - begin > rest) && (delay < pause / 2 || delay < 30000))
                add_edge(edges, HANDOFF, begins + call, ends + waker);
        }
    }
    if (before >= 0)
        add_edge(edges, GAP, begins + call, ends + before);
    add_edge(edges, CALL, ends + call, begins + call);
}

/* What a row about an event or a synchronisation says, of the call that it lies in. */
static void take_marker(Edges *edges, const Input *in, State *state, int64_t marker) {
    int32_t thread = in->marker_thread[marker], stream = in->marker_stream[marker], event = in->marker_event[marker];
    int32_t call = thread < 0 ? -1 : state->last_call[thread];
    if (call >= 0 && in->call_end[call] < in->marker_time[marker])
        call = -1;
    switch (in->marker[marker]) {
    case RECORD:
        if (event >= 0)
            state->recorded[event] = stream < 0 ? -1 : state->last_operation[stream];
        break;
    case HOLD_STREAM:
        if (event >= 0 && stream >= 0 && state->recorded[event] >= 0 && in->stream[state->recorded[event]] != stream)
            state->held[stream] = state->recorded[event];
        break;
    case WAIT_STREAM:
        if (call < 0 || stream < 0)
            return;
        add_return(edges, in, call, state->last_operation[stream]);
        state->synchronised[call] = true;
        break;
    case WAIT_CONTEXT:
        if (call < 0)
            return;
        return_after_process(edges, in, state, call);
        state->synchronised[call] = true;
        break;
    case WAIT_EVENT:
        if (call < 0 || event < 0 || state->recorded[event] < 0)
            return;
        add_return(edges, in, call, state->recorded[event]);
        state->synchronised[call] = true;
    }
}

/* An operation: after the call that launched it, the one before on its stream, and the event that the stream waits for. A copy that its call has
 * waited for lets that return. */
static void launch_operation(Edges *edges, const Input *in, State *state, int64_t one) {
    int32_t stream = in->stream[one], call = in->call[one];
    int64_t begins = 2 * in->operations, ends = begins + in->calls;
    if (call >= 0) {
        bool after = in->begin[one] >= in->call_end[call] && in->end[one] > in->call_end[call] + AT_ONCE;
        add_edge(edges, LAUNCH, one, (after ? ends : begins) + call);
        int64_t lasts = in->call_end[call] - in->call_begin[call], until = in->end[one] - in->call_begin[call];
        if (in->copy[one] && in->does[call] & COPIES && in->end[one] <= in->call_end[call] + AT_ONCE && until > 1000
            && 5 * lasts > 4 * (until < CLOCKS_APART ? until : CLOCKS_APART))
            add_edge(edges, RETURN, ends + call, in->operations + one);
    }
    if (state->last_operation[stream] >= 0)
        add_edge(edges, STREAM, one, in->operations + state->last_operation[stream]);
    if (state->held[stream] >= 0) {
        add_edge(edges, EVENT, one, in->operations + state->held[stream]);
        state->held[stream] = -1;
    }
    state->last_operation[stream] = (int32_t)one;
}

/* Goes through calls, rows about events and operations (by their launches) in the order of their times. */
static void sweep(Edges *edges, const Input *in, State *state) {
    int64_t call = 0, marker = 0, one = 0;
    while (call < in->calls || marker < in->markers || one < in->operations) {
        int64_t launch = INT64_MAX;
        if (one < in->operations)
            launch = in->call[one] < 0 ? in->begin[one] : in->call_begin[in->call[one]];
        int64_t at_call = call < in->calls ? in->call_begin[call] : INT64_MAX;
        int64_t at_marker = marker < in->markers ? in->marker_time[marker] : INT64_MAX;
        if (at_call <= launch && at_call <= at_marker && call < in->calls) {
            int32_t thread = in->call_thread[call];
            begin_call(edges, in, state, call);
            state->call_before[thread] = state->last_call[thread];
            state->last_call[thread] = (int32_t)call++;
        } else if (launch <= at_marker && one < in->operations)
            launch_operation(edges, in, state, one++);
        else
            take_marker(edges, in, state, marker++);
    }
}

/* Calls that wait by their names, where no row says for what: in a sweep of their own, for the rows lie within the calls. */
static void sweep_calls_by_name(Edges *edges, const Input *in, State *state) {
    int64_t one = 0;
    for (int64_t row = 0; row < in->rows; row++)
        state->last_operation[row] = -1;
    for (int64_t call = 0; call < in->calls; call++) {
        int64_t begin = in->call_begin[call];
        for (; one < in->operations; one++) {
            int64_t launch = in->call[one] < 0 ? in->begin[one] : in->call_begin[in->call[one]];
            if (launch > begin)
                break;
            state->last_operation[in->stream[one]] = (int32_t)one;
        }
        if (state->synchronised[call])
            continue;
        if (in->does[call] & FREES)
            return_after_process(edges, in, state, call);
        else if (in->does[call] & SYNCHRONISES)
            return_after_last(edges, in, state, call);
    }
}

/* Buffers of the arguments of a function, released together. */
typedef struct {
    Py_buffer buffers[16];
    int count;
} Buffers;

static void *get_buffer(Buffers *held, PyObject *object, int64_t size, int64_t *count, int64_t wanted) {
    Py_buffer *buffer = &held->buffers[held->count];
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    held->count++;
    *count = (int64_t)buffer->len / size;
    if (wanted >= 0 && *count != wanted) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        return NULL;
    }
    /* Of no rows there may be no address. */
    return buffer->buf ? buffer->buf : (void *)held;
}

static void release_buffers(Buffers *held) {
    while (held->count)
        PyBuffer_Release(&held->buffers[--held->count]);
}

static bool are_within(const int32_t *numbers, int64_t count, int64_t least, int64_t most) {
    for (int64_t k = 0; k < count; k++)
        if (numbers[k] < least || numbers[k] > most)
            return false;
    return true;
}

PyObject *find_dependencies(PyObject *self, PyObject *arguments) {
    PyObject *given[15], *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "(OOOO)(OOOOO)(OOOOO)O", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6], &given[7],
                          &given[8], &given[9], &given[10], &given[11], &given[12], &given[13], &given[14]))
        return NULL;
    Buffers held = {.count = 0};
    Input in;
    int64_t count;
    if (!(in.call_begin = get_buffer(&held, given[0], 8, &in.calls, -1)) || !(in.call_end = get_buffer(&held, given[1], 8, &count, in.calls))
        || !(in.call_thread = get_buffer(&held, given[2], 4, &count, in.calls)) || !(in.does = get_buffer(&held, given[3], 1, &count, in.calls))
        || !(in.begin = get_buffer(&held, given[4], 8, &in.operations, -1)) || !(in.end = get_buffer(&held, given[5], 8, &count, in.operations))
        || !(in.stream = get_buffer(&held, given[6], 4, &count, in.operations)) || !(in.call = get_buffer(&held, given[7], 4, &count, in.operations))
        || !(in.copy = get_buffer(&held, given[8], 1, &count, in.operations)) || !(in.marker_time = get_buffer(&held, given[9], 8, &in.markers, -1))
        || !(in.marker = get_buffer(&held, given[10], 1, &count, in.markers))
        || !(in.marker_thread = get_buffer(&held, given[11], 4, &count, in.markers))
        || !(in.marker_stream = get_buffer(&held, given[12], 4, &count, in.markers))
        || !(in.marker_event = get_buffer(&held, given[13], 4, &count, in.markers)) || !(in.process = get_buffer(&held, given[14], 4, &in.rows, -1))) {
        release_buffers(&held);
        return NULL;
    }
    Edges edges = {0};
    State state = {0};
    if (!are_within(in.call_thread, in.calls, 0, in.rows - 1) || !are_within(in.stream, in.operations, 0, in.rows - 1)
        || !are_within(in.call, in.operations, -1, in.calls - 1) || !are_within(in.marker_thread, in.markers, -1, in.rows - 1)
        || !are_within(in.marker_stream, in.markers, -1, in.rows - 1) || !are_within(in.process, in.rows, 0, in.rows)
        || !are_within(in.marker_event, in.markers, -1, in.markers) || 2 * (in.calls + in.operations) > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "a row, call or event that there is not, or too many");
    else {
        Py_BEGIN_ALLOW_THREADS
        if (make_state(&state, &in)) {
            sweep(&edges, &in, &state);
            sweep_calls_by_name(&edges, &in, &state);
        } else
            edges.failed = true;
        Py_END_ALLOW_THREADS
        free_state(&state);
        if (edges.failed)
            PyErr_NoMemory();
        else
            result = Py_BuildValue("y#y#y#", edges.target ? (char *)edges.target : "", (Py_ssize_t)edges.count * 4, edges.source ? (char *)edges.source : "",
                                   (Py_ssize_t)edges.count * 4, edges.kind ? (char *)edges.kind : "", (Py_ssize_t)edges.count);
    }
    free(edges.target);
    free(edges.source);
    free(edges.kind);
    release_buffers(&held);
    return result;
}

PyObject *find_outermost(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    Py_ssize_t rows;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOnO", &given[0], &given[1], &given[2], &rows, &given[3]))
        return NULL;
    Buffers held = {.count = 0};
    int64_t calls, count, found = 0;
    const int64_t *begin = get_buffer(&held, given[0], 8, &calls, -1), *end = begin ? get_buffer(&held, given[1], 8, &count, calls) : NULL;
    const int32_t *thread = end ? get_buffer(&held, given[2], 4, &count, calls) : NULL;
    int32_t *out = thread ? get_buffer(&held, given[3], 4, &count, calls) : NULL;
    int64_t *reached = out ? malloc((size_t)(rows + 1) * 8) : NULL;
    int32_t *outer = reached ? malloc((size_t)(rows + 1) * 4) : NULL;
    if (out && !outer)
        PyErr_NoMemory();
    else if (out && !are_within(thread, calls, 0, rows - 1))
        PyErr_SetString(PyExc_ValueError, "a row that there is not");
    else if (out) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t row = 0; row < rows; row++)
            reached[row] = NOTHING;
        for (int64_t k = 0; k < calls; k++) {
            int32_t row = thread[k];
            if (begin[k] >= reached[row]) {
                reached[row] = end[k];
                outer[row] = (int32_t)found++;
            }
            out[k] = outer[row];
        }
        Py_END_ALLOW_THREADS
    }
    free(reached);
    free(outer);
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(found);
}

/* An order of the nodes in which every source is before its targets, and that keeps to the given one as far as edges allow. Returns how many nodes
 * were placed; the others, which are on cycles, stand behind them. */
static int64_t place_nodes(int64_t nodes, int64_t edges, const int32_t *source, const int32_t *target, const int32_t *order, int32_t *out, int32_t *work) {
    int32_t *degree = work, *head = work + nodes, *stack = head + nodes, *next = stack + nodes;
    int64_t placed = 0;
    memset(degree, 0, (size_t)nodes * 4);
    for (int64_t node = 0; node < nodes; node++)
        head[node] = -1;
    for (int64_t edge = 0; edge < edges; edge++) {
        degree[target[edge]]++;
        next[edge] = head[source[edge]];
        head[source[edge]] = (int32_t)edge;
    }
    /* A node that the order has passed waits with its degree below zero for its last source. */
    for (int64_t node = 0; node < nodes; node++)
        degree[node] = degree[node] * 2;
    for (int64_t k = 0; k < nodes; k++) {
        int64_t top = 0;
        degree[order[k]] |= 1;
        if (degree[order[k]] == 1)
            stack[top++] = order[k];
        while (top) {
            int32_t node = stack[--top];
            out[placed++] = node;
            for (int32_t edge = head[node]; edge >= 0; edge = next[edge])
                if ((degree[target[edge]] -= 2) == 1)
                    stack[top++] = target[edge];
        }
    }
    int64_t rest = placed;
    for (int64_t k = 0; k < nodes && rest < nodes; k++)
        if (degree[order[k]] > 1)
            out[rest++] = order[k];
    return placed;
}

PyObject *sort_nodes(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    Buffers held = {.count = 0};
    int64_t edges, nodes, count, placed = 0;
    const int32_t *source = get_buffer(&held, given[0], 4, &edges, -1), *target = source ? get_buffer(&held, given[1], 4, &count, edges) : NULL;
    const int32_t *order = target ? get_buffer(&held, given[2], 4, &nodes, -1) : NULL;
    int32_t *out = order ? get_buffer(&held, given[3], 4, &count, nodes) : NULL, *work = NULL;
    if (out && (!are_within(source, edges, 0, nodes - 1) || !are_within(target, edges, 0, nodes - 1) || !are_within(order, nodes, 0, nodes - 1)))
        PyErr_SetString(PyExc_ValueError, "a node that there is not");
    else if (out && !(work = malloc((size_t)(3 * nodes + edges + 1) * 4)))
        PyErr_NoMemory();
    else if (out) {
        Py_BEGIN_ALLOW_THREADS
        placed = place_nodes(nodes, edges, source, target, order, out, work);
        Py_END_ALLOW_THREADS
    }
    free(work);
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(placed);
}

/* Times of all nodes, in an order that has sources before targets: `first[n]` is the first edge of node n. `changed`: edges, ascending, that have
 * another weight; NOTHING: the edge does not hold. */
static void run_replay(int64_t nodes, const int64_t *first, const int32_t *source, const int64_t *weight, int64_t changes, const int64_t *changed,
                       const int64_t *changed_to, int64_t *time, int64_t *why) {
    int64_t change = 0;
    for (int64_t node = 0; node < nodes; node++) {
        int64_t best = NOTHING, by = -1;
        for (int64_t edge = first[node]; edge < first[node + 1]; edge++) {
            int64_t lasts = weight[edge];
            if (change < changes && changed[change] == edge)
                lasts = changed_to[change++];
            if (lasts == NOTHING)
                continue;
            int64_t at = time[source[edge]] + lasts;
            if (by < 0 || at > best) {
                best = at;
                by = edge;
            }
        }
        if (by >= 0)
            time[node] = best;
        if (why)
            why[node] = by;
    }
}

PyObject *replay(PyObject *self, PyObject *arguments) {
    PyObject *given[7];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6]))
        return NULL;
    Buffers held = {.count = 0};
    int64_t bounds, edges, changes, nodes, count;
    const int64_t *first = get_buffer(&held, given[0], 8, &bounds, -1);
    const int32_t *source = first ? get_buffer(&held, given[1], 4, &edges, -1) : NULL;
    const int64_t *weight = source ? get_buffer(&held, given[2], 8, &count, edges) : NULL;
    const int64_t *changed = weight ? get_buffer(&held, given[3], 8, &changes, -1) : NULL;
    const int64_t *changed_to = changed ? get_buffer(&held, given[4], 8, &count, changes) : NULL;
    int64_t *time = changed_to ? get_buffer(&held, given[5], 8, &nodes, bounds - 1) : NULL, *why = NULL;
    if (time && given[6] != Py_None && !(why = get_buffer(&held, given[6], 8, &count, nodes)))
        time = NULL;
    if (time && (!are_within(source, edges, 0, nodes - 1) || (nodes && (first[0] != 0 || first[nodes] != edges))))
        PyErr_SetString(PyExc_ValueError, "edges or nodes that there are not");
    else if (time) {
        Py_BEGIN_ALLOW_THREADS
        run_replay(nodes, first, source, weight, changes, changed, changed_to, time, why);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&held);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Whether these are bounds of consecutive edges of nodes. */
static bool are_bounds(const int64_t *first, int64_t nodes, int64_t edges) {
    if (nodes < 0 || first[0] != 0 || first[nodes] != edges)
        return false;
    for (int64_t node = 0; node < nodes; node++)
        if (first[node] > first[node + 1])
            return false;
    return true;
}

/* For each edge, whether its source is later than all others of its target by more than `clear`: whether its gap (ns) is so much the least. */
static void mark_clear(int64_t nodes, const int64_t *first, const int64_t *gap, int64_t clear, uint8_t *out) {
    for (int64_t node = 0; node < nodes; node++) {
        int64_t least = INT64_MAX, next = INT64_MAX, by = -1;
        for (int64_t edge = first[node]; edge < first[node + 1]; edge++) {
            out[edge] = 0;
            if (gap[edge] < least) {
                next = least;
                least = gap[edge];
                by = edge;
            } else if (gap[edge] < next)
                next = gap[edge];
        }
        if (by >= 0 && (next == INT64_MAX || next - least > clear))
            out[by] = 1;
    }
}

/* For each edge, whether it is the one that allows its target last: whose gap exceeds what is typical by least, of equal ones the last. */
static void mark_binding(int64_t nodes, const int64_t *first, const int64_t *gap, const int64_t *typical, uint8_t *out) {
    for (int64_t node = 0; node < nodes; node++) {
        int64_t by = -1;
        for (int64_t edge = first[node]; edge < first[node + 1]; edge++) {
            out[edge] = 0;
            if (by < 0 || gap[edge] - typical[edge] <= gap[by] - typical[by])
                by = edge;
        }
        if (by >= 0)
            out[by] = 1;
    }
}

PyObject *mark_edges(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    long long clear;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOLO", &given[0], &given[1], &given[2], &clear, &given[3]))
        return NULL;
    Buffers held = {.count = 0};
    int64_t bounds, edges, count;
    const int64_t *first = get_buffer(&held, given[0], 8, &bounds, -1), *gap = first ? get_buffer(&held, given[1], 8, &edges, -1) : NULL;
    const int64_t *typical = NULL;
    uint8_t *out = gap ? get_buffer(&held, given[3], 1, &count, edges) : NULL;
    if (out && given[2] != Py_None && !(typical = get_buffer(&held, given[2], 8, &count, edges)))
        out = NULL;
    if (out && !are_bounds(first, bounds - 1, edges))
        PyErr_SetString(PyExc_ValueError, "edges or nodes that there are not");
    else if (out) {
        Py_BEGIN_ALLOW_THREADS
        if (typical)
            mark_binding(bounds - 1, first, gap, typical, out);
        else
            mark_clear(bounds - 1, first, gap, clear, out);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&held);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Puts into `out` the edges by the numbers of their targets, in their order, and into `first` where those of each number begin. */
static void order_edges(int64_t nodes, int64_t edges, const int32_t *target, const int32_t *number, int64_t *first, int32_t *out) {
    memset(first, 0, (size_t)(nodes + 1) * 8);
    for (int64_t edge = 0; edge < edges; edge++)
        first[number[target[edge]] + 1]++;
    for (int64_t node = 0; node < nodes; node++)
        first[node + 1] += first[node];
    for (int64_t edge = 0; edge < edges; edge++)
        out[first[number[target[edge]]]++] = (int32_t)edge;
    for (int64_t node = nodes; node > 0; node--)
        first[node] = first[node - 1];
    first[0] = 0;
}

PyObject *group_edges(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    Buffers held = {.count = 0};
    int64_t edges, nodes, count;
    const int32_t *target = get_buffer(&held, given[0], 4, &edges, -1), *number = target ? get_buffer(&held, given[1], 4, &nodes, -1) : NULL;
    int64_t *first = number ? get_buffer(&held, given[2], 8, &count, nodes + 1) : NULL;
    int32_t *out = first ? get_buffer(&held, given[3], 4, &count, edges) : NULL;
    if (out && (!are_within(target, edges, 0, nodes - 1) || !are_within(number, nodes, 0, nodes - 1)))
        PyErr_SetString(PyExc_ValueError, "a node that there is not");
    else if (out) {
        Py_BEGIN_ALLOW_THREADS
        order_edges(nodes, edges, target, number, first, out);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&held);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
