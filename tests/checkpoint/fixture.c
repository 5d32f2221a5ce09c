#include "tests/checkpoint/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/hash.h"

/* ---- a made-up run ---- */

struct ot_chain fixture_chain(enum ot_dtype dtype, bool large) {
    static const struct ot_slab_spec small_slabs[] = {{.name = "embed", .n_params = 20 * 2048},
                                                      {.name = "head", .n_params = 3 * 2048}},
                                     large_slabs[] = {
                                         {.name = "embed", .n_params = OT_SEGMENT_PARAMS + 5 * 2048},
                                         {.name = "layer.0", .n_params = 7 * 2048},
                                         {.name = "head", .n_params = 2 * OT_SEGMENT_PARAMS}};
    return (struct ot_chain){
        .dtype = dtype, .n_slabs = large ? 3 : 2, .slabs = large ? large_slabs : small_slabs};
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void fixture_fill(enum ot_dtype dtype, uint64_t seed, const struct ot_segment *segment, void *memory) {
    uint64_t stream = mix(seed * 64 + (uint64_t)segment->slab) * OT_SEGMENT_ARRAYS;
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++, stream++) {
        struct ot_segment_values place = ot_segment_find(dtype, segment, array);
        char *at = (char *)memory + place.offset, *end = at + ot_segment_value_bytes(place, segment->n);
        /* In parts: for a sanitizer, one call of memcpy for each value would take longer than all else. */
        char made[512 + sizeof(uint64_t)];
        for (int64_t i = segment->first / place.per; at < end;) {
            size_t n = 0;
            for (; n < 512 && at + n < end; i++, n += place.width) {
                uint64_t value = mix(stream + (uint64_t)i * 0x9e3779b97f4a7c15u);
                memcpy(made + n, &value, sizeof value); /* the next value overwrites what is too much */
            }
            memcpy(at, made, n);
            at += n;
        }
    }
}

static int refer_slab(const struct saving *saving, const struct ot_snapshot_sink *sink, int slab) {
    struct ot_store_span spans[64];
    for (int i = 0; i < 2; i++) {
        struct ot_segment segment = {slab,           0,      saving->chain->slabs[slab].n_params,
                                     i == 0,         i == 1, saving->chain->state,
                                     OT_MASTERS_F32, false};
        int n = ot_store_find_spans(saving->store, saving->pins[i], spans, 64);
        assert_in_range(n, 0, 64);
        OT_TRY(sink->refer(sink->context, &segment, spans, n));
    }
    return 0;
}

static int put_all(const struct saving *saving, const struct ot_snapshot_sink *sink) {
    const struct ot_chain *chain = saving->chain;
    for (int slab = chain->n_slabs - 1; slab >= 0; slab--) {
        if (slab == 1 && saving->lacking)
            continue;
        if (slab == 1 && saving->store) {
            OT_TRY(refer_slab(saving, sink, slab));
            continue;
        }
        for (int64_t first = 0, n; first < chain->slabs[slab].n_params; first += n) {
            int64_t left = chain->slabs[slab].n_params - first;
            void *memory;
            n = left < OT_SEGMENT_PARAMS ? left : OT_SEGMENT_PARAMS;
            struct ot_segment segment = {slab, first, n, true, true, chain->state, OT_MASTERS_F32, false};
            OT_TRY(sink->room(sink->context, &memory));
            fixture_fill(chain->dtype, saving->seed, &segment, memory);
            OT_TRY(sink->put(sink->context, &segment, memory));
        }
    }
    return saving->abandoned ? 0 : sink->end(sink->context);
}

/* Fills the bytes of each slot that a segment of the chain may take, so that bytes which were not put show.
 * The rest of the slots is never touched. */
