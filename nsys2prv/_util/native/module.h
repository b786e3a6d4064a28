/* What the parts of the extension module `_core` have in common with Python. */
#ifndef NSYS2PRV_MODULE_H
#define NSYS2PRV_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Buffers are part of the limited API from Python 3.11 on. Those of 3.10, which changes no more, are the same. */
#if defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030B0000
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
#define PyBUF_SIMPLE 0
#define PyBUF_WRITABLE 0x1
#define PyBUF_FORMAT 0x4
#define PyBUF_STRIDES (0x10 | 0x8)
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
#endif

/* A line of several batches: the number of its batch, and its row there in the lowest bits. */
#define ROW_BITS 40
#define ROW_MASK (((uint64_t)1 << ROW_BITS) - 1)

/* The functions of the module. Where something does not fit they raise ValueError.
 *
 * order_lines(batches, out): put into `out` (uint64) the lines of all batches by time: the number of the batch, shifted by 40 bits, and the
 * row. batches: a list of (times, ties), int64 in order of rows; ties may be None. Of lines of equal time those of the earlier batch come
 * first, then those of the earlier row; those that have ties go by these among themselves.
 *
 * write_lines(batches, order, out): put lines of this order, as order_lines makes it, into `out` as long as there is room; returns how many,
 * and how many bytes. batches: (pieces, lines) of each. A piece is (text,), (text, column) for a number behind it, or (text, column, texts,
 * offsets) for one of several texts. Columns are integers, or (integers, table) where they are indices of a table of int64. Behind text and
 * texts stand COPIED bytes more.
 *
 * map_times(times, open, opened, offset, drift, pivot, out): put time + offset + floor((time - pivot) * drift) of each time into `out`, but
 * `opened` for those that are `open`. times: int64, at any distance; out: int64.
 *
 * number_distinct(columns, codes, ascend=False): put into `codes` (int64) the number of each row among the distinct rows of a tuple of columns
 * (int64), in the order in which they come, or by their values; returns the first row of each as bytes (int64).
 *
 * find_bounds(values): return the least and the greatest of some numbers (int64); without any, the greatest and the least int64.
 *
 * intersect_spans(begin, end, begin, end): return what two sets of times have in common, as bytes of begins and of ends (all int64).
 *
 * subtract_spans(begin, end, begin, end): return the times of one set that are not in another, as bytes of begins and of ends (all int64).
 *
 * unite_spans(begin, end, begin, end): return the times in any of the intervals of two lists, each by its begins, as bytes of begins and of
 * ends.
 *
 * time_before((begin, end), times, out): put into `out` how much of a set of times lies before each of some times (all int64). begin, end: the
 * intervals of the set, ascending and apart.
 *
 * find_parents(thread, begin, end, depth, parent): put into `depth` how many ranges each lies in, and into `parent` the last of them, -1 for
 * none (all int32 but begin and end, int64). Ranges by thread, begin, longer first.
 *
 * find_outermost((begin, end, thread), rows, out): put into `out` (int32) the number of the outermost call that each call lies in; returns how
 * many there are. Calls by begin, of equal ones the longest first (int64); thread: below `rows` (int32).
 *
 * find_states((object, begin, end, state, yields), (object, time, state), (outside, since, current), first, limit): return the states of
 * objects that end in a window, as bytes of objects, begins, ends and states: those of the innermost range, else of the innermost that yields,
 * else `outside`. Ranges by object, begin, longer first; then what is outside from a time on, by object and time. Of each object what is
 * outside, when the current state began, and that state: these change. All int64.
 *
 * build_unit((begin, end, thread, name, does, mpi), (begin, end, stream, call, name, work), (time, says, thread, stream, event), (process,
 * device), nodes): find what calls, operations and rows about events of a unit wait for; put into `nodes` (int32) the node of each moment, -1
 * for an end that waits for nothing but its begin; returns columns of nodes (time, row, kind of work, key, duration) and of edges by their
 * targets (target, source, kind, key, typical), and the edges left out because of cycles. Moments are the begins of operations, their ends, the
 * begins of calls and their ends, in this order; sources of edges: twice a node, one more for the end of its work. Times are int64, what calls
 * do, mpi, work and says uint8, all else int32. process, device: of each row of the trace.
 *
 * order_all((target, source), out): put into `out` (int32) the nodes with sources before targets; returns how many could be placed: the rest,
 * on cycles, is behind them.
 *
 * make_graph(target, source, kind, joined, name, key): return a graph for the functions below. Edges are by their targets up to `joined`, and
 * from there on; kind (uint8): of edges, and of the work of nodes; name (int32): of nodes, of ends of calls -1 less it; key: of edges from
 * `joined` on. Keeps the columns.
 *
 * find_keys(graph, edges, out): put into `out` what work edges are, the same number on all ranks: name, place, or channel (int32).
 *
 * group_latencies(graph, time, lasts, process, clear, typical, marks): put into `typical` the group of each edge of which the typical weight is
 * to be estimated, as -3 - number, and into `marks` whether it was over later than all others of its target by more than `clear`; returns
 * (kind, process, key) of each group. lasts: columns of Durations of nodes; process: of nodes (int32).
 *
 * find_weights(graph, time, lasts, usual, typical, binding): put weights of edges into the place of typical ones: of those that allow their
 * node last, which `binding` tells then, what reproduces the recording. Returns the edges (int32) of which that is another than what is
 * typical, and what that is (int64), as bytes. lasts: columns of Durations of nodes; usual: typical weight of each group (int64).
 *
 * list_pauses(graph, time, lasts, typical, least, keys): return the pauses between calls that are longer than `least` (ns) and have one of some
 * keys (int32, None for any): edges (int32), and how long they last (int64), as bytes.
 *
 * plan_replay(graph, bounds): return the stretches of nodes in which a replay can go through units, whose nodes are from one bound (int64) to
 * the next, and through the meetings behind them, as bytes; and how many nodes could be placed.
 *
 * replay(graph, time, weight, plan, counts, out): put into `out` (int64) when each node is; returns the last time that counts: of nodes with
 * bit 0 of `counts` (uint8), of ends of their work with bit 1. A weight of the least int32 does not hold.
 *
 * count_moments(graph, time, weight, begin, end, out): put into `out` which moments of nodes are later than `begin` and not than `end`, as
 * bits.
 *
 * trace_path(graph, time, weight, binding, counts, begin): return the edges that were waited for, from the last moment that counts back to
 * `begin`, as bytes (int32). binding: which these are (uint8), None for those that allow their node last.
 *
 * select_edges(graph, time, weight, kinds, begin, end): return the edges, and nodes' work, of kinds (bits) that end between two times, as bytes
 * (int32) by kind.
 *
 * choose_edges(graph, time, weight, edges, keys, row, mask, longest): return those of some edges (int32) that have one of these keys (int32,
 * None for any), of whose rows of the trace (row: of nodes, int32) a mask is set (uint8, first of no row; None for any), and that last no
 * longer, as bytes.
 *
 * change_durations(recorded, changes, kept, least): return further columns of Durations with changes, a list of edges (int32) and new durations
 * (int64), or a share (a float) of what is recorded; of those of an edge that is changed already the least counts. And how many of these are
 * long. kept, least: edges (int32, ascending) that get no shorter than so (int64).
 *
 * fill_durations(recorded, changes, kept, least, out): put all durations with these changes into `out` (int32); return how many are long.
 *
 * look_up_durations(durations, rows, out): put into `out` (int64) the durations of some edges (int32), the least number of one that does not
 * hold.
 *
 * tabulate_work(graph, row, column, edges, columns): bytes of edges (int32) in a table with a line for the k-th time of each key, by key and k;
 * of the keys (int32); and of the first line of each (int64), and of how many there are. row: of each node; column: of each row, -1 for none.
 *
 * find_medians(table, columns, weight, out): put into `out` (float64) the median of each line of a table of edges (int32, -1 for none), of the
 * columns that a mask chooses; NaN of none. weight: columns of Durations.
 *
 * share_work(table, takers, givers, weight, is_mean, edges, lasts): put the edges of some columns of a table into `edges` (int32), and into
 * `lasts` (int64) how long they last if they last as long as other columns of their line, in the median or mean. Returns how many. takers,
 * givers: masks.
 *
 * summarize_keys(table, first, weight, medians, totals, counts): put into `medians` (float64, NaN of none), `totals` and `counts` (int64) those
 * of each key and column of a table.
 *
 * open_trace(applications, tasks, types, values, duration, communicators): return a trace for `read_lines`. All int64: tasks of each
 * application; threads, first and last CPU of each task; pairs of an event type and its set of labels; pairs of a set and a value that it has.
 *
 * read_lines(trace, text): read whole lines of a .prv behind its header.
 *
 * close_trace(trace): return broken rules as (name, first line, count, text), the entries and the types of trace.c as bytes, and numbers of
 * lines, states, events, communications and pairs, the first and the last time, the end, and the number of lines of communicators.
 *
 * read_parquet_footer(footer, begin): return the elements of a Parquet file's schema (name, type, repetition, children, converted type, whether it has a
 * logical type), its rows, and as bytes of int64 the rows of each group, and the first byte, bytes and codec of each column in each group (chunks). begin: where the footer begins in the file.
 *
 * measure_parquet_pages(descriptor, chunks): return how many bytes the pages of chunks of a file have when they are unpacked.
 *
 * decode_parquet(descriptor, chunks, group_rows, columns, column, type, is_optional, first, rows, values, present, texts): put a column of rows
 * from `first` on (from 0; or of some, int64, ascending) into `values`: int64, doubles, or numbers of texts. chunks: of so many columns; present:
 * gets whether each is no NULL, or None; texts: a Texts for texts, else None. Raises StandAside if a chunk is compressed or encoded in another way. */
