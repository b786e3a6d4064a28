#include "records.h"

#include <stdlib.h>

static const int64_t NO_ROWS[BOUNDS] = {INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, 0};

Status enter_block(Outline *outline, uint64_t row) {
    const uint64_t block = row >> outline->block_bits;
    outline->block_end = (block + 1) << outline->block_bits;
    /* Rowids that are so far apart are of no use. */
    outline->block = outline->beyond;
    if (block >= outline->most_blocks)
        return OK;
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
    outline->block = outline->bounds + BOUNDS * block;
    return OK;
}

Status keep_noted(Outline *outline, uint64_t row, uint32_t reasons) {
    if (outline->noted_count < outline->most_noted && outline->noted_count == outline->noted_room) {
        size_t room = 2 * outline->noted_room + 64;
        int64_t *noted = realloc(outline->noted, room * sizeof *noted);
        if (!noted)
            return NO_MEMORY;
        outline->noted = noted;
        outline->noted_room = room;
    }
    if (outline->noted_count < outline->most_noted)
        outline->noted[outline->noted_count] = (int64_t)(row << (GROUP_BITS + REASON_BITS) | reasons);
    outline->noted_count++;
    return OK;
}

bool begins_series(Outline *outline, int64_t id, int64_t type) {
    outline->near_types = id == outline->near_id ? outline->near_types : 0;
    outline->near_id = id;
    size_t place = ((uint64_t)id * 0x9e3779b97f4a7c15ull + (uint64_t)type) * 0x9e3779b97f4a7c15ull >> 32;
    for (;; place++) {
        place %= SERIES_ROOM;
        int64_t *series = outline->series[place];
        if (outline->is_series[place] && series[0] == id && series[1] == type) {
            outline->near_types |= (uint64_t)type < 64 ? 1ull << type : 0;
            return false;
        }
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
