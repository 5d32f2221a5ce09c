/* Pins of the NVMe store against a model in memory. Pinned content stays, at the places and with the
 * checksums that the store reports, during any writes, reads, pins and releases. Both I/O engines, O_DIRECT
 * and buffered, one to four directories, short and interrupted transfers. */
#include "tests/offload/store/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/random.h"

/* ---- reading from the files ---- */

/* Opens the file as any other program would. Without readahead, so that only pinned content is cached. */
static int open_to_read(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return fd;
}

/* Reads pinned content from the files alone. The checksums of the spans must be those of the bytes found. */
static void read_pinned(const struct ot_store *store, const int *fds, struct ot_store_pin pin, char *memory,
                        size_t bytes) {
    int most = ot_store_max_spans(store);
    struct ot_store_span *spans = calloc((size_t)most, sizeof *spans);
    int n = ot_store_find_spans(store, pin, spans, most);
    size_t got = 0;
    assert_in_range(n, 0, most);
    if (n == 0)
        memset(memory, 0, got = bytes);
    for (int i = 0; i < n; i++) {
        const struct ot_store_span *span = &spans[i];
        assert_in_range(span->file, 0, ot_store_file_count(store) - 1);
        assert_true(span->bytes > 0 && got + (size_t)span->bytes <= bytes);
        assert_int_equal(pread(fds[span->file], memory + got, (size_t)span->bytes, span->offset),
                         span->bytes);
        assert_int_equal(span->crc, crc32(0, (const Bytef *)memory + got, (uInt)span->bytes));
        got += (size_t)span->bytes;
    }
    assert_int_equal(got, bytes);
    free(spans);
}

/* ---- the model ---- */

enum { MOST_EXTENTS = 8, MOST_PAGES = 40, MOST_FOLDERS = 4, MOST_SIDES = 5, MOST_PINS = 12, STEPS = 40 };

struct pinned {
    struct ot_store_pin pin;
    uint64_t version; /* 0: never written */
    char *content;
};

struct model {
    uint64_t seed, drawn;
    char *folder, folders[MOST_FOLDERS][600];
    int fds[MOST_FOLDERS];
    struct faults faults;
    struct ot_io_calls calls;
    struct ot_store *store;
    int n_extents, n_dirs, n_pins;
    size_t bytes[MOST_EXTENTS];
    int sides[MOST_EXTENTS];
    uint64_t version[MOST_EXTENTS];
    /* The store's content; the memory that the test writes from or reads into. */
    char *content[MOST_EXTENTS], *memory[MOST_EXTENTS];
    struct pinned pins[MOST_PINS];
    int full; /* counts writes that found no free side */
};

static int draw(struct model *m, int below) {
    return (int)ot_random_below(m->seed, OT_RANDOM_TEST, m->drawn++, (uint64_t)below);
}

/* Draws limits that are just large enough, and different for each directory. */
static void draw_dirs(struct model *m, struct ot_store_dir *dirs) {
    size_t pages = ot_store_bytes(m->bytes, m->sides, m->n_extents) / OT_STORE_ALIGN;
    m->n_dirs = 1 + draw(m, MOST_FOLDERS);
    for (int i = 0; i < m->n_dirs; i++) {
        snprintf(m->folders[i], sizeof m->folders[i], "%s/%d", m->folder, i);
        assert_int_equal(mkdir(m->folders[i], 0700), 0);
        size_t part = i == m->n_dirs - 1 ? pages : 1 + (size_t)draw(m, (int)pages / 2);
        pages -= part;
        dirs[i] = (struct ot_store_dir){m->folders[i], part * OT_STORE_ALIGN};
    }
}

