/* The order in which the NVMe store accesses its files, as the system sees it. The oldest transfer goes
 * first. Extents that are used one after the other form one stream, and they still do after some of them were
 * pinned. Both I/O engines, through a seam that sees each I/O begin. */
#include "tests/offload/store/store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    EXTENTS = 12,
    CHUNK_BYTES = 4 * OT_STORE_ALIGN,
    DEPTH = 5, /* chunks of several extents are in flight at the same time */
    MOST_IOS = 4096,
    MOST_FILES = 2
};

struct io {
    bool write;
    int fd;
    size_t bytes;
    off_t offset;
};

/* The I/Os that an engine began, in order. Reads and writes have separate engines, so each has its own
 * list. */
struct record {
    int n[2]; /* [0] reads, [1] writes */
    struct io ios[2][MOST_IOS];
};

static void note_begin(void *context, bool write, int fd, size_t bytes, off_t offset) {
    struct faults *faults = context;
    struct record *record = faults->user;
    assert_true(record->n[write] < MOST_IOS);
    record->ios[write][record->n[write]++] = (struct io){write, fd, bytes, offset};
}

struct order_test {
    char *folder, folders[MOST_FILES][600];
    struct faults faults;
    struct ot_io_calls calls;
    struct record record;
    struct ot_store *store;
    size_t bytes[EXTENTS];
    int sides[EXTENTS];
    char *memory[EXTENTS];
};

/* Extents of several chunks; the last chunk of most extents is short. */
static void open_test(struct order_test *t, const struct way *way, int n_dirs, int sides, const int *order) {
    struct ot_store_dir dirs[MOST_FILES];
    *t = (struct order_test){.folder = make_folder(), .faults = {.refuse_direct = way->buffered}};
    t->faults.user = &t->record;
    t->calls = faulty_calls(&t->faults);
    t->calls.begin = note_begin;
    for (int i = 0; i < EXTENTS; i++) {
        t->bytes[i] = (size_t)(5 + i % 7) * OT_STORE_ALIGN;
        t->sides[i] = sides;
        t->memory[i] = aligned_bytes(t->bytes[i]);
        fill_bytes(t->memory[i], t->bytes[i], (uint64_t)i << 32);
    }
    for (int i = 0; i < n_dirs; i++) {
        snprintf(t->folders[i], sizeof t->folders[i], "%s/%d", t->folder, i);
        assert_int_equal(mkdir(t->folders[i], 0700), 0);
        dirs[i] = (struct ot_store_dir){t->folders[i], (size_t)1 << 30};
    }
    struct ot_store_config config = {.n_dirs = n_dirs,
                                     .dirs = dirs,
                                     .engine = way->engine,
                                     .n_extents = EXTENTS,
                                     .extent_bytes = t->bytes,
                                     .extent_sides = t->sides,
                                     .extent_order = order,
                                     .chunk_bytes = CHUNK_BYTES,
                                     .depth = DEPTH,
                                     .calls = &t->calls};
    check_ok(ot_store_open(&config, &t->store));
}

static void close_test(struct order_test *t) {
    ot_store_close(t->store);
    for (int i = 0; i < EXTENTS; i++)
        free(t->memory[i]);
    remove_folder(t->folder);
}

/* Starts a transfer for each of the extents at once, and waits for all of them. */
static void move_all(struct order_test *t, bool write, int n, const int *extents) {
    struct waiting waiting = WAITING_INIT;
    t->record.n[write] = 0;
    for (int i = 0; i < n; i++) {
        struct ot_store_piece piece = {extents[i], t->memory[extents[i]]};
        start_transfer(t->store, &waiting, write, 1, &piece);
    }
    check_ok(wait_all(&waiting));
}

/* Counts the I/Os that do not begin where the I/O before them on the same file ended. */
static int count_jumps(const struct order_test *t, bool write) {
    int fds[MOST_FILES] = {-1, -1}, jumps = 0;
    off_t ends[MOST_FILES] = {0};
    for (int i = 0; i < t->record.n[write]; i++) {
        const struct io *io = &t->record.ios[write][i];
        int file = fds[0] == -1 || fds[0] == io->fd ? 0 : 1;
        assert_true(fds[file] == -1 || fds[file] == io->fd);
        jumps += fds[file] != -1 && io->offset != ends[file];
        fds[file] = io->fd;
        ends[file] = io->offset + (off_t)io->bytes;
    }
    return jumps;
}

