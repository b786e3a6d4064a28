/* Tables in Parquet files as Nsight Systems writes them: flat columns, uncompressed, of plain values or with a dictionary. Of others the footers
 * and the headers of pages alone are read. */
#include "objects.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parquet's numbers of types, encodings and kinds of pages. */
enum { BOOLEAN, INT32, INT64, FLOAT = 4, DOUBLE, BYTE_ARRAY };
enum { PLAIN, PLAIN_DICTIONARY = 2, RLE, RLE_DICTIONARY = 8 };
enum { DATA_PAGE, DICTIONARY_PAGE = 2 };
/* Types in Thrift's compact protocol. */
enum { STOP, TRUE_FIELD, FALSE_FIELD, BYTE_FIELD, INT16_FIELD, INT64_FIELD = 6, DOUBLE_FIELD, BINARY, LIST, SET, STRUCT = 12 };
/* Bytes behind a chunk that may be read, and mean nothing. */
#define SPARE 8
#define MOST_BITS 32

/* Bytes that are read one after the other, until they end too early or are damaged. */
typedef struct {
    const uint8_t *at, *end;
    bool bad;
} Input;

/* ---- Thrift's compact protocol ---- */

static uint64_t read_number(Input *in) {
    uint64_t number = 0;
    for (unsigned shift = 0; in->at < in->end && shift < 64; shift += 7) {
        number |= (uint64_t)(*in->at & 0x7f) << shift;
        if (*in->at++ < 0x80)
            return number;
    }
    in->bad = true;
    in->at = in->end;
    return 0;
}

static int64_t read_signed(Input *in) {
    uint64_t number = read_number(in);
    return (int64_t)(number >> 1 ^ (0 - (number & 1)));
}

static const uint8_t *skip_bytes(Input *in, uint64_t count) {
    const uint8_t *at = in->at;
    in->bad |= count > (uint64_t)(in->end - at);
    in->at = in->bad ? in->end : at + count;
    return at;
}

/* Is told the values of a structure, and the end of each structure. path: numbers of the fields that lead there, in a byte each; those of a list are
 * as those of a structure. value: a number, or the length of bytes. */
typedef void Visit(void *into, uint64_t path, int64_t value, const uint8_t *bytes);

static void walk(Input *in, int type, uint64_t path, Visit *visit, void *into) {
    uint64_t field = 0, count;
    uint8_t head;
    in->bad |= path >> 56 != 0 || in->at > in->end;
    if (type == STRUCT) {
        while (!in->bad && (head = *skip_bytes(in, 1)) && !in->bad) {
            field = head >> 4 ? field + (head >> 4) : (uint64_t)read_signed(in);
            in->bad |= field - 1 > 254;
            walk(in, head & 15, path << 8 | field, visit, into);
        }
        if (!in->bad)
            visit(into, path, 0, NULL);
    } else if (type == LIST || type == SET) {
        head = *skip_bytes(in, 1);
        count = head >> 4 == 15 ? read_number(in) : head >> 4;
        /* Truths take a byte each in lists. There are no lists of lists. */
        type = (head & 15) > FALSE_FIELD ? head & 15 : BYTE_FIELD;
        for (in->bad |= type == LIST || type == SET; count && !in->bad; count--)
            walk(in, type, path, visit, into);
    } else if (type == BINARY) {
        count = read_number(in);
        const uint8_t *bytes = skip_bytes(in, count);
        if (!in->bad)
            visit(into, path, (int64_t)count, bytes);
    } else if (type >= INT16_FIELD && type <= INT64_FIELD)
        visit(into, path, read_signed(in), NULL);
    else if (type > FALSE_FIELD) {
        skip_bytes(in, type == DOUBLE_FIELD ? 8 : 1);
        in->bad |= type > DOUBLE_FIELD;
    }
}

/* ---- footers ---- */

/* A column in a group of rows: where its pages begin, their bytes, and how they are compressed, 0: not at all. */
typedef struct {
    int64_t place, size, codec;
} Chunk;

typedef struct {
    PyObject *elements;      /* of the schema: (name, type, repetition, children, converted type, has a logical type) */
    Chunk *chunks, chunk;
    int64_t *group_rows, rows, all, end, of_group, type, repetition, children, converted, logical, name_length, data, dictionary;
    const uint8_t *name;
    size_t groups, chunk_count, most;
    bool unsound;
} Footer;

