/* What each call and operation of a unit waits for: the first loop of nsys2prv.replay. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

/* How far apart host and device times of one report may be (ns), and what is as good as at once. */
#define CLOCKS_APART 20000
#define AT_ONCE 10000
/* A thread that pauses for so long may have been woken by another. */
#define LONG_PAUSE 60000
/* What a thread needs that another one woke (ns). */
#define USUAL_WAKE_UP 5000
/* How long a call that may wait lasts with nothing to wait for, where no call shows it (ns). Names of calls are below CALL_NAMES. */
#define USUAL_CALL 8000
/* Of so many calls of a name, one that has not waited does not tell how long they last without a wait. */
#define FEW_IDLE 20
#define CALL_NAMES 32768
/* An operation that begins so long after all that is known to hold it up (ns) may have waited for another stream of its device that has ended within the
 * other time before. */
#define LATE_START 15000
#define JUST_BEFORE 8000
/* Operations outstanding from which on a launch queue may be full, and how much longer than usual a launch lasts then. */
#define FEWEST_OUTSTANDING 500
#define SLOW_LAUNCH 20

/* What a call may do, and what a row of the tables about events and synchronisation says. */
enum { SYNCHRONISES = 1, FREES = 2, COPIES = 4, POLLS = 8, STAGES = 16 };
enum { RECORD, WAIT_STREAM, WAIT_CONTEXT, WAIT_EVENT, HOLD_STREAM };

static bool grow(void **column, int64_t room, int64_t size) {
    void *larger = realloc(*column, (size_t)(room * size));
    if (larger)
        *column = larger;
    return larger != NULL;
}

/* typical: a weight (ns), or TO_ESTIMATE or AS_RECORDED. */
static void add_edge(Edges *edges, int kind, int64_t target, int64_t source, int32_t typical) {
    if (edges->count == edges->room) {
        int64_t room = edges->room ? edges->room + edges->room / 2 : 1 << 16;
        if (!grow((void **)&edges->target, room, 4) || !grow((void **)&edges->source, room, 4) || !grow((void **)&edges->typical, room, 4)
            || !grow((void **)&edges->kind, room, 1)) {
            edges->failed = true;
            return;
        }
        edges->room = room;
    }
    edges->target[edges->count] = (int32_t)target;
    edges->source[edges->count] = (int32_t)source;
    edges->typical[edges->count] = typical;
    edges->kind[edges->count++] = (uint8_t)kind;
}

/* The last operation of a stream so far and the one whose end it must wait for besides, the last call of a thread and the one before, and the rows
 * of each process in a list. */
typedef struct {
    int32_t *last_operation, *held, *last_call, *call_before, *next_row, *first_row, *recorded, *next_call;
    bool *synchronised;
    int64_t processes, events;
} State;

static bool make_state(State *state, const Unit *in) {
    memset(state, 0, sizeof *state);
    for (int64_t row = 0; row < in->rows; row++)
        if (in->process[row] >= state->processes)
            state->processes = in->process[row] + 1;
    for (int64_t k = 0; k < in->markers; k++)
        if (in->marker_event[k] >= state->events)
            state->events = in->marker_event[k] + 1;
    int32_t **columns[] = {&state->last_operation, &state->held, &state->last_call, &state->call_before, &state->next_row};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        if (!(*columns[k] = malloc((size_t)(in->rows + 1) * 4)))
            return false;
    state->first_row = malloc((size_t)(state->processes + 1) * 4);
    state->recorded = malloc((size_t)(state->events + 1) * 4);
    state->next_call = malloc((size_t)(in->calls + 1) * 4);
    state->synchronised = calloc((size_t)in->calls + 1, sizeof *state->synchronised);
    if (!state->first_row || !state->recorded || !state->next_call || !state->synchronised)
        return false;
    for (int64_t k = 0; k < state->processes; k++)
        state->first_row[k] = -1;
    for (int64_t k = 0; k < state->events; k++)
        state->recorded[k] = -1;
    for (int64_t row = in->rows - 1; row >= 0; row--) {
        state->last_operation[row] = state->held[row] = state->last_call[row] = state->call_before[row] = -1;
        state->next_row[row] = state->first_row[in->process[row]];
        state->first_row[in->process[row]] = (int32_t)row;
    }
    for (int64_t k = in->calls - 1; k >= 0; k--) {
        int32_t thread = in->call_thread[k];
        state->next_call[k] = state->last_call[thread];
        state->last_call[thread] = (int32_t)k;
    }
    for (int64_t row = 0; row < in->rows; row++)
        state->last_call[row] = -1;
    return true;
}

