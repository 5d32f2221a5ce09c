/* Reading checkpoints: every value arrives once and unchanged, in every dtype, with both I/O engines and
 * under every fault. Every damaged byte is found, and the error names its place. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint/reader.h"
#include "src/checkpoint/writer.h"
#include "tests/checkpoint/made.h"
#include "tests/offload/store/store_fixture.h"

/* ---- the values that a read delivers ---- */

struct delivery {
    const struct made *made;
    struct ot_checkpoint *checkpoint;
    struct ot_checkpoint_read read;
    /* Per parameter, as bits: 1 its state came, 2 its weights came. */
    char *seen[MADE_SLABS];
    pthread_mutex_t mutex;                   /* protects what follows */
    int64_t pieces, most, progress, damaged; /* most: parameters of the largest piece */
    int fail_at;
};

static int take_segment(void *context, const struct ot_segment *segment, const void *memory) {
    struct delivery *d = context;
    int mark = (segment->has_state ? 1 : 0) | (segment->has_weights ? 2 : 0);
    assert_int_equal((uintptr_t)memory % OT_STORE_ALIGN, 0);
    check_segment(d->made, segment, memory);
    pthread_mutex_lock(&d->mutex);
    for (int64_t i = 0; i < segment->n; i++) {
        assert_int_equal(d->seen[segment->slab][segment->first + i] & mark, 0);
        d->seen[segment->slab][segment->first + i] |= (char)mark;
    }
    d->most = segment->n > d->most ? segment->n : d->most;
    bool fails = ++d->pieces == d->fail_at, is_late = d->fail_at > 0 && d->pieces > d->fail_at;
    pthread_mutex_unlock(&d->mutex);
    if (is_late) /* on a busy machine the failed thread must still come to return its error */
        usleep(100000);
    return fails ? ot_fail(OT_E_DEVICE, "the sink has enough") : 0;
}

static void note_progress(void *context, int64_t bytes, int64_t total) {
    struct delivery *d = context;
    assert_true(bytes >= d->progress && bytes <= total);
    assert_int_equal(total, ot_checkpoint_bytes(d->checkpoint));
    d->progress = bytes;
}

/* A read with an odd number of slots has as many threads; with an even number the caller does it all. */
static void begin(struct delivery *d, const struct made *made, enum ot_io_choice engine, int n_slots) {
    size_t bytes = (size_t)n_slots * ot_segment_slot_bytes(made->manifest.dtype);
    *d = (struct delivery){.made = made, .mutex = PTHREAD_MUTEX_INITIALIZER};
    d->read = (struct ot_checkpoint_read){.memory = aligned_bytes(bytes),
                                          .n_slots = n_slots,
                                          .threads = n_slots % 2 ? n_slots : 0,
                                          .io_engine = engine,
                                          .sink = take_segment,
                                          .context = d,
                                          .progress = note_progress};
    for (int i = 0; i < MADE_SLABS; i++)
        d->seen[i] = calloc((size_t)made->manifest.slab_params[i], 1);
    check_ok(ot_checkpoint_open(made->folder, &d->checkpoint));
}

static void end(struct delivery *d) {
    ot_checkpoint_close(d->checkpoint);
    for (int i = 0; i < MADE_SLABS; i++)
        free(d->seen[i]);
    free(d->read.memory);
}

static int64_t count_missing(const struct delivery *d) {
    int64_t missing = 0;
    for (int slab = 0; slab < MADE_SLABS; slab++)
        for (int64_t i = 0; i < d->made->manifest.slab_params[slab]; i++)
            missing += d->seen[slab][i] != 3;
    return missing;
}

static void check_all_delivered(struct delivery *d) {
    assert_int_equal(count_missing(d), 0);
    assert_int_equal(d->progress, ot_checkpoint_bytes(d->checkpoint));
}

