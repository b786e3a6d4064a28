/* Tables of an SQLite file for Python: TableFile, its Table, and the Texts of columns. */
#include "module.h"

#include "objects.h"
#include "records.h"
#include "stacks.h"

static PyObject *StandAside, *Damaged;

PyObject *raise_status(Status status, uint32_t page) {
    if (status == NO_MEMORY)
        return PyErr_NoMemory();
    if (status == DAMAGED)
        PyErr_Format(Damaged, "%u", (unsigned int)page);
    else
        PyErr_SetString(StandAside, status_text(status));
    return NULL;
}

/* Frees an object, which holds its type. */
static void free_object(void *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- Texts ---- */

typedef struct {
    PyObject_HEAD
    Texts texts;
} TextsObject;

static PyObject *new_texts(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    (void)names;
    if (!PyArg_ParseTuple(arguments, ""))
        return NULL;
    TextsObject *self = (TextsObject *)PyType_GenericAlloc(type, 0);
    /* Any number that a file's author cannot know: Python's own hashes are seeded at random. */
    PyObject *seed = PyUnicode_FromString("texts");
    Py_hash_t hash = seed ? PyObject_Hash(seed) : -1;
    Py_XDECREF(seed);
    if (self && init_texts(&self->texts, (uint64_t)hash) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void free_texts_object(TextsObject *self) {
    free_texts(&self->texts);
    free_object(self);
}

static PyObject *texts_as_list(TextsObject *self, PyObject *arguments) {
    const Texts *texts = &self->texts;
    Py_buffer chosen = {0};
    if (!PyArg_ParseTuple(arguments, "|y*", &chosen))
        return NULL;
    const int64_t *numbers = chosen.buf;
    Py_ssize_t count = numbers ? chosen.len / 8 : (Py_ssize_t)texts->count;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t k = 0; list && k < count; k++) {
        size_t number = numbers ? (size_t)numbers[k] : (size_t)k;
        if (number >= texts->count) {
            PyErr_SetString(PyExc_IndexError, "no such text");
            Py_CLEAR(list);
            break;
        }
        PyObject *text = PyBytes_FromStringAndSize((const char *)texts->bytes + texts->begins[number],
                                                   (Py_ssize_t)(texts->begins[number + 1] - texts->begins[number]));
        if (!text)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, text);
    }
    if (chosen.obj)
        PyBuffer_Release(&chosen);
    return list;
}

static PyObject *texts_add(TextsObject *self, PyObject *arguments) {
    Py_buffer bytes, numbers;
    if (!PyArg_ParseTuple(arguments, "y*w*", &bytes, &numbers))
        return NULL;
    int64_t *lengths = numbers.buf;
    size_t count = (size_t)numbers.len / 8, at = 0, k = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; k < count && (uint64_t)lengths[k] <= (size_t)bytes.len - at; k++) {
        size_t length = (size_t)lengths[k];
        if ((lengths[k] = number_of_text(&self->texts, (const uint8_t *)bytes.buf + at, length)) < 0)
            break;
        at += length;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&bytes);
    PyBuffer_Release(&numbers);
    if (k == count)
        Py_RETURN_NONE;
    return lengths[k] == -1 ? PyErr_NoMemory() : (PyErr_SetString(PyExc_ValueError, "texts longer than their bytes"), NULL);
}

static Py_ssize_t texts_length(TextsObject *self) {
    return (Py_ssize_t)self->texts.count;
}

static PyObject *texts_templates(TextsObject *self, PyObject *arguments) {
    Py_buffer codes, firsts, chosen = {0};
    if (!PyArg_ParseTuple(arguments, "w*w*|y*", &codes, &firsts, &chosen))
        return NULL;
    int64_t found = -3;
    size_t count = (size_t)codes.len / 8;
    if (count == (chosen.obj ? (size_t)chosen.len / 8 : self->texts.count)) {
        Py_BEGIN_ALLOW_THREADS
        found = find_templates(&self->texts, chosen.buf, count, codes.buf, firsts.buf, (size_t)firsts.len / 8);
        Py_END_ALLOW_THREADS
    }
    if (chosen.obj)
        PyBuffer_Release(&chosen);
    PyBuffer_Release(&codes);
    PyBuffer_Release(&firsts);
    if (found == -2)
        return PyErr_NoMemory();
    if (found == -3) {
        PyErr_SetString(PyExc_ValueError, "codes must be one of each text");
        return NULL;
    }
    return PyLong_FromLongLong(found);
}

