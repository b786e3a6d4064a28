/* The graph of a job, for nsys2prv.replay: what is typical and what each node waited for, times along an order, and the path.
 *
 * Nodes of a unit stand together, in an order that has sources before targets; edges stand by their targets, those of the units first, then those that
 * join them, which are the edges from `joined` on. A source is a moment: twice the number of a node, one more for the end of the node's work. Behind the
 * weights of edges stand those of the nodes' work.
 */
#include "replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool get_column(Buffers *held, PyObject *object, int size, int64_t *count, void *column) {
    Py_buffer *buffer = &held->buffers[held->count];
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return false;
    held->count++;
    int64_t found = (int64_t)buffer->len / size;
    if (buffer->len % size || (*count >= 0 && found != *count)) {
        PyErr_SetString(PyExc_ValueError, "columns of other lengths or types than they must be");
        return false;
    }
    *count = found;
    /* Of no rows there may be no address. */
    *(void **)column = buffer->buf ? buffer->buf : (void *)held;
    return true;
}

bool get_columns(Buffers *held, PyObject *tuple, const char *sizes, int64_t *count, void **columns) {
    *count = -1;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != (Py_ssize_t)strlen(sizes)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of columns is missing, or has others");
        return false;
    }
    for (Py_ssize_t k = 0; sizes[k]; k++)
        if (!get_column(held, PyTuple_GetItem(tuple, k), sizes[k] - '0', count, &columns[k]))
            return false;
    return true;
}

PyObject *make_column(int64_t count, int size, void *column) {
    PyObject *made = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * size));
    *(void **)column = made ? PyByteArray_AsString(made) : NULL;
    return made;
}

void release_buffers(Buffers *held) {
    while (held->count)
        PyBuffer_Release(&held->buffers[--held->count]);
}

bool are_within(const int32_t *numbers, int64_t count, int64_t least, int64_t most) {
    for (int64_t k = 0; k < count; k++)
        if (numbers[k] < least || numbers[k] > most)
            return false;
    return true;
}

/* Durations of edges, and of nodes' work behind them from `of_nodes` on, which may be alone. Those that are LONG stand in a table, by their places. Some may
 * be changed: a bit of each says which, then the others count, of which so many belong to the bits before each word. */
typedef struct {
    const int32_t *value, *before, *other;
    const int64_t *place, *length;
    const uint64_t *changed;
    int64_t count, tabled, of_nodes;
} Durations;

/* name: of each node, of ends of calls -1 less it. key: of the edges that join units. */
typedef struct {
    const int32_t *target, *source, *name, *key;
    const uint8_t *kind;
    int64_t edges, joined, nodes;
    Buffers held;
} Graph;

#define GRAPH "nsys2prv.graph"