static void soil(const struct ot_chain *chain, char *memory, int n_slots) {
    size_t slot = ot_segment_slot_bytes(chain->dtype), most = 0;
    for (int slab = 0; slab < chain->n_slabs; slab++) {
        int64_t n = chain->slabs[slab].n_params;
        struct ot_segment segment = {slab,           0,    n < OT_SEGMENT_PARAMS ? n : OT_SEGMENT_PARAMS,
                                     true,           true, OT_STATE_F32,
                                     OT_MASTERS_F32, false};
        size_t bytes = ot_segment_bytes(chain->dtype, &segment);
        most = bytes > most ? bytes : most;
    }
    most = (most + 2 * 4096 - 1) / 4096 * 4096; /* whole blocks of O_DIRECT, and one more */
    for (int i = 0; i < n_slots; i++)
        memset(memory + (size_t)i * slot, 0x5a, most < slot ? most : slot);
}

int fixture_save(struct saving *saving) {
    struct ot_checkpoint_record record = {.progress = {.step = saving->step, .loss_scale = 1},
                                          .library = "test",
                                          .device = "none",
                                          .made = "now"};
    int n_slots = saving->n_slots ? saving->n_slots : 2;
    size_t bytes = ot_segment_slot_bytes(saving->chain->dtype) * (size_t)n_slots;
    struct ot_checkpoint_writer_config config = {
        .parent = saving->parent,
        .chain = saving->chain,
        .record = &record,
        .memory = aligned_alloc(4096, bytes),
        .n_slots = n_slots,
        .io_engine = saving->io_engine,
        .state_bytes = saving->unreserved ? 0 : ot_checkpoint_state_bytes(saving->chain),
        .store = saving->store,
        .calls = saving->faulty ? &fixture_calls : NULL,
    };
    struct ot_checkpoint_writer *writer = NULL;
    soil(saving->chain, config.memory, n_slots);
    int rc = ot_checkpoint_writer_open(&config, &writer);
    if (rc == 0) {
        struct ot_snapshot_sink sink = ot_checkpoint_writer_sink(writer);
        rc = put_all(saving, &sink);
        ot_checkpoint_writer_count(writer, &saving->written, &saving->referred);
        ot_checkpoint_writer_close(writer);
    }
    free(config.memory);
    return rc;
}

/* ---- examining a checkpoint ---- */

static char *read_whole(const char *dir, const char *name, size_t *n) {
    char path[PATH_MAX];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    assert_int_equal(fstat(fd, &info), 0);
    char *data = malloc((size_t)info.st_size + 1);
    *n = (size_t)info.st_size;
    assert_int_equal(read(fd, data, *n), (ssize_t)*n);
    close(fd);
    return data;
}

static const char *examine_segment(const struct saving *saving, const struct ot_manifest *m,
                                   const struct ot_manifest_segment *segment, char *const *files,
                                   const size_t *sizes) {
    size_t bytes = ot_segment_bytes(m->dtype, &segment->segment), at = 0;
    const char *fault_found = NULL;
    char *want = malloc(bytes + 1), *got = malloc(bytes + OT_STORE_ALIGN);
    fixture_fill(m->dtype, saving->seed, &segment->segment, want);
    for (int i = 0; i < segment->n_spans && !fault_found; i++) {
        const struct ot_store_span *span = &m->spans[segment->first_span + i];
        if (!files[span->file] || sizes[span->file] < (size_t)(span->offset + span->bytes))
            fault_found = "a file is missing or cut";
        else if (ot_crc32(0, files[span->file] + span->offset, (size_t)span->bytes) != span->crc)
            fault_found = "a checksum is wrong";
        else
            memcpy(got + at, files[span->file] + span->offset, (size_t)span->bytes);
        at += (size_t)span->bytes;
    }
    if (!fault_found && (segment->n_spans == 0 || memcmp(got, want, bytes) != 0))
        fault_found = "the bytes are others";
    free(want);
    free(got);
    return fault_found;
}