static PyObject *texts_numbers(TextsObject *self, PyObject *arguments) {
    Py_buffer places, chosen = {0};
    if (!PyArg_ParseTuple(arguments, "w*|y*", &places, &chosen))
        return NULL;
    const int64_t *numbers = chosen.buf;
    int64_t *values = places.buf;
    size_t count = (size_t)places.len / 8;
    int within = count == (numbers ? (size_t)chosen.len / 8 : self->texts.count);
    Py_BEGIN_ALLOW_THREADS
    for (size_t k = 0; within && k < count; k++) {
        size_t number = numbers ? (size_t)numbers[k] : k;
        if ((within = number < self->texts.count))
            values[k] = values[k] < 0 ? -1 : number_in_text(&self->texts, number, (size_t)values[k]);
    }
    Py_END_ALLOW_THREADS
    if (chosen.obj)
        PyBuffer_Release(&chosen);
    PyBuffer_Release(&places);
    if (within)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "places must be one of each text");
    return NULL;
}


static PyMethodDef TEXTS_METHODS[] = {
    {"as_list", (PyCFunction)texts_as_list, METH_VARARGS, "as_list([numbers]): the texts (bytes), by their numbers, or those of some (int64)."},
    {"add", (PyCFunction)texts_add, METH_VARARGS, "add(bytes, lengths): take further texts, one after the other; puts the number of each in the place of its length (int64)."},
    {"templates", (PyCFunction)texts_templates, METH_VARARGS,
     "templates(codes, firsts, [numbers]): find the templates of the texts, or of some (int64): what those have in common that differ by nothing but numbers. Puts the\n"
     "template of each text into `codes` (int64), and the number of its first text into `firsts` (int64). Returns how many there are, -1\n"
     "where there is no room for more."},
    {"numbers", (PyCFunction)texts_numbers, METH_VARARGS,
     "numbers(places, [numbers]): put in the place of each text's place (int64; 0 is the first number in it, -1 none) the number that stands\n"
     "there. numbers: of the texts (int64), all without."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot TEXTS_SLOTS[] = {
    {Py_tp_doc, (void *)"Texts(): distinct texts, numbered from 0 in the order in which columns have them. One thread at a time uses it."},
    {Py_tp_new, new_texts},
    {Py_tp_dealloc, free_texts_object},
    {Py_tp_methods, TEXTS_METHODS},
    {Py_sq_length, texts_length},
    {0, NULL},
};

static PyType_Spec TEXTS_SPEC = {"nsys2prv._util.native._core.Texts", sizeof(TextsObject), 0, Py_TPFLAGS_DEFAULT, TEXTS_SLOTS};

/* ---- TableFile ---- */

typedef struct {
    PyObject_HEAD
    PageFile file;
} FileObject;

/* Made of the specs below and above. */
static PyTypeObject *table_type, *texts_type;

Texts *texts_of(PyObject *object) { return Py_TYPE(object) == texts_type ? &((TextsObject *)object)->texts : NULL; }

static PyObject *new_file(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    PyObject *path;
    (void)names;
    if (!PyArg_ParseTuple(arguments, "O&", PyUnicode_FSConverter, &path))
        return NULL;
    FileObject *self = (FileObject *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->file.descriptor = -1;
        Status status = open_page_file(PyBytes_AsString(path), &self->file);
        if (status != OK) {
            Py_CLEAR(self);
            raise_status(status, 1);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void free_file(FileObject *self) {
    close_page_file(&self->file);
    free_object(self);
}

/* ---- Table ---- */

typedef struct {
    PyObject_HEAD
    FileObject *file;
    Leaves leaves;
} TableObject;

static PyObject *lost_page(FileObject *self, PyObject *arguments) {
    Py_buffer met, roots;
    uint32_t lost;
    Status status = OK;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "w*y*", &met, &roots))
        return NULL;
    if ((size_t)met.len <= self->file.pages / 8)
        PyErr_SetString(PyExc_ValueError, "there must be a bit for each page");
    else {
        Py_BEGIN_ALLOW_THREADS
        status = find_lost_page(&self->file, roots.buf, (size_t)roots.len / sizeof(uint32_t), met.buf, &lost);
        Py_END_ALLOW_THREADS
        result = status == OK ? PyLong_FromUnsignedLong(lost) : raise_status(status, 0);
    }
    PyBuffer_Release(&met);
    PyBuffer_Release(&roots);
    return result;
}

static PyObject *pages_of(FileObject *self, void *none) {
    (void)none;
    return PyLong_FromUnsignedLong(self->file.pages);
}

static PyObject *open_table(FileObject *self, PyObject *arguments) {
    unsigned int root;
    uint32_t damaged = 0;
    if (!PyArg_ParseTuple(arguments, "I", &root))
        return NULL;
    TableObject *table = PyObject_New(TableObject, table_type);
    if (!table)
        return NULL;
    Py_INCREF(self);
    table->file = self;
    table->leaves = (Leaves){0};
    Status status;
    Py_BEGIN_ALLOW_THREADS
    status = find_leaves(&self->file, root, NULL, &table->leaves, &damaged);
    Py_END_ALLOW_THREADS
    if (status != OK) {
        Py_DECREF(table);
        return raise_status(status, damaged);
    }
    return (PyObject *)table;
}

static void free_table(TableObject *self) {
    free_leaves(&self->leaves);
    Py_DECREF(self->file);
    free_object(self);
}

static PyObject *leaves_of(TableObject *self, void *none) {
    (void)none;
    return PyLong_FromSize_t(self->leaves.count);
}

static PyObject *most_rows(TableObject *self, PyObject *arguments) {
    Py_ssize_t from, to;
    if (!PyArg_ParseTuple(arguments, "nn", &from, &to))
        return NULL;
    /* No cell takes less than four bytes, with its pointer. */
    return PyLong_FromSsize_t(to > from ? (to - from) * (Py_ssize_t)(self->file->file.page_size / 4) : 0);
}

static PyObject *between(TableObject *self, PyObject *arguments) {
    long long first, last;
    size_t from, to;
    if (!PyArg_ParseTuple(arguments, "LL", &first, &last))
        return NULL;
    leaves_between(&self->leaves, first, last, &from, &to);
    return Py_BuildValue("nn", (Py_ssize_t)from, (Py_ssize_t)to);
}

/* Columns with the buffers that they are read into. */
typedef struct {
    Column *columns;
    Py_buffer *held;  /* two for each column: values and types */
    Py_ssize_t count;
} Asked;

static void release(Asked *asked) {
    for (Py_ssize_t k = 0; asked->held && k < 2 * asked->count; k++)
        PyBuffer_Release(&asked->held[k]);
    PyMem_Free(asked->columns);
    PyMem_Free(asked->held);
}

/* Whether the values of a column fit: a writable buffer of `size` bytes for each row. Takes rows from the first, for all others. */
static int take_buffer(PyObject *object, Py_buffer *held, Py_ssize_t size, Py_ssize_t *rows) {
    if (PyObject_GetBuffer(object, held, PyBUF_WRITABLE) < 0)
        return -1;
    if (*rows < 0)
        *rows = held->len / size;
    if (held->len != *rows * size) {
        PyErr_SetString(PyExc_ValueError, "columns must be of equal length, of eight bytes a value and one a type");
        return -1;
    }
    return 0;
}

/* A column from (field, kind, holds_reals, has_default, null, values, types, texts). values: None where none are put. */
static int take_column(PyObject *given, Column *column, Py_buffer *held, Py_ssize_t *rows) {
    int field, kind, holds_reals, has_default;
    long long null;
    PyObject *values, *types, *texts;
    if (!PyArg_ParseTuple(given, "iippLOOO", &field, &kind, &holds_reals, &has_default, &null, &values, &types, &texts))
        return -1;
    if (field < ROWID || kind < INTEGERS || kind > VALUES || (kind == VALUES && values != Py_None) == (types == Py_None)
        || (kind >= TEXTS) != (Py_TYPE(texts) == texts_type)) {
        PyErr_SetString(PyExc_ValueError, "a column has a field, a kind, and types and texts as its kind needs them");
        return -1;
    }
    *column = (Column){.field = field, .kind = (Kind)kind, .holds_reals = holds_reals, .has_default = has_default,
                       .null = null};
    if (values != Py_None && take_buffer(values, &held[0], 8, rows) < 0)
        return -1;
    if (types != Py_None && take_buffer(types, &held[1], 1, rows) < 0)
        return -1;
    column->values = held[0].buf;
    column->types = held[1].buf;
    column->texts = kind >= TEXTS ? &((TextsObject *)texts)->texts : NULL;
    return 0;
}

static int take_columns(PyObject *given, Asked *asked, Py_ssize_t *rows) {
    asked->count = PyList_Size(given);
    asked->columns = PyMem_Calloc((size_t)asked->count + 1, sizeof *asked->columns);
    asked->held = PyMem_Calloc(2 * (size_t)asked->count + 1, sizeof *asked->held);
    if (!asked->columns || !asked->held) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < asked->count; k++)
        if (take_column(PyList_GetItem(given, k), &asked->columns[k], &asked->held[2 * k], rows) < 0)
            return -1;
    return 0;
}

static PyObject *check(FileObject *self, PyObject *arguments) {
    unsigned int root;
    uint32_t damaged = 0;
    Extent found;
    Status status;
    Asked asked = {0};
    Outline outline = {0};
    Py_ssize_t rows = 1, most = 0, most_noted = 0;
    Py_buffer met, rules, traits = {0};
    PyObject *given = NULL, *result = NULL;
    int by_series = 0;
    if (!PyArg_ParseTuple(arguments, "Iz*w*|O!Inny*p", &root, &rules, &met, &PyList_Type, &given, &outline.block_bits, &most, &most_noted, &traits,
                          &by_series))
        return NULL;
    if (given && take_columns(given, &asked, &rows) < 0)
        goto done;
    bool fits = !given || (asked.count == OUTLINED && outline.block_bits < 64 && most >= 0 && most_noted >= 0 && traits.obj);
    for (Py_ssize_t k = 0; k < asked.count; k++)
        fits = fits && asked.columns[k].kind == INTEGERS && asked.columns[k].null == INT64_MIN && !asked.columns[k].values;
    if ((size_t)met.len <= self->file.pages / 8 || rules.len > INT32_MAX || !fits) {
        PyErr_SetString(PyExc_ValueError, "there must be a bit for each page, and the columns of an outline");
        goto done;
    }
    outline.columns = asked.columns;
    outline.most_blocks = (size_t)most;
    outline.most_noted = (size_t)most_noted;
    outline.traits = traits.buf;
    outline.types = (size_t)traits.len;
    outline.by_series = by_series;
    Py_BEGIN_ALLOW_THREADS
    status = check_table(&self->file, root, rules.buf, (size_t)rules.len, met.buf, given ? &outline : NULL, &found, &damaged);
    Py_END_ALLOW_THREADS
    uint64_t odd = 0;
    for (Py_ssize_t k = 0; k < asked.count; k++)
        odd += asked.columns[k].odd;
    if (status != OK)
        raise_status(status, damaged);
    else
        result = Py_BuildValue("nLLy#y#", (Py_ssize_t)found.rows, (long long)found.first, (long long)found.last, odd ? NULL : (char *)outline.bounds,
                               (Py_ssize_t)(outline.blocks * BOUNDS * sizeof *outline.bounds),
                               outline.noted_count > outline.most_noted ? NULL : outline.noted ? (char *)outline.noted : "",
                               (Py_ssize_t)(outline.noted_count * sizeof *outline.noted));
done:
    free(outline.bounds);
    free(outline.noted);
    release(&asked);
    if (traits.obj)
        PyBuffer_Release(&traits);
    PyBuffer_Release(&met);
    PyBuffer_Release(&rules);
    return result;
}

static PyObject *decode(TableObject *self, PyObject *arguments) {
    Py_ssize_t from, to, room = -1;
    long long first, last;
    PyObject *given, *result = NULL;
    Asked asked = {0};
    Py_buffer chosen = {0};
    if (!PyArg_ParseTuple(arguments, "nnLLO!|y*", &from, &to, &first, &last, &PyList_Type, &given, &chosen))
        return NULL;
    if (from < 0 || to < from || (size_t)to > self->leaves.count) {
        PyErr_SetString(PyExc_ValueError, "the table has no such leaves");
        goto done;
    }
    if (take_columns(given, &asked, &room) < 0)
        goto done;
    for (Py_ssize_t k = 0; k < asked.count; k++)
        if (!asked.columns[k].values) {
            PyErr_SetString(PyExc_ValueError, "a column needs room for its values");
            goto done;
        }
    size_t rows = 0;
    uint32_t damaged = 0;
    Status status;
    Decoder *decoder;
    Py_BEGIN_ALLOW_THREADS
    status = new_decoder(&self->file->file, asked.columns, (size_t)asked.count, &decoder);
    if (status == OK && chosen.obj)
        choose_rows(decoder, chosen.buf, (size_t)chosen.len / sizeof(int64_t));
    if (status == OK) {
        /* Without columns rows are but counted. */
        status = decode_leaves(decoder, &self->leaves, (size_t)from, (size_t)to, first, last, &rows, room < 0 ? SIZE_MAX : (size_t)room,
                               &damaged);
        free_decoder(decoder);
    }
    Py_END_ALLOW_THREADS
    if (status != OK) {
        raise_status(status, damaged);
        goto done;
    }
    PyObject *counts = PyList_New(asked.count);
    for (Py_ssize_t k = 0; counts && k < asked.count; k++) {
        PyObject *count = Py_BuildValue("KK", (unsigned long long)asked.columns[k].nulls, (unsigned long long)asked.columns[k].odd);
        if (!count)
            Py_CLEAR(counts);
        else
            PyList_SetItem(counts, k, count);
    }
    if (counts)
        result = Py_BuildValue("nN", (Py_ssize_t)rows, counts);
done:
    PyBuffer_Release(&chosen);
    release(&asked);
    return result;
}

/* A value of a column of VALUES, as Python's driver of SQLite gives it; texts that are no UTF-8 with stand-ins. */
static PyObject *make_value(const Column *column, size_t row) {
    const int64_t number = ((const int64_t *)column->values)[row];
    double real;
    switch (column->types[row]) {
    case NULL_TYPE:
        return Py_NewRef(Py_None);
    case INTEGER_TYPE:
        return PyLong_FromLongLong(number);
    case REAL_TYPE:
        memcpy(&real, &number, 8);
        return PyFloat_FromDouble(real);
    }
    const size_t *begins = column->texts->begins;
    const char *bytes = (const char *)column->texts->bytes + begins[number];
    Py_ssize_t length = (Py_ssize_t)(begins[number + 1] - begins[number]);
    return column->types[row] == TEXT_TYPE ? PyUnicode_DecodeUTF8(bytes, length, "replace") : PyBytes_FromStringAndSize(bytes, length);
}

static PyObject *make_rows(const Asked *asked, size_t rows) {
    PyObject *list = PyList_New((Py_ssize_t)rows);
    for (size_t row = 0; list && row < rows; row++) {
        PyObject *values = PyTuple_New(asked->count);
        for (Py_ssize_t k = 0; values && k < asked->count; k++) {
            PyObject *value = make_value(&asked->columns[k], row);
            if (!value)
                Py_CLEAR(values);
            else
                PyTuple_SetItem(values, k, value);
        }
        if (!values)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)row, values);
    }
    return list;
}

