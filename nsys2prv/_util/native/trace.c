/* Reads the lines of a .prv: which break a rule of `nsys2prv check` (writers/paraver/check/rules.yaml), and what the trace holds. */
#include "module.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "nsys2prv.trace"
#define LONGEST_QUOTE 100
/* Paraver keeps times and values as doubles, types and states in 32 bits; labels have numbers below 2^31. */
#define LAST_EXACT ((int64_t)1 << 53)
#define LAST_NUMBER UINT32_MAX
#define LAST_LABELLED INT32_MAX
#define FREE UINT32_MAX
#define FIRST_ROOM 512
/* Values from here on share the last bit of `small`. */
#define LARGE_VALUE 100

/* The rules, as rules.yaml names them. */
enum { UNKNOWN_RECORD, NUMBER_SYNTAX, FIELDS, OBJECT_ABSENT, CPU_ABSENT, TIME_ORDER, NEGATIVE_TIME, TIME_INEXACT, TIME_BEYOND, TYPE_NUMBER,
       NEGATIVE_VALUE, VALUE_UNLABELLED, ZERO_LENGTH, STATE_NUMBER, STATE_BACKWARDS, STATE_OVERLAP, COMM_BACKWARDS,
       NEGATIVE_SIZE, LINE_CUT, RULES };
static const char *const RULE_NAMES[RULES] = {
    "unknown-record", "number-syntax", "fields", "object-absent", "cpu-absent", "time-order", "negative-time", "time-inexact",
    "time-beyond-duration", "type-number", "negative-value", "value-unlabelled", "zero-length-range", "state-number",
    "state-backwards", "state-overlap", "comm-backwards", "negative-size", "line-cut"};

/* What a rule was broken by: the first line, the number of places, and a text of the first. */
typedef struct {
    int64_t line, count;
    char text[LONGEST_QUOTE];
    int length;
} Fault;

enum { EVENT_KEY, STATE_KEY, TAG_KEY };

/* What a row has of an event type, a state or a tag: the last pair, the ranges open, and its values below LARGE_VALUE as bits. */
typedef struct {
    uint64_t key; /* kind, row and number: 2, 30 and 32 bits */
    int64_t time, value, line, depth, type;
    uint64_t small[2];
} Entry;

/* An event type: its number, its set of labels (-1: none), the first line with it, its pairs, those with value 0, and those of the latter where no
 * range is open, with their first line. */
typedef struct {
    int64_t code, labels, line, pairs, zeros, extra, extra_line;
} Type;

typedef struct {
    uint64_t key;
    uint32_t place; /* FREE: none */
} Slot;

/* Items by keys, in the order in which they were added; an item begins with its key. */
typedef struct {
    Slot *slots;
    size_t slot_count;
    char *items;
    size_t size, count, room;
} Table;

typedef struct {
    Fault faults[RULES];
    Table entries, types, labelled;
    int64_t *first_task, *tasks_of, *first_row, *threads, *first_cpu, *last_cpu, *state_ends;
    size_t applications, tasks, rows;
    int64_t duration, reached, first, last, end;
    int64_t lines, states, events, comms, pairs, communicators, announced;
    int64_t *numbers;
    size_t room;
    const char *text; /* of the line at hand */
    size_t length;
} Trace;

static inline size_t hash_of(uint64_t key, size_t slot_count) {
    key *= 0x9e3779b97f4a7c15u;
    return (key ^ key >> 32) & (slot_count - 1);
}

/* The slot that has a key, or the free one where it belongs. */
static inline size_t find_slot(const Table *table, uint64_t key) {
    size_t slot = hash_of(key, table->slot_count);
    while (table->slots[slot].place != FREE && table->slots[slot].key != key)
        slot = (slot + 1) & (table->slot_count - 1);
    return slot;
}

