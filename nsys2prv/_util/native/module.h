/* What the parts of the extension module `_core` have in common with Python. */
#ifndef NSYS2PRV_MODULE_H
#define NSYS2PRV_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* lines.c */
PyObject *write_lines(PyObject *self, PyObject *arguments);

/* spans.c */
PyObject *time_before(PyObject *self, PyObject *arguments);

/* tables.c: types and exceptions of reading tables. 0, or -1 with an exception. */
int add_tables(PyObject *module);

#endif
