/* What is said when a library aborts the program: polars does where a damaged file asks for more memory than there can be. */
#include "module.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES 8192

static char words[MOST_BYTES];
static volatile size_t length;
static volatile int descriptor = 2;

/* Only what may be done whatever the program was doing. */
static void say_and_end(int number) {
    (void)number;
    if (write(descriptor, words, length) < 0)
        _exit(2);
    _exit(1);
}

PyObject *say_on_abort(PyObject *self, PyObject *arguments) {
    const char *text;
    Py_ssize_t size;
    int number;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iy#", &number, &text, &size))
        return NULL;
    /* Meanwhile, and where there is nothing to say, the system ends the program. */
    signal(SIGABRT, SIG_DFL);
    descriptor = number;
    length = (size_t)size < MOST_BYTES ? (size_t)size : MOST_BYTES;
    memcpy(words, text, length);
    if (length)
        signal(SIGABRT, say_and_end);
    Py_RETURN_NONE;
}