static PyObject *rows_of(TableObject *self, PyObject *arguments) {
    PyObject *given, *result = NULL;
    uint8_t *types = NULL;
    int64_t *values = NULL;
    Asked asked = {0};
    Decoder *decoder = NULL;
    Py_ssize_t none = -1;
    size_t rows = 0;
    uint32_t damaged = 0;
    if (!PyArg_ParseTuple(arguments, "O!", &PyList_Type, &given))
        return NULL;
    /* No cell takes less than four bytes, with its pointer. */
    const size_t room = self->leaves.count * (self->file->file.page_size / 4);
    if (take_columns(given, &asked, &none) < 0)
        goto done;
    values = PyMem_Malloc(room * (size_t)asked.count * sizeof *values + 1);
    types = PyMem_Malloc(room * (size_t)asked.count + 1);
    if (!values || !types) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t k = 0; k < asked.count; k++) {
        if (asked.columns[k].kind != VALUES || asked.columns[k].values) {
            PyErr_SetString(PyExc_ValueError, "the columns of rows are of values, without buffers");
            goto done;
        }
        asked.columns[k].values = values + room * (size_t)k;
        asked.columns[k].types = types + room * (size_t)k;
    }
    Status status = new_decoder(&self->file->file, asked.columns, (size_t)asked.count, &decoder);
    if (status == OK)
        status = decode_leaves(decoder, &self->leaves, 0, self->leaves.count, INT64_MIN, INT64_MAX, &rows, room, &damaged);
    free_decoder(decoder);
    result = status == OK ? make_rows(&asked, rows) : raise_status(status, damaged);