static void free_state(State *state) {
    void *columns[] = {state->last_operation, state->held, state->last_call, state->call_before, state->next_row,
                       state->first_row, state->recorded, state->next_call, state->synchronised};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        free(columns[k]);
}

/* A call returns after the end of an operation, if it can have waited for it. */
static void add_return(Edges *edges, const Unit *in, int64_t call, int32_t operation) {
    if (operation >= 0 && in->end[operation] <= in->call_end[call] + CLOCKS_APART)
        add_edge(edges, RETURN, 2 * in->operations + in->calls + call, in->operations + operation, TO_ESTIMATE);
}

static void return_after_process(Edges *edges, const Unit *in, const State *state, int64_t call) {
    for (int32_t row = state->first_row[in->process[in->call_thread[call]]]; row >= 0; row = state->next_row[row])
        add_return(edges, in, call, state->last_operation[row]);
}

/* A synchronising call of which no table says what it waits for: after what was launched before and ended last within it. */
static void return_after_last(Edges *edges, const Unit *in, const State *state, int64_t call) {
    int32_t last = -1;
    for (int32_t row = state->first_row[in->process[in->call_thread[call]]]; row >= 0; row = state->next_row[row]) {
        int32_t one = state->last_operation[row];
        if (one >= 0 && in->end[one] > in->call_begin[call] && in->end[one] <= in->call_end[call] + CLOCKS_APART
            && (last < 0 || in->end[one] > in->end[last]))
            last = one;
    }
    add_return(edges, in, call, last);
}

/* The call of another thread of the process that ended last before this time, which none that only looks is; -1 for none. */
static int32_t find_waker(const Unit *in, const State *state, int32_t thread, int64_t time) {
    int32_t waker = -1;
    for (int32_t row = state->first_row[in->process[thread]]; row >= 0; row = state->next_row[row]) {
        if (row == thread)
            continue;
        int32_t one = state->last_call[row];
        if (one >= 0 && in->call_end[one] > time)
            one = state->call_before[row];
        if (one >= 0 && !(in->does[one] & POLLS) && in->call_end[one] <= time && (waker < 0 || in->call_end[one] > in->call_end[waker]))
            waker = one;
    }
    return waker;
}

/* The begin of a call: after the one before on its thread; where that is long ago, after the call of another thread that woke it: both pause, and
 * this one goes on shortly after the other one ends. */
static void begin_call(Edges *edges, const Unit *in, const State *state, int64_t call) {
    int32_t thread = in->call_thread[call], before = state->last_call[thread];
    int64_t begin = in->call_begin[call], begins = 2 * in->operations, ends = begins + in->calls;
    int32_t typical = AS_RECORDED;
    int64_t pause = before < 0 ? INT64_MAX : begin - in->call_end[before];
    if (pause > LONG_PAUSE) {
        int32_t waker = find_waker(in, state, thread, begin);
        if (waker >= 0 && before < 0)
            add_edge(edges, HANDOFF, begins + call, ends + waker, AS_RECORDED);
        else if (waker >= 0 && in->call_end[waker] > in->call_end[before]) {
            int64_t delay = begin - in->call_end[waker], rest = delay > AT_ONCE ? delay : AT_ONCE;
            int32_t next = state->next_call[waker];
            if ((next < 0 || in->call_begin[next] - begin > rest) && (delay < pause / 2 || delay < 30000)) {
                add_edge(edges, HANDOFF, begins + call, ends + waker, TO_ESTIMATE);
                typical = USUAL_WAKE_UP;
            }
        }
    }
    if (before >= 0)
        add_edge(edges, GAP, begins + call, ends + before, typical);
}

