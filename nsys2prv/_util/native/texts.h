/* Texts (or blobs), numbered from 0 in the order in which they are met. Where most of the first ones come but once, those that follow are not
 * looked for, and get a number of their own each. */
#ifndef NSYS2PRV_TEXTS_H
#define NSYS2PRV_TEXTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *bytes;     /* of all texts, one after the other */
    size_t size, room;
    size_t *begins;     /* of each text; the next one's is its end */
    uint32_t *hashes;
    size_t count, most;
    uint32_t *slots;    /* hash table: number of a text + 1, or 0; a power of two of them, twice as many as `most` */
    size_t asked;       /* so many numbers were asked for */
    bool once;          /* most texts come once */
    uint64_t seed;      /* makes it hard to choose texts that meet in one slot */
} Texts;

/* 0, or -1 where there is no memory. */
int init_texts(Texts *, uint64_t seed);
void free_texts(Texts *);
/* The number of a text, or -1 where there is no memory. */
int64_t number_of_text(Texts *, const uint8_t *text, size_t length);

/* Templates of texts: what texts have in common that differ by nothing but numbers. A number is a run of 1 to LONGEST_NUMBER digits that does
 * not follow a letter or a byte above ASCII. */
#define LONGEST_NUMBER 18
/* Puts the template of each of `count` texts, numbered from 0 as they are met, into `codes`, and the first text of each into `firsts` (room for
 * `most`). chosen: the numbers of the texts, NULL for the first `count`. Returns how many templates there are, -1 where they are more than
 * `most`, -2 where there is no memory, -3 where there is no such text. */
int64_t find_templates(const Texts *, const int64_t *chosen, size_t count, int64_t *codes, int64_t *firsts, size_t most);
/* The value of the number at a place (0 is the first) in a text, -1 where it has none. */
int64_t number_in_text(const Texts *, size_t number, size_t place);

#endif