done:
    PyMem_Free(types);
    PyMem_Free(values);
    release(&asked);
    return result;
}

static PyObject *take_numbers(const Numbers *numbers) {
    return PyBytes_FromStringAndSize((const char *)numbers->values, (Py_ssize_t)(numbers->count * sizeof *numbers->values));
}

static PyObject *find_stacks(TableObject *self, PyObject *arguments) {
    long long low, high;
    PyObject *given, *result = NULL;
    Asked asked = {0};
    Py_ssize_t rows = -1;
    Stacks stacks = {0};
    bool sorted = false;
    uint32_t damaged = 0;
    Status status;
    if (!PyArg_ParseTuple(arguments, "LLO!", &low, &high, &PyList_Type, &given))
        return NULL;
    if (take_columns(given, &asked, &rows) < 0)
        goto done;
    for (Py_ssize_t k = 0; k < asked.count; k++)
        if (asked.count != FRAME_COLUMNS || asked.columns[k].kind != INTEGERS) {
            PyErr_SetString(PyExc_ValueError, "the columns of frames are integers: id, depth, symbol, module");
            goto done;
        }
    Py_BEGIN_ALLOW_THREADS
    status = read_stacks(&self->file->file, &self->leaves, asked.columns, low, high, &stacks, &sorted, &damaged);
    Py_END_ALLOW_THREADS
    if (status != OK)
        raise_status(status, damaged);
    else if (!sorted)
        result = Py_NewRef(Py_None);
    else
        result = Py_BuildValue("NNNNN", take_numbers(&stacks.ids), take_numbers(&stacks.codes), take_numbers(&stacks.sums),
                               take_numbers(&stacks.lengths), take_numbers(&stacks.frames));
done:
    free_stacks(&stacks);
    release(&asked);
    return result;
}

