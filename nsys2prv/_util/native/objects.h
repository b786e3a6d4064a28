/* What readers of tables share of Python's objects (tables.c). */
#ifndef NSYS2PRV_OBJECTS_H
#define NSYS2PRV_OBJECTS_H

#include "module.h"
#include "pages.h"
#include "texts.h"

/* Raises what a status means; returns NULL. page: the one that it is about. */
PyObject *raise_status(Status, uint32_t page);
/* The texts of a Texts; NULL of any other object. */
Texts *texts_of(PyObject *);

#endif
