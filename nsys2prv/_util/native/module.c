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
     "batches: (pieces, columns, lines) of each. A piece is (text,), (text, None) for a number behind it, or (text, texts, offsets) for one\n"
     "of several; the latter two take a column each: integers, or (integers, table) where they are indices of a table of int64. Behind text\n"
     "and texts stand COPIED bytes more. Raises ValueError where something does not fit."},
    {"number_distinct", number_distinct, METH_VARARGS,
     "number_distinct(columns, codes): put into `codes` (int64) the number of each row among the distinct rows of a tuple of columns (int64),\n"
     "in ascending order; returns the first row of each as bytes (int64). Raises ValueError where something does not fit."},
    {"fill_records", fill_records, METH_VARARGS,
     "fill_records(records, itemsize, fields, rows, first): fill records with the values of the rows at rows[first:], or from row `first` on\n"
     "where `rows` is None.\n\n"
     "fields: a tuple of (offset, size, values) with 4 or 8 bytes of each value (int64). rows: int64. Raises ValueError where something does\n"
     "not fit."},
    {"time_before", time_before, METH_VARARGS,
     "time_before(begin, end, times, out): put into `out` how much of a set of times lies before each of some times (all int64).\n\n"
     "begin, end: the intervals of the set, ascending and apart. Raises ValueError where something does not fit."},
    {"find_outermost", find_outermost, METH_VARARGS,
     "find_outermost(begin, end, thread, rows, out): put into `out` (int32) the number of the outermost call that each call lies in; returns how\n"
     "many there are. Calls by begin, of equal ones the longest first (int64); thread: below `rows` (int32)."},
    {"find_dependencies", find_dependencies, METH_VARARGS,
     "find_dependencies((begin, end, thread, does), (begin, end, stream, call, copy), (time, says, thread, stream, event), process): return targets,\n"
     "sources (int32) and kinds (uint8) of the dependencies of calls, operations and rows about events, as bytes.\n\n"
     "Nodes are the begins of operations, their ends, the begins of calls and their ends, in this order. Times are int64, what calls do, copy and says\n"
     "uint8, all else int32. process: of each row of the trace. Raises ValueError where something does not fit."},
    {"sort_nodes", sort_nodes, METH_VARARGS,
     "sort_nodes(source, target, order, out): put into `out` the nodes with sources before targets, otherwise as `order` has them (all int32);\n"
     "returns how many could be placed: the rest, on cycles, is behind them."},
    {"group_edges", group_edges, METH_VARARGS,
     "group_edges(target, number, first, out): put into `out` (int32) the edges by the numbers of their targets, and into `first` (int64) where those\n"
     "of each number begin"},
    {"mark_edges", mark_edges, METH_VARARGS,
     "mark_edges(first, gap, typical, clear, out): put into `out` (uint8) for each edge whether its node, whose edges are first[n] to first[n + 1],\n"
     "waited for it: whose gap exceeds what is typical by least; without typical (None), whose gap is the least by more than `clear`"},
    {"replay", replay, METH_VARARGS,
     "replay(first, source, weight, changed, changed_to, time, why): put into `time` when each node is, its edges being first[n] to first[n + 1],\n"
     "and into `why` (or None) the edge that it waited for, -1 for none. Nodes are in an order that has sources before targets.\n"
     "changed: edges, ascending, with another weight; of the least int64 it does not hold. source is int32, all else int64."},
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
