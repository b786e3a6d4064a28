#include "records.h"

#include <stdlib.h>

static const int64_t NO_ROWS[BOUNDS] = {INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, 0};

/* Adds all blocks up to one. */
static Status add_blocks(Outline *outline, uint64_t block) {
    if (block >= outline->room) {
        size_t room = 2 * (size_t)block + 64;
        int64_t *bounds = realloc(outline->bounds, room * sizeof NO_ROWS);
        if (!bounds)
            return NO_MEMORY;
        outline->bounds = bounds;
        outline->room = room;
    }
    while (outline->blocks <= block)
        memcpy(outline->bounds + BOUNDS * outline->blocks++, NO_ROWS, sizeof NO_ROWS);
    return OK;
}

static Status keep_noted(Outline *outline, uint64_t row) {
    if (outline->noted_count < outline->most_noted && outline->noted_count == outline->noted_room) {
        size_t room = 2 * outline->noted_room + 64;
        int64_t *noted = realloc(outline->noted, room * sizeof *noted);
        if (!noted)
            return NO_MEMORY;
        outline->noted = noted;
        outline->noted_room = room;
    }
    if (outline->noted_count < outline->most_noted)
        outline->noted[outline->noted_count] = (int64_t)row;
    outline->noted_count++;
    return OK;
}

/* Whether a row is the first one of a series, as far as is known. */
static bool begins_series(Outline *outline, int64_t id, int64_t type) {
    size_t place = ((uint64_t)id * 0x9e3779b97f4a7c15ull + (uint64_t)type) * 0x9e3779b97f4a7c15ull >> 32;
    for (;; place++) {
        place %= SERIES_ROOM;
        int64_t *series = outline->series[place];
        if (outline->is_series[place] && series[0] == id && series[1] == type)
            return false;
        if (outline->is_series[place])
            continue;
        if (outline->series_count < MOST_SERIES) {
            outline->series_count++;
            outline->is_series[place] = true;
            series[0] = id;
            series[1] = type;
        }
        return true;
    }
}

Status note_row(Outline *outline, uint64_t row, uint8_t traits) {
    uint64_t block = row >> outline->block_bits;
    /* Rowids that are so far apart are of no use. */
    if (block >= outline->most_blocks)
        return OK;
    if (block >= outline->blocks && add_blocks(outline, block) != OK)
        return NO_MEMORY;
    int64_t *bounds = outline->bounds + BOUNDS * block;
    const int64_t begin = outline->values[BEGIN], end = outline->values[END], id = outline->values[ID];
    const uint64_t type = (uint64_t)outline->values[TYPE];
    if (outline->by_series && begins_series(outline, id, (int64_t)type))
        traits |= IS_NOTED;
    if (traits & IS_NOTED && keep_noted(outline, row) != OK)
        return NO_MEMORY;
    const int64_t greatest = end > begin ? end : begin;
    traits |= !outline->types ? IS_RANGE : type < outline->types ? outline->traits[type] : 0;
    bounds[TRAITS] |= traits | (begin == INT64_MIN ? IS_UNDATED : 0) | (end == INT64_MIN && traits & IS_RANGE ? IS_OPEN : 0);
    if (begin != INT64_MIN && begin < bounds[LEAST])
        bounds[LEAST] = begin;
    if (greatest > bounds[GREATEST])
        bounds[GREATEST] = greatest;
    if (id != INT64_MIN && id < bounds[LOW])
        bounds[LOW] = id;
    if (id > bounds[HIGH])
        bounds[HIGH] = id;
    return OK;
}