static void model_open(struct model *m, const struct way *way, uint64_t seed) {
    struct ot_store_dir dirs[MOST_FOLDERS];
    *m = (struct model){.seed = seed, .folder = make_folder()};
    m->faults.refuse_direct = way->buffered;
    m->faults.short_transfers = seed % 2;
    m->faults.storm_percent = seed % 3 == 0 ? 30 : 0;
    m->faults.storm_error = EAGAIN;
    m->calls = faulty_calls(&m->faults);
    m->n_extents = 1 + draw(m, MOST_EXTENTS);
    for (int i = 0; i < m->n_extents; i++) {
        m->bytes[i] = (size_t)(4 + draw(m, MOST_PAGES)) * OT_STORE_ALIGN;
        m->sides[i] = 1 + draw(m, MOST_SIDES);
        m->content[i] = aligned_bytes(m->bytes[i]);
        m->memory[i] = aligned_bytes(m->bytes[i]);
        memset(m->content[i], 0, m->bytes[i]);
    }
    draw_dirs(m, dirs);
    struct ot_store_config config = {.n_dirs = m->n_dirs,
                                     .dirs = dirs,
                                     .engine = way->engine,
                                     .n_extents = m->n_extents,
                                     .extent_bytes = m->bytes,
                                     .extent_sides = m->sides,
                                     .chunk_bytes = (size_t)(1 + draw(m, 8)) * OT_STORE_ALIGN,
                                     .depth = 1 + draw(m, 9),
                                     .calls = &m->calls};
    check_ok(ot_store_open(&config, &m->store));
    assert_int_equal(ot_store_file_count(m->store), m->n_dirs);
    for (int i = 0; i < m->n_dirs; i++)
        m->fds[i] = open_to_read(store_file(m->folders[i], 0));
    struct ot_store_usage usage;
    ot_store_usage(m->store, &usage);
    assert_int_equal(usage.file_bytes, ot_store_bytes(m->bytes, m->sides, m->n_extents));
}

/* True if the extent has a side that holds no pinned content, and not the present content either unless there
 * is only one side. */
static bool has_free_side(const struct model *m, int extent) {
    uint64_t taken[MOST_PINS + 1] = {m->version[extent]};
    int n = m->version[extent] > 0 && m->sides[extent] > 1;
    for (int i = 0; i < m->n_pins; i++) {
        bool is_new = m->pins[i].pin.extent == extent && m->pins[i].version > 0;
        for (int k = 0; k < n; k++)
            is_new = is_new && taken[k] != m->pins[i].version;
        if (is_new)
            taken[n++] = m->pins[i].version;
    }
    return n < m->sides[extent];
}

static void pin(struct model *m, int extent) {
    struct pinned *p = &m->pins[m->n_pins++];
    p->pin = ot_store_pin_extent(m->store, extent);
    p->version = m->version[extent];
    p->content = aligned_bytes(m->bytes[extent]);
    memcpy(p->content, m->content[extent], m->bytes[extent]);
    assert_int_equal(p->pin.extent, extent);
    assert_int_equal(p->pin.side >= 0, p->version > 0);
}

static void unpin(struct model *m, int index) {
    ot_store_unpin(m->store, m->pins[index].pin);
    free(m->pins[index].content);
    m->pins[index] = m->pins[--m->n_pins];
}

static void check_pin(struct model *m, int index) {
    const struct pinned *p = &m->pins[index];
    size_t bytes = m->bytes[p->pin.extent];
    char *memory = aligned_bytes(bytes);
    read_pinned(m->store, m->fds, p->pin, memory, bytes);
    assert_memory_equal(memory, p->content, bytes);
    free(memory);
}

/* A write that finds no free side fails, and nothing is lost. */
static void write_in_vain(struct model *m, int extent) {
    check_fails(ot_store_write(m->store, extent, m->memory[extent]), OT_E_INTERNAL, "sides are pinned");
    m->full++;
}

/* Writes or reads each extent, or leaves it alone and perhaps pins it; all at once. */
static void model_step(struct model *m) {
    struct waiting waiting = WAITING_INIT;
    bool was_read[MOST_EXTENTS] = {false};
    for (int i = 0; i < m->n_extents; i++) {
        struct ot_store_piece piece = {i, m->memory[i]};
        int what = draw(m, 4);
        if (what == 0 && !has_free_side(m, i)) {
            write_in_vain(m, i);
        } else if (what == 0) {
            m->version[i] = ++m->drawn;
            fill_bytes(m->memory[i], m->bytes[i], (m->seed << 32) + m->version[i]);
            memcpy(m->content[i], m->memory[i], m->bytes[i]);
            start_transfer(m->store, &waiting, true, 1, &piece);
        } else if (what == 1) {
            was_read[i] = true;
            start_transfer(m->store, &waiting, false, 1, &piece);
        } else if (what == 2 && m->n_pins < MOST_PINS) {
            pin(m, i);
        }
    }
    if (m->n_pins > 0)
        check_pin(m, draw(m, m->n_pins)); /* while transfers are in flight */
    if (m->n_pins > 0 && draw(m, 2))
        unpin(m, draw(m, m->n_pins));
    check_ok(wait_all(&waiting));
    for (int i = 0; i < m->n_extents; i++)
        if (was_read[i])
            assert_memory_equal(m->memory[i], m->content[i], m->bytes[i]);
}