/* Makes room for `room` items, in twice as many slots. */
static bool resize_table(Table *table, size_t room) {
    Slot *old = table->slots, *slots = malloc(2 * room * sizeof *slots);
    char *items = realloc(table->items, room * table->size);
    if (items)
        table->items = items;
    if (!items || !slots || room >= FREE) {
        free(slots);
        return false;
    }
    memset(slots, 0xff, 2 * room * sizeof *slots);
    size_t old_count = table->slot_count;
    table->slots = slots;
    table->slot_count = 2 * room;
    table->room = room;
    for (size_t k = 0; k < old_count; k++)
        if (old[k].place != FREE)
            slots[find_slot(table, old[k].key)] = old[k];
    free(old);
    return true;
}

/* The item of a key; `added` tells of a new one, which is all zeros but for the key. NULL: no memory. */
static inline void *find_item(Table *table, uint64_t key, bool *added) {
    size_t slot = find_slot(table, key);
    *added = table->slots[slot].place == FREE;
    if (*added) {
        if (table->count == table->room) {
            if (!resize_table(table, 2 * table->room))
                return NULL;
            slot = find_slot(table, key);
        }
        memset(table->items + table->count * table->size, 0, table->size);
        memcpy(table->items + table->count * table->size, &key, sizeof key);
        table->slots[slot] = (Slot){key, (uint32_t)table->count++};
    }
    return table->items + table->slots[slot].place * table->size;
}

static void report(Trace *trace, int rule, const char *text, size_t length) {
    Fault *fault = &trace->faults[rule];
    if (!fault->count++) {
        fault->line = trace->lines;
        fault->length = (int)(length < LONGEST_QUOTE ? length : LONGEST_QUOTE);
        memcpy(fault->text, text, (size_t)fault->length);
    }
}

static void report_line(Trace *trace, int rule) { report(trace, rule, trace->text, trace->length); }

static void report_pair(Trace *trace, int rule, int64_t type, int64_t value) {
    char text[LONGEST_QUOTE];
    report(trace, rule, text, (size_t)snprintf(text, sizeof text, "type %" PRId64 ", value %" PRId64, type, value));
}

/* Reads the numbers of a line, between colons, into `numbers`; returns how many, 0 where one is none, -1 without memory. */
static inline long read_numbers(Trace *trace, const char *at, const char *end) {
    size_t count = 0;
    for (;; at++) {
        bool negative = at < end && *at == '-';
        const char *begin = at += negative;
        uint64_t number = 0;
        for (; at < end && (unsigned char)(*at - '0') < 10; at++)
            number = 10 * number + (unsigned char)(*at - '0');
        if (at == begin || at - begin > 19 || number > INT64_MAX || (at < end && *at != ':'))
            return 0;
        if (count == trace->room) {
            int64_t *numbers = realloc(trace->numbers, 2 * trace->room * sizeof *numbers);
            if (!numbers)
                return -1;
            trace->numbers = numbers;
            trace->room *= 2;
        }
        trace->numbers[count++] = negative ? -(int64_t)number : (int64_t)number;
        if (at >= end)
            return (long)count;
    }
}

/* The row (from 0) of cpu:appl:task:thread, or -1 where there is none, which is reported. */
static inline int64_t find_row(Trace *trace, const int64_t *object) {
    int64_t cpu = object[0], appl = object[1], task = object[2], thread = object[3];
    if (appl >= 1 && appl <= (int64_t)trace->applications && task >= 1 && task <= trace->tasks_of[appl - 1]) {
        int64_t own = trace->first_task[appl - 1] + task - 1;
        if (thread >= 1 && thread <= trace->threads[own]) {
            if (cpu == 0 || (cpu >= trace->first_cpu[own] && cpu <= trace->last_cpu[own]))
                return trace->first_row[own] + thread - 1;
            report_line(trace, CPU_ABSENT);
            return -1;
        }
    }
    report_line(trace, OBJECT_ABSENT);
    return -1;
}

/* Whether the times of a record are sound; reports those that are not. */
static inline bool check_times(Trace *trace, int64_t least, int64_t most) {
    if (least < 0) {
        report_line(trace, NEGATIVE_TIME);
        return false;
    }
    if (most > LAST_EXACT)
        report_line(trace, TIME_INEXACT);
    if (most > trace->duration)
        report_line(trace, TIME_BEYOND);
    if (most > trace->last)
        trace->last = most;
    return true;
}

