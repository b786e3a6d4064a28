/* The inner loop of nsys2prv.writers.paraver.prv: lines of several shapes, in a given order, one after the other.
 *
 * An installation without a C compiler does without: prv.py has the same by polars, and the tests compare the two.
 */
#include "module.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "digits are put as little-endian words"
#endif

/* Texts are copied so many bytes at a time; what is too much, the next ones overwrite. Behind each there must be as many. */
#define COPIED 16
/* Numbers so near each other come from memory together, bytes. */
#define TOGETHER 64
/* The longest number, 2**64 - 1. */
#define LONGEST 20
/* Numbers below it have their texts ready. */
#define SMALL 10000
/* So many lines before its turn a line's numbers are asked for. */
#define AHEAD 8

/* What follows a text. Most columns are those of CHOICE_32, uint32 that are indices of a table, and of NUMBER_32 and NUMBER_64, uint32 and
 * int64 that stand for themselves. */
enum { NOTHING, CHOICE, CHOICE_32, NUMBER, NUMBER_32, NUMBER_64 };

/* A text that is the same in every line, and behind it nothing, one of several texts, or a number. */
typedef struct {
    const char *text;
    Py_ssize_t length;
    int what, size, is_signed;  /* size, is_signed: of the column's integers */
    Py_ssize_t most;            /* bytes behind the text */
    const char *column;
    Py_ssize_t stride;
    const int64_t *table;       /* what the column's values stand for; NULL: for themselves */
    uint64_t entries;
    const char *texts;
    const int32_t *offsets;     /* where each text begins, and the last ends */
    uint64_t count;
} Piece;

/* Lines of one shape. most: bytes of one; asked: how many of the pieces' columns, in `ahead`, are so far apart that each has to be asked
 * for. */
typedef struct {
    Piece *pieces;
    const Piece **ahead;
    Py_ssize_t count, rows, most, asked;
} Batch;

typedef struct {
    Batch *batches;
    Py_ssize_t count;
    Py_buffer *held;
    Py_ssize_t holding, room;
} Batches;

static void release(Batches *all) {
    for (Py_ssize_t b = 0; all->batches && b < all->count; b++)
        PyMem_Free(all->batches[b].pieces), PyMem_Free(all->batches[b].ahead);
    for (Py_ssize_t h = 0; h < all->holding; h++)
        PyBuffer_Release(&all->held[h]);
    PyMem_Free(all->batches);
    PyMem_Free(all->held);
}

