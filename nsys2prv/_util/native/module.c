/* The extension module nsys2prv._util.native._core: the inner loops of reading exports, of writing traces and of analyses. All leave the interpreter to other
 * threads while they run. */
#include "module.h"

static PyMethodDef FUNCTIONS[] = {
    {"write", write_lines, METH_VARARGS,
     "write(batches, owners, order, out): put lines of this order (int64) into `out` as long as there is room; returns how many, and how\n"
     "many bytes.\n\n"
     "batches: (pieces, columns, lines) of each. A piece is (text,), (text, None) for a number behind it, or (text, texts, offsets) for one\n"
     "of several; the latter two take a column each. Behind text and texts stand COPIED bytes more. owners: the batch of each line (uint16),\n"
     "those of one batch after those of the other. Raises ValueError where something does not fit."},
    {"time_before", time_before, METH_VARARGS,
     "time_before(begin, end, times, out): put into `out` how much of a set of times lies before each of some times (all int64).\n\n"
     "begin, end: the intervals of the set, ascending and apart. Raises ValueError where something does not fit."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, FUNCTIONS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module && add_tables(module) < 0)
        Py_CLEAR(module);
    return module;
}