#define FUNCTIONS(F) \
    F(order_lines) \
    F(write_lines) \
    F(map_times) \
    F(number_distinct) \
    F(find_bounds) \
    F(intersect_spans) \
    F(subtract_spans) \
    F(unite_spans) \
    F(time_before) \
    F(find_parents) \
    F(find_outermost) \
    F(find_states) \
    F(build_unit) \
    F(order_all) \
    F(make_graph) \
    F(find_keys) \
    F(group_latencies) \
    F(find_weights) \
    F(list_pauses) \
    F(plan_replay) \
    F(replay) \
    F(count_moments) \
    F(trace_path) \
    F(select_edges) \
    F(choose_edges) \
    F(change_durations) \
    F(fill_durations) \
    F(look_up_durations) \
    F(tabulate_work) \
    F(find_medians) \
    F(share_work) \
    F(summarize_keys) \
    F(open_trace) \
    F(read_lines) \
    F(close_trace) \
    F(read_parquet_footer) \
    F(measure_parquet_pages) \
    F(decode_parquet)

#define DECLARE(name) PyObject *name(PyObject *self, PyObject *arguments);
FUNCTIONS(DECLARE)

/* lines.c */
void make_small_texts(void);

/* tables.c: types and exceptions of reading tables. 0, or -1 with an exception. */
int add_tables(PyObject *module);

#endif
