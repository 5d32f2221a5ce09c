/* The NVMe store against a model in memory: a read returns what was written last, for any extents,
 * directories, stripes, chunks, depths, numbers of transfers in flight and lengths of I/Os; with both I/O
 * engines, with O_DIRECT and buffered. */
#include "tests/offload/store/store_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/random.h"

static const size_t three_extents[] = {4096, 5 * 4096, 3 << 20};

/* ---- the model ---- */

enum { MOST_EXTENTS = 12, MOST_PAGES = 40, MOST_FOLDERS = 3, STEPS = 25 };

struct model {
    uint64_t seed, drawn;
    char *folder, folders[MOST_FOLDERS][600];
    struct faults faults;
    struct ot_store *store;
    int n_extents;
    size_t bytes[MOST_EXTENTS];
    /* The store's content; the memory that the test writes from or reads into. */
    char *content[MOST_EXTENTS], *memory[MOST_EXTENTS];
    int64_t moved[2];
};

static int draw(struct model *m, int below) {
    return (int)ot_random_below(m->seed, OT_RANDOM_TEST, m->drawn++, (uint64_t)below);
}

/* Draws limits that are just large enough, and different for each directory. */
static int draw_dirs(struct model *m, struct ot_store_dir *dirs) {
    int n = 1 + draw(m, MOST_FOLDERS);
    size_t pages = ot_store_bytes(m->bytes, NULL, m->n_extents) / OT_STORE_ALIGN;
    for (int i = 0; i < n; i++) {
        snprintf(m->folders[i], sizeof m->folders[i], "%s/%d", m->folder, i);
        assert_int_equal(mkdir(m->folders[i], 0700), 0);
        size_t part = i == n - 1 ? pages : (size_t)draw(m, (int)pages / 2);
        pages -= part;
        dirs[i] =
            (struct ot_store_dir){m->folders[i], part * OT_STORE_ALIGN + (size_t)draw(m, OT_STORE_ALIGN)};
        if (dirs[i].bytes == 0) /* 0 would mean all free space */
            dirs[i].bytes = 1;
    }
    return n;
}

static void model_open(struct model *m, const struct way *way, uint64_t seed) {
    struct ot_io_calls calls = faulty_calls(&m->faults);
    struct ot_store_dir dirs[MOST_FOLDERS];
    *m = (struct model){.seed = seed, .folder = make_folder()};
    m->faults.refuse_direct = way->buffered;
    m->faults.short_transfers = seed % 2;
    m->n_extents = 1 + draw(m, MOST_EXTENTS);
    for (int i = 0; i < m->n_extents; i++) {
        m->bytes[i] = (size_t)(1 + draw(m, MOST_PAGES)) * OT_STORE_ALIGN;
        m->content[i] = aligned_bytes(m->bytes[i]);
        m->memory[i] = aligned_bytes(m->bytes[i]);
        memset(m->content[i], 0, m->bytes[i]);
    }
    struct ot_store_config config = {.n_dirs = draw_dirs(m, dirs),
                                     .dirs = dirs,
                                     .engine = way->engine,
                                     .n_extents = m->n_extents,
                                     .extent_bytes = m->bytes,
                                     .chunk_bytes = (size_t)(1 + draw(m, 8)) * OT_STORE_ALIGN,
                                     .depth = 1 + draw(m, 9),
                                     .calls = &calls};
    if (draw(m, 2)) {
        config.arena = m->memory[0];
        config.arena_bytes = m->bytes[0];
    }
    check_ok(ot_store_open(&config, &m->store));
    struct ot_store_usage usage;
    ot_store_usage(m->store, &usage);
    assert_int_equal(usage.file_bytes, ot_store_bytes(m->bytes, NULL, m->n_extents));
}