static void model_close(struct model *m) {
    for (int i = 0; i < m->n_extents; i++) {
        check_ok(ot_store_read(m->store, i, m->memory[i]));
        assert_memory_equal(m->memory[i], m->content[i], m->bytes[i]);
    }
    for (int i = 0; i < m->n_pins; i++)
        check_pin(m, i);
    while (m->n_pins > 0)
        unpin(m, 0);
    ot_store_close(m->store);
    for (int i = 0; i < m->n_dirs; i++)
        assert_int_equal(close(m->fds[i]), 0);
    for (int i = 0; i < m->n_extents; i++) {
        free(m->content[i]);
        free(m->memory[i]);
    }
    remove_folder(m->folder);
}

static void test_model(void **state) {
    int full = 0;
    for (uint64_t seed = 1; seed <= (getenv("OT_TEST_SLOW") ? 300 : 8); seed++) {
        struct model m;
        model_open(&m, *state, seed);
        for (int step = 0; step < STEPS; step++)
            model_step(&m);
        full += m.full;
        model_close(&m);
    }
    assert_true(full > 5);
}

/* ---- one thing at a time ---- */

static const size_t two_extents[] = {3 * 4096, 1 << 18};
static const int three_sides[] = {3, 3};

static void write_version(struct ot_store *store, int extent, uint64_t version) {
    char *memory = aligned_bytes(two_extents[extent]);
    fill_bytes(memory, two_extents[extent], version);
    check_ok(ot_store_write(store, extent, memory));
    free(memory);
}

static void check_version(const struct ot_store *store, const int *fds, struct ot_store_pin pin,
                          uint64_t version) {
    size_t bytes = two_extents[pin.extent];
    char *memory = aligned_bytes(bytes), *want = aligned_bytes(bytes);
    fill_bytes(want, bytes, version);
    read_pinned(store, fds, pin, memory, bytes);
    assert_memory_equal(memory, want, bytes);
    free(want);
    free(memory);
}

/* Three checkpoints of the same content, released one after the other. */
static void test_content_is_free_after_its_last_pin(void **state) {
    const struct ot_store_config more = {.extent_sides = (int[]){2, 2}};
    struct fixture f;
    struct ot_store_pin pins[3];
    fixture_open(&f, *state, 2, two_extents, &more);
    int fd = open_to_read(store_file(f.folder, 0));
    char *memory = aligned_bytes(two_extents[1]);
    write_version(f.store, 1, 1);
    for (int i = 0; i < 3; i++)
        pins[i] = ot_store_pin_extent(f.store, 1);
    write_version(f.store, 1, 2);
    for (int i = 0; i < 3; i++) {
        check_fails(ot_store_write(f.store, 1, memory), OT_E_INTERNAL,
                    "extent 1 of the NVMe store: all of its 2 sides are pinned or in use");
        check_version(f.store, &fd, pins[2 - i], 1);
        ot_store_unpin(f.store, pins[i]);
    }
    write_version(f.store, 1, 3);
    check_version(f.store, &fd, ot_store_pin_extent(f.store, 1), 3);
    free(memory);
    close(fd);
    fixture_close(&f);
}