static void visit_footer(void *into, uint64_t path, int64_t value, const uint8_t *bytes) {
    Footer *footer = into;
    PyObject *element;
    switch (path) {
    case 0x0201: footer->type = value; break;
    case 0x0203: footer->repetition = value; break;
    case 0x0204: footer->name = bytes, footer->name_length = value; break;
    case 0x0205: footer->children = value; break;
    case 0x0206: footer->converted = value; break;
    case 0x020a: footer->logical = 1; break;
    case 0x02:
        footer->unsound |= !footer->name;
        element = Py_BuildValue("y#LLLLL", (const char *)footer->name, (Py_ssize_t)footer->name_length, (long long)footer->type, (long long)footer->repetition,
                                (long long)footer->children, (long long)footer->converted, (long long)footer->logical);
        footer->unsound |= !element || PyList_Append(footer->elements, element) < 0;
        Py_XDECREF(element);
        footer->name = NULL;
        footer->type = footer->converted = -1;
        footer->repetition = footer->children = footer->logical = 0;
        break;
    case 0x03: footer->all = value; break;
    case 0x04010304: footer->chunk.codec = value; break;
    case 0x04010307: footer->chunk.size = value; break;
    case 0x04010309: footer->data = value; break;
    case 0x0401030b: footer->dictionary = value; break;
    case 0x0401:
        footer->chunk.place = footer->dictionary > 0 && footer->dictionary < footer->data ? footer->dictionary : footer->data;
        footer->unsound |= footer->chunk_count == footer->most || footer->chunk.place < 0 || footer->chunk.size < 0 || footer->chunk.place > footer->end
                           || footer->chunk.size > footer->end - footer->chunk.place;
        if (!footer->unsound)
            footer->chunks[footer->chunk_count++] = footer->chunk;
        footer->data = footer->chunk.size = footer->dictionary = -1;
        break;
    case 0x0403: footer->of_group = value; break;
    case 0x04:
        footer->unsound |= footer->groups == footer->most || footer->of_group < 0 || footer->of_group > footer->all - footer->rows;
        if (!footer->unsound)
            footer->rows += footer->group_rows[footer->groups++] = footer->of_group;
        break;
    }
}

PyObject *read_parquet_footer(PyObject *self, PyObject *arguments) {
    Py_buffer bytes;
    long long end;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*L", &bytes, &end))
        return NULL;
    Input in = {bytes.buf, (const uint8_t *)bytes.buf + bytes.len, false};
    /* A chunk has at least four numbers and a path. */
    Footer footer = {.most = (size_t)bytes.len / 8 + 1, .end = end, .elements = PyList_New(0), .all = -1, .type = -1, .converted = -1, .data = -1, .dictionary = -1};
    footer.chunks = malloc(footer.most * sizeof *footer.chunks);
    footer.group_rows = malloc(footer.most * sizeof *footer.group_rows);
    PyObject *result = NULL;
    if (!footer.elements || !footer.chunks || !footer.group_rows)
        PyErr_NoMemory();
    else {
        walk(&in, STRUCT, 0, visit_footer, &footer);
        if (PyErr_Occurred() || in.bad || footer.unsound || footer.rows != footer.all)
            PyErr_SetString(PyExc_ValueError, "its footer is damaged");
        else
            result = Py_BuildValue("OLy#y#", footer.elements, (long long)footer.all, (char *)footer.group_rows, (Py_ssize_t)(footer.groups * sizeof *footer.group_rows),
                                   (char *)footer.chunks, (Py_ssize_t)(footer.chunk_count * sizeof *footer.chunks));
    }
    Py_XDECREF(footer.elements);
    free(footer.chunks);
    free(footer.group_rows);
    PyBuffer_Release(&bytes);
    return result;
}

/* ---- pages ---- */

typedef struct {
    int64_t kind, unpacked, packed, values, encoding, levels;
} Page;

static void visit_page(void *into, uint64_t path, int64_t value, const uint8_t *bytes) {
    Page *page = into;
    (void)bytes;
    switch (path) {
    case 0x01: page->kind = value; break;
    case 0x02: page->unpacked = value; break;
    case 0x03: page->packed = value; break;
    case 0x0501: case 0x0701: page->values = value; break;
    case 0x0502: case 0x0702: page->encoding = value; break;
    case 0x0503: page->levels = value; break;
    }
}

