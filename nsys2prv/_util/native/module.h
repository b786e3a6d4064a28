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

/* order.c */
PyObject *order_lines(PyObject *self, PyObject *arguments);

/* lines.c */
PyObject *write_lines(PyObject *self, PyObject *arguments);
void make_small_texts(void);

/* columns.c */
PyObject *number_distinct(PyObject *self, PyObject *arguments);
PyObject *map_times(PyObject *self, PyObject *arguments);

/* trace.c */
PyObject *open_trace(PyObject *self, PyObject *arguments);
PyObject *read_lines(PyObject *self, PyObject *arguments);
PyObject *close_trace(PyObject *self, PyObject *capsule);

/* spans.c */
PyObject *time_before(PyObject *self, PyObject *arguments);
PyObject *find_parents(PyObject *self, PyObject *arguments);
PyObject *intersect_spans(PyObject *self, PyObject *arguments);
PyObject *subtract_spans(PyObject *self, PyObject *arguments);
PyObject *unite_spans(PyObject *self, PyObject *arguments);

/* states.c */
PyObject *find_states(PyObject *self, PyObject *arguments);

/* dependencies.c, arrange.c, replay.c */
PyObject *find_outermost(PyObject *self, PyObject *arguments);
PyObject *build_unit(PyObject *self, PyObject *arguments);
PyObject *order_all(PyObject *self, PyObject *arguments);
PyObject *make_graph(PyObject *self, PyObject *arguments);
PyObject *find_keys(PyObject *self, PyObject *arguments);
PyObject *group_latencies(PyObject *self, PyObject *arguments);
PyObject *find_weights(PyObject *self, PyObject *arguments);
PyObject *list_pauses(PyObject *self, PyObject *arguments);
PyObject *plan_replay(PyObject *self, PyObject *arguments);
PyObject *replay(PyObject *self, PyObject *arguments);
PyObject *count_moments(PyObject *self, PyObject *arguments);
PyObject *trace_path(PyObject *self, PyObject *arguments);
PyObject *select_edges(PyObject *self, PyObject *arguments);
PyObject *choose_edges(PyObject *self, PyObject *arguments);
PyObject *change_durations(PyObject *self, PyObject *arguments);
PyObject *look_up_durations(PyObject *self, PyObject *arguments);
PyObject *tabulate_work(PyObject *self, PyObject *arguments);
PyObject *find_medians(PyObject *self, PyObject *arguments);
PyObject *share_work(PyObject *self, PyObject *arguments);
PyObject *summarize_keys(PyObject *self, PyObject *arguments);

/* tables.c: types and exceptions of reading tables. 0, or -1 with an exception. */
int add_tables(PyObject *module);

#endif
