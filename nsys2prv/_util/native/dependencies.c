/* What each call and operation of a unit waits for: the first loop of nsys2prv.replay. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

/* How far apart host and device times of one report may be (ns), and what is as good as at once. */
#define CLOCKS_APART 20000
#define AT_ONCE 10000
/* A thread that pauses for so long may have been woken by another. */
#define LONG_PAUSE 60000
/* What a thread needs that another one woke (ns). */
#define USUAL_WAKE_UP 5000

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
    int32_t *target, *source, *typical;
    uint8_t *kind;
    int64_t count, room;
    bool failed;
} Edges;

static bool grow(void **column, int64_t room, int64_t size) {
    void *larger = realloc(*column, (size_t)(room * size));
    if (larger)
        *column = larger;
    return larger != NULL;
}

/* typical: a weight (ns), or TO_ESTIMATE or AS_RECORDED. */
static void add_edge(Edges *edges, int kind, int64_t target, int64_t source, int32_t typical) {
    if (edges->count == edges->room) {
        int64_t room = edges->room ? edges->room + edges->room / 2 : 1 << 16;
        if (!grow((void **)&edges->target, room, 4) || !grow((void **)&edges->source, room, 4) || !grow((void **)&edges->typical, room, 4)
            || !grow((void **)&edges->kind, room, 1)) {
            edges->failed = true;
            return;
        }
        edges->room = room;
    }
    edges->target[edges->count] = (int32_t)target;
    edges->source[edges->count] = (int32_t)source;
    edges->typical[edges->count] = typical;
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
        add_edge(edges, RETURN, 2 * in->operations + in->calls + call, in->operations + operation, TO_ESTIMATE);
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
    int32_t typical = AS_RECORDED;
    int64_t pause = before < 0 ? INT64_MAX : begin - in->call_end[before];
    if (pause > LONG_PAUSE) {
        int32_t waker = find_waker(in, state, thread, begin);
        if (waker >= 0 && before < 0)
            add_edge(edges, HANDOFF, begins + call, ends + waker, AS_RECORDED);
        else if (waker >= 0 && in->call_end[waker] > in->call_end[before]) {
            int64_t delay = begin - in->call_end[waker], rest = delay > AT_ONCE ? delay : AT_ONCE;
            int32_t next = state->next_call[waker];
            if ((next < 0 || in->call_begin[next] - begin > rest) && (delay < pause / 2 || delay < 30000)) {
                add_edge(edges, HANDOFF, begins + call, ends + waker, TO_ESTIMATE);
                typical = USUAL_WAKE_UP;
            }
        }
    }
    if (before >= 0)
        add_edge(edges, GAP, begins + call, ends + before, typical);
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
        add_edge(edges, LAUNCH, one, (after ? ends : begins) + call, TO_ESTIMATE);
        int64_t lasts = in->call_end[call] - in->call_begin[call], until = in->end[one] - in->call_begin[call];
        if (in->copy[one] && in->does[call] & COPIES && in->end[one] <= in->call_end[call] + AT_ONCE && until > 1000
            && 5 * lasts > 4 * (until < CLOCKS_APART ? until : CLOCKS_APART))
            add_edge(edges, RETURN, ends + call, in->operations + one, TO_ESTIMATE);
    }
    if (state->last_operation[stream] >= 0)
        add_edge(edges, STREAM, one, in->operations + state->last_operation[stream], TO_ESTIMATE);
    if (state->held[stream] >= 0) {
        add_edge(edges, EVENT, one, in->operations + state->held[stream], TO_ESTIMATE);
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


/* Drops returns for which no call was there: a call has waited for an operation only if that, or another one, ended after its begin. Notes which calls
 * have waited. */
static void drop_returns(Edges *edges, const Input *in, uint8_t *waited) {
    int64_t ends = 2 * in->operations + in->calls, kept = 0;
    for (int64_t k = 0; k < edges->count; k++) {
        if (edges->kind[k] == RETURN && in->end[edges->source[k] - in->operations] > in->call_begin[edges->target[k] - ends])
            waited[edges->target[k] - ends] = 1;
    }
    for (int64_t k = 0; k < edges->count; k++) {
        if (edges->kind[k] == RETURN && !waited[edges->target[k] - ends])
            continue;
        edges->target[kept] = edges->target[k];
        edges->source[kept] = edges->source[k];
        edges->typical[kept] = edges->typical[k];
        edges->kind[kept++] = edges->kind[k];
    }
    edges->count = kept;
}

/* Until when each operation is held up by what is known (ns), NOTHING where by nothing. */
static void find_held(const Edges *edges, const Input *in, int64_t *held) {
    int64_t count = in->operations, begins = 2 * count, ends = begins + in->calls;
    for (int64_t one = 0; one < count; one++)
        held[one] = NOTHING;
    for (int64_t k = 0; k < edges->count; k++) {
        int32_t target = edges->target[k], source = edges->source[k];
        if (target >= count)
            continue;
        int64_t at = source >= ends ? in->call_end[source - ends] : source >= begins ? in->call_begin[source - begins] : in->end[source - count];
        if (at <= in->begin[target] && at > held[target])
            held[target] = at;
    }
}

static PyObject *take_bytes(void *column, int64_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize(column, (Py_ssize_t)size);
    free(column);
    return bytes;
}

PyObject *find_dependencies(PyObject *self, PyObject *arguments) {
    PyObject *calls, *operations, *markers, *process, *waited, *held_until;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &calls, &operations, &markers, &process, &waited, &held_until))
        return NULL;
    Buffers held = {.count = 0};
    Input in = {.rows = -1};
    Edges edges = {0};
    State state = {0};
    void *of_calls[4], *of_operations[5], *of_markers[5], *out[1], *until[1];
    if (!get_columns(&held, calls, "8841", &in.calls, of_calls) || !get_columns(&held, operations, "88441", &in.operations, of_operations)
        || !get_columns(&held, markers, "81444", &in.markers, of_markers) || !get_column(&held, process, 4, &in.rows, (void **)&in.process)
        || !get_column(&held, waited, 1, &in.calls, out) || !get_column(&held, held_until, 8, &in.operations, until))
        goto done;
    in.call_begin = of_calls[0], in.call_end = of_calls[1], in.call_thread = of_calls[2], in.does = of_calls[3];
    in.begin = of_operations[0], in.end = of_operations[1], in.stream = of_operations[2], in.call = of_operations[3], in.copy = of_operations[4];
    in.marker_time = of_markers[0], in.marker = of_markers[1], in.marker_thread = of_markers[2], in.marker_stream = of_markers[3];
    in.marker_event = of_markers[4];
    if (!are_within(in.call_thread, in.calls, 0, in.rows - 1) || !are_within(in.stream, in.operations, 0, in.rows - 1)
        || !are_within(in.call, in.operations, -1, in.calls - 1) || !are_within(in.marker_thread, in.markers, -1, in.rows - 1)
        || !are_within(in.marker_stream, in.markers, -1, in.rows - 1) || !are_within(in.process, in.rows, 0, in.rows)
        || !are_within(in.marker_event, in.markers, -1, in.markers) || 2 * (in.calls + in.operations) > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a row, call or event that there is not, or too many");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    if (make_state(&state, &in)) {
        sweep(&edges, &in, &state);
        sweep_calls_by_name(&edges, &in, &state);
        if (!edges.failed) {
            drop_returns(&edges, &in, out[0]);
            find_held(&edges, &in, until[0]);
        }
    } else
        edges.failed = true;
    free_state(&state);
    Py_END_ALLOW_THREADS
    if (edges.failed)
        PyErr_NoMemory();