/* Reads the header of a page, and finds its content. */
static bool read_page(Input *in, Page *page, Input *content) {
    *page = (Page){-1, -1, -1, -1, -1, -1};
    walk(in, STRUCT, 0, visit_page, page);
    in->bad |= page->packed < 0 || page->unpacked < 0;
    content->at = skip_bytes(in, (uint64_t)page->packed);
    content->end = in->at;
    content->bad = in->bad;
    return !in->bad;
}

/* Room for what is read of chunks. */
typedef struct {
    void *bytes;
    size_t size;
} Room;

static void *make_room(Room *room, size_t size) {
    if (size > room->size) {
        free(room->bytes);
        room->bytes = malloc(size);
        room->size = room->bytes ? size : 0;
    }
    return room->bytes;
}

/* Reads a chunk of a file; false where there is no memory, or the file ends before. */
static bool load(int descriptor, const Chunk *chunk, Room *room, Input *in) {
    size_t size = (size_t)chunk->size;
    uint8_t *bytes = chunk->size < 0 || chunk->place < 0 ? NULL : make_room(room, size + SPARE);
    for (size_t done = 0; bytes && done < size;) {
        ssize_t got = pread(descriptor, bytes + done, size - done, (off_t)chunk->place + (off_t)done);
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    if (bytes)
        memset(bytes + size, 0, SPARE);
    *in = (Input){bytes, bytes + size, false};
    return bytes;
}

PyObject *measure_parquet_pages(PyObject *self, PyObject *arguments) {
    int descriptor;
    Py_buffer given;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iy*", &descriptor, &given))
        return NULL;
    const Chunk *chunks = given.buf;
    Room room = {0};
    Input in, content;
    Page page;
    bool sound = true;
    uint64_t unpacked = 0;
    Py_BEGIN_ALLOW_THREADS
    for (size_t k = 0; k < (size_t)given.len / sizeof *chunks && sound; k++) {
        unpacked += chunks[k].codec ? 0 : (uint64_t)chunks[k].size;
        sound = !chunks[k].codec || load(descriptor, &chunks[k], &room, &in);
        while (sound && chunks[k].codec && in.at < in.end)
            if ((sound = read_page(&in, &page, &content)))
                unpacked += (uint64_t)page.unpacked;
    }
    Py_END_ALLOW_THREADS
    free(room.bytes);
    PyBuffer_Release(&given);
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "a page is damaged");
    return sound ? PyLong_FromUnsignedLongLong(unpacked) : NULL;
}

/* Reads numbers of so many bits each, in runs and in groups of eight. */
static bool read_runs(Input *in, unsigned width, int64_t *out, size_t count) {
    while (count && in->at < in->end && width <= MOST_BITS) {
        uint64_t head = read_number(in), length = head >> 1, word = 0;
        size_t bytes = (width + 7) / 8, some = length < count ? length : count;
        if (head & 1) {
            /* The last group may have fewer than eight. */
            some = length < (count + 7) / 8 ? 8 * length : count;
            const uint8_t *at = skip_bytes(in, (some * width + 7) / 8);
            for (size_t k = 0, bit = 0; k < some && !in->bad; k++, bit += width) {
                memcpy(&word, at + bit / 8, 8);
                out[k] = (int64_t)(word >> bit % 8 & (((uint64_t)1 << width) - 1));
            }
        } else {
            const uint8_t *at = skip_bytes(in, bytes);
            if (!in->bad)
                memcpy(&word, at, bytes);
            for (size_t k = 0; k < some; k++)
                out[k] = (int64_t)word;
        }
        out += some;
        count -= some;
    }
    return !count && !in->bad;
}

/* Reads plain values as int64, the bits of a double, or where a text begins among the bytes of the chunk. */
static bool read_plain(Input *in, int type, const uint8_t *base, int64_t *out, size_t count) {
    const size_t size = type == INT32 || type == FLOAT ? 4 : 8, taken = type == BOOLEAN ? (count + 7) / 8 : size * count;
    int32_t integer;
    float single;
    double real;
    if (type == BYTE_ARRAY) {
        for (size_t k = 0; k < count && !in->bad; k++) {
            uint32_t length = 0;
            out[k] = in->at - base;
            memcpy(&length, skip_bytes(in, 4), 4);
            skip_bytes(in, length);
        }
        return !in->bad;
    }
    const uint8_t *at = skip_bytes(in, count > SIZE_MAX / 8 ? SIZE_MAX : taken);
    if (in->bad)
        return false;
    if (size == 8 && type != BOOLEAN)
        memcpy(out, at, taken);
    for (size_t k = 0; k < count && type == BOOLEAN; k++)
        out[k] = at[k / 8] >> k % 8 & 1;
    for (size_t k = 0; k < count && type == INT32; k++) {
        memcpy(&integer, at + 4 * k, 4);
        out[k] = integer;
    }
    for (size_t k = 0; k < count && type == FLOAT; k++) {
        memcpy(&single, at + 4 * k, 4);
        real = single;
        memcpy(&out[k], &real, 8);
    }
    return true;
}

