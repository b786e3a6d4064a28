/* Arranges the moments of a unit, for nsys2prv.replay: which of them are nodes, an order that has what is waited for before what waits, and the edges
 * by what waits. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

/* How far host and device times of one report may be apart (ns). */
#define CLOCKS_APART 20000
/* Parts of all time, and values of the digits that moments of one part are sorted by: powers of 2. So few moments are sorted one by one. */
#define PARTS 16384
#define DIGITS 256
#define FEW 256

static int64_t get_time(const Unit *in, int64_t moment) {
    if (moment < in->operations)
        return in->begin[moment];
    moment -= in->operations;
    if (moment < in->operations)
        return in->end[moment];
    moment -= in->operations;
    return moment < in->calls ? in->call_begin[moment] : in->call_end[moment - in->calls];
}

static bool is_end(const Unit *in, int64_t moment) {
    return moment < 2 * in->operations ? moment >= in->operations : moment >= 2 * in->operations + in->calls;
}

/* The begin of what ends at a moment. */
static int64_t find_begin(const Unit *in, int64_t end) { return end < 2 * in->operations ? end - in->operations : end - in->calls; }

/* The number of an event: operations first, then calls. */
static int64_t find_event(const Unit *in, int64_t moment) {
    if (is_end(in, moment))
        moment = find_begin(in, moment);
    return moment < in->operations ? moment : moment - in->operations;
}

static void take_edge(Edges *edges, int64_t to, int64_t from) {
    edges->target[to] = edges->target[from];
    edges->source[to] = edges->source[from];
    edges->typical[to] = edges->typical[from];
    edges->kind[to] = edges->kind[from];
}

/* Drops edges whose source is later than their target by more than clocks may be apart. */
static void drop_contradictions(Edges *edges, const Unit *in) {
    int64_t kept = 0;
    for (int64_t k = 0; k < edges->count; k++) {
        int64_t gap = get_time(in, edges->target[k]) - get_time(in, edges->source[k]);
        bool tolerated = (edges->kind[k] == LAUNCH && gap >= -CLOCKS_APART) || (edges->kind[k] == RETURN && gap >= -LAST_PART);
        if (gap >= 0 || tolerated)
            take_edge(edges, kept++, k);
    }
    edges->count = kept;
}

/* Sorts moments by some bits of their times, from `shift` on, into `out`. next: room for a number more than there are digits, which then has where
 * those of each digit end. */
static void sort_by_digit(const Unit *in, const int32_t *moments, int64_t count, int64_t least, int shift, int digits, int32_t *next, int32_t *out) {
    memset(next, 0, (size_t)(digits + 1) * 4);
    for (int64_t k = 0; k < count; k++)
        next[(((uint64_t)get_time(in, moments[k]) - (uint64_t)least) >> shift & (uint64_t)(digits - 1)) + 1]++;
    for (int digit = 0; digit < digits; digit++)
        next[digit + 1] += next[digit];
    for (int64_t k = 0; k < count; k++)
        out[next[((uint64_t)get_time(in, moments[k]) - (uint64_t)least) >> shift & (uint64_t)(digits - 1)]++] = moments[k];
}

static void insert_moments(const Unit *in, int32_t *moments, int64_t count) {
    for (int64_t k = 1, place; k < count; k++) {
        int32_t moment = moments[k];
        int64_t time = get_time(in, moment);
        for (place = k; place && get_time(in, moments[place - 1]) > time; place--)
            moments[place] = moments[place - 1];
        moments[place] = moment;
    }
}

/* Sorts by the first bits, then each part, whose moments are near each other in memory, by the others from the last ones on. */
int32_t *sort_moments(const Unit *in, int32_t *moments, int32_t *spare, int64_t count) {
    int64_t least = INT64_MAX, most = INT64_MIN;
    int32_t next[PARTS + 1], of_part[DIGITS + 1];
    int rest = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t time = get_time(in, moments[k]);
        least = time < least ? time : least;
        most = time > most ? time : most;
    }
    while (count && ((uint64_t)most - (uint64_t)least) >> rest >= PARTS)
        rest++;
    sort_by_digit(in, moments, count, least, rest, PARTS, next, spare);
    for (int64_t part = 0, first = 0; part < PARTS; first = next[part++]) {
        int32_t *from = spare + first, *to = moments + first;
        int64_t own = next[part] - first;
        if (own < FEW)
            insert_moments(in, from, own);
        for (int shift = 0; shift < rest && own >= FEW; shift += 8) {
            sort_by_digit(in, from, own, least, shift, DIGITS, of_part, to);
            int32_t *sorted = to;
            to = from;
            from = sorted;
        }
        if (from != spare + first)
            memcpy(spare + first, from, (size_t)own * 4);
    }
    return spare;
}