done:
    release_buffers(&held);
    if (PyErr_Occurred()) {
        free(edges.target);
        free(edges.source);
        free(edges.typical);
        free(edges.kind);
        return NULL;
    }
    PyObject *target = take_bytes(edges.target, edges.count * 4), *source = take_bytes(edges.source, edges.count * 4);
    PyObject *kind = take_bytes(edges.kind, edges.count), *typical = take_bytes(edges.typical, edges.count * 4);
    return Py_BuildValue("NNNN", target, source, kind, typical);
}

PyObject *find_outermost(PyObject *self, PyObject *arguments) {
    PyObject *calls, *out;
    Py_ssize_t rows;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OnO", &calls, &rows, &out))
        return NULL;
    Buffers held = {.count = 0};
    int64_t count, found = 0;
    void *columns[3], *number[1];
    if (get_columns(&held, calls, "884", &count, columns) && get_column(&held, out, 4, &count, number)) {
        const int64_t *begin = columns[0], *end = columns[1];
        const int32_t *thread = columns[2];
        int32_t *outermost = number[0];
        int64_t *reached = malloc((size_t)(rows + 1) * 8);
        int32_t *outer = malloc((size_t)(rows + 1) * 4);
        if (!reached || !outer)
            PyErr_NoMemory();
        else if (!are_within(thread, count, 0, rows - 1))
            PyErr_SetString(PyExc_ValueError, "a row that there is not");
        else {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t row = 0; row < rows; row++)
                reached[row] = NOTHING;
            for (int64_t k = 0; k < count; k++) {
                int32_t row = thread[k];
                if (begin[k] >= reached[row]) {
                    reached[row] = end[k];
                    outer[row] = (int32_t)found++;
                }
                outermost[k] = outer[row];
            }
            Py_END_ALLOW_THREADS
        }
        free(reached);
        free(outer);
    }
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(found);
}