/* What a row about an event or a synchronisation says, of the call that it lies in. */
static void take_marker(Edges *edges, const Unit *in, State *state, int64_t marker) {
    int32_t thread = in->marker_thread[marker], stream = in->marker_stream[marker], event = in->marker_event[marker];
    int32_t call = thread < 0 ? -1 : state->last_call[thread];
    if (call >= 0 && in->call_end[call] < in->marker_time[marker])
        call = -1;
    switch (in->marker[marker]) {
    case RECORD:
        if (event >= 0)
            state->recorded[event] = stream < 0 ? -1 : state->last_operation[stream];
        break;
    case HOLD_STREAM:
        if (event >= 0 && stream >= 0 && state->recorded[event] >= 0 && in->stream[state->recorded[event]] != stream)
            state->held[stream] = state->recorded[event];
        break;
    case WAIT_STREAM:
        if (call < 0 || stream < 0)
            return;
        add_return(edges, in, call, state->last_operation[stream]);
        state->synchronised[call] = true;
        break;
    case WAIT_CONTEXT:
        if (call < 0)
            return;
        return_after_process(edges, in, state, call);
        state->synchronised[call] = true;
        break;
    case WAIT_EVENT:
        if (call < 0 || event < 0 || state->recorded[event] < 0)
            return;
        add_return(edges, in, call, state->recorded[event]);
        state->synchronised[call] = true;
    }
}

/* Whether a call has staged most of the copy of pageable memory that it launched: it returns while the last part is still copied. */
static bool has_staged(const Unit *in, int64_t call, int64_t one) {
    int64_t rest = in->end[one] - in->call_end[call];
    return in->does[call] & STAGES && rest <= LAST_PART && 2 * rest <= in->end[one] - in->begin[one];
}

/* An operation: after the call that launched it, the one before on its stream, and the event that the stream waits for. A copy that its call has
 * waited for lets that return; where the call has staged it, how long it takes to begin on a free stream, and to end, is the work of the host. */
static void launch_operation(Edges *edges, const Unit *in, State *state, int64_t one) {
    int32_t stream = in->stream[one], call = in->call[one];
    int64_t begins = 2 * in->operations, ends = begins + in->calls;
    if (call >= 0) {
        bool after = in->begin[one] >= in->call_end[call] && in->end[one] > in->call_end[call] + AT_ONCE;
        int64_t lasts = in->call_end[call] - in->call_begin[call], until = in->end[one] - in->call_begin[call];
        bool is_copy = in->work[one] == COPY && in->does[call] & COPIES && until > 1000 && 5 * lasts > 4 * (until < CLOCKS_APART ? until : CLOCKS_APART);
        bool staged = is_copy && has_staged(in, call, one);
        int32_t before = state->last_operation[stream], held = state->held[stream];
        bool is_free = (before < 0 || in->end[before] + AT_ONCE < in->begin[one]) && (held < 0 || in->end[held] + AT_ONCE < in->begin[one]);
        add_edge(edges, LAUNCH, one, (after ? ends : begins) + call, staged && is_free ? AS_RECORDED : TO_ESTIMATE);
        if (is_copy && (staged || in->end[one] <= in->call_end[call] + AT_ONCE))
            add_edge(edges, RETURN, ends + call, in->operations + one, staged ? AS_RECORDED : TO_ESTIMATE);
    }
    if (state->last_operation[stream] >= 0)
        add_edge(edges, STREAM, one, in->operations + state->last_operation[stream], TO_ESTIMATE);
    if (state->held[stream] >= 0) {
        add_edge(edges, EVENT, one, in->operations + state->held[stream], TO_ESTIMATE);
        state->held[stream] = -1;
    }
    state->last_operation[stream] = (int32_t)one;
}