/* The extents in the order of their numbers, and mixed. */
static const int ascending[EXTENTS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const int mixed[EXTENTS] = {7, 2, 11, 0, 5, 9, 1, 10, 3, 8, 6, 4};

/* The offset of a side of an extent in a store of one file: the sides lie one after the other, each in the
 * order of the numbers. */
static off_t address_of(const struct order_test *t, int extent, int side) {
    off_t address = 0, of_a_side = 0;
    for (int i = 0; i < EXTENTS; i++) {
        of_a_side += (off_t)t->bytes[i];
        address += i < extent ? (off_t)t->bytes[i] : 0;
    }
    return address + side * of_a_side;
}

/* The extents are used against the order of their numbers, so the age of transfers decides and not the
 * offset. */
static void the_oldest_transfer_goes_first(void **state) {
    struct order_test t;
    open_test(&t, *state, 1, 2, NULL);
    for (int turn = 0; turn < 4; turn++) {
        bool write = turn < 2;
        move_all(&t, write, EXTENTS, mixed);
        int n = 0;
        for (int i = 0; i < EXTENTS; i++)
            for (size_t done = 0; done < t.bytes[mixed[i]]; n++) {
                const struct io *io = &t.record.ios[write][n];
                size_t left = t.bytes[mixed[i]] - done;
                assert_int_equal(io->offset, address_of(&t, mixed[i], turn == 0 ? 0 : 1) + (off_t)done);
                assert_int_equal(io->bytes, left < CHUNK_BYTES ? left : CHUNK_BYTES);
                done += io->bytes;
            }
        assert_int_equal(t.record.n[write], n);
    }
    close_test(&t);
}

/* Step after step, on any side. */
static void extents_in_order_are_one_stream(void **state) {
    for (int n_dirs = 1; n_dirs <= MOST_FILES; n_dirs++)
        for (int sides = 1; sides <= 4; sides++) {
            struct order_test t;
            open_test(&t, *state, n_dirs, sides, mixed);
            for (int step = 0; step < 5; step++) {
                move_all(&t, true, EXTENTS, mixed);
                assert_int_equal(count_jumps(&t, true), 0);
                move_all(&t, false, EXTENTS, mixed);
                assert_int_equal(count_jumps(&t, false), 0);
            }
            close_test(&t);
        }
}

/* A checkpoint unpins its content in the middle of a step. The rest of the step stays on the side on which
 * the step began. */
static void a_pin_does_not_part_the_stream(void **state) {
    struct order_test t;
    struct ot_store_pin pins[EXTENTS];
    open_test(&t, *state, 1, 3, NULL);
    for (int round = 0; round < 4; round++) {
        int half = 3 + 2 * round;
        for (int i = 0; i < EXTENTS && round > 0; i++)
            pins[i] = ot_store_pin_extent(t.store, i);
        move_all(&t, true, EXTENTS, ascending);
        move_all(&t, true, half, ascending);
        for (int i = 0; i < EXTENTS && round > 0; i++)
            ot_store_unpin(t.store, pins[i]);
        move_all(&t, true, EXTENTS - half, ascending + half);
        move_all(&t, false, EXTENTS, ascending);
        assert_int_equal(count_jumps(&t, false), 0);
    }
    close_test(&t);
}

/* Extents that were written once more than others are on another side. The next step brings all to one
 * side. */
static void parted_extents_come_together(void **state) {
    struct order_test t;
    open_test(&t, *state, 1, 3, NULL);
    for (int n = 1; n < EXTENTS; n++) {
        move_all(&t, true, EXTENTS, ascending);
        move_all(&t, true, n, ascending);
        move_all(&t, false, EXTENTS, ascending);
        assert_int_equal(count_jumps(&t, false), 1); /* otherwise this tests nothing */
        move_all(&t, true, EXTENTS, ascending);
        assert_int_equal(count_jumps(&t, true), 0);
        move_all(&t, false, EXTENTS, ascending);
        assert_int_equal(count_jumps(&t, false), 0);
    }
    close_test(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_transfer_goes_first),
        cmocka_unit_test(extents_in_order_are_one_stream),
        cmocka_unit_test(a_pin_does_not_part_the_stream),
        cmocka_unit_test(parted_extents_come_together),
    };
    return run_all_ways(tests, sizeof tests / sizeof *tests);
}