/* Every extent goes into one transfer or none, in a random order. */
static void model_step(struct model *m) {
    struct waiting waiting = WAITING_INIT;
    int order[MOST_EXTENTS], was_read[MOST_EXTENTS] = {0};
    for (int i = 0; i < m->n_extents; i++) {
        int k = draw(m, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (int first = 0; first < m->n_extents;) {
        struct ot_store_piece pieces[MOST_EXTENTS];
        int n = 1 + draw(m, m->n_extents - first), what = draw(m, 3);
        for (int i = 0; i < n && what < 2; i++) {
            int extent = order[first + i];
            pieces[i] = (struct ot_store_piece){extent, m->memory[extent]};
            m->moved[what] += (int64_t)m->bytes[extent];
            fill_bytes(m->memory[extent], m->bytes[extent], (m->seed << 32) + m->drawn++);
            was_read[extent] = what == 0;
            if (what == 1)
                memcpy(m->content[extent], m->memory[extent], m->bytes[extent]);
        }
        if (what < 2)
            start_transfer(m->store, &waiting, what == 1, n, pieces);
        first += n;
    }
    check_ok(wait_all(&waiting));
    for (int i = 0; i < m->n_extents; i++)
        if (was_read[i])
            assert_memory_equal(m->memory[i], m->content[i], m->bytes[i]);
}

static void model_close(struct model *m) {
    for (int i = 0; i < m->n_extents; i++) { /* reads everything once more, one extent at a time */
        check_ok(ot_store_read(m->store, i, m->memory[i]));
        assert_memory_equal(m->memory[i], m->content[i], m->bytes[i]);
    }
    struct ot_store_usage usage;
    ot_store_usage(m->store, &usage);
    assert_int_equal(usage.written_bytes, m->moved[1]);
    assert_true(m->faults.short_transfers || usage.resumed == 0);
    ot_store_close(m->store);
    for (int i = 0; i < m->n_extents; i++) {
        free(m->content[i]);
        free(m->memory[i]);
    }
    remove_folder(m->folder);
}

static void test_model(void **state) {
    const struct way *way = *state;
    const char *slow = getenv("OT_TEST_SLOW");
    for (uint64_t seed = 1; seed <= (slow ? 400 : 10); seed++) {
        struct model m;
        model_open(&m, way, seed);
        for (int step = 0; step < STEPS; step++)
            model_step(&m);
        model_close(&m);
    }
}

/* ---- sides ---- */

static void read_and_compare(struct ot_store *store, int extent, const void *want, size_t bytes) {
    char *memory = aligned_bytes(bytes);
    fill_bytes(memory, bytes, 99);
    check_ok(ot_store_read(store, extent, memory));
    assert_memory_equal(memory, want, bytes);
    free(memory);
}

static void test_unwritten_extents_are_zeros_without_io(void **state) {
    struct fixture f;
    struct ot_store_usage usage;
    fixture_open(&f, *state, 3, three_extents, NULL);
    char *zeros = calloc(1, 3 << 20);
    int64_t before = atomic_load(&f.faults.calls);
    for (int i = 0; i < 3; i++)
        read_and_compare(f.store, i, zeros, three_extents[i]);
    ot_store_usage(f.store, &usage);
    assert_int_equal(usage.read_bytes, 0);
    assert_int_equal(atomic_load(&f.faults.calls), before);
    free(zeros);
    fixture_close(&f);
}

/* While writes are held back, a read returns the content before them. Afterwards it returns the new
 * content. */
static void test_old_content_is_read_until_the_write_is_complete(void **state) {
    struct fixture f;
    struct waiting waiting = WAITING_INIT;
    fixture_open(&f, *state, 3, three_extents, NULL);
    size_t bytes = three_extents[2];
    char *old = aligned_bytes(bytes), *new = aligned_bytes(bytes);
    memset(old, 0, bytes);
    for (uint64_t round = 0; round < 4; round++) {
        fill_bytes(new, bytes, round);
        atomic_store(&f.faults.hold_writes, true);
        start_transfer(f.store, &waiting, true, 1, &(struct ot_store_piece){2, new});
        read_and_compare(f.store, 2, old, bytes);
        atomic_store(&f.faults.hold_writes, false);
        check_ok(wait_all(&waiting));
        read_and_compare(f.store, 2, new, bytes);
        memcpy(old, new, bytes);
    }
    free(new);
    free(old);
    fixture_close(&f);
}

/* One I/O of a write of three pieces fails. All three pieces keep their old content, the transfers before and
 * after it succeed, and so does the next attempt. */
static void test_failed_write_leaves_the_old_content(void **state) {
    const struct ot_store_config more = {.chunk_bytes = 1 << 18, .depth = 4};
    struct fixture f;
    fixture_open(&f, *state, 3, three_extents, &more);
    char *old[3], *new[3];
    struct ot_store_piece pieces[3];
    for (int i = 0; i < 3; i++) {
        old[i] = aligned_bytes(three_extents[i]);
        new[i] = aligned_bytes(three_extents[i]);
        fill_bytes(old[i], three_extents[i], (uint64_t)i);
        pieces[i] = (struct ot_store_piece){i, new[i]};
        check_ok(ot_store_write(f.store, i, old[i]));
    }
    for (int64_t at = 1; at <= 14; at++) { /* each of the write's 1 + 1 + 12 chunks */
        struct waiting waiting = WAITING_INIT;
        for (int i = 0; i < 3; i++)
            fill_bytes(new[i], three_extents[i], (uint64_t)(at * 10 + i));
        f.faults.fail_error = EIO;
        atomic_store(&f.faults.fail_at, at);
        start_transfer(f.store, &waiting, true, 3, pieces);
        check_fails(wait_all(&waiting), OT_E_IO,
                    "Input/output error; look for errors of the disk in `dmesg`");
        assert_non_null(strstr(ot_error_text(), store_file(f.folder, 0)));
        for (int i = 0; i < 3; i++)
            read_and_compare(f.store, i, old[i], three_extents[i]);
        if (at % 5 == 0) {
            start_transfer(f.store, &waiting, true, 3, pieces);
            check_ok(wait_all(&waiting));
            for (int i = 0; i < 3; i++)
                memcpy(old[i], new[i], three_extents[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        free(old[i]);
        free(new[i]);
    }
    fixture_close(&f);
}

/* ---- transfers ---- */

/* The end of each transfer starts the next one, on either thread in turn. */
struct chain {
    struct ot_store *store;
    struct ot_store_piece piece;
    _Atomic int left;
    struct waiting waiting;
};

static void go_on(void *arg, const struct ot_error *error) {
    struct chain *chain = arg;
    int left = atomic_fetch_sub(&chain->left, 1) - 1;
    if (left > 0 && !error) {
        struct ot_transfer next = {left % 2, 1, &chain->piece, go_on, chain};
        if (ot_store_start(chain->store, &next) < 0)
            abort();
    } else {
        atomic_store(&chain->waiting.n, 0);
    }
}

static void test_done_may_start_transfers(void **state) {
    struct fixture f;
    fixture_open(&f, *state, 3, three_extents, NULL);
    char *memory = aligned_bytes(three_extents[1]);
    struct chain chain = {.store = f.store, .piece = {1, memory}, .left = 201, .waiting = WAITING_INIT};
    fill_bytes(memory, three_extents[1], 5);
    atomic_store(&chain.waiting.n, 1);
    struct ot_transfer first = {true, 1, &chain.piece, go_on, &chain};
    check_ok(ot_store_start(f.store, &first));
    wait_all(&chain.waiting);
    assert_int_equal(atomic_load(&chain.left), 0);
    struct ot_store_usage usage;
    ot_store_usage(f.store, &usage);
    assert_int_equal(usage.written_bytes, 101 * (int64_t)three_extents[1]);
    assert_int_equal(usage.read_bytes, 100 * (int64_t)three_extents[1]);
    free(memory);
    fixture_close(&f);
}

struct ordered {
    int number, *next;
    bool in_order;
};

static void note_order(void *arg, const struct ot_error *error) {
    struct ordered *ordered = arg; /* all on one thread */
    ordered->in_order = !error && ordered->number == (*ordered->next)++;
}

/* Starts 40 writes of all sizes at once. Closing waits for them, and they end in order. */
static void test_close_waits_and_transfers_end_in_order(void **state) {
    enum { N = 40 };
    const struct ot_store_config more = {.chunk_bytes = 1 << 16, .depth = 7};
    size_t bytes[N];
    struct ordered ordered[N];
    struct fixture f;
    int next = 0;
    for (int i = 0; i < N; i++)
        bytes[i] = (size_t)(1 + (i * 37) % 41) * OT_STORE_ALIGN;
    fixture_open(&f, *state, N, bytes, &more);
    f.faults.short_transfers = true;
    char *memory = aligned_bytes(41 * OT_STORE_ALIGN);
    for (int i = 0; i < N; i++) {
        ordered[i] = (struct ordered){i, &next, false};
        struct ot_transfer transfer = {true, 1, &(struct ot_store_piece){i, memory}, note_order, &ordered[i]};
        check_ok(ot_store_start(f.store, &transfer));
    }
    fixture_close(&f);
    for (int i = 0; i < N; i++)
        assert_true(ordered[i].in_order);
    free(memory);
}

/* As many I/Os are in flight as the depth allows, and never more. (For a ring, the engine itself asserts
 * this.) */
static void test_depth(void **state) {
    const struct way *way = *state;
    const struct ot_store_config more = {.chunk_bytes = 1 << 16, .depth = 5};
    struct fixture f;
    struct waiting waiting = WAITING_INIT;
    fixture_open(&f, way, 3, three_extents, &more);
    char *memory = aligned_bytes(three_extents[2]);
    fill_bytes(memory, three_extents[2], 1);
    atomic_store(&f.faults.hold_writes, true);
    start_transfer(f.store, &waiting, true, 1, &(struct ot_store_piece){2, memory});
    while (way->engine == OT_IO_POOL && atomic_load(&f.faults.in_flight) < 5)
        ;
    atomic_store(&f.faults.hold_writes, false);
    check_ok(wait_all(&waiting));
    if (way->engine == OT_IO_POOL)
        assert_int_equal(atomic_load(&f.faults.most_in_flight), 5);
    free(memory);
    fixture_close(&f);
}

/* ---- descriptions and errors ---- */

static void test_describe(void **state) {
    const struct way *way = *state;
    struct ot_store_config more = {.chunk_bytes = 1 << 18, .depth = 8, .no_verify = true};
    struct fixture f;
    fixture_open(&f, way, 3, three_extents, NULL);
    const char *text = ot_store_describe(f.store);
    assert_int_equal(strncmp(text, ot_io_choice_name(way->engine), strlen(ot_io_choice_name(way->engine))),
                     0);
    assert_non_null(strstr(text, way->buffered ? "buffered" : "O_DIRECT"));
    assert_non_null(strstr(text, ", 2 x 1 MiB x 32, CRC-32"));
    fixture_close(&f);
    fixture_open(&f, way, 3, three_extents, &more);
    assert_non_null(strstr(ot_store_describe(f.store), ", 2 x 256 KiB x 8, not verified"));
    fixture_close(&f);
}

int main(void) {
    enum { N_TESTS = 8 };
    static const struct CMUnitTest tests[N_TESTS] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_unwritten_extents_are_zeros_without_io),
        cmocka_unit_test(test_old_content_is_read_until_the_write_is_complete),
        cmocka_unit_test(test_failed_write_leaves_the_old_content),
        cmocka_unit_test(test_done_may_start_transfers),
        cmocka_unit_test(test_close_waits_and_transfers_end_in_order),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_describe),
    };
    return run_all_ways(tests, N_TESTS);
}