/* Goes through calls, rows about events and operations (by their launches) in the order of their times. */
static void sweep(Edges *edges, const Unit *in, State *state) {
    int64_t call = 0, marker = 0, one = 0;
    while (call < in->calls || marker < in->markers || one < in->operations) {
        int64_t launch = INT64_MAX;
        if (one < in->operations)
            launch = in->call[one] < 0 ? in->begin[one] : in->call_begin[in->call[one]];
        int64_t at_call = call < in->calls ? in->call_begin[call] : INT64_MAX;
        int64_t at_marker = marker < in->markers ? in->marker_time[marker] : INT64_MAX;
        if (at_call <= launch && at_call <= at_marker && call < in->calls) {
            int32_t thread = in->call_thread[call];
            begin_call(edges, in, state, call);
            state->call_before[thread] = state->last_call[thread];
            state->last_call[thread] = (int32_t)call++;
        } else if (launch <= at_marker && one < in->operations)
            launch_operation(edges, in, state, one++);
        else
            take_marker(edges, in, state, marker++);
    }
}

/* Calls that wait by their names, where no row says for what: in a sweep of their own, for the rows lie within the calls. */
static void sweep_calls_by_name(Edges *edges, const Unit *in, State *state) {
    int64_t one = 0;
    for (int64_t row = 0; row < in->rows; row++)
        state->last_operation[row] = -1;
    for (int64_t call = 0; call < in->calls; call++) {
        int64_t begin = in->call_begin[call];
        for (; one < in->operations; one++) {
            int64_t launch = in->call[one] < 0 ? in->begin[one] : in->call_begin[in->call[one]];
            if (launch > begin)
                break;
            state->last_operation[in->stream[one]] = (int32_t)one;
        }
        if (state->synchronised[call])
            continue;
        if (in->does[call] & FREES)
            return_after_process(edges, in, state, call);
        else if (in->does[call] & SYNCHRONISES)
            return_after_last(edges, in, state, call);
    }
}


/* Drops returns for which no call was there: a call has waited for an operation only if that, or another one, ended after its begin. Notes which calls
 * have waited. */
static void drop_returns(Edges *edges, const Unit *in, uint8_t *waited) {
    int64_t ends = 2 * in->operations + in->calls, kept = 0;
    for (int64_t k = 0; k < edges->count; k++) {
        if (edges->kind[k] == RETURN && in->end[edges->source[k] - in->operations] > in->call_begin[edges->target[k] - ends])
            waited[edges->target[k] - ends] = 1;
    }
    for (int64_t k = 0; k < edges->count; k++) {
        if (edges->kind[k] == RETURN && !waited[edges->target[k] - ends])
            continue;
        edges->target[kept] = edges->target[k];
        edges->source[kept] = edges->source[k];
        edges->typical[kept] = edges->typical[k];
        edges->kind[kept++] = edges->kind[k];
    }
    edges->count = kept;
}

/* Until when each operation is held up by what is known (ns), NOTHING where by nothing. */
static void find_held(const Edges *edges, const Unit *in, int64_t *held) {
    int64_t count = in->operations, begins = 2 * count, ends = begins + in->calls;
    for (int64_t one = 0; one < count; one++)
        held[one] = NOTHING;
    for (int64_t k = 0; k < edges->count; k++) {
        int32_t target = edges->target[k], source = edges->source[k];
        if (target >= count)
            continue;
        int64_t at = source >= ends ? in->call_end[source - ends] : source >= begins ? in->call_begin[source - begins] : in->end[source - count];
        if (at <= in->begin[target] && at > held[target])
            held[target] = at;
    }
}

/* The last operation of each call of a process that launched any, in the order of the launches. Returns how many. */
static int64_t list_launched(const Unit *in, int32_t process, int32_t *chosen) {
    int64_t count = 0;
    for (int64_t one = 0; one < in->operations; one++) {
        if (in->call[one] < 0 || in->process[in->stream[one]] != process)
            continue;
        count -= count && in->call[chosen[count - 1]] == in->call[one];
        chosen[count++] = (int32_t)one;
    }
    return count;
}

