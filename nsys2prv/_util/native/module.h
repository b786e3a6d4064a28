/* What the parts of the extension module `_core` have in common with Python. */
#ifndef NSYS2PRV_MODULE_H
#define NSYS2PRV_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* A line of several batches: the number of its batch, and its row there in the lowest bits. */
#define ROW_BITS 40
#define ROW_MASK (((uint64_t)1 << ROW_BITS) - 1)

/* order.c */
PyObject *order_lines(PyObject *self, PyObject *arguments);

/* lines.c */
PyObject *write_lines(PyObject *self, PyObject *arguments);
void make_small_texts(void);

/* columns.c */
PyObject *number_distinct(PyObject *self, PyObject *arguments);
PyObject *fill_records(PyObject *self, PyObject *arguments);

/* trace.c */
PyObject *open_trace(PyObject *self, PyObject *arguments);
PyObject *read_lines(PyObject *self, PyObject *arguments);
PyObject *close_trace(PyObject *self, PyObject *capsule);

/* spans.c */
PyObject *time_before(PyObject *self, PyObject *arguments);

/* dependencies.c, arrange.c, replay.c */
PyObject *find_outermost(PyObject *self, PyObject *arguments);
PyObject *find_dependencies(PyObject *self, PyObject *arguments);
PyObject *arrange_unit(PyObject *self, PyObject *arguments);
PyObject *order_all(PyObject *self, PyObject *arguments);
PyObject *make_graph(PyObject *self, PyObject *arguments);
PyObject *group_latencies(PyObject *self, PyObject *arguments);
PyObject *find_weights(PyObject *self, PyObject *arguments);
PyObject *plan_replay(PyObject *self, PyObject *arguments);
PyObject *replay(PyObject *self, PyObject *arguments);
PyObject *count_moments(PyObject *self, PyObject *arguments);
PyObject *trace_path(PyObject *self, PyObject *arguments);
PyObject *select_edges(PyObject *self, PyObject *arguments);
PyObject *find_medians(PyObject *self, PyObject *arguments);
PyObject *number_repetitions(PyObject *self, PyObject *arguments);

/* tables.c: types and exceptions of reading tables. 0, or -1 with an exception. */
int add_tables(PyObject *module);

#endif