static Entry *find_entry(Trace *trace, int kind, int64_t row, int64_t number, bool *added) {
    return find_item(&trace->entries, (uint64_t)kind << 62 | (uint64_t)row << 32 | (uint64_t)number, added);
}

static bool add_pair(Trace *trace, int64_t row, int64_t time, int64_t code, int64_t value) {
    bool added;
    if (code < 0 || code > LAST_NUMBER) {
        report_pair(trace, TYPE_NUMBER, code, value);
        return true;
    }
    if (value < 0)
        report_pair(trace, NEGATIVE_VALUE, code, value);
    trace->pairs++;
    Entry *entry = find_entry(trace, EVENT_KEY, row, code, &added);
    if (!entry)
        return false;
    if (added) {
        entry->time = -1;
        Type *type = find_item(&trace->types, (uint64_t)code, &added);
        if (!type)
            return false;
        if (added)
            type->labels = -1;
        if (!type->pairs)
            type->line = trace->lines;
        entry->type = ((char *)type - trace->types.items) / (long)sizeof *type;
    }
    Type *type = (Type *)trace->types.items + entry->type;
    type->pairs++;
    type->zeros += value == 0;
    if (type->labels >= 0) {
        const Table *labelled = &trace->labelled;
        if (value > 0 && value <= LAST_LABELLED &&
            labelled->slots[find_slot(labelled, (uint64_t)type->labels << 32 | (uint64_t)value)].place == FREE)
            report_pair(trace, VALUE_UNLABELLED, code, value);
        if (value == 0 && entry->value != 0 && time == entry->time)
            report_line(trace, ZERO_LENGTH);
    }
    if (value != 0)
        entry->depth++;
    else if (entry->depth)
        entry->depth--;
    else if (!type->extra++)
        type->extra_line = trace->lines;
    entry->time = time;
    entry->value = value;
    entry->line = trace->lines;
    int64_t small = value < 0 || value > LARGE_VALUE ? LARGE_VALUE : value;
    entry->small[small >> 6] |= (uint64_t)1 << (small & 63);
    return true;
}

static bool add_event(Trace *trace, const int64_t *numbers, size_t count) {
    int64_t row = find_row(trace, numbers + 1), time = numbers[5];
    if (!check_times(trace, time, time) || row < 0)
        return true;
    trace->events++;
    if (time > trace->end)
        trace->end = time;
    for (size_t k = 6; k < count; k += 2)
        if (!add_pair(trace, row, time, numbers[k], numbers[k + 1]))
            return false;
    return true;
}

static bool add_state(Trace *trace, const int64_t *numbers) {
    int64_t row = find_row(trace, numbers + 1), begin = numbers[5], end = numbers[6], state = numbers[7];
    bool added;
    if (end <= begin)
        report_line(trace, STATE_BACKWARDS);
    if (state < 0 || state > LAST_NUMBER)
        report_line(trace, STATE_NUMBER);
    else if (check_times(trace, begin, end > begin ? end : begin) && row >= 0) {
        trace->states++;
        if (end > trace->end)
            trace->end = end;
        if (begin < trace->state_ends[row])
            report_line(trace, STATE_OVERLAP);
        trace->state_ends[row] = end;
        Entry *entry = find_entry(trace, STATE_KEY, row, state, &added);
        if (!entry)
            return false;
        if (added)
            entry->line = trace->lines;
    }
    return true;
}