/* How many of the moments, which ascend, are before a time: from the place of an earlier answer on. */
static int64_t count_before(const int64_t *times, int64_t count, int64_t time, int64_t place) {
    while (place < count && times[place] < time)
        place++;
    while (place && times[place - 1] >= time)
        place--;
    return place;
}

/* Ends of launches while a full number of operations of their process may be outstanding: after the ends of those that made room; `waited` where these
 * ended during the launch. chosen: the last operation of each call; by_end: moments of their ends, ascending; times, lasts: room for as many. */
static void add_full_queue(Edges *edges, const Unit *in, uint8_t *waited, const int32_t *chosen, const int32_t *by_end, int64_t count, int64_t *times,
                           int64_t *lasts) {
    int64_t most = 0, full = 0, place = 0, ends = 2 * in->operations + in->calls;
    for (int64_t k = 0; k < count; k++)
        times[k] = in->end[by_end[k] - in->operations];
    for (int64_t k = 0; k < count; k++) {
        int32_t call = in->call[chosen[k]];
        place = count_before(times, count, in->call_end[call], place);
        most = k + 1 - place > most ? k + 1 - place : most;
        lasts[k] = in->call_end[call] - in->call_begin[call];
    }
    if (most < FEWEST_OUTSTANDING)
        return;
    double slow = SLOW_LAUNCH * find_median(lasts, count);
    place = 0;
    for (int64_t k = 0; k < count; k++) {
        int32_t call = in->call[chosen[k]];
        place = count_before(times, count, in->call_end[call], place);
        /* It goes on as soon as there is room. */
        bool is_next = place && in->call_end[call] - times[place - 1] < CLOCKS_APART;
        if (is_next && (double)(in->call_end[call] - in->call_begin[call]) > slow && (double)(k + 1 - place) >= (double)most * 0.97)
            lasts[full++] = k + 1 - place;
    }
    if (!full)
        return;
    for (int64_t k = (int64_t)find_median(lasts, full), first = k; k < count; k++) {
        int32_t call = in->call[chosen[k]];
        add_edge(edges, QUEUE, ends + call, by_end[k - first], TO_ESTIMATE);
        waited[call] |= times[k - first] > in->call_begin[call] && times[k - first] <= in->call_end[call];
    }
}

static void add_full_queues(Edges *edges, const Unit *in, int32_t processes, uint8_t *waited) {
    int32_t *chosen = malloc((size_t)(3 * in->operations + 1) * 4), *moments = chosen + in->operations, *spare = moments + in->operations;
    int64_t *times = malloc((size_t)(2 * in->operations + 1) * 8);
    edges->failed |= !chosen || !times;
    for (int32_t process = 0; process < processes && !edges->failed; process++) {
        int64_t count = list_launched(in, process, chosen);
        if (count < FEWEST_OUTSTANDING)
            continue;
        for (int64_t k = 0; k < count; k++)
            moments[k] = (int32_t)(in->operations + chosen[k]);
        add_full_queue(edges, in, waited, chosen, sort_moments(in, moments, spare, count), count, times, times + in->operations);
    }
    free(chosen);
    free(times);
}

/* Begins of operations that are later than all that is known to hold them up, just after another stream of the device has ended an operation, which held
 * them up. held: until when what is known does; moments, spare: room for all operations. */