/* A piece without a free side fails its whole transfer. Other transfers succeed. */
static void test_transfer_without_a_side(void **state) {
    const struct ot_store_config more = {.extent_sides = (int[]){2, 2}, .chunk_bytes = 1 << 14, .depth = 3};
    struct fixture f;
    struct waiting waiting = WAITING_INIT;
    fixture_open(&f, *state, 2, two_extents, &more);
    int fd = open_to_read(store_file(f.folder, 0));
    char *memory[] = {aligned_bytes(two_extents[0]), aligned_bytes(two_extents[1])};
    struct ot_store_piece pieces[] = {{1, memory[1]}, {0, memory[0]}};
    write_version(f.store, 0, 1);
    write_version(f.store, 1, 2);
    struct ot_store_pin first = ot_store_pin_extent(f.store, 0);
    write_version(f.store, 0, 3);
    memset(memory[0], 7, two_extents[0]);
    memset(memory[1], 7, two_extents[1]);
    start_transfer(f.store, &waiting, true, 2, pieces);
    check_fails(wait_all(&waiting), OT_E_INTERNAL, "extent 0 of the NVMe store");
    check_version(f.store, &fd, first, 1);
    check_version(f.store, &fd, ot_store_pin_extent(f.store, 0), 3);
    check_version(f.store, &fd, ot_store_pin_extent(f.store, 1), 2);
    write_version(f.store, 1, 4); /* the other side of the pinned extent */
    free(memory[0]);
    free(memory[1]);
    close(fd);
    fixture_close(&f);
}

static void test_pin_of_zeros_and_few_spans(void **state) {
    const struct ot_store_config more = {.extent_sides = three_sides, .chunk_bytes = 1 << 16};
    struct fixture f;
    struct ot_store_span spans[4] = {{.bytes = 5}, {.bytes = 5}, {.bytes = 5}, {.bytes = 5}};
    fixture_open(&f, *state, 2, two_extents, &more);
    struct ot_store_pin zeros = ot_store_pin_extent(f.store, 1);
    assert_int_equal(zeros.side, -1);
    assert_int_equal(ot_store_find_spans(f.store, zeros, spans, 4), 0);
    assert_int_equal(ot_store_max_spans(f.store), 4);
    write_version(f.store, 1, 1);
    ot_store_unpin(f.store, zeros);
    struct ot_store_pin pin = ot_store_pin_extent(f.store, 1);
    assert_int_equal(ot_store_find_spans(f.store, pin, spans, 3), 4);
    assert_int_equal(spans[2].bytes, 1 << 16);
    assert_int_equal(spans[3].bytes, 5); /* the array had room for three spans */
    fixture_close(&f);
}

static void damage(const char *path, int64_t offset) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damaged", 7, offset), 7);
    close(fd);
}

/* A store that does not verify reads still computes checksums of extents that may be pinned, and of no
 * others. */
static void test_pins_without_verifying(void **state) {
    const struct ot_store_config two = {.no_verify = true};
    const struct ot_store_config three = {.no_verify = true, .extent_sides = three_sides};
    struct fixture f;
    struct ot_store_span span;
    char *memory = aligned_bytes(two_extents[1]);
    fixture_open(&f, *state, 2, two_extents, &two);
    assert_int_equal(ot_store_max_spans(f.store), 0);
    write_version(f.store, 1, 1);
    fixture_close(&f);
    fixture_open(&f, *state, 2, two_extents, &three);
    int fd = open_to_read(store_file(f.folder, 0));
    write_version(f.store, 1, 1);
    struct ot_store_pin pin = ot_store_pin_extent(f.store, 1);
    write_version(f.store, 1, 2);
    check_version(f.store, &fd, pin, 1);
    assert_int_equal(ot_store_find_spans(f.store, ot_store_pin_extent(f.store, 1), &span, 1), 1);
    damage(store_file(f.folder, 0), span.offset);
    check_ok(ot_store_read(f.store, 1, memory));
    check_version(f.store, &fd, pin, 1);
    free(memory);
    close(fd);
    fixture_close(&f);
}