static int64_t find_long(const Durations *durations, int64_t at) {
    int64_t low = 0, high = durations->tabled;
    while (low + 1 < high) {
        int64_t middle = (low + high) / 2;
        if (durations->place[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return high ? durations->length[low] : LONG;
}

static inline bool is_changed(const uint64_t *changed, int64_t at) { return changed[at >> 6] >> (at & 63) & 1; }

/* The place of the other duration of a changed one. */
static inline int64_t find_other(const uint64_t *changed, const int32_t *before, int64_t at) {
    return before[at >> 6] + __builtin_popcountll(changed[at >> 6] & (((uint64_t)1 << (at & 63)) - 1));
}

static inline int32_t get_value(const Durations *durations, int64_t at) {
    if (durations->changed && is_changed(durations->changed, at))
        return durations->other[find_other(durations->changed, durations->before, at)];
    return durations->value[at];
}

static inline int64_t get_duration(const Durations *durations, int64_t at) {
    int32_t value = get_value(durations, at);
    return value < LONG ? value : find_long(durations, at);
}

static inline int64_t get_moment(const int64_t *time, const Durations *weight, int32_t moment) {
    int64_t node = moment >> 1;
    return moment & 1 ? time[node] + get_duration(weight, weight->of_nodes + node) : time[node];
}

static bool get_durations(Buffers *held, PyObject *given, int64_t count, Durations *durations) {
    PyObject *value, *place, *length, *changed = NULL, *before = NULL, *other = NULL;
    if (!PyArg_ParseTuple(given, "OOO|OOO", &value, &place, &length, &changed, &before, &other))
        return false;
    durations->count = count;
    durations->tabled = -1;
    durations->changed = NULL;
    if (!get_column(held, value, 4, &durations->count, &durations->value) || !get_column(held, place, 8, &durations->tabled, &durations->place)
        || !get_column(held, length, 8, &durations->tabled, &durations->length))
        return false;
    int64_t words = durations->count / 64 + 1, others = -1;
    return !other || (get_column(held, changed, 8, &words, &durations->changed) && get_column(held, before, 4, &words, &durations->before)
                      && get_column(held, other, 4, &others, &durations->other));
}

static void free_graph(PyObject *capsule) {
    Graph *graph = PyCapsule_GetPointer(capsule, GRAPH);
    if (graph) {
        release_buffers(&graph->held);
        PyMem_Free(graph);
    }
}

static bool fill_graph(Graph *graph, PyObject *target, PyObject *source, PyObject *kind, PyObject *name, PyObject *key) {
    int64_t count = -1, joining;
    void *column[5];
    graph->edges = -1;
    if (!get_column(&graph->held, target, 4, &graph->edges, &column[0]) || !get_column(&graph->held, source, 4, &graph->edges, &column[1])
        || !get_column(&graph->held, kind, 1, &count, &column[2]))
        return false;
    graph->nodes = count - graph->edges;
    joining = graph->edges - graph->joined;
    if (!get_column(&graph->held, name, 4, &graph->nodes, &column[3]) || !get_column(&graph->held, key, 4, &joining, &column[4]))
        return false;
    graph->target = column[0], graph->source = column[1], graph->kind = column[2], graph->name = column[3], graph->key = column[4];
    bool ascending = graph->joined >= 0 && graph->joined <= graph->edges;
    for (int64_t k = 1; k < graph->edges && ascending; k++)
        ascending = k == graph->joined || graph->target[k - 1] <= graph->target[k];
    if (ascending && graph->nodes >= 0 && are_within(graph->target, graph->edges, 0, graph->nodes - 1)
        && are_within(graph->source, graph->edges, 0, 2 * graph->nodes - 1))
        return true;
    PyErr_SetString(PyExc_ValueError, "edges that are not in order, or nodes that there are not");
    return false;
}

PyObject *make_graph(PyObject *self, PyObject *arguments) {
    PyObject *target, *source, *kind, *name, *key, *made;
    long long joined;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOLOO", &target, &source, &kind, &joined, &name, &key))
        return NULL;
    Graph *graph = PyMem_Calloc(1, sizeof *graph);
    if (!graph)
        return PyErr_NoMemory();
    graph->joined = joined;
    if (fill_graph(graph, target, source, kind, name, key) && (made = PyCapsule_New(graph, GRAPH, free_graph)))
        return made;
    release_buffers(&graph->held);
    PyMem_Free(graph);
    return NULL;
}

/* What functions of a graph are given: the graph, times of its nodes, and durations of its edges and of its nodes' work. */
typedef struct {
    Buffers held;
    const Graph *graph;
    int64_t *time;
    Durations weight;
} Given;

static bool get_times(Given *given, PyObject *graph, PyObject *time, PyObject *weight, bool has_edges) {
    void *column;
    given->held.count = 0;
    given->graph = PyCapsule_GetPointer(graph, GRAPH);
    if (!given->graph)
        return false;
    int64_t nodes = given->graph->nodes;
    if (!get_column(&given->held, time, 8, &nodes, &column))
        return false;
    given->time = column;
    given->weight.of_nodes = has_edges ? given->graph->edges : 0;
    return get_durations(&given->held, weight, given->weight.of_nodes + nodes, &given->weight);
}

static bool get_given(Given *given, PyObject *graph, PyObject *time, PyObject *weight) { return get_times(given, graph, time, weight, true); }

/* A column of one item for each edge, or each node, of a graph. */
static bool get_edges(Given *given, PyObject *object, int size, void *column) {
    int64_t count = given->graph->edges;
    return get_column(&given->held, object, size, &count, column);
}

static bool get_nodes(Given *given, PyObject *object, int size, void *column) {
    int64_t count = given->graph->nodes;
    return get_column(&given->held, object, size, &count, column);
}

/* The next edge of a node, -1 for none: places in both parts of the edges go on. */
static inline int64_t take_next(const Graph *graph, int64_t node, int64_t *own, int64_t *join) {
    if (*own < graph->joined && graph->target[*own] == node)
        return (*own)++;
    if (*join < graph->edges && graph->target[*join] == node)
        return (*join)++;
    return -1;
}

/* What work an edge is, the same number on all ranks: name, place, or channel. */
static int32_t get_key(const Graph *graph, int64_t edge) {
    if (edge >= graph->edges)
        return graph->kind[edge] == NO_KIND ? 0 : graph->name[edge - graph->edges];
    if (edge >= graph->joined)
        return graph->key[edge - graph->joined];
    int32_t from = graph->name[graph->source[edge] >> 1], to = graph->name[graph->target[edge]];
    bool is_end = graph->source[edge] & 1 || from < 0;
    from = from < 0 ? -1 - from : from;
    to = to < 0 ? -1 - to : to;
    switch (graph->kind[edge]) {
    case GAP:
        return -1 - (from * PLACE + to);
    case LAUNCH:
        return from * 2 + is_end;
    case CALL:
    case RETURN:
        return to;
    default:
        return 0;
    }
}

PyObject *find_keys(PyObject *self, PyObject *arguments) {
    PyObject *given, *rows, *keys;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOO", &given, &rows, &keys))
        return NULL;
    Buffers held = {.count = 0};
    const Graph *graph = PyCapsule_GetPointer(given, GRAPH);
    int64_t count = -1;
    void *row, *key;
    if (graph && get_column(&held, rows, 4, &count, &row) && get_column(&held, keys, 4, &count, &key)) {
        const int32_t *edge = row;
        if (!are_within(edge, count, 0, graph->edges + graph->nodes - 1))
            PyErr_SetString(PyExc_ValueError, "an edge that there is not");
        else
            for (int64_t k = 0; k < count; k++)
                ((int32_t *)key)[k] = get_key(graph, edge[k]);
    }
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static bool make_room(Codes *codes) {
    int64_t room = codes->room ? codes->room * 4 : 1024;
    uint64_t *key = malloc((size_t)room * 8), *distinct = realloc(codes->distinct, (size_t)room * 8);
    int32_t *number = malloc((size_t)room * 4);
    if (distinct)
        codes->distinct = distinct;
    if (!key || !distinct || !number) {
        free(key);
        free(number);
        return false;
    }
    for (int64_t k = 0; k < room; k++)
        number[k] = -1;
    free(codes->key);
    free(codes->number);
    codes->key = key;
    codes->number = number;
    codes->room = room;
    for (int64_t k = 0; k < codes->count; k++) {
        uint64_t at = distinct[k] * 0x9E3779B97F4A7C15u >> 20 & (uint64_t)(room - 1);
        while (number[at] >= 0)
            at = (at + 1) & (uint64_t)(room - 1);
        key[at] = distinct[k];
        number[at] = (int32_t)k;
    }
    return true;
}

int32_t find_code(Codes *codes, uint64_t key) {
    if (2 * codes->count >= codes->room && !make_room(codes))
        return -1;
    uint64_t mask = (uint64_t)(codes->room - 1), at = key * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (codes->number[at] >= 0 && codes->key[at] != key)
        at = (at + 1) & mask;
    if (codes->number[at] < 0) {
        codes->key[at] = key;
        codes->number[at] = (int32_t)codes->count;
        codes->distinct[codes->count++] = key;
    }
    return codes->number[at];
}

void free_codes(Codes *codes) {
    free(codes->key);
    free(codes->number);
    free(codes->distinct);
}

/* Marks latencies that are to be estimated and that tell of themselves, because their source is later than all others of their target by more than
 * `clear` (ns); the typical weight of each becomes its group: kind, process and key. */
static bool group_edges(const Graph *graph, const int64_t *time, const Durations *weight, const int32_t *process, int64_t clear, int32_t *typical,
                        uint8_t *marks, Codes *groups) {
    int64_t own = 0, join = graph->joined;
    for (int64_t node = 0; node < graph->nodes; node++) {
        int64_t least = INT64_MAX, next = INT64_MAX, by = -1;
        for (int64_t edge; (edge = take_next(graph, node, &own, &join)) >= 0;) {
            int64_t gap = time[node] - get_moment(time, weight, graph->source[edge]);
            marks[edge] = 0;
            if (gap < least) {
                next = least;
                least = gap;
                by = edge;
            } else if (gap < next)
                next = gap;
            if (typical[edge] == TO_ESTIMATE) {
                int32_t code = find_code(groups, (uint64_t)graph->kind[edge] << 56 | (uint64_t)process[node] << 32 | (uint32_t)get_key(graph, edge));
                if (code < 0)
                    return false;
                typical[edge] = FIRST_GROUP - code;
            }
        }
        if (by >= 0 && typical[by] <= FIRST_GROUP && (next == INT64_MAX || next - least > clear))
            marks[by] = 1;
    }
    return true;
}

/* The median (ns) of the marked edges of each group, and how many these are; false without memory. */
static bool find_usual(const Graph *graph, const int64_t *time, const Durations *weight, const int32_t *typical, const uint8_t *marks, int64_t groups,
                       int64_t *count, double *usual) {
    int64_t *end = calloc((size_t)groups + 1, 8), most = 0;
    for (int64_t edge = 0; edge < graph->edges && end; edge++)
        if (marks[edge])
            end[FIRST_GROUP - typical[edge]]++;
    for (int64_t group = 0; group < groups && end; group++) {
        count[group] = end[group];
        end[group] = most;
        most += count[group];
    }
    int64_t *gaps = malloc((size_t)(most + 1) * 8);
    for (int64_t edge = 0; edge < graph->edges && end && gaps; edge++)
        if (marks[edge])
            gaps[end[FIRST_GROUP - typical[edge]]++] = time[graph->target[edge]] - get_moment(time, weight, graph->source[edge]);
    for (int64_t group = 0; group < groups && end && gaps; group++)
        usual[group] = find_median(gaps + end[group] - count[group], count[group]);
    bool done = end && gaps;
    free(end);
    free(gaps);
    return done;
}

PyObject *group_latencies(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *weights, *processes, *typicals, *marks, *made[3] = {NULL}, *result = NULL;
    long long clear;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOLOO", &graph, &times, &weights, &processes, &clear, &typicals, &marks))
        return NULL;
    Given in;
    Codes groups = {0};
    int32_t *process, *typical;
    int64_t *count;
    double *usual;
    uint64_t *distinct;
    uint8_t *mark;
    bool done = false;
    if (!get_times(&in, graph, times, weights, false) || !get_nodes(&in, processes, 4, &process)
        || !get_edges(&in, typicals, 4, &typical) || !get_edges(&in, marks, 1, &mark))
        goto done;
    Py_BEGIN_ALLOW_THREADS
    done = group_edges(in.graph, in.time, &in.weight, process, clear, typical, mark, &groups);
    Py_END_ALLOW_THREADS
    if (!done) {
        PyErr_NoMemory();
        goto done;
    }
    if (!(made[0] = make_column(groups.count, 8, &distinct)) || !(made[1] = make_column(groups.count, 8, &count))
        || !(made[2] = make_column(groups.count, 8, &usual)))
        goto done;
    if (groups.count)
        memcpy(distinct, groups.distinct, (size_t)groups.count * 8);
    Py_BEGIN_ALLOW_THREADS
    done = find_usual(in.graph, in.time, &in.weight, typical, mark, groups.count, count, usual);
    Py_END_ALLOW_THREADS
    result = done ? PyTuple_Pack(3, made[0], made[1], made[2]) : PyErr_NoMemory();
done:
    for (int k = 0; k < 3; k++)
        Py_XDECREF(made[k]);
    free_codes(&groups);
    release_buffers(&in.held);
    return result;
}

static int32_t shorten(int64_t duration) { return duration < LONG ? (int32_t)duration : LONG; }

/* Edges, each with a number: the typical weight of those whose weight is another, or how long a pause lasts. */
typedef struct {
    int32_t *edge;
    int64_t *number;
    int64_t count, room;
    bool failed;
} Noted;

static void note(Noted *noted, int64_t edge, int64_t number) {
    if (noted->count == noted->room) {
        int64_t room = noted->room ? 2 * noted->room : 1 << 12;
        int32_t *edges = realloc(noted->edge, (size_t)room * 4);
        noted->edge = edges ? edges : noted->edge;
        int64_t *numbers = realloc(noted->number, (size_t)room * 8);
        noted->number = numbers ? numbers : noted->number;
        noted->failed |= !edges || !numbers;
        if (noted->failed)
            return;
        noted->room = room;
    }
    noted->edge[noted->count] = (int32_t)edge;
    noted->number[noted->count++] = number;
}

/* What was noted, as bytes. */
static PyObject *end_notes(Noted *noted) {
    PyObject *result = noted->failed ? PyErr_NoMemory()
                                     : Py_BuildValue("y#y#", noted->edge ? (char *)noted->edge : "", (Py_ssize_t)noted->count * 4,
                                                     noted->number ? (char *)noted->number : "", (Py_ssize_t)noted->count * 8);
    free(noted->edge);
    free(noted->number);
    return result;
}

/* Weights in the place of typical ones: of each node's edges the one that allows it last, of equal ones the last, gets the one that reproduces the
 * recording, and all others what is typical. usual: of each group. In `binding`, which edges these are; their typical weights are noted where others. */
static void weigh_edges(const Graph *graph, const int64_t *time, const Durations *lasting, const int64_t *usual, int32_t *weights, uint8_t *binding,
                        Noted *noted) {
    int64_t own = 0, join = graph->joined;
    const unsigned kept = BIT(NCCL) | BIT(MPI) | BIT(MEET);
    for (int64_t node = 0; node < graph->nodes; node++) {
        int64_t by = -1, least = 0, longest = 0;
        for (int64_t edge; (edge = take_next(graph, node, &own, &join)) >= 0;) {
            binding[edge] = 0;
            if (graph->kind[edge] == NO_KIND) {
                weights[edge] = NOT_HELD;
                continue;
            }
            int64_t gap = time[node] - get_moment(time, lasting, graph->source[edge]);
            int64_t most = BIT(graph->kind[edge]) & kept && gap < 0 ? 0 : gap, typical = weights[edge];
            int64_t lasts = typical >= 0 ? typical : typical > FIRST_GROUP ? gap : usual[FIRST_GROUP - typical];
            lasts = lasts < most ? lasts : most;
            weights[edge] = shorten(lasts);
            if (by < 0 || gap - lasts <= least) {
                by = edge;
                least = gap - lasts;
                longest = gap;
            }
        }
        if (by >= 0) {
            binding[by] = 1;
            if (weights[by] != shorten(longest)) {
                note(noted, by, weights[by]);
                weights[by] = shorten(longest);
            }
        }
    }
}

PyObject *find_weights(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *durations, *usuals, *typicals, *bindings;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &graph, &times, &durations, &usuals, &typicals, &bindings))
        return NULL;
    Given in;
    Noted noted = {0};
    int64_t groups = -1;
    int32_t *typical;
    uint8_t *binding;
    void *usual;
    if (get_times(&in, graph, times, durations, false) && get_column(&in.held, usuals, 8, &groups, &usual) && get_edges(&in, typicals, 4, &typical)
        && get_edges(&in, bindings, 1, &binding)) {
        if (!are_within(typical, in.graph->edges, FIRST_GROUP + 1 - groups, INT32_MAX))
            PyErr_SetString(PyExc_ValueError, "a group that there is not");
        else {
            Py_BEGIN_ALLOW_THREADS
            weigh_edges(in.graph, in.time, &in.weight, usual, typical, binding, &noted);
            Py_END_ALLOW_THREADS
        }
    }
    release_buffers(&in.held);
    return PyErr_Occurred() ? NULL : end_notes(&noted);
}

/* A set of keys that edges may have; all where there are none. */
static bool fill_keys(Codes *codes, const int32_t *keys, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        if (find_code(codes, (uint32_t)keys[k]) < 0)
            return false;
    return true;
}

static bool has_key(const Codes *codes, int32_t key) {
    if (!codes->room)
        return false;
    uint64_t mask = (uint64_t)(codes->room - 1), at = (uint64_t)(uint32_t)key * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (codes->number[at] >= 0 && codes->key[at] != (uint32_t)key)
        at = (at + 1) & mask;
    return codes->number[at] >= 0;
}

PyObject *list_pauses(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *durations, *typicals, *keys;
    long long least;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOLO", &graph, &times, &durations, &typicals, &least, &keys))
        return NULL;
    Given in;
    Noted noted = {0};
    Codes wanted = {0};
    int64_t count = -1;
    int32_t *typical;
    void *key;
    if (get_times(&in, graph, times, durations, false) && get_edges(&in, typicals, 4, &typical)
        && (keys == Py_None || get_column(&in.held, keys, 4, &count, &key))) {
        if (count > 0 && !fill_keys(&wanted, key, count))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            for (int64_t edge = 0; edge < in.graph->edges; edge++) {
                if (in.graph->kind[edge] != GAP || typical[edge] != AS_RECORDED)
                    continue;
                int64_t gap = in.time[in.graph->target[edge]] - get_moment(in.time, &in.weight, in.graph->source[edge]);
                if (gap > least && (count < 0 || has_key(&wanted, get_key(in.graph, edge))))
                    note(&noted, edge, gap);
            }
            Py_END_ALLOW_THREADS
        }
    }
    free_codes(&wanted);
    release_buffers(&in.held);
    return PyErr_Occurred() ? NULL : end_notes(&noted);
}

/* Stretches of consecutive nodes that a replay goes through one after the other: first and last node, first edges of both parts. */
typedef struct {
    int32_t first, end, own, join;
} Stretch;

typedef struct {
    Stretch *stretches;
    int64_t count, room, placed;
    bool failed;
} Plan;

static void add_stretch(Plan *plan, int64_t first, int64_t end, int64_t own, int64_t join) {
    if (first == end)
        return;
    if (plan->count == plan->room) {
        plan->room = plan->room ? 2 * plan->room : 1 << 12;
        Stretch *larger = realloc(plan->stretches, (size_t)plan->room * sizeof *larger);
        if (!larger) {
            plan->failed = true;
            plan->room = plan->count;
            return;
        }
        plan->stretches = larger;
    }
    plan->stretches[plan->count++] = (Stretch){(int32_t)first, (int32_t)end, (int32_t)own, (int32_t)join};
    plan->placed += end - first;
}

/* The units of a plan: how far each is, and what it waits for. Of meetings, which stand behind all units: how many sources are still to come, the edges
 * behind which the others of a source are, and the units that wait. */
typedef struct {
    int64_t *node, *own, *join, *leaving;
    int32_t *pending, *waiting, *next_waiting, *ready;
    int64_t ready_count;
} Progress;

typedef struct {
    int32_t source, meeting;
} Leaving;

static int compare_leaving(const void *first, const void *second) {
    const Leaving *one = first, *other = second;
    if (one->source != other->source)
        return one->source < other->source ? -1 : 1;
    return one->meeting < other->meeting ? -1 : one->meeting > other->meeting;
}

/* A meeting takes place: the units that wait for it go on. */
static void hold_meeting(Plan *plan, const Graph *graph, Progress *state, int64_t meeting, int64_t units_end, const int64_t *first_join) {
    add_stretch(plan, units_end + meeting, units_end + meeting + 1, graph->joined, first_join[meeting]);
    for (int32_t unit = state->waiting[meeting]; unit >= 0; unit = state->next_waiting[unit])
        state->ready[state->ready_count++] = unit;
    state->waiting[meeting] = -1;
}

/* Goes on with a unit until its end, or until a node waits for a meeting that has not taken place. */
static void advance_unit(Plan *plan, const Graph *graph, Progress *state, int32_t unit, const int64_t *bounds, int64_t units_end, const Leaving *leaving,
                         int64_t leavings, const int64_t *first_join) {
    int64_t node = state->node[unit], own = state->own[unit], join = state->join[unit], first = node, first_own = own, before = join;
    int64_t leave = state->leaving[unit];
    for (; node < bounds[unit + 1]; node++) {
        for (int64_t edge = join; edge < graph->edges && graph->target[edge] == node; edge++) {
            int64_t meeting = (graph->source[edge] >> 1) - units_end;
            if (meeting >= 0 && state->pending[meeting] > 0) {
                state->next_waiting[unit] = state->waiting[meeting];
                state->waiting[meeting] = unit;
                goto pause;
            }
        }
        while (own < graph->joined && graph->target[own] == node)
            own++;
        while (join < graph->edges && graph->target[join] == node)
            join++;
        for (; leave < leavings && leaving[leave].source >> 1 == node; leave++)
            if (--state->pending[leaving[leave].meeting] == 0) {
                add_stretch(plan, first, node + 1, first_own, before);
                first = node + 1;
                first_own = own;
                before = join;
                hold_meeting(plan, graph, state, leaving[leave].meeting, units_end, first_join);
            }
    }
pause:
    add_stretch(plan, first, node, first_own, before);
    state->node[unit] = node;
    state->own[unit] = own;
    state->join[unit] = join;
    state->leaving[unit] = leave;
}

static void make_plan(Plan *plan, const Graph *graph, const int64_t *bounds, int64_t units) {
    int64_t units_end = bounds[units], meetings = graph->nodes - units_end, arriving = graph->joined, leavings = 0;
    while (arriving < graph->edges && graph->target[arriving] < units_end)
        arriving++;
    leavings = graph->edges - arriving;
    Leaving *leaving = malloc((size_t)(leavings + 1) * sizeof *leaving);
    int64_t *places = malloc((size_t)(4 * units + meetings + 2) * 8), *first_join = places ? places + 4 * units : NULL;
    int32_t *numbers = malloc((size_t)(2 * meetings + 2 * units + 2) * 4);
    if (!leaving || !places || !numbers) {
        plan->failed = true;
        goto done;
    }
    Progress state = {places, places + units, places + 2 * units, places + 3 * units, numbers, numbers + meetings, numbers + 2 * meetings,
                      numbers + 2 * meetings + units, 0};
    for (int64_t meeting = 0; meeting < meetings; meeting++) {
        state.pending[meeting] = 0;
        state.waiting[meeting] = -1;
    }
    int64_t edge = arriving;
    for (int64_t meeting = 0; meeting < meetings; meeting++) {
        first_join[meeting] = edge;
        for (; edge < graph->edges && graph->target[edge] == units_end + meeting; edge++) {
            leaving[edge - arriving] = (Leaving){graph->source[edge], (int32_t)meeting};
            state.pending[meeting]++;
        }
    }
    qsort(leaving, (size_t)leavings, sizeof *leaving, compare_leaving);
    int64_t own = 0, join = graph->joined, leave = 0;
    for (int64_t unit = 0; unit < units; unit++) {
        while (own < graph->joined && graph->target[own] < bounds[unit])
            own++;
        while (join < arriving && graph->target[join] < bounds[unit])
            join++;
        while (leave < leavings && leaving[leave].source >> 1 < bounds[unit])
            leave++;
        state.node[unit] = bounds[unit];
        state.own[unit] = own;
        state.join[unit] = join;
        state.leaving[unit] = leave;
        state.ready[state.ready_count++] = (int32_t)(units - 1 - unit);
    }
    for (int64_t meeting = 0; meeting < meetings; meeting++)
        if (!state.pending[meeting])
            hold_meeting(plan, graph, &state, meeting, units_end, first_join);
    while (state.ready_count)
        advance_unit(plan, graph, &state, state.ready[--state.ready_count], bounds, units_end, leaving, leavings, first_join);
done:
    free(leaving);
    free(places);
    free(numbers);
}

PyObject *plan_replay(PyObject *self, PyObject *arguments) {
    PyObject *given, *ends, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO", &given, &ends))
        return NULL;
    Buffers held = {.count = 0};
    const Graph *graph = PyCapsule_GetPointer(given, GRAPH);
    Plan plan = {0};
    int64_t bounds = -1;
    void *bound;
    if (graph && get_column(&held, ends, 8, &bounds, &bound)) {
        const int64_t *each = bound;
        bool fits = bounds > 0 && each[0] == 0 && each[bounds - 1] <= graph->nodes;
        for (int64_t k = 1; k < bounds && fits; k++)
            fits = each[k - 1] <= each[k];
        for (int64_t edge = graph->joined; edge < graph->edges && fits; edge++)
            fits = graph->target[edge] < each[bounds - 1] || graph->source[edge] >> 1 < each[bounds - 1];
        if (!fits)
            PyErr_SetString(PyExc_ValueError, "units that there are not");
        else {
            Py_BEGIN_ALLOW_THREADS
            make_plan(&plan, graph, each, bounds - 1);
            Py_END_ALLOW_THREADS
            if (plan.failed)
                PyErr_NoMemory();
            else
                result = Py_BuildValue("y#L", plan.stretches ? (char *)plan.stretches : "", (Py_ssize_t)(plan.count * (int64_t)sizeof *plan.stretches),
                                       (long long)plan.placed);
        }
    }
    free(plan.stretches);
    release_buffers(&held);
    return result;
}

/* When an edge allows its target, NOTHING for one that does not hold. The weights are not changed ones. */
static inline int64_t find_arrival(const int64_t *time, const Durations *weight, int32_t source, int64_t edge) {
    int64_t node = source >> 1;
    int32_t lasts = weight->value[edge], work = weight->value[weight->of_nodes + node] & -(source & 1);
    if (__builtin_expect(lasts == LONG || work == LONG, 0))
        return get_moment(time, weight, source) + get_duration(weight, edge);
    return lasts == NOT_HELD ? NOTHING : time[node] + work + lasts;
}

/* Times of all nodes, recorded ones of those that wait for nothing, and the last of those that count: bit 0 of `counts`, a node; bit 1, the end of its
 * work. */
static int64_t run_replay(const Graph *graph, const Stretch *stretches, int64_t count, const Durations *weight, const uint8_t *counts,
                          const int64_t *recorded, int64_t *time) {
    const int32_t *target = graph->target, *source = graph->source;
    int64_t last = NOTHING;
    for (int64_t k = 0; k < count; k++) {
        int64_t own = stretches[k].own, join = stretches[k].join, next = join < graph->edges ? target[join] : graph->nodes;
        for (int64_t node = stretches[k].first; node < stretches[k].end; node++) {
            int64_t best = NOTHING;
            for (; own < graph->joined && target[own] == node; own++) {
                int64_t at = find_arrival(time, weight, source[own], own);
                best = at > best ? at : best;
            }
            for (; next <= node; next = ++join < graph->edges ? target[join] : graph->nodes) {
                int64_t at = find_arrival(time, weight, source[join], join);
                best = at > best ? at : best;
            }
            time[node] = best > NOTHING ? best : recorded[node];
            last = counts[node] & 1 && time[node] > last ? time[node] : last;
            if (counts[node] & 2) {
                int32_t work = weight->value[weight->of_nodes + node];
                int64_t end = time[node] + (work < LONG ? work : find_long(weight, weight->of_nodes + node));
                last = end > last ? end : last;
            }
        }
    }
    return last;
}

PyObject *replay(PyObject *self, PyObject *arguments) {
    PyObject *given, *plan, *weights, *counted, *times, *replayed;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &given, &times, &weights, &plan, &counted, &replayed))
        return NULL;
    Given in;
    int64_t stretches = -1, last = NOTHING, *time;
    uint8_t *counts;
    void *stretch;
    if (get_given(&in, given, times, weights) && get_column(&in.held, plan, sizeof(Stretch), &stretches, &stretch)
        && get_nodes(&in, counted, 1, &counts) && get_nodes(&in, replayed, 8, &time)) {
        const Stretch *each = stretch;
        bool fits = !in.weight.changed;
        for (int64_t k = 0; k < stretches && fits; k++)
            fits = each[k].first >= 0 && each[k].end <= in.graph->nodes && each[k].own >= 0 && each[k].join >= in.graph->joined;
        if (!fits)
            PyErr_SetString(PyExc_ValueError, "nodes or edges that there are not, or weights that are not filled in");
        else {
            Py_BEGIN_ALLOW_THREADS
            last = run_replay(in.graph, each, stretches, &in.weight, counts, in.time, time);
            Py_END_ALLOW_THREADS
        }
    }
    release_buffers(&in.held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(last);
}