/* An order of the nodes in which every source is before its targets, and that keeps to that of their numbers as far as edges allow. Sources are
 * moments of nodes: twice their number, one more for the end. Returns how many nodes were placed; the others, which are on cycles, stand behind them.
 * Nodes that can be placed wait at the end of `out`. head: room for a number of each node; work: of each node and of each edge. */
static int64_t place_nodes(int64_t nodes, int64_t edges, const int32_t *source, const int32_t *target, int32_t *out, int32_t *head, int32_t *work) {
    int32_t *degree = work, *next = work + nodes, *last = out + nodes;
    int64_t placed = 0;
    memset(degree, 0, (size_t)nodes * 4);
    for (int64_t node = 0; node < nodes; node++)
        head[node] = -1;
    for (int64_t edge = 0; edge < edges; edge++) {
        degree[target[edge]] += 2;
        next[edge] = head[source[edge] >> 1];
        head[source[edge] >> 1] = (int32_t)edge;
    }
    /* A node that was passed, whose degree is odd, waits for its last source. */
    for (int64_t k = 0; k < nodes; k++) {
        int64_t top = 0;
        degree[k] |= 1;
        if (degree[k] == 1)
            last[-++top] = (int32_t)k;
        while (top) {
            int32_t node = last[-top--];
            out[placed++] = node;
            for (int32_t edge = head[node]; edge >= 0; edge = next[edge])
                if ((degree[target[edge]] -= 2) == 1)
                    last[-++top] = target[edge];
        }
    }
    int64_t rest = placed;
    for (int64_t k = 0; k < nodes && rest < nodes; k++)
        if (degree[k] > 1)
            out[rest++] = (int32_t)k;
    return placed;
}

static bool is_ordered(const Edges *edges) {
    for (int64_t k = 0; k < edges->count; k++)
        if (edges->source[k] >> 1 >= edges->target[k])
            return false;
    return true;
}

/* Orders the nodes with sources before targets, without the edges on cycles, of which those whose source is not earlier go first. `moments`: of each
 * node, which are in this order then; `number`, `head`: room for as many. Returns how many edges were on cycles, -1 without memory. */
static int64_t order_nodes(Edges *edges, const Unit *in, int32_t *moments, int64_t nodes, int32_t *number, int32_t *head) {
    if (is_ordered(edges))
        return 0;
    int64_t cycles = 0;
    int32_t *order = malloc((size_t)(nodes + 1) * 4), *work = malloc((size_t)(nodes + edges->count + 1) * 4);
    for (int64_t placed = -1; order && work;) {
        placed = place_nodes(nodes, edges->count, edges->source, edges->target, order, head, work);
        for (int64_t k = 0; k < nodes; k++)
            number[order[k]] = (int32_t)k;
        if (placed == nodes)
            break;
        bool earlier = false;
        for (int pass = cycles ? 1 : 0; pass < 2 && !earlier; pass++) {
            int64_t kept = 0;
            for (int64_t k = 0; k < edges->count; k++) {
                int32_t source = edges->source[k], target = edges->target[k];
                int64_t from = moments[source >> 1];
                if (source & 1)
                    from = from < in->operations ? from + in->operations : from + in->calls;
                bool drop = number[source >> 1] >= placed && number[target] >= placed && (pass || get_time(in, moments[target]) <= get_time(in, from));
                earlier |= drop;
                cycles += drop;
                if (!drop)
                    take_edge(edges, kept++, k);
            }
            edges->count = kept;
        }
    }
    if (order && work) {
        for (int64_t k = 0; k < nodes; k++)
            order[k] = moments[order[k]];
        memcpy(moments, order, (size_t)nodes * 4);
        for (int64_t k = 0; k < edges->count; k++) {
            edges->target[k] = number[edges->target[k]];
            edges->source[k] = number[edges->source[k] >> 1] * 2 | (edges->source[k] & 1);
        }
    } else
        cycles = -1;
    free(order);
    free(work);
    return cycles;
}

/* Columns of nodes, as they are returned. */
typedef struct {
    int64_t *time;
    int32_t *row, *name, *lasts;
    uint8_t *work;
} Nodes;