static void test_every_value_arrives_once(void **state) {
    const struct way *way = *state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct made made;
        struct delivery d;
        if (tests_are_few() && way->engine != OT_IO_POOL && dtype != OT_BF16)
            continue;
        make_checkpoint(&made, (enum ot_dtype)dtype);
        for (int n_slots = 2; n_slots <= (tests_are_brief() ? 2 : 5); n_slots += 3) {
            begin(&d, &made, way->engine, n_slots);
            check_ok(ot_checkpoint_read(d.checkpoint, &d.read));
            check_all_delivered(&d);
            /* A segment that is larger than a slot comes in pieces, each as large as fits a slot. */
            assert_true(d.most < made.manifest.slab_params[1]);
            assert_in_range(d.most, OT_SEGMENT_PARAMS, OT_SEGMENT_PARAMS * 3 / 2);
            end(&d);
        }
        remove_made(&made);
    }
}

/* Arrays that do not begin or end with a block, and a segment that ends with padding: nothing is missing, and
 * the checksum of every span is compared. */
static void test_compact_values_arrive_once(void **state) {
    const struct way *way = *state;
    for (enum ot_state_format format = OT_STATE_16BIT; format <= OT_STATE_8BIT; format++)
        for (int n_slots = 2; n_slots <= (tests_are_few() ? 2 : 3); n_slots++) {
            struct made made;
            struct delivery d;
            make_checkpoint_with(&made, OT_BF16, format);
            begin(&d, &made, way->engine, n_slots);
            check_ok(ot_checkpoint_read(d.checkpoint, &d.read));
            check_all_delivered(&d);
            assert_true(d.most < made.manifest.slab_params[1]);
            end(&d);
            remove_made(&made);
        }
}

static void test_a_checkpoint_says_what_it_is(void **state) {
    (void)state;
    struct made made;
    struct ot_checkpoint *c;
    int64_t bytes = 0;
    make_checkpoint(&made, OT_BF16);
    check_ok(ot_checkpoint_open(made.folder, &c));
    for (int64_t i = 0; i < made.manifest.n_spans; i++)
        bytes += made.manifest.spans[i].bytes;
    assert_int_equal(ot_checkpoint_bytes(c), bytes);
    assert_string_equal(ot_checkpoint_dir(c), made.folder);
    assert_int_equal(ot_checkpoint_record(c)->progress.step, 120);
    assert_int_equal(ot_checkpoint_manifest(c)->n_segments, made.manifest.n_segments);
    ot_checkpoint_close(c);
    remove_made(&made);
}

/* ---- system faults ---- */

static void read_under(const struct way *way, struct faults *faults, struct delivery *d,
                       const struct made *made, int *rc) {
    struct ot_io_calls calls = faulty_calls(faults);
    begin(d, made, way->engine, 3);
    d->read.calls = &calls;
    *rc = ot_checkpoint_read(d->checkpoint, &d->read);
}

static void test_short_and_interrupted_reads_are_taken_up(void **state) {
    const struct way *way = *state;
    struct faults storms[] = {{.short_transfers = true},
                              {.storm_percent = 30, .storm_error = EINTR},
                              {.short_transfers = true, .storm_percent = 10, .storm_error = EAGAIN},
                              {.ring_error = ENOSYS},
                              {.arena_error = ENOMEM, .files_error = EINVAL}};
    struct made made;
    make_checkpoint(&made, OT_BF16);
    for (size_t i = 0; i < sizeof storms / sizeof *storms; i++) {
        struct delivery d;
        int rc;
        struct way now = *way;
        if (storms[i].ring_error)
            now.engine = OT_IO_AUTO;
        read_under(&now, &storms[i], &d, &made, &rc);
        check_ok(rc);
        check_all_delivered(&d);
        end(&d);
    }
    remove_made(&made);
}

static _Atomic int refusals;

static ssize_t read_buffered_alone(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    (void)context;
    if (fcntl(fd, F_GETFL) & O_DIRECT) {
        atomic_fetch_add(&refusals, 1);
        return -EINVAL;
    }
    return ot_io_system.pread(NULL, fd, memory, bytes, offset);
}

/* Some file systems open a file with O_DIRECT and then refuse every transfer. Several transfers of the file
 * are in flight before the first error comes. */
