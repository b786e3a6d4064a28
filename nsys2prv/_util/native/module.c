/* The extension module nsys2prv._util.native._core: the inner loops of reading exports, of writing traces and of analyses. All leave the interpreter to other
 * threads while they run. */
#include "module.h"

#define ENTRY(name) {#name, name, METH_VARARGS, NULL},

static PyMethodDef METHODS[] = {FUNCTIONS(ENTRY){NULL, NULL, 0, NULL}};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    make_small_texts();
    PyObject *module = PyModule_Create(&MODULE);
    if (module && add_tables(module) < 0)
        Py_CLEAR(module);
    return module;
}
