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
