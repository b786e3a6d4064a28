#include "texts.h"

#include <stdlib.h>
#include <string.h>

/* So many texts tell whether most come once. */
#define SAMPLE 1000
#define FIRST_TEXTS 64
#define FIRST_BYTES 1024
/* Numbers of texts are kept in 32 bits. */
#define MOST_TEXTS ((size_t)1 << 30)

int init_texts(Texts *texts, uint64_t seed) {
    *texts = (Texts){.most = FIRST_TEXTS, .room = FIRST_BYTES, .seed = seed};
    texts->bytes = malloc(texts->room);
    texts->begins = calloc(texts->most + 1, sizeof *texts->begins);
    texts->hashes = malloc(texts->most * sizeof *texts->hashes);
    texts->slots = calloc(2 * texts->most, sizeof *texts->slots);
    if (texts->bytes && texts->begins && texts->hashes && texts->slots)
        return 0;
    free_texts(texts);
    return -1;
}

void free_texts(Texts *texts) {
    free(texts->bytes);
    free(texts->begins);
    free(texts->hashes);
    free(texts->slots);
    *texts = (Texts){0};
}

static inline uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    return hash ^ hash >> 32;
}

static uint32_t hash_of(const Texts *texts, const uint8_t *text, size_t length) {
    uint64_t hash = mixed(texts->seed, length), word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, text, length);
    return (uint32_t)(mixed(hash, word) >> 16);
}

static void put_in_slot(Texts *texts, size_t number) {
    size_t mask = 2 * texts->most - 1, slot = texts->hashes[number] & mask;
    while (texts->slots[slot])
        slot = (slot + 1) & mask;
    texts->slots[slot] = (uint32_t)number + 1;
}

static int grow(Texts *texts) {
    size_t most = 2 * texts->most;
    if (most > MOST_TEXTS)
        return -1;
    size_t *begins = realloc(texts->begins, (most + 1) * sizeof *begins);
    if (!begins)
        return -1;
    texts->begins = begins;
    uint32_t *hashes = realloc(texts->hashes, most * sizeof *hashes);
    if (!hashes)
        return -1;
    texts->hashes = hashes;
    uint32_t *slots = texts->once ? NULL : calloc(2 * most, sizeof *slots);
    if (!slots && !texts->once)
        return -1;
    free(texts->slots);
    texts->slots = slots;
    texts->most = most;
    for (size_t number = 0; number < texts->count && slots; number++)
        put_in_slot(texts, number);
    return 0;
}

static int append(Texts *texts, const uint8_t *text, size_t length) {
    if (length > texts->room - texts->size) {
        size_t room = 2 * (texts->size + length);
        uint8_t *bytes = realloc(texts->bytes, room);
        if (!bytes)
            return -1;
        texts->bytes = bytes;
        texts->room = room;
    }
    memcpy(texts->bytes + texts->size, text, length);
    texts->size += length;
    return 0;
}

/* The number that a text has, or -1. */
static int64_t known_number(const Texts *texts, const uint8_t *text, size_t length, uint32_t hash) {
    size_t mask = 2 * texts->most - 1;
    for (size_t slot = hash & mask; texts->slots[slot]; slot = (slot + 1) & mask) {
        size_t number = texts->slots[slot] - 1, begin = texts->begins[number];
        if (texts->hashes[number] == hash && texts->begins[number + 1] - begin == length
            && !memcmp(texts->bytes + begin, text, length))
            return (int64_t)number;
    }
    return -1;
}

int64_t number_of_text(Texts *texts, const uint8_t *text, size_t length) {
    texts->once |= ++texts->asked == SAMPLE && texts->count > SAMPLE / 2;
    uint32_t hash = texts->once ? 0 : hash_of(texts, text, length);
    int64_t known = texts->once ? -1 : known_number(texts, text, length, hash);
    if (known >= 0)
        return known;
    if ((texts->count == texts->most && grow(texts) < 0) || append(texts, text, length) < 0)
        return -1;
    texts->hashes[texts->count] = hash;
    texts->begins[texts->count + 1] = texts->size;
    if (!texts->once)
        put_in_slot(texts, texts->count);
    return (int64_t)texts->count++;
}

/* ---- templates ---- */

/* Stands for a number in a template. */
#define MARK 0

static inline bool is_digit(uint8_t byte) {
    return (uint8_t)(byte - '0') < 10;
}

static inline bool joins_digits(uint8_t byte) {
    return (uint8_t)((byte | 0x20) - 'a') < 26 || byte >= 0x80;
}

/* The end of the digits that begin at `at`. */
static inline size_t end_of_digits(const uint8_t *text, size_t length, size_t at) {
    while (at < length && is_digit(text[at]))
        at++;
    return at;
}

static inline bool is_number(const uint8_t *text, size_t begin, size_t end) {
    return end - begin <= LONGEST_NUMBER && (!begin || !joins_digits(text[begin - 1]));
}

/* Puts a text's template into `out`, with room for the text and two bytes more; returns its length. A text with a MARK of its own is a template
 * by itself: two of them side by side stand in no other. */
static size_t put_template(const uint8_t *text, size_t length, uint8_t *out) {
    size_t size = 0, copied = 0;
    if (memchr(text, MARK, length)) {
        memcpy(out, text, length);
        out[length] = out[length + 1] = MARK;
        return length + 2;
    }
    for (size_t at = 0; at < length; at++) {
        if (!is_digit(text[at]))
            continue;
        size_t end = end_of_digits(text, length, at);
        if (is_number(text, at, end)) {
            memcpy(out + size, text + copied, at - copied);
            size += at - copied;
            out[size++] = MARK;
            copied = end;
        }
        at = end - 1;
    }
    memcpy(out + size, text + copied, length - copied);
    return size + length - copied;
}

int64_t find_templates(const Texts *texts, const int64_t *chosen, size_t count, int64_t *codes, int64_t *firsts, size_t most) {
    Texts templates;
    uint8_t *out = NULL;
    size_t room = 0;
    if (init_texts(&templates, texts->seed) < 0)
        return -2;
    int64_t result = 0;
    for (size_t k = 0; k < count && result >= 0; k++) {
        size_t number = chosen ? (size_t)chosen[k] : k;
        if (number >= texts->count) {
            result = -3;
            break;
        }
        size_t length = texts->begins[number + 1] - texts->begins[number];
        if (length + 2 > room) {
            uint8_t *more = realloc(out, room = 2 * (length + 2));
            if (!more) {
                result = -2;
                break;
            }
            out = more;
        }
        size_t size = put_template(texts->bytes + texts->begins[number], length, out), before = templates.count;
        templates.asked = 0;  /* each is looked for */
        codes[k] = number_of_text(&templates, out, size);
        if (codes[k] < 0)
            result = -2;
        else if (templates.count > before) {
            if (before == most)
                result = -1;
            else
                firsts[before] = (int64_t)number;
        }
    }
    result = result < 0 ? result : (int64_t)templates.count;
    free(out);
    free_texts(&templates);
    return result;
}

int64_t number_in_text(const Texts *texts, size_t number, size_t place) {
    const uint8_t *text = texts->bytes + texts->begins[number];
    size_t length = texts->begins[number + 1] - texts->begins[number];
    for (size_t at = 0; at < length; at++) {
        size_t end = end_of_digits(text, length, at);
        if (end == at)
            continue;
        if (is_number(text, at, end) && !place--) {
            int64_t value = 0;
            for (; at < end; at++)
                value = 10 * value + (text[at] - '0');
            return value;
        }
        at = end - 1;
    }
    return -1;
}
