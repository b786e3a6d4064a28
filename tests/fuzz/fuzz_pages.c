/* Damaged pages through the compiled reader of tables: none of them may make it read beyond a page, run for ever, or take memory by a
 * number in the file.
 *
 *     cc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -DBLOCK_BYTES=1 -I nsys2prv/_util/native \
 *         tests/fuzz/fuzz_pages.c nsys2prv/_util/native/pages.c nsys2prv/_util/native/records.c nsys2prv/_util/native/outline.c nsys2prv/_util/native/lost.c nsys2prv/_util/native/stacks.c nsys2prv/_util/native/texts.c -lm -o fuzz_pages
 *     ./fuzz_pages PAGES SEED FILE...
 *
 * Mutates pages of these databases until so many were. With BLOCK_BYTES=1 pages are read one by one into buffers of just their size, so that
 * AddressSanitizer sees a byte too many. The same seed makes the same pages.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "records.h"
#include "stacks.h"

enum { MOST_MUTATIONS = 24, MOST_ASKED = 16, MOST_ROWS = 4096, TABLES = 8, STATUSES = 6 };

static uint64_t state;

/* xorshift64* */
static uint64_t any(uint64_t below) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull % below;
}

static unsigned long long mutated, decoded_rows, statuses[STATUSES];

/* A byte that numbers of SQLite are made of: small, the greatest, or one that says that more follow. */
static uint8_t odd_byte(void) {
    static const uint8_t odd[] = {0, 1, 2, 5, 7, 10, 11, 12, 13, 0x7f, 0x80, 0x81, 0xfe, 0xff};
    return any(3) ? odd[any(sizeof odd)] : (uint8_t)any(256);
}

static void mutate_page(uint8_t *page, uint32_t size) {
    mutated++;
    uint64_t at = any(size);
    switch (any(7)) {
    case 0:  /* its header */
        page[any(12)] = odd_byte();
        break;
    case 1:  /* a pointer to a cell */
        page[8 + any(64)] = odd_byte();
        break;
    case 2:
        page[at] ^= (uint8_t)(1u << any(8));
        break;
    case 3:  /* a long number */
        for (uint64_t k = 0; k < 9 && at + k < size; k++)
            page[at + k] = 0xff;
        break;
    case 4: {  /* begins or ends of cells stand elsewhere */
        uint64_t to = any(size), length = any(32);
        if (at + length < size && to + length < size)
            memmove(page + to, page + at, length);
        break;
    }
    case 5: {  /* the header of a record, at the begin of a cell */
        uint64_t cell = be16(page + 8 + 2 * any(8));
        if (cell + 24 < size)
            page[cell + any(24)] = odd_byte();
        break;
    }
    default:
        page[at] = odd_byte();
    }
}