/* ---- columns ---- */

/* Reads some rows of a column, one chunk after the other. */
typedef struct {
    int descriptor, type, optional;
    int64_t first;
    const int64_t *rows;  /* of the table, ascending; NULL: those from `first` on */
    size_t count, done;   /* rows that are wanted, and read */
    int64_t *values;
    uint8_t *present;     /* whether each is no NULL; may be NULL */
    Texts *texts;         /* of BYTE_ARRAY: values are numbers of texts, and mean nothing without */
    Room bytes, dictionary, words;
    size_t entries;       /* of the dictionary */
    int64_t empty;        /* the number of the empty text, below zero until a row has it */
} Reader;

static inline int64_t next_row(const Reader *reader) {
    return reader->done == reader->count ? INT64_MAX : reader->rows ? reader->rows[reader->done] : reader->first + (int64_t)reader->done;
}

/* The number of the text of a row. word: its place in the dictionary, or in the chunk. */
static int64_t number_text(Reader *reader, int64_t word, bool is_present, bool by_dictionary) {
    int64_t *entries = reader->dictionary.bytes, *known = is_present ? &entries[word] : &reader->empty;
    uint32_t length = 0;
    if (is_present && !by_dictionary)
        known = &word;
    else if (*known >= 0)
        return *known;
    /* Texts of the dictionary are below zero until a row has them. */
    const uint8_t *at = (uint8_t *)reader->bytes.bytes + (known == &word ? word : -*known - 1);
    if (is_present)
        memcpy(&length, at, 4);
    return *known = number_of_text(reader->texts, at + 4, length);
}

/* Puts wanted rows of a page into the columns. words: values of the rows that have one. levels: 1 for these; NULL if all are. */
static Status put_rows(Reader *reader, int64_t begin, int64_t end, const int64_t *words, const int64_t *levels, bool by_dictionary) {
    const double nan = NAN;
    int64_t null = INT64_MIN, row;
    if (reader->type == FLOAT || reader->type == DOUBLE)
        memcpy(&null, &nan, 8);
    row = next_row(reader);
    if (!levels && !reader->texts && !reader->rows && row < end) {
        size_t left = reader->count - reader->done, some = left < (size_t)(end - row) ? left : (size_t)(end - row);
        memcpy(reader->values + reader->done, words + (row - begin), 8 * some);
        if (reader->present)
            memset(reader->present + reader->done, 1, some);
        reader->done += some;
    }
    for (int64_t next = begin, of = 0; (row = next_row(reader)) < end; reader->done++) {
        for (; next < row; next++)
            of += levels ? levels[next - begin] : 1;
        bool is_present = !levels || levels[row - begin];
        int64_t word = is_present ? words[of] : null;
        if (reader->texts && (word = number_text(reader, word, is_present, by_dictionary)) < 0)
            return NO_MEMORY;
        reader->values[reader->done] = word;
        if (reader->present)
            reader->present[reader->done] = is_present;
    }
    return OK;
}

static Status read_dictionary(Reader *reader, const Page *page, Input *in) {
    if (page->values < 0 || page->values > page->packed || reader->type == BOOLEAN)
        return DAMAGED;
    reader->entries = (size_t)page->values;
    int64_t *entries = make_room(&reader->dictionary, 8 * reader->entries + 8);
    if (!entries)
        return NO_MEMORY;
    if (!read_plain(in, reader->type, reader->bytes.bytes, entries, reader->entries))
        return DAMAGED;
    for (size_t k = 0; k < reader->entries && reader->type == BYTE_ARRAY; k++)
        entries[k] = -entries[k] - 1;
    return OK;
}

