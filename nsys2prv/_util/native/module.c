/* The extension module nsys2prv._util.native._core: the inner loops of reading exports, of writing traces and of analyses. All leave the interpreter to other
 * threads while they run. */
#include "module.h"

static PyMethodDef FUNCTIONS[] = {
    {"order", order_lines, METH_VARARGS,
     "order(batches, out): put into `out` (uint64) the lines of all batches by time: the number of the batch, shifted by 40 bits, and the row.\n\n"
     "batches: a list of (times, ties), int64 in order of rows; ties may be None. Of lines of equal time those of the earlier batch come\n"
     "first, then those of the earlier row; those that have ties go by these among themselves. Raises ValueError where something does not fit."},
    {"write", write_lines, METH_VARARGS,
     "write(batches, order, out): put lines of this order, as `order` makes it, into `out` as long as there is room; returns how many, and\n"
     "how many bytes.\n\n"
     "batches: (pieces, lines) of each. A piece is (text,), (text, column) for a number behind it, or (text, column, texts, offsets) for one of\n"
     "several texts. Columns are integers, or (integers, table) where they are indices of a table of int64. Behind text and texts stand COPIED\n"
     "bytes more. Raises ValueError where something does not fit."},
    {"map_times", map_times, METH_VARARGS,
     "map_times(times, open, opened, offset, drift, pivot, out): put time + offset + floor((time - pivot) * drift) of each time into `out`, but\n"
     "`opened` for those that are `open`. times: int64, at any distance; out: int64. Raises ValueError where something does not fit."},
    {"number_distinct", number_distinct, METH_VARARGS,
     "number_distinct(columns, codes): put into `codes` (int64) the number of each row among the distinct rows of a tuple of columns (int64), in\n"
     "the order in which they come; returns the first row of each as bytes (int64). Raises ValueError where something does not fit."},
    {"intersect_spans", intersect_spans, METH_VARARGS,
     "intersect_spans(begin, end, begin, end): return what two sets of times have in common, as bytes of begins and of ends (all int64)."},
    {"subtract_spans", subtract_spans, METH_VARARGS,
     "subtract_spans(begin, end, begin, end): return the times of one set that are not in another, as bytes of begins and of ends (all int64)."},
    {"unite_spans", unite_spans, METH_VARARGS,
     "unite_spans(begin, end, begin, end): return the times in any of the intervals of two lists, each by its begins, as bytes of begins and of ends."},
    {"time_before", time_before, METH_VARARGS,
     "time_before((begin, end), times, out): put into `out` how much of a set of times lies before each of some times (all int64).\n\n"
     "begin, end: the intervals of the set, ascending and apart. Raises ValueError where something does not fit."},
    {"find_parents", find_parents, METH_VARARGS,
     "find_parents(thread, begin, end, depth, parent): put into `depth` how many ranges each lies in, and into `parent` the last of them, -1 for none (all int32\n"
     "but begin and end, int64). Ranges by thread, begin, longer first."},
    {"find_outermost", find_outermost, METH_VARARGS,
     "find_outermost((begin, end, thread), rows, out): put into `out` (int32) the number of the outermost call that each call lies in; returns how\n"
     "many there are. Calls by begin, of equal ones the longest first (int64); thread: below `rows` (int32)."},
    {"find_states", find_states, METH_VARARGS,
     "find_states((object, begin, end, state, yields), (object, time, state), (outside, since, current), first, limit): return the states of objects that\n"
     "end in a window, as bytes of objects, begins, ends and states: those of the innermost range, else of the innermost that yields, else `outside`.\n\n"
     "Ranges by object, begin, longer first; then what is outside from a time on, by object and time. Of each object what is outside, when the\n"
     "current state began, and that state: these change. All int64. Raises ValueError where something does not fit."},
    {"build_unit", build_unit, METH_VARARGS,
     "build_unit((begin, end, thread, name, does, mpi), (begin, end, stream, call, name, work), (time, says, thread, stream, event), (process, device),\n"
     "nodes): find what calls, operations and rows about events of a unit wait for; put into `nodes` (int32) the node of each moment, -1 for an end\n"
     "that waits for nothing but its begin; returns columns of nodes (time, row, kind of work, key, duration) and of edges by their targets (target,\n"
     "source, kind, key, typical), and the edges left out because of cycles.\n\n"
     "Moments are the begins of operations, their ends, the begins of calls and their ends, in this order; sources of edges: twice a node, one more\n"
     "for the end of its work. Times are int64, what calls do, mpi, work and says uint8, all else int32. process, device: of each row of the trace.\n"
     "Raises ValueError where something does not fit."},
    {"order_all", order_all, METH_VARARGS,
     "order_all((target, source), out): put into `out` (int32) the nodes with sources before targets; returns how many could be placed: the rest, on\n"
     "cycles, is behind them."},
    {"make_graph", make_graph, METH_VARARGS,
     "make_graph(target, source, kind, joined, name, key): return a graph for the functions below. Edges are by their targets up to `joined`, and from\n"
     "there on; kind (uint8): of edges, and of the work of nodes; name (int32): of nodes, of ends of calls -1 less it; key: of edges from `joined` on. Keeps the columns. Raises ValueError where something does not fit."},
    {"find_keys", find_keys, METH_VARARGS,
     "find_keys(graph, edges, out): put into `out` what work edges are, the same number on all ranks: name, place, or channel (int32)."},
    {"group_latencies", group_latencies, METH_VARARGS,
     "group_latencies(graph, time, lasts, process, clear, typical, marks): put into `typical` the group of each edge of which the typical weight\n"
     "is to be estimated, as -3 - number, and into `marks` whether it was over later than all others of its target by more than `clear`; returns\n"
     "(kind, process, key) of each group. lasts: columns of Durations of nodes; process: of nodes (int32)."},
    {"find_weights", find_weights, METH_VARARGS,
     "find_weights(graph, time, lasts, usual, typical, binding): put weights of edges into the place of typical ones: of those that allow their node\n"
     "last, which `binding` tells then, what reproduces the recording. Returns the edges (int32) of which that is another than what is typical, and what\n"
     "that is (int64), as bytes. lasts: columns of Durations of nodes; usual: typical weight of each group (int64)."},
    {"list_pauses", list_pauses, METH_VARARGS,
     "list_pauses(graph, time, lasts, typical, least, keys): return the pauses between calls that are longer than `least` (ns) and have one of some keys\n"
     "(int32, None for any): edges (int32), and how long they last (int64), as bytes."},
    {"plan_replay", plan_replay, METH_VARARGS,
     "plan_replay(graph, bounds): return the stretches of nodes in which a replay can go through units, whose nodes are from one bound (int64) to the\n"
     "next, and through the meetings behind them, as bytes; and how many nodes could be placed."},
    {"replay", replay, METH_VARARGS,
     "replay(graph, time, weight, plan, counts, out): put into `out` (int64) when each node is; returns the last time that counts: of nodes with bit 0\n"
     "of `counts` (uint8), of ends of their work with bit 1. A weight of the least int32 does not hold."},
    {"count_moments", count_moments, METH_VARARGS,
     "count_moments(graph, time, weight, begin, end, out): put into `out` which moments of nodes are later than `begin` and not than `end`, as bits"},
    {"trace_path", trace_path, METH_VARARGS,
     "trace_path(graph, time, weight, binding, counts, begin): return the edges that were waited for, from the last moment that counts back to `begin`,\n"
     "as bytes (int32). binding: which these are (uint8), None for those that allow their node last"},
    {"select_edges", select_edges, METH_VARARGS,
     "select_edges(graph, time, weight, kinds, begin, end): return the edges, and nodes' work, of kinds (bits) that end between two times, as bytes (int32) by\n"
     "kind"},
    {"choose_edges", choose_edges, METH_VARARGS,
     "choose_edges(graph, time, weight, edges, keys, row, mask, longest): return those of some edges (int32) that have one of these keys (int32, None for\n"
     "any), of whose rows of the trace (row: of nodes, int32) a mask is set (uint8, first of no row; None for any), and that last no longer, as bytes."},
    {"change_durations", change_durations, METH_VARARGS,
     "change_durations(recorded, changes): return further columns of Durations with changes, a list of edges (int32) and new durations (int64), or a share\n"
     "(a float) of what is recorded; of those of an edge that is changed already the least counts. And how many of these are in the table of long ones."},
    {"look_up_durations", look_up_durations, METH_VARARGS,
     "look_up_durations(durations, rows, out): put into `out` (int64) the durations of some edges (int32), the least number of one that does not hold."},
    {"tabulate_work", tabulate_work, METH_VARARGS,
     "tabulate_work(graph, row, column, edges, columns): bytes of edges (int32) in a table with a line for the k-th time of each key, by key and k;\n"
     "of the keys (int32); and of the first line of each (int64), and of how many there are. row: of each node; column: of each row, -1 for none."},
    {"find_medians", find_medians, METH_VARARGS,
     "find_medians(table, columns, weight, out): put into `out` (float64) the median of each line of a table of edges (int32, -1 for none), of the columns\n"
     "that a mask chooses; NaN of none. weight: columns of Durations."},
    {"share_work", share_work, METH_VARARGS,
     "share_work(table, takers, givers, weight, is_mean, edges, lasts): put the edges of some columns of a table into `edges` (int32), and into `lasts`\n"
     "(int64) how long they last if they last as long as other columns of their line, in the median or mean. Returns how many. takers, givers: masks."},
    {"summarize_keys", summarize_keys, METH_VARARGS,
     "summarize_keys(table, first, weight, medians, totals, counts): put into `medians` (float64, NaN of none), `totals` and `counts` (int64) those of each\n"
     "key and column of a table."},
    {"open_trace", open_trace, METH_VARARGS,
     "open_trace(applications, tasks, types, values, duration, communicators): return a trace for `read_lines`. All int64: tasks of each application;\n"
     "threads, first and last CPU of each task; pairs of an event type and its set of labels; pairs of a set and a value that it has."},
    {"read_lines", read_lines, METH_VARARGS, "read_lines(trace, text): read whole lines of a .prv behind its header"},
    {"close_trace", close_trace, METH_O,
     "close_trace(trace): return broken rules as (name, first line, count, text), the entries and the types of trace.c as bytes, and numbers of lines,\n"
     "states, events, communications and pairs, the first and the last time, the end, and the number of lines of communicators."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, FUNCTIONS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    make_small_texts();
    PyObject *module = PyModule_Create(&MODULE);
    if (module && add_tables(module) < 0)
        Py_CLEAR(module);
    return module;
}