static const char *examine_files(const struct saving *saving, const struct ot_manifest *m, const char *dir) {
    char *files[OT_MANIFEST_MAX_FILES] = {0};
    size_t sizes[OT_MANIFEST_MAX_FILES], n = 0;
    const char *fault_found = NULL;
    char *record = read_whole(dir, OT_RECORD_NAME, &n);
    if (!record || (int64_t)n != m->record_bytes || ot_crc32(0, record, n) != m->record_crc)
        fault_found = "checkpoint.json is not the one";
    free(record);
    for (int i = 0; i < m->n_files; i++)
        files[i] = read_whole(dir, m->files[i].name, &sizes[i]);
    if (files[0] && (int64_t)sizes[0] != m->files[0].bytes)
        fault_found = "state.bin has another size";
    for (int64_t i = 0; i < m->n_segments && !fault_found; i++)
        fault_found = examine_segment(saving, m, &m->segments[i], files, sizes);
    for (int i = 0; i < m->n_files; i++)
        free(files[i]);
    return fault_found;
}

const char *fixture_examine(const struct saving *saving, const char *dir) {
    struct ot_manifest m;
    size_t n;
    char *bytes = read_whole(dir, OT_MANIFEST_NAME, &n);
    if (!bytes)
        return "no manifest";
    int rc = ot_manifest_decode((unsigned char *)bytes, n, "manifest.bin", &m);
    free(bytes);
    if (rc < 0)
        return ot_error_text();
    const char *fault_found = examine_files(saving, &m, dir);
    ot_manifest_free(&m);
    return fault_found;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *fixture_names(const char *path) {
    static char joined[4096];
    char *names[64];
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) && n < 64;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            names[n++] = strdup(entry->d_name);
    closedir(dir);
    qsort(names, (size_t)n, sizeof *names, compare_texts);
    joined[0] = '\0';
    for (int i = 0; i < n; i++) {
        snprintf(joined + strlen(joined), sizeof joined - strlen(joined), "%s%s", i ? " " : "", names[i]);
        free(names[i]);
    }
    return joined;
}

/* ---- the seam for faults ---- */

struct fixture_fault fault;
char *fixture_log;
static atomic_int seen;
static atomic_bool struck;
static atomic_uint nuisances;

void fixture_clear_fault(void) {
    fault = (struct fixture_fault){.free_bytes = -1};
    atomic_store(&seen, 0);
    atomic_store(&struck, false);
}

bool fixture_was_struck(void) {
    return atomic_load(&struck);
}

enum { KILLED = 1 }; /* the call is a write, and the process must end during it */

/* Ends the process as `kill -9` does. */
static _Noreturn void end_process(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

bool fixture_runs_in_child(int (*run)(void *context), void *context) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(run(context) < 0 ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return false;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
}

/* Returns -errno if this call must fail, else 0. If the process must end, it ends here; for a write this
 * returns KILLED instead. */
static int strike(enum fixture_call call, bool is_write) {
    if (!(fault.calls & call))
        return 0;
    int number = atomic_fetch_add(&seen, 1);
    if (number != fault.at && !(fault.lasting && number > fault.at))
        return 0;
    atomic_store(&struck, true);
    if (fault.error)
        return -fault.error;
    if (!is_write)
        end_process();
    return KILLED;
}

/* Whole blocks of 4 KiB, as O_DIRECT needs them. */
static size_t shortened(size_t bytes) {
    return fault.short_writes && bytes > 4096 ? bytes / 2 / 4096 * 4096 + 4096 : bytes;
}

static bool is_interrupted(void) {
    return fault.interrupts && atomic_fetch_add(&nuisances, 1) % 3 == 0;
}

static ssize_t seam_write(void *context, int fd, const void *data, size_t bytes) {
    if (is_interrupted())
        return -EINTR;
    int error = strike(CALL_WRITE, true);
    if (error == KILLED) {
        (void)!write(fd, data, bytes * fault.share / 100);
        end_process();
    }
    return error ? error : ot_io_system.write(context, fd, data, shortened(bytes));
}

static int seam_fsync(void *context, int fd) {
    char link[64], path[PATH_MAX] = "";
    (void)context;
    int error = strike(CALL_FSYNC, false);
    if (error)
        return error;
    if (fixture_log) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        assert_true(readlink(link, path, sizeof path - 1) > 0);
        snprintf(fixture_log + strlen(fixture_log), FIXTURE_LOG_BYTES - strlen(fixture_log), "flush %s; ",
                 strrchr(path, '/') + 1);
    }
    /* The flush itself is left out, because no test can see what is on the disk. */
    return fcntl(fd, F_GETFD) < 0 ? -errno : 0;
}

