/* Numbers as SQLite stores them: big-endian, or in as few bytes as they need. */
#ifndef NSYS2PRV_BYTES_H
#define NSYS2PRV_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are swapped as on a little-endian machine"
#endif

static inline uint32_t be16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static inline uint32_t be32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return __builtin_bswap32(value);
}

static inline uint64_t be64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return __builtin_bswap64(value);
}

static inline double real_from_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* Reads a varint: seven bits a byte while the top bit is set, all eight bits of a ninth byte. Returns what follows it, or NULL where it
 * would go on at `end` or beyond. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    uint64_t bits = 0;
    for (int count = 0; count < 8; count++) {
        if (at >= end)
            return NULL;
        bits = bits << 7 | (*at & 0x7f);
        if (!(*at++ & 0x80)) {
            *value = bits;
            return at;
        }
    }
    if (at >= end)
        return NULL;
    *value = bits << 8 | *at;
    return at + 1;
}

#endif