static PyGetSetDef TABLE_ATTRIBUTES[] = {
    {"leaves", (getter)leaves_of, NULL, "How many leaf pages there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef TABLE_METHODS[] = {
    {"between", (PyCFunction)between, METH_VARARGS,
     "between(first, last): (from, to), the leaves that can hold rowids from first to last."},
    {"most_rows", (PyCFunction)most_rows, METH_VARARGS, "most_rows(from, to): leaves from .. to - 1 have no more rows."},
    {"decode", (PyCFunction)decode, METH_VARARGS,
     "decode(from, to, first, last, columns, [rowids]): put rows of leaves from .. to - 1 with rowids first .. last, and of these only those\n"
     "with some rowids (int64, ascending) where they are given, into columns; returns how many, and of each column how many are NULL and how many of another kind than the column.\n\n"
     "A column is (field, kind, holds_reals, has_default, null, values, types, texts), see records.h; the field of the rowid is -1. values is a buffer of eight\n"
     "bytes a row, types, of VALUES, one of a byte a row, else None, and texts, of TEXTS and VALUES, a Texts. Columns of TYPES that share\n"
     "their values have three bits each there, the first the lowest. Raises StandAside, Damaged."},
    {"rows", (PyCFunction)rows_of, METH_VARARGS,
     "rows(columns): all rows as tuples of Python's values. columns: as of decode, of VALUES, without buffers. Raises StandAside, Damaged."},
    {"stacks", (PyCFunction)find_stacks, METH_VARARGS,
     "stacks(low, high, columns): read the call stacks with ids from low to high. columns: as of decode, without buffers: id, depth, symbol\n"
     "and module of frames. Returns as int64 the ids, the number of the distinct stack of each, and of the distinct stacks what tells\n"
     "each from others, its number of frames, and their depths, symbols and modules; None where rows are not in the order of ids, or\n"
     "have other values than integers. Raises StandAside, Damaged."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot TABLE_SLOTS[] = {
    {Py_tp_doc, (void *)"The leaf pages of a table, in the order of its rows. Any number of threads may read from it at a time."},
    {Py_tp_dealloc, free_table},
    {Py_tp_methods, TABLE_METHODS},
    {Py_tp_getset, TABLE_ATTRIBUTES},
    {0, NULL},
};

static PyType_Spec TABLE_SPEC = {"nsys2prv._util.native._core.Table", sizeof(TableObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 TABLE_SLOTS};

static PyMethodDef FILE_METHODS[] = {
    {"table", (PyCFunction)open_table, METH_VARARGS, "table(root): the table with this root page. Raises StandAside, Damaged."},
    {"check", (PyCFunction)check, METH_VARARGS,
     "check(root, rules, met, [columns, block_bits, most_blocks, most_noted, traits, by_series]): read all of the table with this root page, and set the bits of its\n"
     "pages in `met`, in which those of other tables are set. Returns how many rows it has, their least and greatest rowid (anything without\n"
     "rows), and an outline: five numbers (int64) of each of at most so many blocks of 1 << block_bits rowids, see records.h, None if one of\n"
     "its columns has other values than integers; and the rowids (int64, less the first) of the rows that rules note, or of the\n"
     "first of each series, above eight bits of the group and four of the reasons, None of more. columns: as of decode, without buffers: begin, end, id, type, group; traits: a byte for each type.\n"
     "rules: for each column a byte, 1 if it cannot be NULL, 2 if it cannot be a number, 4 or 8 to note rows with a value, or with one but 0, and 16 times the reason, or a sum; None: its interior pages alone are read, and what is\n"
     "returned means nothing. Raises StandAside, Damaged."},
    {"lost_page", (PyCFunction)lost_page, METH_VARARGS,
     "lost_page(met, roots): the first page that is of no table, of no index and not free, 0 where there is none. met: the pages of tables\n"
     "that were read, as of check; gets others. roots: the first pages (uint32) of indexes, and of tables of which not all was read.\n"
     "Raises StandAside."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef FILE_ATTRIBUTES[] = {
    {"pages", (getter)pages_of, NULL, "How many pages there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot FILE_SLOTS[] = {
    {Py_tp_doc, (void *)"TableFile(path): an SQLite file whose pages are read. Raises StandAside where it is not for this reader, Damaged."},
    {Py_tp_new, new_file},
    {Py_tp_dealloc, free_file},
    {Py_tp_methods, FILE_METHODS},
    {Py_tp_getset, FILE_ATTRIBUTES},
    {0, NULL},
};

static PyType_Spec FILE_SPEC = {"nsys2prv._util.native._core.TableFile", sizeof(FileObject), 0, Py_TPFLAGS_DEFAULT, FILE_SLOTS};

int add_tables(PyObject *module) {
    StandAside = PyErr_NewExceptionWithDoc("nsys2prv._util.native._core.StandAside", "SQLite has to read this file, table or part of one.", NULL,
                                           NULL);
    Damaged = PyErr_NewExceptionWithDoc("nsys2prv._util.native._core.Damaged", "A page, whose number is the argument, is against the format.",
                                        NULL, NULL);
    if (!StandAside || !Damaged || PyModule_AddObjectRef(module, "StandAside", StandAside) < 0
        || PyModule_AddObjectRef(module, "Damaged", Damaged) < 0)
        return -1;
    table_type = (PyTypeObject *)PyType_FromSpec(&TABLE_SPEC);
    texts_type = (PyTypeObject *)PyType_FromSpec(&TEXTS_SPEC);
    PyTypeObject *file = (PyTypeObject *)PyType_FromSpec(&FILE_SPEC);
    int status = table_type && texts_type && file ? 0 : -1;
    if (status == 0 && (PyModule_AddType(module, texts_type) < 0 || PyModule_AddType(module, file) < 0))
        status = -1;
    Py_XDECREF(file);
    return status;
}