static int64_t seam_free_bytes(void *context, const char *path) {
    return fault.free_bytes >= 0 ? fault.free_bytes : ot_io_system.free_bytes(context, path);
}

static int seam_open(void *context, int dir_fd, const char *name, int flags, mode_t mode) {
    if (fault.no_direct && flags & O_DIRECT)
        return -EINVAL;
    int error = strike(CALL_OPEN, false);
    return error ? error : ot_io_system.open(context, dir_fd, name, flags, mode);
}

static int seam_make_dir(void *context, int dir_fd, const char *name) {
    int error = strike(CALL_MAKE_DIR, false);
    return error ? error : ot_io_system.make_dir(context, dir_fd, name);
}

static int seam_truncate(void *context, int fd, off_t bytes) {
    int error = strike(CALL_TRUNCATE, false);
    return error ? error : ot_io_system.truncate(context, fd, bytes);
}

static int seam_rename(void *context, int dir_fd, const char *from, const char *to) {
    int error = strike(CALL_RENAME, false);
    if (error)
        return error;
    if (fixture_log)
        snprintf(fixture_log + strlen(fixture_log), FIXTURE_LOG_BYTES - strlen(fixture_log), "rename; ");
    return ot_io_system.rename(context, dir_fd, from, to);
}

static int seam_remove(void *context, int dir_fd, const char *name, int flags) {
    int error = strike(CALL_REMOVE, false);
    return error ? error : ot_io_system.remove(context, dir_fd, name, flags);
}

static int seam_allocate(void *context, int fd, int mode, off_t offset, off_t bytes) {
    if (fault.no_reserve)
        return -EOPNOTSUPP;
    int error = strike(CALL_RESERVE, false);
    return error ? error : ot_io_system.allocate(context, fd, mode, offset, bytes);
}

static ssize_t seam_pread(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    return ot_io_system.pread(context, fd, memory, bytes, offset);
}

static ssize_t seam_pwrite(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    if (is_interrupted())
        return -EINTR;
    if (fault.no_direct_transfer && fcntl(fd, F_GETFL) & O_DIRECT)
        return -EINVAL;
    int error = strike(CALL_PWRITE, true);
    if (error == KILLED) {
        (void)!pwrite(fd, memory, bytes * fault.share / 100 / 4096 * 4096, offset);
        end_process();
    }
    if (error)
        return error;
    ssize_t n = ot_io_system.pwrite(context, fd, memory, shortened(bytes), offset);
    /* Not a multiple of whole blocks. */
    return fault.short_writes && n > 4096 && n < (ssize_t)bytes ? n - 100 : n;
}

static int seam_ring_setup(void *context, unsigned flags) {
    return ot_io_system.ring_setup(context, flags);
}

static int seam_ring_register(void *context, bool buffers) {
    return ot_io_system.ring_register(context, buffers);
}

static int seam_ring_result(void *context, bool write, int result) {
    (void)context;
    if (write && is_interrupted())
        return -EINTR;
    int error = write ? strike(CALL_PWRITE, false) : 0;
    return error ? error : result;
}

const struct ot_io_calls fixture_calls = {.open = seam_open,
                                          .allocate = seam_allocate,
                                          .truncate = seam_truncate,
                                          .fsync = seam_fsync,
                                          .write = seam_write,
                                          .pread = seam_pread,
                                          .pwrite = seam_pwrite,
                                          .make_dir = seam_make_dir,
                                          .rename = seam_rename,
                                          .remove = seam_remove,
                                          .free_bytes = seam_free_bytes,
                                          .ring_setup = seam_ring_setup,
                                          .ring_register = seam_ring_register,
                                          .ring_result = seam_ring_result};