static void test_where_o_direct_is_refused_it_reads_buffered(void **state) {
    (void)state;
    struct ot_io_calls calls = ot_io_system;
    struct made made;
    struct delivery d;
    calls.pread = read_buffered_alone;
    atomic_store(&refusals, 0);
    make_checkpoint(&made, OT_BF16);
    begin(&d, &made, OT_IO_POOL, 4);
    d.read.calls = &calls;
    check_ok(ot_checkpoint_read(d.checkpoint, &d.read));
    check_all_delivered(&d);
    if (atomic_load(&refusals) == 0)
        fprintf(stderr, "SKIP: this file system has no O_DIRECT\n");
    end(&d);
    remove_made(&made);
}

static void test_an_error_of_the_disk_names_file_and_offset(void **state) {
    struct made made;
    make_checkpoint(&made, OT_BF16);
    for (int64_t at = 1; at <= 61; at += tests_are_few() ? 40 : 20) {
        struct faults faults = {.fail_at = at, .fail_error = EIO, .fail_from_there = true};
        struct delivery d;
        int rc;
        read_under(*state, &faults, &d, &made, &rc);
        check_fails(rc, OT_E_IO, "cannot read at offset");
        assert_int_equal(ot_error_cause(), OT_CAUSE_CHECKPOINT);
        assert_non_null(strstr(ot_error_text(), made.folder));
        assert_true(count_missing(&d) > 0);
        end(&d);
    }
    remove_made(&made);
}

static void test_an_error_of_the_sink_ends_the_read(void **state) {
    const struct way *way = *state;
    struct made made;
    make_checkpoint(&made, OT_BF16);
    for (int at = 1; at < 8; at += 3)
        for (int n_slots = 4; n_slots <= (tests_are_few() ? 4 : 5); n_slots++) {
            struct delivery d;
            begin(&d, &made, way->engine, n_slots);
            d.fail_at = at;
            check_fails(ot_checkpoint_read(d.checkpoint, &d.read), OT_E_DEVICE, "the sink has enough");
            /* the other threads end the pieces that they have begun */
            assert_in_range(d.pieces, at, at + d.read.threads);
            end(&d);
        }
    remove_made(&made);
}

/* ---- damage ---- */