static int refused(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

/* The buffer of an object, held until the end: good until the next one is. */
static const Py_buffer *hold(Batches *all, PyObject *object, int flags) {
    if (all->holding == all->room) {
        Py_ssize_t room = all->room ? 2 * all->room : 256;
        Py_buffer *held = PyMem_Realloc(all->held, room * sizeof(Py_buffer));
        if (!held) {
            PyErr_NoMemory();
            return NULL;
        }
        all->held = held;
        all->room = room;
    }
    if (PyObject_GetBuffer(object, &all->held[all->holding], flags) < 0)
        return NULL;
    return &all->held[all->holding++];
}

/* The column of a piece: integers of any size, at any distance; or a tuple of these and of the table that they are indices of. */
static int take_column(Batches *all, PyObject *column, Piece *piece, Py_ssize_t rows) {
    if (PyTuple_Check(column) && PyTuple_Size(column) == 2) {
        const Py_buffer *table = hold(all, PyTuple_GetItem(column, 1), PyBUF_SIMPLE);
        if (!table)
            return -1;
        piece->table = table->buf;
        piece->entries = (uint64_t)table->len / 8;
        column = PyTuple_GetItem(column, 0);
    }
    const Py_buffer *buffer = hold(all, column, PyBUF_STRIDES | PyBUF_FORMAT);
    if (!buffer)
        return -1;
    const char *format = buffer->format ? buffer->format : "B";
    while (*format == '<' || *format == '=' || *format == '@')
        format++;
    if (buffer->ndim != 1 || buffer->shape[0] != rows || !*format || !strchr("bBhHiIlLqQ", *format) || format[1])
        return refused("a column must be of integers, one for each line");
    piece->column = buffer->buf;
    piece->stride = buffer->strides[0];
    piece->size = (int)buffer->itemsize;
    piece->is_signed = strchr("bhilq", *format) != NULL;
    return 0;
}

static int take_texts(Batches *all, PyObject *texts, PyObject *offsets, Piece *piece) {
    const Py_buffer *buffer = hold(all, texts, PyBUF_SIMPLE);
    if (!buffer)
        return -1;
    Py_ssize_t length = buffer->len;
    piece->texts = buffer->buf;
    if (!(buffer = hold(all, offsets, PyBUF_SIMPLE)))
        return -1;
    const int32_t *at = buffer->buf;
    Py_ssize_t count = buffer->len / 4 - 1;
    if (count < 0 || at[0] < 0 || at[count] > length - COPIED)
        return refused("offsets must lie in the texts, behind which there must be bytes to copy");
    for (Py_ssize_t k = 0; k < count; k++) {
        if (at[k] > at[k + 1])
            return refused("offsets of texts must ascend");
        if (at[k + 1] - at[k] > piece->most)
            piece->most = at[k + 1] - at[k];
    }
    piece->offsets = at;
    piece->count = (uint64_t)count;
    return 0;
}

/* A piece from (text,), (text, column) or (text, column, texts, offsets). */
static int take_piece(Batches *all, PyObject *given, Piece *piece, Py_ssize_t rows) {
    PyObject *column = NULL, *texts = NULL, *offsets = NULL;
    if (!PyArg_ParseTuple(given, "y#|OOO", &piece->text, &piece->length, &column, &texts, &offsets))
        return -1;
    if ((piece->length -= COPIED) < 0)
        return refused("behind a text there must be bytes to copy");
    piece->column = piece->text;  /* so that there is one, whatever follows */
    piece->what = offsets ? CHOICE : column ? NUMBER : NOTHING;
    if (piece->what == NOTHING)
        return 0;
    piece->most = offsets ? 0 : LONGEST;
    if (offsets && take_texts(all, texts, offsets, piece) < 0)
        return -1;
    if (take_column(all, column, piece, rows) < 0)
        return -1;
    if (piece->what == CHOICE && piece->table && piece->size == 4 && !piece->is_signed)
        piece->what = CHOICE_32;
    if (piece->what == NUMBER && !piece->table && piece->size == 4 && !piece->is_signed)
        piece->what = NUMBER_32;
    if (piece->what == NUMBER && !piece->table && piece->size == 8 && piece->is_signed)
        piece->what = NUMBER_64;
    return 0;
}

static void ask_for(Batch *batch, const Piece *piece) {
    for (Py_ssize_t k = 0; k < batch->asked; k++) {
        const Piece *other = batch->ahead[k];
        intptr_t apart = (intptr_t)piece->column - (intptr_t)other->column;
        if (other->stride == piece->stride && -TOGETHER < apart && apart < TOGETHER)
            return;
    }
    batch->ahead[batch->asked++] = piece;
}

/* A batch from (pieces, lines). */
static int take_batch(Batches *all, PyObject *given, Batch *batch) {
    PyObject *pieces;
    if (!PyArg_ParseTuple(given, "O!n", &PyTuple_Type, &pieces, &batch->rows))
        return -1;
    Py_ssize_t count = PyTuple_Size(pieces);
    batch->pieces = PyMem_Calloc(count ? count : 1, sizeof(Piece));
    batch->ahead = PyMem_Calloc(count ? count : 1, sizeof(Piece *));
    if (!batch->pieces || !batch->ahead) {
        PyErr_NoMemory();
        return -1;
    }
    batch->count = count;
    for (Py_ssize_t p = 0; p < count; p++) {
        Piece *piece = &batch->pieces[p];
        if (take_piece(all, PyTuple_GetItem(pieces, p), piece, batch->rows) < 0)
            return -1;
        batch->most += piece->length + piece->most;
        if (piece->what != NOTHING)
            ask_for(batch, piece);
    }
    return 0;
}

static inline uint64_t stored_value(const Piece *piece, const char *at) {
    if (piece->size == 8) {
        uint64_t value;
        memcpy(&value, at, 8);
        return value;
    }
    if (piece->size == 4) {
        uint32_t value;
        memcpy(&value, at, 4);
        return piece->is_signed ? (uint64_t)(int64_t)(int32_t)value : value;
    }
    if (piece->size == 2) {
        uint16_t value;
        memcpy(&value, at, 2);
        return piece->is_signed ? (uint64_t)(int64_t)(int16_t)value : value;
    }
    return piece->is_signed ? (uint64_t)(int64_t)*(const int8_t *)at : *(const uint8_t *)at;
}

/* The value of a piece, or what it stands for; false where it is negative, or no index of the table. */
static inline bool find_value(const Piece *piece, const char *at, uint64_t *value) {
    *value = stored_value(piece, at);
    if (!piece->table)
        return !(piece->is_signed && *value >> 63);
    if (*value >= piece->entries)
        return false;
    *value = (uint64_t)piece->table[*value];
    return !(*value >> 63);
}

static inline char *put_text(char *out, const char *text, Py_ssize_t length) {
    memcpy(out, text, COPIED);
    for (Py_ssize_t done = COPIED; done < length; done += COPIED)
        memcpy(out + done, text + done, COPIED);
    return out + length;
}

/* Puts one of the texts of a piece; many a line has none there. */
static inline char *put_choice(char *out, const Piece *piece, uint64_t value) {
    const int32_t *offsets = piece->offsets + value;
    return offsets[1] > offsets[0] ? put_text(out, piece->texts + offsets[0], offsets[1] - offsets[0]) : out;
}

/* The values of eight decimal digits, the first in the lowest byte: numbers below 10000, 100 and 10 side by side. */
static inline uint64_t eight_digits(uint32_t value) {
    uint32_t upper = value / 10000;
    uint64_t fours = upper | (uint64_t)(value - upper * 10000) << 32;
    uint64_t hundreds = (fours * 10486 >> 20) & 0x0000007f0000007f;
    uint64_t twos = (fours - 100 * hundreds) << 16 | hundreds;
    uint64_t tens = (twos * 103 >> 10) & 0x000f000f000f000f;
    return (twos - 10 * tens) << 8 | tens;
}

static inline char *put_eight(char *out, uint64_t digits) {
    uint64_t text = digits | 0x3030303030303030;
    memcpy(out, &text, 8);
    return out + 8;
}

/* The same without leading zeros, of which one stays for 0. */
static inline char *put_significant(char *out, uint64_t digits) {
    int zeros = __builtin_ctzll(digits | (uint64_t)1 << 56) / 8;
    uint64_t text = (digits | 0x3030303030303030) >> 8 * zeros;
    memcpy(out, &text, 8);
    return out + 8 - zeros;
}

/* The text of each small number, and in the highest byte its length. */
static uint64_t small_texts[SMALL];

void make_small_texts(void) {
    for (uint32_t value = 0; value < SMALL; value++) {
        char text[8] = {0};
        uint64_t length = (uint64_t)(put_significant(text, eight_digits(value)) - text);
        memset(text + length, 0, sizeof text - length);
        memcpy(&small_texts[value], text, 8);
        small_texts[value] |= length << 56;
    }
}

static inline char *put_small(char *out, uint64_t value) {
    uint64_t text = small_texts[value];
    memcpy(out, &text, 8);
    return out + (text >> 56);
}

static inline char *put_number(char *out, uint64_t value) {
    const uint64_t half = 100000000;
    if (value < SMALL)
        return put_small(out, value);
    if (value < half)
        return put_significant(out, eight_digits((uint32_t)value));
    uint64_t upper = value / half;
    if (upper < SMALL)
        out = put_small(out, upper);
    else if (upper >= half) {
        out = put_number(out, upper / half);
        out = put_eight(out, eight_digits((uint32_t)(upper % half)));
    } else
        out = put_significant(out, eight_digits((uint32_t)upper));
    return put_eight(out, eight_digits((uint32_t)(value - upper * half)));
}

/* The end of a line put at `out`, NULL where it cannot be. */
static inline char *put_line(char *out, const Batch *batch, Py_ssize_t row) {
    for (const Piece *piece = batch->pieces, *last = piece + batch->count; piece < last; piece++) {
        out = put_text(out, piece->text, piece->length);
        const char *at = piece->column + row * piece->stride;
        uint64_t value = 0;
        switch (piece->what) {
        case NOTHING:
            break;
        case NUMBER_32:
            memcpy(&value, at, 4);
            out = put_number(out, value);
            break;
        case NUMBER_64:
            memcpy(&value, at, 8);
            if (value >> 63)
                return NULL;
            out = put_number(out, value);
            break;
        case NUMBER:
            if (!find_value(piece, at, &value))
                return NULL;
            out = put_number(out, value);
            break;
        case CHOICE_32:
            memcpy(&value, at, 4);
            if (value >= piece->entries || (value = (uint64_t)piece->table[value]) >= piece->count)
                return NULL;
            out = put_choice(out, piece, value);
            break;
        default:
            if (!find_value(piece, at, &value) || value >= piece->count)
                return NULL;
            out = put_choice(out, piece, value);
        }
    }
    return out;
}

/* The batch of a line, and its row there; NULL where there is none. */
static inline const Batch *find_line(const Batches *all, uint64_t line, Py_ssize_t *row) {
    if (line >> ROW_BITS >= (uint64_t)all->count)
        return NULL;
    const Batch *batch = &all->batches[line >> ROW_BITS];
    *row = (Py_ssize_t)(line & ROW_MASK);
    return *row < batch->rows ? batch : NULL;
}

/* Ask for the numbers of a line: they come from more places than the processor can foresee. */
static inline void ask(const Batch *batch, Py_ssize_t row) {
    for (Py_ssize_t k = 0; k < batch->asked; k++)
        __builtin_prefetch(batch->ahead[k]->column + row * batch->ahead[k]->stride);
}

/* Puts lines until there is room for no more; returns how many, -1 where one cannot be. */
static Py_ssize_t put_lines(char **out, const char *limit, const Batches *all, const uint64_t *order, Py_ssize_t count) {
    Py_ssize_t row;
    for (Py_ssize_t k = 0; k < count; k++) {
        const Batch *batch = k + AHEAD < count ? find_line(all, order[k + AHEAD], &row) : NULL;
        if (batch)
            ask(batch, row);
        if (!(batch = find_line(all, order[k], &row)))
            return -1;
        if (limit - *out < batch->most + COPIED)
            return k;
        if (!(*out = put_line(*out, batch, row)))
            return -1;
    }
    return count;
}

PyObject *write_lines(PyObject *self, PyObject *arguments) {
    PyObject *given, *result = NULL;
    Py_buffer order = {0}, out = {0};
    Batches all = {0};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!y*w*", &PyList_Type, &given, &order, &out))
        return NULL;
    Py_ssize_t count = PyList_Size(given);
    if (!(all.batches = PyMem_Calloc(count ? count : 1, sizeof(Batch)))) {
        PyErr_NoMemory();
        goto done;
    }
    all.count = count;
    for (Py_ssize_t b = 0; b < count; b++)
        if (take_batch(&all, PyList_GetItem(given, b), &all.batches[b]) < 0)
            goto done;
    Py_ssize_t lines;
    char *end = out.buf;
    Py_BEGIN_ALLOW_THREADS
    lines = put_lines(&end, end + out.len, &all, order.buf, order.len / 8);
    Py_END_ALLOW_THREADS
    if (lines < 0)
        refused("a number is negative, or an index or a line out of its bounds");
    else
        result = Py_BuildValue("nn", lines, end - (char *)out.buf);
done:
    release(&all);
    PyBuffer_Release(&order);
    PyBuffer_Release(&out);
    return result;
}