static void add_other_streams(Edges *edges, const Unit *in, const int64_t *held, int32_t *moments, int32_t *spare) {
    for (int64_t done = INT64_MIN;;) {
        int64_t device = INT64_MAX, count = 0, place = 0;
        for (int64_t one = 0; one < in->operations; one++)
            if (held[one] != NOTHING && in->begin[one] - held[one] > LATE_START && in->device[in->stream[one]] > done && in->device[in->stream[one]] < device)
                device = in->device[in->stream[one]];
        if (device == INT64_MAX)
            return;
        for (int64_t one = 0; one < in->operations; one++)
            if (in->device[in->stream[one]] == device)
                moments[count++] = (int32_t)(in->operations + one);
        const int32_t *by_end = sort_moments(in, moments, spare, count);
        for (int64_t one = 0; one < in->operations; one++) {
            if (held[one] == NOTHING || in->begin[one] - held[one] <= LATE_START || in->device[in->stream[one]] != device)
                continue;
            while (place < count && in->end[by_end[place] - in->operations] <= in->begin[one])
                place++;
            while (place && in->end[by_end[place - 1] - in->operations] > in->begin[one])
                place--;
            int64_t last = place ? by_end[place - 1] - in->operations : -1;
            if (last >= 0 && in->stream[last] != in->stream[one] && in->begin[one] - in->end[last] < JUST_BEFORE && in->end[last] > held[one])
                add_edge(edges, OTHER, one, in->operations + last, TO_ESTIMATE);
        }
        done = device;
    }
}

/* Calls of the names of which some have waited, by process and name: which each call is of, -1 for none, where those of each begin, and how long they last:
 * first those that have not waited. */
typedef struct {
    Codes codes;
    int32_t *code;
    int64_t *first, *idle, *lasts;
} NamedCalls;

static bool group_calls(const Unit *in, const uint8_t *waited, NamedCalls *calls) {
    bool *names = calloc(CALL_NAMES, sizeof *names);
    calls->code = malloc((size_t)(in->calls + 1) * 4);
    bool done = names && calls->code;
    for (int64_t k = 0; k < in->calls && done; k++)
        names[in->call_name[k]] |= waited[k];
    for (int64_t k = 0; k < in->calls && done; k++) {
        uint64_t key = (uint64_t)in->process[in->call_thread[k]] << 32 | (uint32_t)in->call_name[k];
        calls->code[k] = names[in->call_name[k]] ? find_code(&calls->codes, key) : -1;
        done = !names[in->call_name[k]] || calls->code[k] >= 0;
    }
    free(names);
    int64_t groups = calls->codes.count;
    calls->first = calloc((size_t)groups + 1, 8);
    calls->idle = malloc((size_t)(groups + 1) * 8);
    if (!done || !calls->first || !calls->idle)
        return false;
    for (int64_t k = 0; k < in->calls; k++)
        if (calls->code[k] >= 0)
            calls->first[calls->code[k] + 1]++;
    for (int64_t group = 0; group < groups; group++) {
        calls->first[group + 1] += calls->first[group];
        calls->idle[group] = calls->first[group];
    }
    calls->lasts = malloc((size_t)(calls->first[groups] + 1) * 8);
    int64_t *others = malloc((size_t)(groups + 1) * 8);
    done = calls->lasts && others;
    for (int64_t group = 0; group < groups && done; group++)
        others[group] = calls->first[group + 1];
    for (int64_t k = 0; k < in->calls && done; k++)
        if (calls->code[k] >= 0)
            calls->lasts[waited[k] ? --others[calls->code[k]] : calls->idle[calls->code[k]]++] = in->call_end[k] - in->call_begin[k];
    free(others);
    return done;
}

/* How long calls that have waited last without the wait (ns): as those of the name on the process that have not, usually, where these are not just a few;
 * not longer than nearly all last, nor than they do. AS_RECORDED of all others. */
static bool find_own_durations(const Unit *in, const uint8_t *waited, int32_t *own) {
    NamedCalls calls = {.code = NULL};
    bool done = group_calls(in, waited, &calls);
    for (int64_t group = 0; group < calls.codes.count && done; group++) {
        int64_t *lasts = calls.lasts + calls.first[group], count = calls.first[group + 1] - calls.first[group];
        int64_t others = calls.idle[group] - calls.first[group];
        int64_t usual = others * FEW_IDLE > count ? (int64_t)find_median(lasts, others) : USUAL_CALL;
        int64_t least = select_kth(lasts, count, (int64_t)((double)(count - 1) * 0.02));
        calls.idle[group] = usual < least ? usual : least;
    }
    for (int64_t k = 0; k < in->calls && done; k++) {
        int64_t lasts = in->call_end[k] - in->call_begin[k], usual = waited[k] ? calls.idle[calls.code[k]] : lasts;
        lasts = lasts < usual ? lasts : usual;
        own[k] = !waited[k] ? AS_RECORDED : lasts < LONG ? (int32_t)lasts : LONG - 1;
    }
    free_codes(&calls.codes);
    free(calls.code);
    free(calls.first);
    free(calls.idle);
    free(calls.lasts);
    return done;
}