static void fill_nodes(const Unit *in, const int32_t *moments, const int32_t *node_of, int64_t nodes, const Nodes *out) {
    for (int64_t node = 0; node < nodes; node++) {
        int64_t moment = moments[node], event = find_event(in, moment), call = event - in->operations;
        out->time[node] = get_time(in, moment);
        out->row[node] = call < 0 ? in->stream[event] : in->call_thread[call];
        out->name[node] = call < 0 ? in->name[event] : is_end(in, moment) ? -1 - in->call_name[call] : in->call_name[call];
        int64_t end = call < 0 ? event + in->operations : 2 * in->operations + in->calls + call;
        if (node_of[end] < 0) {
            int64_t lasts = get_time(in, end) - out->time[node];
            out->lasts[node] = lasts < LONG ? (int32_t)lasts : LONG;
            out->work[node] = call < 0 ? in->work[event] : CALL;
        } else {
            out->lasts[node] = 0;
            out->work[node] = NO_KIND;
        }
    }
}

/* Where each edge goes if they are by their targets, of each the work of an event first, in their order; NULL without memory. first: room for a number
 * more than there are nodes. */
static int32_t *place_edges(const Edges *edges, int64_t nodes, int32_t *first) {
    int32_t *place = malloc((size_t)(edges->count + 1) * 4);
    memset(first, 0, (size_t)(nodes + 1) * 4);
    for (int64_t k = 0; k < edges->count; k++)
        first[edges->target[k] + 1]++;
    for (int64_t node = 0; node < nodes; node++)
        first[node + 1] += first[node];
    for (int others = 0; others < 2 && place; others++)
        for (int64_t k = 0; k < edges->count; k++)
            if ((edges->kind[k] != CALL && edges->kind[k] != NCCL) == others)
                place[k] = first[edges->target[k]]++;
    return place;
}

/* Which moments are nodes: begins, and ends that wait for more than the begin. Returns how many. */
static int64_t choose_nodes(const Unit *in, const Edges *edges, int32_t *node_of, int32_t *moments) {
    for (int64_t moment = 0; moment < in->moments; moment++)
        node_of[moment] = is_end(in, moment) ? -1 : 0;
    for (int64_t k = 0; k < edges->count; k++)
        node_of[edges->target[k]] = 0;
    int64_t nodes = 0;
    for (int64_t moment = 0; moment < in->moments; moment++)
        if (node_of[moment] == 0)
            moments[nodes++] = (int32_t)moment;
    return nodes;
}

static void number_nodes(const int32_t *moments, int64_t nodes, int32_t *node_of) {
    for (int64_t node = 0; node < nodes; node++)
        node_of[moments[node]] = (int32_t)node;
}

/* Moves a column of edges to their places in a new one, and frees it: of all columns there are never two at a time. */
static PyObject *move_column(const int32_t *place, int64_t count, int size, void *column) {
    void *from = *(void **)column, *to;
    PyObject *made = make_column(count, size, &to);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t k = 0; made && k < count; k++)
        if (size == 4)
            ((int32_t *)to)[place[k]] = ((int32_t *)from)[k];
        else
            ((uint8_t *)to)[place[k]] = ((uint8_t *)from)[k];
    free(from);
    Py_END_ALLOW_THREADS
    *(void **)column = NULL;
    return made;
}

static bool get_unit(Buffers *held, PyObject *calls, PyObject *operations, PyObject *markers, PyObject *rows, PyObject *numbers, Unit *in, int32_t **node_of) {
    void *of_calls[6], *of_operations[6], *of_markers[5], *of_rows[2], *number;
    if (!get_columns(held, calls, "884411", &in->calls, of_calls) || !get_columns(held, operations, "884441", &in->operations, of_operations)
        || !get_columns(held, markers, "81444", &in->markers, of_markers) || !get_columns(held, rows, "44", &in->rows, of_rows))
        return false;
    in->call_begin = of_calls[0], in->call_end = of_calls[1], in->call_thread = of_calls[2], in->call_name = of_calls[3];
    in->does = of_calls[4], in->is_mpi = of_calls[5];
    in->begin = of_operations[0], in->end = of_operations[1], in->stream = of_operations[2], in->call = of_operations[3];
    in->name = of_operations[4], in->work = of_operations[5];
    in->marker_time = of_markers[0], in->marker = of_markers[1], in->marker_thread = of_markers[2], in->marker_stream = of_markers[3];
    in->marker_event = of_markers[4];
    in->process = of_rows[0], in->device = of_rows[1];
    in->moments = 2 * (in->operations + in->calls);
    if (!get_column(held, numbers, 4, &in->moments, &number))
        return false;
    *node_of = number;
    bool fits = in->moments <= INT32_MAX / 2 && are_within(in->call_thread, in->calls, 0, in->rows - 1) && are_within(in->stream, in->operations, 0, in->rows - 1)
                && are_within(in->call, in->operations, -1, in->calls - 1) && are_within(in->call_name, in->calls, 0, PLACE - 1)
                && are_within(in->marker_thread, in->markers, -1, in->rows - 1) && are_within(in->marker_stream, in->markers, -1, in->rows - 1)
                && are_within(in->marker_event, in->markers, -1, in->markers) && are_within(in->process, in->rows, 0, in->rows);
    for (int64_t k = 0; k < in->operations && fits; k++)
        fits = in->work[k] <= OUTSIDE;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "a row, call, name, kind or event that there is not, or too many");
    return fits;
}