/* Which moments lie in a span of time, as run_replay counts them. */
PyObject *count_moments(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *weights, *counted;
    long long begin, end;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOLLO", &graph, &times, &weights, &begin, &end, &counted))
        return NULL;
    Given in;
    uint8_t *counts;
    if (get_given(&in, graph, times, weights) && get_nodes(&in, counted, 1, &counts))
        for (int64_t node = 0; node < in.graph->nodes; node++) {
            int64_t ends = get_moment(in.time, &in.weight, (int32_t)(2 * node + 1));
            bool works = in.graph->kind[in.graph->edges + node] != NO_KIND;
            counts[node] = (in.time[node] > begin && in.time[node] <= end) | (works && ends > begin && ends <= end) << 1;
        }
    release_buffers(&in.held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static inline void take_later(int64_t time, int64_t moment, int64_t *latest, int64_t *last) {
    if (time > *latest) {
        *latest = time;
        *last = moment;
    }
}

/* The last of the moments that count, -1 for none. */
static int64_t find_last(const Given *in, const uint8_t *counts) {
    int64_t last = -1, latest = NOTHING;
    for (int64_t node = 0; node < in->graph->nodes; node++) {
        if (counts[node] & 1)
            take_later(in->time[node], 2 * node, &latest, &last);
        if (counts[node] & 2)
            take_later(get_moment(in->time, &in->weight, (int32_t)(2 * node + 1)), 2 * node + 1, &latest, &last);
    }
    return last;
}

/* The place of the first of some ascending numbers, from `first` to `end`, that is not below one. near: a place that may be near it. */
static int64_t find_first(const int32_t *numbers, int64_t first, int64_t end, int64_t least, int64_t near) {
    int64_t low = near, high;
    for (int k = 0; k < 8 && low > first && numbers[low - 1] >= least; k++)
        low--;
    high = low;
    for (int64_t step = 8; low > first && numbers[low - 1] >= least; step *= 4) {
        high = low - 1;
        low = low - first > step ? low - step : first;
    }
    for (int64_t step = 8; high < end && numbers[high] < least; step *= 4) {
        low = high + 1;
        high = end - high > step ? high + step : end;
    }
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (numbers[middle] < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The edge that a node waited for, -1 for none: the binding one, or, without such marks, the one that allows it last. What comes from outside of the job is
 * waited for from the call before on. own, join: places near its edges, and then behind these. */
static int64_t find_awaited(const Given *in, const uint8_t *binding, int64_t node, int64_t *own, int64_t *join) {
    const Graph *graph = in->graph;
    int64_t latest = NOTHING, pause = -1, awaited = -1;
    *own = find_first(graph->target, 0, graph->joined, node, *own);
    *join = find_first(graph->target, graph->joined, graph->edges, node, *join);
    for (int64_t edge; (edge = take_next(graph, node, own, join)) >= 0;) {
        pause = graph->kind[edge] == GAP ? edge : pause;
        if (binding) {
            if (binding[edge])
                awaited = edge;
            continue;
        }
        if (get_value(&in->weight, edge) == NOT_HELD)
            continue;
        int64_t at = get_moment(in->time, &in->weight, graph->source[edge]) + get_duration(&in->weight, edge);
        if (at >= latest) {
            latest = at;
            awaited = edge;
        }
    }
    return pause >= 0 && awaited >= 0 && graph->kind[awaited] == OUTSIDE ? pause : awaited;
}

PyObject *trace_path(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *weights, *bindings, *counted, *result = NULL;
    long long begin;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOL", &graph, &times, &weights, &bindings, &counted, &begin))
        return NULL;
    Given in;
    uint8_t *binding = NULL, *counts;
    int32_t *path = NULL;
    int64_t length = 0;
    if (!get_given(&in, graph, times, weights) || (bindings != Py_None && !get_edges(&in, bindings, 1, &binding))
        || !get_nodes(&in, counted, 1, &counts))
        goto done;
    int64_t nodes = in.graph->nodes, edges = in.graph->edges, own = in.graph->joined, join = edges;
    path = malloc((size_t)(2 * nodes + 1) * 4);
    if (!path) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    /* Each step leads to another moment, which is earlier in the order. */
    for (int64_t moment = find_last(&in, counts); moment >= 0 && length < 2 * nodes;) {
        if (get_moment(in.time, &in.weight, (int32_t)moment) <= begin)
            break;
        int64_t edge = moment & 1 ? edges + (moment >> 1) : find_awaited(&in, binding, moment >> 1, &own, &join);
        if (edge < 0)
            break;
        path[length++] = (int32_t)edge;
        moment = moment & 1 ? moment - 1 : in.graph->source[edge];
    }
    Py_END_ALLOW_THREADS
    result = PyBytes_FromStringAndSize((char *)path, (Py_ssize_t)length * 4);
done:
    free(path);
    release_buffers(&in.held);
    return result;
}

/* Edges, and work of nodes, that end in a span of time, by their nodes: in the order of time within a unit. Those of each kind go to where `out` tells,
 * which is then behind them; NULL for kinds that are left out. */
static void select_rows(const Given *in, int64_t begin, int64_t end, int32_t **out) {
    const Graph *graph = in->graph;
    int64_t own = 0, join = graph->joined;
    for (int64_t node = 0; node < graph->nodes; node++) {
        int64_t at = in->time[node], work = graph->edges + node;
        bool is_inside = at > begin && at <= end;
        for (int64_t edge; (edge = take_next(graph, node, &own, &join)) >= 0;)
            if (is_inside && out[graph->kind[edge]])
                *out[graph->kind[edge]]++ = (int32_t)edge;
        if (!out[graph->kind[work]])
            continue;
        at += get_duration(&in->weight, work);
        if (at > begin && at <= end)
            *out[graph->kind[work]]++ = (int32_t)work;
    }
}

PyObject *select_edges(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *weights, *columns[NO_KIND + 1] = {NULL}, *result = NULL;
    unsigned int kinds;
    long long begin, end;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOILL", &graph, &times, &weights, &kinds, &begin, &end))
        return NULL;
    Given in;
    /* Several of each: consecutive edges are often of one kind, and each sum waits for the one before. */
    int64_t count[4][NO_KIND + 1] = {{0}};
    int32_t *out[NO_KIND + 1] = {NULL};
    if (!get_given(&in, graph, times, weights) || !(result = PyDict_New()))
        goto done;
    for (int64_t k = 0; k < in.graph->edges + in.graph->nodes; k++)
        count[k & 3][in.graph->kind[k]]++;
    for (unsigned kind = 0; kind <= OUTSIDE; kind++) {
        if (!(kinds & BIT(kind)))
            continue;
        PyObject *number = PyLong_FromUnsignedLong(kind);
        columns[kind] = make_column(count[0][kind] + count[1][kind] + count[2][kind] + count[3][kind], 4, &out[kind]);
        if (!number || !columns[kind] || PyDict_SetItem(result, number, columns[kind]) < 0)
            Py_CLEAR(result);
        Py_XDECREF(number);
        Py_XDECREF(columns[kind]);
        if (!result)
            goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    select_rows(&in, begin, end, out);
    Py_END_ALLOW_THREADS
    for (unsigned kind = 0; kind <= OUTSIDE && result; kind++)
        if (columns[kind] && PyByteArray_Resize(columns[kind], (char *)out[kind] - PyByteArray_AsString(columns[kind])) < 0)
            Py_CLEAR(result);
done:
    release_buffers(&in.held);
    return result;
}

/* Which of some edges have one of these keys, are of a row of the trace that a mask chooses, and last less than `longest`. Returns how many. */
static int64_t choose_rows(const Given *in, const int32_t *edges, int64_t count, const Codes *keys, const int32_t *row, const uint8_t *mask, int32_t longest,
                           int32_t *out) {
    const Graph *graph = in->graph;
    int64_t chosen = 0;
    for (int64_t k = 0; k < count; k++) {
        int32_t edge = edges[k];
        out[chosen] = edge;
        chosen += (longest == LONG || get_value(&in->weight, edge) < longest) && (!keys || has_key(keys, get_key(graph, edge)))
                  && (!mask || mask[row[edge < graph->edges ? graph->target[edge] : edge - graph->edges] + 1]);
    }
    return chosen;
}

PyObject *choose_edges(PyObject *self, PyObject *arguments) {
    PyObject *graph, *times, *weights, *edges, *keys, *rows, *masks, *result = NULL;
    long long longest;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOL", &graph, &times, &weights, &edges, &keys, &rows, &masks, &longest))
        return NULL;
    Given in;
    Codes wanted = {0};
    int64_t count = -1, of_keys = -1, of_rows = -1, of_mask = -1;
    int32_t *row = NULL;
    void *edge, *key = NULL, *mask = NULL;
    if (!get_given(&in, graph, times, weights) || !get_column(&in.held, edges, 4, &count, &edge)
        || (keys != Py_None && !get_column(&in.held, keys, 4, &of_keys, &key))
        || (masks != Py_None && (!get_nodes(&in, rows, 4, &row) || !get_column(&in.held, masks, 1, &of_mask, &mask))))
        goto done;
    of_rows = in.graph->nodes;
    if (!are_within(edge, count, 0, in.graph->edges + in.graph->nodes - 1) || (mask && !are_within(row, of_rows, -1, of_mask - 2)))
        PyErr_SetString(PyExc_ValueError, "an edge or a row that there is not");
    else if ((key && !fill_keys(&wanted, key, of_keys)) || !(result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count + 1) * 4)))
        PyErr_NoMemory();
    else {
        int32_t *out = (int32_t *)PyByteArray_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        count = choose_rows(&in, edge, count, key ? &wanted : NULL, row, mask, (int32_t)longest, out);
        Py_END_ALLOW_THREADS
        if (PyByteArray_Resize(result, (Py_ssize_t)count * 4) < 0)
            Py_CLEAR(result);
    }
done:
    free_codes(&wanted);
    release_buffers(&in.held);
    return result;
}

/* A change of durations of some edges: to `given` ones (ns), or to a share of what is recorded. */
typedef struct {
    Buffers held;
    int64_t count;
    const int32_t *row;
    const int64_t *given;
    double share;
} Change;

static bool get_change(Change *change, PyObject *changes, Py_ssize_t number, int64_t count) {
    PyObject *rows, *given, *one = PyList_GetItem(changes, number);
    void *column;
    change->held.count = 0;
    change->count = -1;
    change->given = NULL;
    if (!one || !PyArg_ParseTuple(one, "OO", &rows, &given) || !get_column(&change->held, rows, 4, &change->count, &column))
        return false;
    change->row = column;
    if (!are_within(change->row, change->count, 0, count - 1)) {
        PyErr_SetString(PyExc_ValueError, "an edge that there is not");
        return false;
    }
    if (PyFloat_Check(given)) {
        change->share = PyFloat_AsDouble(given);
        return true;
    }
    bool fits = get_column(&change->held, given, 8, &change->count, &column);
    change->given = column;
    return fits;
}

/* Changed durations: of those of which `changed` has a bit, as Durations has them, or without such bits of all. tabled: how many changes are LONG. Those of
 * some edges, which ascend and of which `is_kept` has a bit, get no shorter than `least`. */
typedef struct {
    uint64_t *changed, *is_kept;
    int32_t *before, *other;
    int64_t words, count, tabled, kept;
    const int32_t *place;
    const int64_t *least;
} Changed;

static bool get_kept(Buffers *held, PyObject *places, PyObject *lasts, Changed *out) {
    void *place, *least;
    out->kept = -1;
    if (!get_column(held, places, 4, &out->kept, &place) || !get_column(held, lasts, 8, &out->kept, &least))
        return false;
    out->place = place, out->least = least;
    if (!are_within(out->place, out->kept, 0, 64 * out->words - 1)) {
        PyErr_SetString(PyExc_ValueError, "an edge that there is not");
        return false;
    }
    if (out->kept && !(out->is_kept = calloc((size_t)out->words, 8))) {
        PyErr_NoMemory();
        return false;
    }
    for (int64_t k = 0; k < out->kept; k++)
        out->is_kept[out->place[k] >> 6] |= (uint64_t)1 << (out->place[k] & 63);
    return true;
}

static int64_t keep(const Changed *out, int32_t row, int64_t lasts) {
    int64_t at = find_first(out->place, 0, out->kept, row, 0);
    return at < out->kept && lasts < out->least[at] ? out->least[at] : lasts;
}

static void mark_change(const Change *change, Changed *out) {
    for (int64_t k = 0; k < change->count; k++)
        out->changed[change->row[k] >> 6] |= (uint64_t)1 << (change->row[k] & 63);
}

static void count_marks(Changed *out) {
    for (int64_t word = 0; word < out->words; word++) {
        out->before[word] = (int32_t)out->count;
        out->count += __builtin_popcountll(out->changed[word]);
    }
}

static void fill_recorded(const Durations *recorded, Changed *out) {
    for (int64_t word = 0, k = 0; word < out->words; word++)
        for (uint64_t left = out->changed[word]; left; left &= left - 1)
            out->other[k++] = recorded->value[64 * word + __builtin_ctzll(left)];
}

/* Of durations that differ from what is recorded already the least counts. */
static void fill_change(const Durations *recorded, const Change *change, Changed *out) {
    for (int64_t k = 0; k < change->count; k++) {
        int32_t row = change->row[k], was = recorded->value[row];
        int32_t *other = out->other + (out->changed ? find_other(out->changed, out->before, row) : row);
        int64_t lasts = change->given ? change->given[k] : was == NOT_HELD ? NOT_HELD : (int64_t)((double)get_duration(recorded, row) * change->share);
        lasts = out->kept && is_changed(out->is_kept, row) ? keep(out, row, lasts) : lasts;
        int32_t now = lasts < NOT_HELD ? NOT_HELD : shorten(lasts);
        out->tabled += now == LONG;
        *other = *other != was && *other < now ? *other : now;
    }
}

static bool take_changes(const Durations *recorded, PyObject *changes, Changed *out, bool fill) {
    bool fits = true;
    for (Py_ssize_t number = 0; fits && number < PyList_Size(changes); number++) {
        Change change;
        fits = get_change(&change, changes, number, recorded->count);
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            if (fill)
                fill_change(recorded, &change, out);
            else
                mark_change(&change, out);
            Py_END_ALLOW_THREADS
        }
        release_buffers(&change.held);
    }
    return fits;
}

PyObject *change_durations(PyObject *self, PyObject *arguments) {
    PyObject *recorded, *changes, *places, *lasts, *changed = NULL, *before = NULL, *other = NULL, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &recorded, &changes, &places, &lasts))
        return NULL;
    Buffers held = {.count = 0};
    Durations durations;
    Changed out = {0};
    if (!get_durations(&held, recorded, -1, &durations))
        goto done;
    out.words = durations.count / 64 + 1;
    if (!get_kept(&held, places, lasts, &out) || !(changed = make_column(out.words, 8, &out.changed))
        || !(before = make_column(out.words, 4, &out.before)))
        goto done;
    memset(out.changed, 0, (size_t)out.words * 8);
    if (!take_changes(&durations, changes, &out, false))
        goto done;
    count_marks(&out);
    if (!(other = make_column(out.count, 4, &out.other)))
        goto done;
    fill_recorded(&durations, &out);
    if (take_changes(&durations, changes, &out, true))
        result = Py_BuildValue("OOOL", changed, before, other, (long long)out.tabled);
done:
    free(out.is_kept);
    Py_XDECREF(changed);
    Py_XDECREF(before);
    Py_XDECREF(other);
    release_buffers(&held);
    return result;
}