static bool add_comm(Trace *trace, const int64_t *numbers) {
    bool sender = find_row(trace, numbers + 1) >= 0, receiver = find_row(trace, numbers + 7) >= 0, added;
    int64_t sent = numbers[5], sent_physically = numbers[6], received = numbers[11], received_physically = numbers[12];
    int64_t least = sent < sent_physically ? sent : sent_physically, most = received > received_physically ? received : received_physically;
    int64_t earlier = received < received_physically ? received : received_physically, later = sent > sent_physically ? sent : sent_physically;
    if (!check_times(trace, least < earlier ? least : earlier, most > later ? most : later) || !sender || !receiver)
        return true;
    trace->comms++;
    if (sent_physically < sent || received_physically < sent_physically || received_physically < sent)
        report_line(trace, COMM_BACKWARDS);
    if (numbers[13] < 0)
        report_line(trace, NEGATIVE_SIZE);
    return numbers[14] < 0 || numbers[14] > LAST_NUMBER || find_entry(trace, TAG_KEY, 0, numbers[14], &added);
}

/* Reads a line, which ends before `end`. */
static bool read_line(Trace *trace, const char *at, const char *end) {
    trace->lines++;
    if (at < end && end[-1] == '\r')
        end--;
    trace->text = at;
    trace->length = (size_t)(end - at);
    char kind = at < end ? *at : '#';
    if (kind == '#')
        return true;
    if (kind == 'c' && trace->communicators < trace->announced && trace->lines == trace->communicators + 2) {
        trace->communicators++;
        return true;
    }
    if (kind < '1' || kind > '3' || end - at < 2 || at[1] != ':') {
        report_line(trace, UNKNOWN_RECORD);
        return true;
    }
    long count = read_numbers(trace, at, end);
    const int64_t *numbers = trace->numbers;
    if (count <= 0) {
        if (count == 0)
            report_line(trace, NUMBER_SYNTAX);
        return count == 0;
    }
    if (kind == '1' ? count != 8 : kind == '3' ? count != 15 : count < 8 || count % 2) {
        report_line(trace, FIELDS);
        return true;
    }
    if (numbers[5] < trace->reached)
        report_line(trace, TIME_ORDER);
    else
        trace->reached = numbers[5];
    if (numbers[5] < trace->first)
        trace->first = numbers[5];
    return kind == '2' ? add_event(trace, numbers, (size_t)count) : kind == '1' ? add_state(trace, numbers) : add_comm(trace, numbers);
}

static void free_trace(Trace *trace) {
    for (Table *table = &trace->entries; table <= &trace->labelled; table++) {
        free(table->slots);
        free(table->items);
    }
    free(trace->first_task);
    free(trace->first_row);
    free(trace->state_ends);
    free(trace->numbers);
    free(trace);
}

static void release_trace(PyObject *capsule) { free_trace(PyCapsule_GetPointer(capsule, NAME)); }

/* Fills in objects: of each application its tasks; of each task its threads, first and last CPU. */
static bool add_objects(Trace *trace, const int64_t *applications, const int64_t *tasks) {
    trace->first_task = calloc(2 * trace->applications + 1, 8);
    trace->first_row = calloc(4 * trace->tasks + 1, 8);
    if (!trace->first_task || !trace->first_row)
        return false;
    trace->tasks_of = trace->first_task + trace->applications;
    trace->threads = trace->first_row + trace->tasks;
    trace->first_cpu = trace->threads + trace->tasks;
    trace->last_cpu = trace->first_cpu + trace->tasks;
    for (size_t k = 0, task = 0; k < trace->applications; k++) {
        trace->first_task[k] = (int64_t)task;
        trace->tasks_of[k] = applications[k];
        task += (size_t)applications[k];
    }
    for (size_t k = 0; k < trace->tasks; k++) {
        trace->first_row[k] = (int64_t)trace->rows;
        trace->threads[k] = tasks[3 * k];
        trace->first_cpu[k] = tasks[3 * k + 1];
        trace->last_cpu[k] = tasks[3 * k + 2];
        trace->rows += (size_t)tasks[3 * k];
    }
    trace->state_ends = calloc(trace->rows + 1, 8);
    return trace->state_ends;
}