/* The work of events whose ends wait for more than their begins: calls, and transfers, which wait for other ranks. */
static void add_work(Edges *edges, const Unit *in, uint8_t *waited, const int32_t *own) {
    int64_t begins = 2 * in->operations, ends = begins + in->calls;
    for (int64_t k = 0; k < in->calls; k++)
        waited[k] |= in->is_mpi[k];
    for (int64_t k = 0; k < edges->count; k++)
        if (edges->kind[k] == QUEUE)
            waited[edges->target[k] - ends] = 1;
    for (int64_t k = 0; k < in->calls; k++)
        if (waited[k])
            add_edge(edges, CALL, ends + k, begins + k, own[k]);
    for (int64_t k = 0; k < in->operations; k++)
        if (in->work[k] == NCCL)
            add_edge(edges, NCCL, in->operations + k, k, AS_RECORDED);
}

void find_dependencies(const Unit *in, Edges *edges) {
    State state;
    int32_t processes = 0;
    if (make_state(&state, in)) {
        sweep(edges, in, &state);
        sweep_calls_by_name(edges, in, &state);
        processes = (int32_t)state.processes;
    } else
        edges->failed = true;
    free_state(&state);
    if (edges->failed)
        return;
    uint8_t *waited = calloc((size_t)in->calls + 1, 1);
    int32_t *own = malloc((size_t)(in->calls + 1) * 4), *moments = malloc((size_t)(2 * in->operations + 1) * 4);
    int64_t *held = malloc((size_t)(in->operations + 1) * 8);
    if (waited && own && moments && held) {
        drop_returns(edges, in, waited);
        find_held(edges, in, held);
        add_other_streams(edges, in, held, moments, moments + in->operations);
        add_full_queues(edges, in, processes, waited);
        edges->failed |= !find_own_durations(in, waited, own);
        if (!edges->failed)
            add_work(edges, in, waited, own);
    } else
        edges->failed = true;
    free(waited);
    free(own);
    free(moments);
    free(held);
}

void free_edges(Edges *edges) {
    free(edges->target);
    free(edges->source);
    free(edges->typical);
    free(edges->kind);
}

PyObject *find_outermost(PyObject *self, PyObject *arguments) {
    PyObject *calls, *out;
    Py_ssize_t rows;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OnO", &calls, &rows, &out))
        return NULL;
    Buffers held = {.count = 0};
    int64_t count, found = 0;
    void *columns[3], *number[1];
    if (get_columns(&held, calls, "884", &count, columns) && get_column(&held, out, 4, &count, number)) {
        const int64_t *begin = columns[0], *end = columns[1];
        const int32_t *thread = columns[2];
        int32_t *outermost = number[0];
        int64_t *reached = malloc((size_t)(rows + 1) * 8);
        int32_t *outer = malloc((size_t)(rows + 1) * 4);
        if (!reached || !outer)
            PyErr_NoMemory();
        else if (!are_within(thread, count, 0, rows - 1))
            PyErr_SetString(PyExc_ValueError, "a row that there is not");
        else {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t row = 0; row < rows; row++)
                reached[row] = NOTHING;
            for (int64_t k = 0; k < count; k++) {
                int32_t row = thread[k];
                if (begin[k] >= reached[row]) {
                    reached[row] = end[k];
                    outer[row] = (int32_t)found++;
                }
                outermost[k] = outer[row];
            }
            Py_END_ALLOW_THREADS
        }
        free(reached);
        free(outer);
    }
    release_buffers(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(found);
}