/* A pin during a write pins the content before the write. */
static void test_pin_beside_a_write(void **state) {
    const struct ot_store_config more = {.extent_sides = three_sides};
    struct fixture f;
    struct waiting waiting = WAITING_INIT;
    fixture_open(&f, *state, 2, two_extents, &more);
    int fd = open_to_read(store_file(f.folder, 0));
    char *memory = aligned_bytes(two_extents[0]);
    write_version(f.store, 0, 1);
    fill_bytes(memory, two_extents[0], 2);
    atomic_store(&f.faults.hold_writes, true);
    start_transfer(f.store, &waiting, true, 1, &(struct ot_store_piece){0, memory});
    struct ot_store_pin before = ot_store_pin_extent(f.store, 0);
    atomic_store(&f.faults.hold_writes, false);
    check_ok(wait_all(&waiting));
    write_version(f.store, 0, 3);
    check_version(f.store, &fd, before, 1);
    free(memory);
    close(fd);
    fixture_close(&f);
}

/* ---- threads ---- */

/* One thread writes version after version into both extents. This thread pins, finds the version in the
 * files, sees that it stays, and releases it. */
enum { PINS_AT_A_TIME = 2, CAUGHT = 40 };

struct race {
    struct ot_store *store;
    _Atomic bool is_over;
    struct ot_error error;
};

/* The first word is the version. The rest depends on it. */
static void fill_race(char *memory, int extent, uint64_t version) {
    fill_bytes(memory, two_extents[extent], version);
    memcpy(memory, &version, sizeof version);
}

static void *write_on(void *arg) {
    struct race *race = arg;
    char *memory = aligned_bytes(two_extents[1]);
    for (uint64_t version = 1; !atomic_load(&race->is_over) && race->error.code == 0; version++) {
        fill_race(memory, (int)(version % 2), version);
        ot_error_save(&race->error, ot_store_write(race->store, (int)(version % 2), memory));
    }
    atomic_store(&race->is_over, true);
    free(memory);
    return NULL;
}

static uint64_t check_caught(const struct ot_store *store, const int *fds, struct ot_store_pin pin) {
    size_t bytes = two_extents[pin.extent];
    char *memory = aligned_bytes(bytes), *want = aligned_bytes(bytes);
    uint64_t version;
    read_pinned(store, fds, pin, memory, bytes);
    memcpy(&version, memory, sizeof version);
    if (version > 0)
        fill_race(want, pin.extent, version);
    else
        memset(want, 0, bytes);
    assert_memory_equal(memory, want, bytes);
    free(want);
    free(memory);
    return version;
}

static void test_pins_beside_a_writing_thread(void **state) {
    const struct ot_store_config more = {.extent_sides = (int[]){2 + PINS_AT_A_TIME, 2 + PINS_AT_A_TIME},
                                         .chunk_bytes = 1 << 14};
    struct fixture f;
    pthread_t thread;
    fixture_open(&f, *state, 2, two_extents, &more);
    struct race race = {.store = f.store};
    int fd = open_to_read(store_file(f.folder, 0)), caught = 0;
    uint64_t last[2] = {0};
    assert_int_equal(pthread_create(&thread, NULL, write_on, &race), 0);
    for (int round = 0; caught < CAUGHT && !atomic_load(&race.is_over); round++) {
        struct ot_store_pin pins[PINS_AT_A_TIME];
        uint64_t versions[PINS_AT_A_TIME];
        for (int i = 0; i < PINS_AT_A_TIME; i++) {
            pins[i] = ot_store_pin_extent(f.store, round % 2);
            versions[i] = check_caught(f.store, &fd, pins[i]);
            caught += versions[i] != last[round % 2];
            last[round % 2] = versions[i];
        }
        for (int i = 0; i < PINS_AT_A_TIME; i++) {
            assert_int_equal(check_caught(f.store, &fd, pins[i]), versions[i]);
            ot_store_unpin(f.store, pins[i]);
        }
    }
    atomic_store(&race.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    check_ok(race.error.code ? ot_error_load(&race.error) : 0);
    close(fd);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_content_is_free_after_its_last_pin),
        cmocka_unit_test(test_transfer_without_a_side),
        cmocka_unit_test(test_pin_of_zeros_and_few_spans),
        cmocka_unit_test(test_pins_without_verifying),
        cmocka_unit_test(test_pin_beside_a_write),
        cmocka_unit_test(test_pins_beside_a_writing_thread),
    };
    return run_all_ways(tests, sizeof tests / sizeof *tests);
}