static void flip(const struct made *made, const char *name, int64_t at) {
    char path[512], byte;
    snprintf(path, sizeof path, "%s/%s", made->folder, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static int count_damage(void *context, const struct ot_segment *segment, int file, int rc) {
    struct delivery *d = context;
    assert_int_equal(rc, -OT_E_INPUT);
    assert_in_range(segment->slab, 0, MADE_SLABS - 1);
    assert_non_null(strstr(ot_error_text(), d->made->manifest.files[file].name));
    d->damaged++;
    return 0;
}

static int64_t file_bytes(const struct made *made, const char *name) {
    char path[512];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", made->folder, name);
    assert_int_equal(stat(path, &status), 0);
    return (int64_t)status.st_size;
}

static void check_open_fails(const struct made *made, const char *words) {
    struct ot_checkpoint *c = (struct ot_checkpoint *)&c; /* ot_checkpoint_open must set it to NULL */
    check_fails(ot_checkpoint_open(made->folder, &c), OT_E_INPUT, words);
    assert_null(c);
}

static void test_every_byte_of_manifest_and_record_counts(void **state) {
    (void)state;
    if (tests_are_for_races()) /* one thread reads both */
        return;
    struct made made;
    make_checkpoint(&made, OT_BF16);
    static const char *const names[] = {OT_MANIFEST_NAME, OT_RECORD_NAME};
    for (int i = 0; i < 2; i++)
        for (int64_t at = 0; at < file_bytes(&made, names[i]); at++) {
            flip(&made, names[i], at);
            check_open_fails(&made, names[i]);
            flip(&made, names[i], at);
        }
    remove_made(&made);
}

/* Pieces of a segment that is larger than a slot may arrive before its damage is found. */
static int take_whole_segments(void *context, const struct ot_segment *segment, const void *memory) {
    struct delivery *d = context;
    bool is_piece = segment->slab == 1 && segment->has_state;
    return is_piece ? 0 : take_segment(d, segment, memory);
}

/* The damaged bytes lie in spans of every file: the first byte, the last byte, and some between. */
static void test_every_byte_of_the_state_counts(void **state) {
    const struct way *way = *state;
    struct made made;
    make_checkpoint_with(&made, OT_BF16, way->engine == OT_IO_POOL ? OT_STATE_8BIT : OT_STATE_F32);
    const struct ot_manifest *m = &made.manifest;
    for (int64_t i = 0; i < m->n_spans; i += 1 + m->n_spans / (tests_are_few() ? 5 : 13)) {
        const struct ot_store_span *span = &m->spans[i];
        int64_t places[] = {0, span->bytes * (i % 7) / 7, span->bytes - 1};
        const char *name = m->files[span->file].name;
        char where[128];
        struct delivery d;
        snprintf(where, sizeof where, "/%s: damaged: the %lld bytes at offset %lld", name,
                 (long long)span->bytes, (long long)span->offset);
        flip(&made, name, span->offset + places[i % 3]);
        begin(&d, &made, way->engine, 3);
        d.read.sink = take_whole_segments;
        check_fails(ot_checkpoint_read(d.checkpoint, &d.read), OT_E_INPUT, where);
        end(&d);
        begin(&d, &made, way->engine, 3); /* if the reader is told to go on, it delivers all other segments */
        d.read.sink = take_whole_segments;
        d.read.damaged = count_damage;
        check_ok(ot_checkpoint_read(d.checkpoint, &d.read));
        assert_int_equal(d.damaged, 1);
        assert_int_equal(d.progress, ot_checkpoint_bytes(d.checkpoint));
        end(&d);
        flip(&made, name, span->offset + places[i % 3]);
    }
    remove_made(&made);
}

static void in_folder(const struct made *made, const char *name, char path[512]) {
    snprintf(path, 512, "%s/%s", made->folder, name);
}

static void test_files_that_are_not_what_they_were(void **state) {
    (void)state;
    static const char *const names[] = {OT_STATE_NAME, "nvme-0.store", OT_RECORD_NAME, OT_MANIFEST_NAME};
    struct made made;
    char path[512], other[512];
    make_checkpoint(&made, OT_BF16);
    in_folder(&made, "../offload-train-elsewhere", other);
    for (int i = 0; i < 4; i++) {
        int64_t bytes = file_bytes(&made, names[i]);
        in_folder(&made, names[i], path);
        assert_int_equal(rename(path, other), 0);
        check_open_fails(&made, i == 3 ? "incomplete one: it has no manifest.bin" : "it is missing");
        /* The right bytes, but through a link to a file outside the directory. */
        assert_int_equal(symlink(other, path), 0);
        check_open_fails(&made, "it is a symbolic link");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        check_open_fails(&made, "it is not a regular file");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        check_open_fails(&made, "it is not a regular file");
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(rename(other, path), 0);
        assert_int_equal(truncate(path, (off_t)bytes - 1), 0);
        check_open_fails(&made, names[i]);
        assert_int_equal(truncate(path, 0), 0);
        check_open_fails(&made, names[i]);
        remove_made(&made);
        make_checkpoint(&made, OT_BF16);
        in_folder(&made, "../offload-train-elsewhere", other);
    }
    in_folder(&made, OT_STATE_NAME, path);
    assert_int_equal(truncate(path, (off_t)file_bytes(&made, OT_STATE_NAME) + 1), 0);
    check_open_fails(&made, "state.bin: damaged: it has");
    remove_made(&made);
}

static void test_a_file_that_is_cut_while_it_is_open(void **state) {
    const struct way *way = *state;
    struct made made;
    struct delivery d;
    char path[512];
    make_checkpoint(&made, OT_BF16);
    begin(&d, &made, way->engine, 2);
    in_folder(&made, "nvme-1.store", path);
    assert_int_equal(truncate(path, (off_t)(file_bytes(&made, "nvme-1.store") / 2)), 0);
    d.read.sink = take_whole_segments;
    check_fails(ot_checkpoint_read(d.checkpoint, &d.read), OT_E_INPUT,
                "nvme-1.store: damaged: the file ends at");
    end(&d);
    remove_made(&made);
}

static void test_what_is_no_checkpoint(void **state) {
    (void)state;
    struct ot_checkpoint *c;
    char *folder = make_folder();
    char path[512];
    check_fails(ot_checkpoint_open(folder, &c), OT_E_INPUT, "not a checkpoint");
    snprintf(path, sizeof path, "%s/absent", folder);
    check_fails(ot_checkpoint_open(path, &c), OT_E_INPUT, "cannot open the directory of the checkpoint");
    write_file(folder, "absent", "x", 1);
    check_fails(ot_checkpoint_open(path, &c), OT_E_INPUT, "cannot open the directory of the checkpoint");
    remove_folder(folder);
}

static void test_a_removed_checkpoint_stays_readable_while_it_is_open(void **state) {
    const struct way *way = *state;
    static const char *const names[] = {OT_STATE_NAME, "nvme-0.store", "nvme-1.store"};
    struct made made;
    struct delivery d;
    char path[512];
    make_checkpoint(&made, OT_BF16);
    begin(&d, &made, way->engine, 2);
    for (int i = 0; i < 3; i++) {
        in_folder(&made, names[i], path);
        assert_int_equal(unlink(path), 0);
    }
    check_ok(ot_checkpoint_read(d.checkpoint, &d.read));
    check_all_delivered(&d);
    end(&d);
    remove_made(&made);
}

/* ---- the weights, in any order ---- */

static float master_of(enum ot_dtype dtype, int slab, int64_t i) {
    uint32_t weights = made_bits(MADE_WEIGHTS, slab, i), rest = made_bits(MADE_REST, slab, i);
    if (dtype == OT_BF16)
        return ot_join_f32((uint16_t)weights, (int16_t)(uint16_t)rest);
    return ot_f32_from_bits(dtype == OT_F32 ? weights : rest);
}

static void check_range(struct ot_checkpoint_master *master, enum ot_dtype dtype, int slab, int64_t first,
                        int64_t n) {
    float *values = malloc((size_t)n * sizeof *values + 1);
    check_ok(ot_checkpoint_master_get(master, slab, first, n, values));
    for (int64_t i = 0; i < n; i++) {
        float want = master_of(dtype, slab, first + i);
        /* Compares bits, because a NaN never equals itself. */
        if (memcmp(&values[i], &want, sizeof want) != 0)
            fail_msg("parameter %lld of slab %d is wrong", (long long)(first + i), slab);
    }
    free(values);
}

static void test_master_weights_of_any_range(void **state) {
    const struct way *way = *state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct made made;
        struct ot_checkpoint *c;
        struct ot_checkpoint_master *master;
        make_checkpoint(&made, (enum ot_dtype)dtype);
        check_ok(ot_checkpoint_open(made.folder, &c));
        check_ok(ot_checkpoint_master_open(c, way->engine, NULL, &master));
        for (int slab = 0; slab < MADE_SLABS; slab++) {
            int64_t params = made.manifest.slab_params[slab];
            check_range(master, (enum ot_dtype)dtype, slab, 0, params);
            check_range(master, (enum ot_dtype)dtype, slab, params - 1, 1);
            check_range(master, (enum ot_dtype)dtype, slab, params, 0);
            for (int64_t i = 0; i < 20; i++) {
                int64_t first = i * 7919 * 31 % params, n = 1 + i * 104729 % 5000;
                check_range(master, (enum ot_dtype)dtype, slab, first,
                            n < params - first ? n : params - first);
            }
            float value;
            check_fails(ot_checkpoint_master_get(master, slab, params, 1, &value), OT_E_INPUT,
                        "no parameters");
            check_fails(ot_checkpoint_master_get(master, slab, -1, 1, &value), OT_E_INPUT, "no parameters");
        }
        ot_checkpoint_master_close(master);
        ot_checkpoint_close(c);
        remove_made(&made);
    }
}

static void test_damaged_master_weights_are_not_given_out(void **state) {
    const struct way *way = *state;
    struct made made;
    struct ot_checkpoint *c;
    struct ot_checkpoint_master *master;
    float values[8];
    make_checkpoint(&made, OT_BF16);
    const struct ot_store_span *span = &made.manifest.spans[made.manifest.segments[0].n_spans];
    flip(&made, made.manifest.files[span->file].name, span->offset + 17);
    check_ok(ot_checkpoint_open(made.folder, &c));
    check_ok(ot_checkpoint_master_open(c, way->engine, NULL, &master));
    int refused = 0;
    for (int slab = 0; slab < MADE_SLABS; slab++)
        for (int64_t first = 0; first < made.manifest.slab_params[slab]; first += OT_SLAB_ALIGN_PARAMS) {
            int rc = ot_checkpoint_master_get(master, slab, first, 8, values);
            assert_true(rc == 0 ||
                        (rc == -OT_E_INPUT && strstr(ot_error_text(), "have changed since they were")));
            refused += rc < 0;
        }
    assert_in_range(refused, 1, 20);
    ot_checkpoint_master_close(master);
    ot_checkpoint_close(c);
    remove_made(&made);
}

static void test_master_weights_under_faults(void **state) {
    const struct way *way = *state;
    struct faults storm = {.short_transfers = true, .storm_percent = 20, .storm_error = EINTR};
    struct ot_io_calls calls = faulty_calls(&storm);
    struct made made;
    struct ot_checkpoint *c;
    struct ot_checkpoint_master *master;
    char path[512];
    float value;
    make_checkpoint(&made, OT_BF16);
    check_ok(ot_checkpoint_open(made.folder, &c));
    check_ok(ot_checkpoint_master_open(c, way->engine, &calls, &master));
    for (int slab = 0; slab < MADE_SLABS; slab++)
        check_range(master, OT_BF16, slab, 0, made.manifest.slab_params[slab]);
    ot_checkpoint_master_close(master);
    in_folder(&made, "nvme-1.store", path); /* cut while it is open: said again and again */
    assert_int_equal(truncate(path, 0), 0);
    check_ok(ot_checkpoint_master_open(c, way->engine, NULL, &master));
    int refused = 0;
    for (int time = 0; time < 2; time++)
        for (int64_t at = 0; at < made.manifest.slab_params[1]; at += OT_SLAB_ALIGN_PARAMS) {
            int rc = ot_checkpoint_master_get(master, 1, at, 1, &value);
            refused += rc < 0;
            if (rc < 0)
                check_fails(rc, OT_E_INPUT, "nvme-1.store: damaged: the file ends at");
        }
    assert_true(refused > 0 && refused % 2 == 0);
    ot_checkpoint_master_close(master);
    ot_checkpoint_close(c);
    remove_made(&made);
}

int main(void) {
    const struct CMUnitTest by_engine[] = {
        cmocka_unit_test(test_every_value_arrives_once),
        cmocka_unit_test(test_compact_values_arrive_once),
        cmocka_unit_test(test_short_and_interrupted_reads_are_taken_up),
        cmocka_unit_test(test_an_error_of_the_disk_names_file_and_offset),
        cmocka_unit_test(test_an_error_of_the_sink_ends_the_read),
        cmocka_unit_test(test_every_byte_of_the_state_counts),
        cmocka_unit_test(test_a_file_that_is_cut_while_it_is_open),
        cmocka_unit_test(test_a_removed_checkpoint_stays_readable_while_it_is_open),
        cmocka_unit_test(test_master_weights_of_any_range),
        cmocka_unit_test(test_damaged_master_weights_are_not_given_out),
        cmocka_unit_test(test_master_weights_under_faults),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_a_checkpoint_says_what_it_is),
        cmocka_unit_test(test_where_o_direct_is_refused_it_reads_buffered),
        cmocka_unit_test(test_every_byte_of_manifest_and_record_counts),
        cmocka_unit_test(test_files_that_are_not_what_they_were),
        cmocka_unit_test(test_what_is_no_checkpoint),
    };
    enum { N = sizeof by_engine / sizeof *by_engine };
    int failures = 0;
    for (int way = 0; way < N_WAYS; way++) {
        struct CMUnitTest of_way[N];
        if (ways[way].buffered) /* a stream begins with O_DIRECT by itself, and falls back from it */
            continue;
        if (ways[way].engine == OT_IO_URING && ring_is_refused()) {
            fprintf(stderr, "SKIP: %s: %s\n", ways[way].name, ot_error_text());
            continue;
        }
        memcpy(of_way, by_engine, sizeof by_engine);
        for (int i = 0; i < N; i++)
            of_way[i].initial_state = (void *)&ways[way];
        failures += _cmocka_run_group_tests(ways[way].name, of_way, N, NULL, NULL);
    }
    return failures + cmocka_run_group_tests(others, NULL, NULL);
}