/* Reads a page with the rows from `begin` on, of which there are `most`. */
static Status read_rows(Reader *reader, const Page *page, Input *in, int64_t begin, int64_t most) {
    const bool by_dictionary = page->encoding == PLAIN_DICTIONARY || page->encoding == RLE_DICTIONARY;
    if (page->kind != DATA_PAGE || (page->encoding != PLAIN && !by_dictionary) || (reader->optional && page->levels != RLE))
        return UNSUPPORTED;
    if (page->values < 0 || page->values > most)
        return DAMAGED;
    size_t count = (size_t)page->values, present = count;
    int64_t *words = make_room(&reader->words, 16 * count + 8), *levels = words + count;
    if (!words)
        return NO_MEMORY;
    if (reader->optional) {
        uint32_t length;
        memcpy(&length, skip_bytes(in, 4), 4);
        Input of_levels = *in;
        skip_bytes(in, length);
        of_levels.end = in->at;
        if (in->bad || !read_runs(&of_levels, 1, levels, count))
            return DAMAGED;
        present = 0;
        for (size_t k = 0; k < count; k++)
            present += (size_t)levels[k];
    }
    if (next_row(reader) >= begin + page->values)
        return OK;
    if (by_dictionary ? present && !read_runs(in, *skip_bytes(in, 1), words, present) : !read_plain(in, reader->type, reader->bytes.bytes, words, present))
        return DAMAGED;
    int64_t *dictionary = reader->dictionary.bytes;
    for (size_t k = 0; by_dictionary && k < present; k++)
        if ((uint64_t)words[k] >= reader->entries)
            return DAMAGED;
        else if (!reader->texts)
            words[k] = dictionary[words[k]];
    return put_rows(reader, begin, begin + page->values, words, present < count ? levels : NULL, by_dictionary);
}

/* Reads a chunk with the rows from `begin` on. */
static Status read_chunk(Reader *reader, const Chunk *chunk, int64_t begin, int64_t rows) {
    Input in, content;
    Page page;
    Status status = chunk->codec ? UNSUPPORTED : load(reader->descriptor, chunk, &reader->bytes, &in) ? OK : DAMAGED;
    reader->entries = 0;
    for (int64_t row = 0; status == OK && row < rows;) {
        if (!read_page(&in, &page, &content))
            return DAMAGED;
        bool is_dictionary = page.kind == DICTIONARY_PAGE;
        status = is_dictionary ? read_dictionary(reader, &page, &content) : read_rows(reader, &page, &content, begin + row, rows - row);
        row += is_dictionary ? 0 : page.values;
    }
    return status;
}

PyObject *decode_parquet(PyObject *self, PyObject *arguments) {
    Py_buffer chunks, group_rows, chosen = {0}, values, present = {0};
    PyObject *texts;
    Reader reader = {0};
    Py_ssize_t columns, column;
    long long first;
    Status status = OK;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iy*y*nniiLz*w*z*O", &reader.descriptor, &chunks, &group_rows, &columns, &column, &reader.type, &reader.optional, &first,
                          &chosen, &values, &present, &texts))
        return NULL;
    const size_t groups = (size_t)group_rows.len / 8;
    reader.first = first;
    reader.empty = -1;
    reader.rows = chosen.buf;
    reader.values = values.buf;
    reader.count = (size_t)values.len / 8;
    reader.present = present.buf;
    reader.texts = texts_of(texts);
    bool fits = column >= 0 && column < columns && (size_t)chunks.len == groups * (size_t)columns * sizeof(Chunk) && (!reader.texts || reader.type == BYTE_ARRAY)
                && (!chosen.buf || chosen.len == values.len) && (!present.buf || present.len == values.len / 8);
    Py_BEGIN_ALLOW_THREADS
    int64_t begin = 0;
    for (size_t group = 0; fits && group < groups && status == OK; group++) {
        int64_t rows = ((const int64_t *)group_rows.buf)[group];
        if (next_row(&reader) < begin + rows)
            status = read_chunk(&reader, (const Chunk *)chunks.buf + group * (size_t)columns + column, begin, rows);
        begin += rows;
    }
    Py_END_ALLOW_THREADS
    free(reader.bytes.bytes);
    free(reader.dictionary.bytes);
    free(reader.words.bytes);
    PyBuffer_Release(&chunks);
    PyBuffer_Release(&group_rows);
    PyBuffer_Release(&chosen);
    PyBuffer_Release(&values);
    PyBuffer_Release(&present);
    if (status == DAMAGED || !fits || (status == OK && reader.done < reader.count))
        return PyErr_SetString(PyExc_ValueError, fits ? "a page is damaged" : "arguments do not fit"), NULL;
    return status == OK ? Py_NewRef(Py_None) : raise_status(status, 0);
}