static void read_table(const PageFile *file, uint32_t root) {
    static int64_t values[MOST_ASKED][MOST_ROWS];
    static uint8_t types[MOST_ASKED][MOST_ROWS];
    Leaves leaves;
    uint32_t damaged;
    Extent all;
    uint8_t *met = calloc(file->pages / 8 + 1, 1);
    Column outlined[OUTLINED];
    for (size_t k = 0; k < OUTLINED; k++)
        outlined[k] = (Column){.field = (int32_t)any(6) - 1, .kind = INTEGERS, .null = INT64_MIN};
    Outline outline = {.block_bits = (uint32_t)any(64), .most_blocks = any(1000), .most_noted = any(100), .traits = (const uint8_t[]){1, 16, 0}, .types = any(4), .columns = outlined};
    Status checked = check_table(file, root, (const uint8_t[]){0, 1, NOTED, 1}, any(5), met, any(2) ? &outline : NULL, &all, &damaged);
    Status status = find_leaves(file, root, NULL, &leaves, &damaged);
    free(outline.bounds);
    free(outline.noted);
    uint32_t lost, roots[] = {1 + (uint32_t)any(file->pages), 1 + (uint32_t)any(file->pages), (uint32_t)any(UINT32_MAX)};
    statuses[find_lost_page(file, roots, any(4), met, &lost)]++;
    free(met);
    statuses[checked]++;
    if (status != OK)
        return;
    Column columns[MOST_ASKED];
    Texts texts;
    size_t count = any(MOST_ASKED + 1), row = 0, from = any(leaves.count), to = from + 1 + any(leaves.count - from);
    if (init_texts(&texts, any(UINT64_MAX)) < 0)
        abort();
    for (size_t k = 0; k < count; k++)
        columns[k] = (Column){.field = (int32_t)any(24) - 1, .kind = (Kind)any(VALUES + 1), .holds_reals = !any(4),
                              .has_default = !any(16), .null = INT64_MIN, .values = values[any(2) ? k : 0], .types = types[k], .texts = &texts};
    Decoder *decoder;
    int64_t first = any(2) ? INT64_MIN : (int64_t)any(1000), last = any(2) ? INT64_MAX : first + (int64_t)any(1000);
    static const int64_t chosen[] = {1, 2, 5, 40, 41, 300};
    status = new_decoder(file, columns, count, &decoder);
    if (status == OK && any(2))
        choose_rows(decoder, chosen, any(7));
    if (status == OK)
        status = decode_leaves(decoder, &leaves, from, to, first, last, &row, MOST_ROWS, &damaged);
    statuses[status]++;
    decoded_rows += row;
    free_decoder(decoder);
    free_texts(&texts);
    Column frames[FRAME_COLUMNS];
    for (size_t k = 0; k < FRAME_COLUMNS; k++)
        frames[k] = (Column){.field = any(2) ? (int32_t)k : (int32_t)any(12) - 1, .kind = INTEGERS, .null = INT64_MIN};
    Stacks stacks = {0};
    bool sorted;
    statuses[read_stacks(file, &leaves, frames, first, last, &stacks, &sorted, &damaged)]++;
    free_stacks(&stacks);
    free_leaves(&leaves);
}

int main(int arguments, char **argument) {
    if (arguments < 4)
        return 2;
    unsigned long long wanted = strtoull(argument[1], NULL, 10);
    state = strtoull(argument[2], NULL, 10) * 2654435761u + 88172645463325252ull;
    int memory = memfd_create("database", 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    while (mutated < wanted) {
        int original = open(argument[3 + any((uint64_t)arguments - 3)], O_RDONLY);
        struct stat about;
        if (original < 0 || fstat(original, &about) < 0)
            return 2;
        size_t size = (size_t)about.st_size;
        uint8_t *data = malloc(size);
        if (!data || read(original, data, size) != (ssize_t)size)
            return 2;
        close(original);
        uint32_t page_size = be16(data + 16) == 1 ? 65536 : be16(data + 16);
        uint64_t pages = size / page_size;
        for (uint64_t k = any(MOST_MUTATIONS) + 1; k; k--)
            mutate_page(data + any(pages) * page_size, page_size);
        if (!any(8)) {  /* a page that refers to others, or is referred to, in the place of another */
            mutated++;
            memmove(data + any(pages) * page_size, data + any(pages) * page_size, page_size);
        }
        /* Mostly a file whose header says nothing wrong: there is more to see behind it. */
        if (any(16)) {
            memcpy(data, "SQLite format 3", 16);
            data[16] = (uint8_t)(page_size >> 8), data[17] = (uint8_t)(page_size == 65536 ? 1 : page_size);
            data[18] = data[19] = 1, data[20] = 0, data[21] = 64, data[22] = data[23] = 32;
            memset(data + 24, 0, 8), memset(data + 44, 0, 4), memcpy(data + 56, "\0\0\0\1", 4);
            if (page_size == 65536)
                data[16] = 0;
        }
        if (ftruncate(memory, 0) < 0 || pwrite(memory, data, any(8) ? size : size - any(size), 0) < 0)
            return 2;
        PageFile file;
        Status status = open_page_file(path, &file);
        statuses[status]++;
        for (int k = 0; k < TABLES && status == OK && file.pages; k++) {
            /* Sometimes the file is cut while it is read. */
            if (!any(64) && ftruncate(memory, (off_t)any(size)) < 0)
                return 2;
            read_table(&file, 1 + (uint32_t)any(file.pages));
        }
        if (status == OK)
            close_page_file(&file);
        free(data);
    }
    printf("%llu pages mutated, %llu rows decoded;", mutated, decoded_rows);
    for (int k = 0; k < STATUSES; k++)
        printf(" %s: %llu;", status_text((Status)k), statuses[k]);
    putchar('\n');
    return 0;
}