PyObject *build_unit(PyObject *self, PyObject *arguments) {
    PyObject *operations, *calls, *markers, *rows, *numbers, *columns = NULL, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOO", &calls, &operations, &markers, &rows, &numbers))
        return NULL;
    Buffers held = {.count = 0};
    Unit in;
    Edges edges = {0};
    Nodes out;
    int32_t *node_of, *moments = NULL, *spare = NULL, *sorted = NULL, *place = NULL;
    int64_t cycles = 0, nodes = 0;
    if (!get_unit(&held, calls, operations, markers, rows, numbers, &in, &node_of))
        goto done;
    Py_BEGIN_ALLOW_THREADS
    find_dependencies(&in, &edges);
    moments = malloc((size_t)(in.moments + 1) * 4);
    spare = malloc((size_t)(in.moments + 1) * 4);
    if (moments && spare && !edges.failed) {
        drop_contradictions(&edges, &in);
        nodes = choose_nodes(&in, &edges, node_of, moments);
        sorted = sort_moments(&in, moments, spare, nodes);
        number_nodes(sorted, nodes, node_of);
        for (int64_t k = 0; k < edges.count; k++) {
            int64_t source = edges.source[k];
            edges.source[k] = node_of[source] >= 0 ? node_of[source] * 2 : node_of[find_begin(&in, source)] * 2 + 1;
            edges.target[k] = node_of[edges.target[k]];
        }
        int32_t **other = sorted == moments ? &spare : &moments;
        cycles = order_nodes(&edges, &in, sorted, nodes, *other, node_of);
        memset(node_of, 0xff, (size_t)in.moments * 4);
        number_nodes(sorted, nodes, node_of);
        place = place_edges(&edges, nodes, *other);
        free(*other);
        *other = NULL;
    }
    Py_END_ALLOW_THREADS
    if (cycles < 0 || !place) {
        PyErr_NoMemory();
        goto done;
    }
    PyObject *target = move_column(place, edges.count, 4, &edges.target), *source = move_column(place, edges.count, 4, &edges.source);
    PyObject *kind = move_column(place, edges.count, 1, &edges.kind), *typical = move_column(place, edges.count, 4, &edges.typical);
    free(place);
    place = NULL;
    PyObject *time = make_column(nodes, 8, &out.time), *row = make_column(nodes, 4, &out.row), *work = make_column(nodes, 1, &out.work);
    PyObject *lasts = make_column(nodes, 4, &out.lasts), *name = make_column(nodes, 4, &out.name);
    columns = Py_BuildValue("(NNNN)(NNNNN)", time, row, work, lasts, target, source, kind, typical, name);
    if (!columns)
        goto done;
    Py_BEGIN_ALLOW_THREADS
    fill_nodes(&in, sorted, node_of, nodes, &out);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("NL", columns, (long long)cycles);
    columns = NULL;
done:
    Py_XDECREF(columns);
    free_edges(&edges);
    free(moments);
    free(spare);
    free(place);
    release_buffers(&held);
    return result;
}

/* The order of nodes of all units, where these must be taken one by one: see plan_replay. */
PyObject *order_all(PyObject *self, PyObject *arguments) {
    PyObject *given, *numbers;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO", &given, &numbers))
        return NULL;
    Buffers held = {.count = 0};
    int64_t edges, nodes = -1, placed = 0;
    void *columns[2], *order[1];
    int32_t *work = NULL;
    if (get_columns(&held, given, "44", &edges, columns) && get_column(&held, numbers, 4, &nodes, order)) {
        if (!are_within(columns[0], edges, 0, nodes - 1) || !are_within(columns[1], edges, 0, 2 * nodes - 1))
            PyErr_SetString(PyExc_ValueError, "a node that there is not");
        else if (!(work = malloc((size_t)(2 * nodes + edges + 1) * 4)))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            placed = place_nodes(nodes, edges, columns[1], columns[0], order[0], work, work + nodes);
            Py_END_ALLOW_THREADS
        }
    }
    free(work);
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(placed);
}