PyObject *fill_durations(PyObject *self, PyObject *arguments) {
    PyObject *recorded, *changes, *places, *lasts, *values;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOO", &recorded, &changes, &places, &lasts, &values))
        return NULL;
    Buffers held = {.count = 0};
    Durations durations;
    Changed out = {0};
    if (get_durations(&held, recorded, -1, &durations) && get_column(&held, values, 4, &durations.count, &out.other)) {
        out.words = durations.count / 64 + 1;
        memcpy(out.other, durations.value, (size_t)durations.count * 4);
        if (get_kept(&held, places, lasts, &out))
            take_changes(&durations, changes, &out, true);
    }
    free(out.is_kept);
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(out.tabled);
}

PyObject *look_up_durations(PyObject *self, PyObject *arguments) {
    PyObject *given, *rows, *found;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOO", &given, &rows, &found))
        return NULL;
    Buffers held = {.count = 0};
    Durations durations;
    int64_t count = -1;
    void *row, *out;
    if (get_durations(&held, given, -1, &durations) && get_column(&held, rows, 4, &count, &row) && get_column(&held, found, 8, &count, &out)) {
        if (!are_within(row, count, 0, durations.count - 1))
            PyErr_SetString(PyExc_ValueError, "an edge that there is not");
        else {
            Py_BEGIN_ALLOW_THREADS
            for (int64_t k = 0; k < count; k++) {
                int64_t lasts = get_duration(&durations, ((int32_t *)row)[k]);
                ((int64_t *)out)[k] = lasts == NOT_HELD ? NOTHING : lasts;
            }
            Py_END_ALLOW_THREADS
        }
    }
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int compare_keys(const void *first, const void *second) {
    uint64_t one = *(const uint64_t *)first, other = *(const uint64_t *)second;
    return one < other ? -1 : one > other;
}

/* A table of work: a line for the k-th time of each key, by key and k, and in it the edge of each column, -1 for none. `first` has the first line of each
 * key, and at last the number of lines. */
typedef struct {
    const Graph *graph;
    const int32_t *row, *column, *edge;
    int64_t given, columns, lines, count;
    int32_t *keys, *next, *place;
    int64_t *first;
    Codes codes;
} WorkTable;

static int64_t find_column(const WorkTable *table, int64_t k) {
    const Graph *graph = table->graph;
    int32_t edge = table->edge[k], row = table->row[edge < graph->edges ? graph->target[edge] : edge - graph->edges];
    return row < 0 ? -1 : table->column[row];
}

/* Finds the place of each edge in `next`, by its key and column, -1 of no column. Keys ascend as numbers without a sign. Returns false without memory. */
static bool find_places(WorkTable *table) {
    table->place = malloc((size_t)(table->given + 1) * 4);
    for (int64_t k = 0; k < table->given && table->place; k++) {
        int64_t column = find_column(table, k);
        int32_t code = find_code(&table->codes, (uint32_t)get_key(table->graph, table->edge[k]) ^ 0x80000000u);
        if (code < 0 || (code + 1) * table->columns > INT32_MAX)
            return false;
        table->place[k] = column < 0 ? -1 : (int32_t)(code * table->columns + column);
    }
    return table->place != NULL;
}

/* Numbers the lines: `next` has the line of the next work of each key (in the order in which they come, as `code` has them) and column. Returns false
 * without memory. */
static bool number_lines(WorkTable *table) {
    Codes *codes = &table->codes;
    int64_t columns = table->columns;
    if (!find_places(table))
        return false;
    table->count = codes->count;
    table->next = calloc((size_t)(codes->count * columns + 1), 4);
    table->keys = malloc((size_t)(codes->count + 1) * 4);
    table->first = malloc((size_t)(codes->count + 1) * 8);
    uint64_t *ordered = malloc((size_t)(codes->count + 1) * 8);
    if (!table->next || !ordered || !table->keys || !table->first) {
        free(ordered);
        return false;
    }
    for (int64_t k = 0; k < table->given; k++)
        if (table->place[k] >= 0)
            table->next[table->place[k]]++;
    for (int64_t k = 0; k < codes->count; k++)
        ordered[k] = codes->distinct[k] << 32 | (uint64_t)k;
    qsort(ordered, (size_t)codes->count, sizeof *ordered, compare_keys);
    for (int64_t k = 0; k < codes->count; k++) {
        int32_t *one = table->next + (int64_t)(uint32_t)ordered[k] * columns, most = 0;
        for (int64_t c = 0; c < columns; c++) {
            most = one[c] > most ? one[c] : most;
            one[c] = (int32_t)table->lines;
        }
        table->keys[k] = (int32_t)((uint32_t)(ordered[k] >> 32) ^ 0x80000000u);
        table->first[k] = table->lines;
        table->lines += most;
    }
    table->first[codes->count] = table->lines;
    free(ordered);
    return true;
}

static void fill_lines(WorkTable *table, int32_t *edges) {
    memset(edges, 0xFF, (size_t)(table->lines * table->columns) * 4);
    for (int64_t k = 0, place; k < table->given; k++)
        if ((place = table->place[k]) >= 0)
            edges[table->next[place]++ * table->columns + place % table->columns] = table->edge[k];
}

PyObject *tabulate_work(PyObject *self, PyObject *arguments) {
    PyObject *given, *nodes, *processes, *rows, *edges, *result = NULL;
    long long columns;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOL", &given, &nodes, &processes, &rows, &columns))
        return NULL;
    Buffers held = {.count = 0};
    const Graph *graph = PyCapsule_GetPointer(given, GRAPH);
    if (!graph)
        return NULL;
    int64_t of_rows = -1, of_nodes = graph->nodes, works = graph->edges + graph->nodes;
    void *row, *column, *edge;
    WorkTable table = {.graph = graph, .given = -1, .columns = columns};
    bool done = false;
    if (!get_column(&held, nodes, 4, &of_nodes, &row) || !get_column(&held, processes, 4, &of_rows, &column)
        || !get_column(&held, rows, 4, &table.given, &edge))
        goto done;
    table.row = row, table.column = column, table.edge = edge;
    if (!are_within(row, of_nodes, -1, of_rows - 1) || !are_within(column, of_rows, -1, columns - 1) || !are_within(edge, table.given, 0, works - 1)) {
        PyErr_SetString(PyExc_ValueError, "a row, a column or an edge that there is not");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    done = number_lines(&table);
    Py_END_ALLOW_THREADS
    edges = done ? PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(table.lines * columns * 4)) : NULL;
    if (edges) {
        Py_BEGIN_ALLOW_THREADS
        fill_lines(&table, (int32_t *)PyByteArray_AsString(edges));
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("Ny#y#", edges, table.keys, (Py_ssize_t)(table.count * 4), table.first, (Py_ssize_t)((table.count + 1) * 8));
    } else
        PyErr_NoMemory();
done:
    free(table.keys);
    free_codes(&table.codes);
    free(table.place);
    free(table.next);
    free(table.first);
    release_buffers(&held);
    return result;
}

int64_t select_kth(int64_t *durations, int64_t count, int64_t k) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t pivot = durations[(low + high) / 2], i = low, j = high;
        while (i <= j) {
            while (durations[i] < pivot)
                i++;
            while (durations[j] > pivot)
                j--;
            if (i <= j) {
                int64_t one = durations[i];
                durations[i++] = durations[j];
                durations[j--] = one;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return durations[k];
}

double find_median(int64_t *durations, int64_t count) {
    if (!count)
        return NAN;
    int64_t middle = select_kth(durations, count, count / 2), below = middle;
    if (count % 2 == 0) {
        below = durations[0];
        for (int64_t k = 1; k < count / 2; k++)
            below = durations[k] > below ? durations[k] : below;
    }
    return ((double)below + (double)middle) / 2;
}

/* A table of edges, as of tabulate_work, and their durations. */
typedef struct {
    Buffers held;
    const int32_t *edges;
    int64_t cells;
    Durations weight;
} Work;

static bool get_work(Work *work, PyObject *edges, PyObject *weight) {
    void *column;
    work->held.count = 0;
    work->cells = -1;
    if (!get_column(&work->held, edges, 4, &work->cells, &column) || !get_durations(&work->held, weight, -1, &work->weight))
        return false;
    work->edges = column;
    if (are_within(work->edges, work->cells, -1, work->weight.count - 1))
        return true;
    PyErr_SetString(PyExc_ValueError, "an edge that there is not");
    return false;
}

/* How long some columns of a line work: their durations go into `found`. */
static int64_t take_line(const Work *work, const int32_t *line, const uint8_t *mask, int64_t columns, int64_t *found) {
    int64_t count = 0;
    for (int64_t c = 0; c < columns; c++)
        if (mask[c] && line[c] >= 0)
            found[count++] = get_duration(&work->weight, line[c]);
    return count;
}

PyObject *find_medians(PyObject *self, PyObject *arguments) {
    PyObject *edges, *mask, *weight, *medians;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &edges, &mask, &weight, &medians))
        return NULL;
    Work work;
    int64_t columns = -1, lines = -1, *found = NULL;
    void *is_chosen, *out;
    if (!get_work(&work, edges, weight) || !get_column(&work.held, mask, 1, &columns, &is_chosen) || !get_column(&work.held, medians, 8, &lines, &out))
        goto done;
    if (lines * columns != work.cells)
        PyErr_SetString(PyExc_ValueError, "a median of each line");
    else if (!(found = malloc((size_t)(columns + 1) * 8)))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t k = 0; k < lines; k++)
            ((double *)out)[k] = find_median(found, take_line(&work, work.edges + k * columns, is_chosen, columns, found));
        Py_END_ALLOW_THREADS
    }