/* Fills in labels: pairs of an event type and its set of labels, and of a set and a value. */
static bool add_labels(Trace *trace, const int64_t *types, size_t type_count, const int64_t *values, size_t value_count) {
    bool added;
    for (size_t k = 0; k < type_count; k++) {
        Type *type = find_item(&trace->types, (uint64_t)types[2 * k], &added);
        if (!type)
            return false;
        type->labels = types[2 * k + 1];
    }
    for (size_t k = 0; k < value_count; k++)
        if (!find_item(&trace->labelled, (uint64_t)values[2 * k] << 32 | (uint64_t)values[2 * k + 1], &added))
            return false;
    return true;
}

PyObject *open_trace(PyObject *self, PyObject *arguments) {
    Py_buffer applications, tasks, types, values;
    long long duration, announced;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*LL", &applications, &tasks, &types, &values, &duration, &announced))
        return NULL;
    Trace *trace = calloc(1, sizeof *trace);
    PyObject *result = NULL;
    if (trace) {
        trace->applications = (size_t)applications.len / 8;
        trace->tasks = (size_t)tasks.len / 24;
        trace->duration = trace->end = duration;
        trace->announced = announced;
        trace->reached = INT64_MIN;
        trace->first = INT64_MAX;
        trace->lines = 1;
        trace->room = 64;
        trace->numbers = malloc(trace->room * 8);
        trace->entries.size = sizeof(Entry);
        trace->types.size = sizeof(Type);
        trace->labelled.size = sizeof(uint64_t);
        if (trace->numbers && resize_table(&trace->entries, FIRST_ROOM) && resize_table(&trace->types, FIRST_ROOM) &&
            resize_table(&trace->labelled, FIRST_ROOM) && add_objects(trace, applications.buf, tasks.buf) &&
            add_labels(trace, types.buf, (size_t)types.len / 16, values.buf, (size_t)values.len / 16))
            result = PyCapsule_New(trace, NAME, release_trace);
        else
            PyErr_NoMemory();
        if (!result)
            free_trace(trace);
    } else
        PyErr_NoMemory();
    PyBuffer_Release(&applications);
    PyBuffer_Release(&tasks);
    PyBuffer_Release(&types);
    PyBuffer_Release(&values);
    return result;
}

PyObject *read_lines(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    Py_buffer text;
    bool sound = true;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Oy*", &capsule, &text))
        return NULL;
    Trace *trace = PyCapsule_GetPointer(capsule, NAME);
    if (trace) {
        Py_BEGIN_ALLOW_THREADS
        const char *at = text.buf, *behind = at + text.len, *end;
        for (; sound && at < behind; at = end + 1) {
            const char *newline = memchr(at, '\n', (size_t)(behind - at));
            end = newline ? newline : behind;
            sound = read_line(trace, at, end);
            if (!newline)
                report_line(trace, LINE_CUT);
        }
        Py_END_ALLOW_THREADS
        if (!sound)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&text);
    if (!trace || !sound)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *close_trace(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O", &capsule))
        return NULL;
    Trace *trace = PyCapsule_GetPointer(capsule, NAME);
    PyObject *faults = trace ? PyList_New(0) : NULL;
    if (!faults)
        return NULL;
    for (int rule = 0; rule < RULES; rule++) {
        const Fault *fault = &trace->faults[rule];
        if (!fault->count)
            continue;
        PyObject *item = Py_BuildValue("sLLy#", RULE_NAMES[rule], (long long)fault->line, (long long)fault->count, fault->text, (Py_ssize_t)fault->length);
        if (!item || PyList_Append(faults, item) < 0) {
            Py_XDECREF(item);
            Py_DECREF(faults);
            return NULL;
        }
        Py_DECREF(item);
    }
    return Py_BuildValue("Ny#y#(LLLLLLLLL)", faults, trace->entries.items, (Py_ssize_t)(trace->entries.count * sizeof(Entry)), trace->types.items,
                         (Py_ssize_t)(trace->types.count * sizeof(Type)), (long long)trace->lines, (long long)trace->states, (long long)trace->events,
                         (long long)trace->comms, (long long)trace->pairs, (long long)(trace->first == INT64_MAX ? -1 : trace->first),
                         (long long)trace->last, (long long)trace->end, (long long)trace->communicators);
}