done:
    free(found);
    release_buffers(&work.held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Lets the work of some columns (`takes`) last as long as that of others (`gives`) in the same line: the median, or the mean. Of lines without such it
 * gets as much shorter as the rest. Returns how many edges go into `edge`, and their durations into `lasts`. */
static int64_t share_lines(const Work *work, const uint8_t *takes, const uint8_t *gives, int64_t columns, bool is_mean, int64_t *found, int32_t *edge,
                           int64_t *lasts) {
    int64_t count = 0;
    double given = 0, before = 0;
    for (const int32_t *line = work->edges; line < work->edges + work->cells; line += columns) {
        int64_t number = take_line(work, line, gives, columns, found);
        double sum = 0;
        for (int64_t k = 0; k < number; k++)
            sum += (double)found[k];
        double usual = !number ? -1 : is_mean ? sum / (double)number : find_median(found, number);
        for (int64_t c = 0; c < columns; c++) {
            if (!takes[c] || line[c] < 0)
                continue;
            edge[count] = line[c];
            lasts[count++] = (int64_t)usual;
            given += number ? usual : 0;
            before += number ? (double)get_duration(&work->weight, line[c]) : 0;
        }
    }
    double share = before > 0 && given < before ? given / before : 1;
    for (int64_t k = 0; k < count; k++)
        if (lasts[k] < 0)
            lasts[k] = (int64_t)((double)get_duration(&work->weight, edge[k]) * share);
    return count;
}

PyObject *share_work(PyObject *self, PyObject *arguments) {
    PyObject *edges, *takers, *givers, *weight, *chosen, *durations;
    int is_mean;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOpOO", &edges, &takers, &givers, &weight, &is_mean, &chosen, &durations))
        return NULL;
    Work work;
    int64_t columns = -1, room = -1, most = 0, count = 0, *found = NULL;
    void *takes, *gives, *edge, *lasts;
    if (!get_work(&work, edges, weight) || !get_column(&work.held, takers, 1, &columns, &takes) || !get_column(&work.held, givers, 1, &columns, &gives)
        || !get_column(&work.held, chosen, 4, &room, &edge) || !get_column(&work.held, durations, 8, &room, &lasts))
        goto done;
    for (int64_t c = 0; c < columns; c++)
        most += ((const uint8_t *)takes)[c] ? work.cells / columns : 0;
    if (columns < 1 || work.cells % columns || room < most)
        PyErr_SetString(PyExc_ValueError, "lines of so many columns, and room for them");
    else if (!(found = malloc((size_t)columns * 8)))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        count = share_lines(&work, takes, gives, columns, is_mean, found, edge, lasts);
        Py_END_ALLOW_THREADS
    }
done:
    free(found);
    release_buffers(&work.held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(count);
}

PyObject *summarize_keys(PyObject *self, PyObject *arguments) {
    PyObject *edges, *firsts, *weight, *medians, *totals, *numbers;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO", &edges, &firsts, &weight, &medians, &totals, &numbers))
        return NULL;
    Work work;
    int64_t keys = -1, cells = -1, *found = NULL;
    void *bounds, *median, *total, *count;
    if (!get_work(&work, edges, weight) || !get_column(&work.held, firsts, 8, &keys, &bounds) || !get_column(&work.held, medians, 8, &cells, &median)
        || !get_column(&work.held, totals, 8, &cells, &total) || !get_column(&work.held, numbers, 8, &cells, &count))
        goto done;
    const int64_t *first = bounds;
    int64_t columns = --keys > 0 ? cells / keys : 0, most = 0;
    bool fits = keys >= 0 && first[0] >= 0 && columns * first[keys] <= work.cells && columns * keys == cells;
    for (int64_t k = 0; k < keys && fits; k++) {
        fits = first[k] <= first[k + 1];
        most = first[k + 1] - first[k] > most ? first[k + 1] - first[k] : most;
    }
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "lines that there are not");
    else if (!(found = malloc((size_t)(most + 1) * 8)))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t k = 0; k < keys; k++)
            for (int64_t c = 0; c < columns; c++) {
                int64_t number = 0, sum = 0;
                for (int64_t line = first[k]; line < first[k + 1]; line++) {
                    int32_t edge = work.edges[line * columns + c];
                    if (edge >= 0)
                        sum += found[number++] = get_duration(&work.weight, edge);
                }
                ((double *)median)[k * columns + c] = find_median(found, number);
                ((int64_t *)total)[k * columns + c] = sum;
                ((int64_t *)count)[k * columns + c] = number;
            }
        Py_END_ALLOW_THREADS
    }
done:
    free(found);
    release_buffers(&work.held);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
