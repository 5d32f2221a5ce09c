#include "src/checkpoint/reader.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/checkpoint/reader_state.h"
#include "src/checkpoint/step_dir.h"
#include "src/checkpoint/writer.h"

/* ---- errors ---- */

int ot_checkpoint_fail_damaged(const struct ot_checkpoint *checkpoint, const char *name, const char *format,
                               ...) {
    va_list args;
    char what[OT_ERROR_TEXT_BYTES];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return ot_fail_cause(OT_E_INPUT, OT_CAUSE_CHECKPOINT, "%s/%s: damaged: %s", checkpoint->dir, name, what);
}

int ot_checkpoint_fail_span(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            uint32_t crc) {
    return ot_checkpoint_fail_damaged(
        checkpoint, checkpoint->manifest.files[span->file].name,
        "the %lld bytes at offset %lld have changed since they were written (CRC-32 %08x, was %08x)",
        (long long)span->bytes, (long long)span->offset, crc, span->crc);
}

int ot_checkpoint_fail_read(const struct ot_checkpoint *checkpoint, const struct ot_store_span *span,
                            int64_t offset, int64_t result) {
    const char *name = checkpoint->manifest.files[span->file].name;
    if (result == 0)
        return ot_checkpoint_fail_damaged(checkpoint, name, "the file ends at offset %lld, too early",
                                          (long long)offset);
    return ot_fail_cause(OT_E_IO, OT_CAUSE_CHECKPOINT,
                         "%s/%s: cannot read at offset %lld: %s; look for disk errors with `dmesg`",
                         checkpoint->dir, name, (long long)offset,
                         result < 0 ? strerror((int)-result) : "reads return too few bytes again and again");
}

/* ---- files ---- */

/* Opens a regular file of the directory itself. O_NONBLOCK: opening a named pipe must not wait for a
 * writer. */
static int open_file(const struct ot_checkpoint *c, int dir_fd, const char *name, int *fd, int64_t *bytes) {
    struct stat status;
    *fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0 && (errno == ENOENT || errno == ELOOP))
        return ot_checkpoint_fail_damaged(c, name,
                                          errno == ENOENT ? "it is missing" : "it is a symbolic link");
    if (*fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s/%s: cannot open the file", c->dir, name);
    if (fstat(*fd, &status) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s/%s: cannot read the file's size", c->dir, name);
    if (!S_ISREG(status.st_mode))
        return ot_checkpoint_fail_damaged(c, name, "it is not a regular file");
    *bytes = (int64_t)status.st_size;
    return 0;
}

static int read_whole(const struct ot_checkpoint *c, const char *name, int fd, char *text, int64_t bytes) {
    int64_t n = ot_read_at(fd, text, (size_t)bytes, 0);
    if (n < 0)
        return ot_fail_errno(OT_E_IO, (int)-n, "%s/%s: cannot read the file", c->dir, name);
    return n == bytes
               ? 0
               : ot_checkpoint_fail_damaged(c, name, "the file ends at byte %lld, too early", (long long)n);
}

/* Reads a small file; the caller frees the text. want: its size in bytes; -1: any size up to `most`. */
static int read_small(const struct ot_checkpoint *c, int dir_fd, const char *name, int64_t want, int64_t most,
                      char **text, int64_t *bytes) {
    int fd, rc;
    *text = NULL;
    OT_TRY_GOTO(open_file(c, dir_fd, name, &fd, bytes), rc, out);
    if (want >= 0 && *bytes != want)
        rc = ot_checkpoint_fail_damaged(c, name, "it has %lld bytes, should have %lld", (long long)*bytes,
                                        (long long)want);
    else if (*bytes > most)
        rc = ot_checkpoint_fail_damaged(c, name, "it has %lld bytes, at most %lld are allowed",
                                        (long long)*bytes, (long long)most);
    else if (!(*text = malloc((size_t)*bytes + 1)))
        rc = ot_fail(OT_E_BUDGET, "%s/%s: no memory for the file's %lld bytes", c->dir, name,
                     (long long)*bytes);
    else
        rc = read_whole(c, name, fd, *text, *bytes);
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- opening ---- */

static int take_manifest(struct ot_checkpoint *c, int dir_fd) {
    char *text, *where = NULL;
    int64_t bytes;
    int rc;
    if (faccessat(dir_fd, OT_MANIFEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return ot_fail(OT_E_INPUT, "%s: not a checkpoint, or an incomplete one: it has no " OT_MANIFEST_NAME,
                       c->dir);
    OT_TRY_GOTO(read_small(c, dir_fd, OT_MANIFEST_NAME, -1, OT_MANIFEST_MAX_BYTES, &text, &bytes), rc, out);
    OT_TRY_GOTO(ot_string_format(&where, "%s/" OT_MANIFEST_NAME, c->dir), rc, out);
    rc = ot_manifest_decode((const unsigned char *)text, (size_t)bytes, where, &c->manifest);
out:
    free(where);
    free(text);
    return rc;
}

static int take_record(struct ot_checkpoint *c, int dir_fd) {
    char *text, *where = NULL;
    int64_t bytes;
    int rc;
    OT_TRY_GOTO(
        read_small(c, dir_fd, OT_RECORD_NAME, c->manifest.record_bytes, OT_RECORD_MAX_BYTES, &text, &bytes),
        rc, out);
    uint32_t crc = ot_crc32(0, text, (size_t)bytes);
    if (crc != c->manifest.record_crc) {
        rc = ot_checkpoint_fail_damaged(c, OT_RECORD_NAME, "its CRC-32 is %08x, should be %08x", crc,
                                        c->manifest.record_crc);
        goto out;
    }
    OT_TRY_GOTO(ot_string_format(&where, "%s/" OT_RECORD_NAME, c->dir), rc, out);
    rc = ot_checkpoint_record_decode(text, (size_t)bytes, where, &c->record);
out:
    free(where);
    free(text);
    return rc;
}

/* A checkpoint whose directory has the name of another step would be resumed, kept and removed as that
 * step. */
static int check_name(const struct ot_checkpoint *c) {
    char name[OT_STEP_NAME_BYTES];
    size_t end = strlen(c->dir), begin;
    int64_t step;
    bool partial;
    while (end > 1 && c->dir[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && c->dir[begin - 1] != '/';)
        begin--;
    if (end - begin >= sizeof name)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), c->dir + begin);
    if (!ot_step_parse(name, &step, &partial) || step == c->record.progress.step)
        return 0;
    return ot_checkpoint_fail_damaged(c, OT_RECORD_NAME,
                                      "it says step %lld, but the directory has the name of another step",
                                      (long long)c->record.progress.step);
}

static int take_files(struct ot_checkpoint *c, int dir_fd) {
    int64_t bytes = 0;
    c->fds = malloc((size_t)(c->manifest.n_files + 1) * sizeof *c->fds);
    if (!c->fds)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the checkpoint", c->dir);
    for (int i = 0; i < c->manifest.n_files; i++)
        c->fds[i] = -1;
    for (int i = 0; i < c->manifest.n_files; i++) {
        const struct ot_manifest_file *file = &c->manifest.files[i];
        if (c->record.hosts && faccessat(dir_fd, file->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
            errno == ENOENT)
            continue; /* another host has it */
        OT_TRY(open_file(c, dir_fd, file->name, &c->fds[i], &bytes));
        bool exact = strncmp(file->name, "state", strlen("state")) == 0;
        if (bytes < file->bytes || (exact && bytes != file->bytes))
            return ot_checkpoint_fail_damaged(c, file->name, "it has %lld bytes, should have %lld",
                                              (long long)bytes, (long long)file->bytes);
    }
    return 0;
}

/* Fills in span_begin, and checks that a segment larger than a slot can be cut at offsets that O_DIRECT
 * accepts. */
static int take_segments(struct ot_checkpoint *c) {
    const struct ot_manifest *m = &c->manifest;
    c->span_begin = malloc((size_t)(m->n_spans + 1) * sizeof *c->span_begin);
    if (!c->span_begin)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld spans", c->dir, (long long)m->n_spans);
    for (int64_t i = 0; i < m->n_segments; i++) {
        const struct ot_manifest_segment *segment = &m->segments[i];
        int64_t begin = 0;
        for (int64_t s = segment->first_span; s < segment->first_span + segment->n_spans; s++) {
            c->span_begin[s] = begin;
            begin += m->spans[s].bytes;
        }
        c->bytes += begin;
        if (ot_segment_bytes(m->dtype, &segment->segment) > ot_segment_slot_bytes(m->dtype) &&
            segment->segment.n % OT_SLAB_ALIGN_PARAMS != 0)
            return ot_checkpoint_fail_damaged(
                c, OT_MANIFEST_NAME, "segment %lld has %lld parameters, not a multiple of %d", (long long)i,
                (long long)segment->segment.n, OT_SLAB_ALIGN_PARAMS);
    }
    return 0;
}

int ot_checkpoint_open(const char *dir, struct ot_checkpoint **out) {
    *out = NULL;
    int rc, dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return ot_fail_errno(errno == ENOENT || errno == ENOTDIR ? OT_E_INPUT : OT_E_IO, errno,
                             "%s: cannot open the directory of the checkpoint", dir);
    struct ot_checkpoint *c = calloc(1, sizeof *c);
    if (!c || !(c->dir = strdup(dir))) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to open the checkpoint", dir);
        goto out;
    }
    OT_TRY_GOTO(take_manifest(c, dir_fd), rc, out);
    OT_TRY_GOTO(take_record(c, dir_fd), rc, out);
    OT_TRY_GOTO(check_name(c), rc, out);
    OT_TRY_GOTO(take_files(c, dir_fd), rc, out);
    rc = take_segments(c);
out:
    close(dir_fd);
    if (rc < 0)
        ot_checkpoint_close(c);
    else
        *out = c;
    return rc;
}

void ot_checkpoint_close(struct ot_checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    for (int i = 0; checkpoint->fds && i < checkpoint->manifest.n_files; i++)
        if (checkpoint->fds[i] >= 0)
            close(checkpoint->fds[i]);
    free(checkpoint->fds);
    free(checkpoint->span_begin);
    ot_manifest_free(&checkpoint->manifest);
    ot_checkpoint_record_free(&checkpoint->record);
    free(checkpoint->dir);
    free(checkpoint);
}

const char *ot_checkpoint_dir(const struct ot_checkpoint *checkpoint) {
    return checkpoint->dir;
}

const struct ot_checkpoint_record *ot_checkpoint_record(const struct ot_checkpoint *checkpoint) {
    return &checkpoint->record;
}

const struct ot_manifest *ot_checkpoint_manifest(const struct ot_checkpoint *checkpoint) {
    return &checkpoint->manifest;
}

int64_t ot_checkpoint_bytes(const struct ot_checkpoint *checkpoint) {
    return checkpoint->bytes;
}

bool ot_checkpoint_has_file(const struct ot_checkpoint *checkpoint, int file) {
    return checkpoint->fds[file] >= 0;
}

/* The rank that wrote a file: state.bin, state-RANK.bin, nvme-N.store or nvme-RANK-N.store. */
static int rank_of_file(const char *name) {
    int rank = 0, n;
    if (sscanf(name, "state-%d.bin", &rank) == 1 || sscanf(name, "nvme-%d-%d.store", &rank, &n) == 2)
        return rank;
    return 0;
}

int ot_checkpoint_fail_missing(const struct ot_checkpoint *c, int file) {
    char host[OT_RECORD_HOST_BYTES];
    const char *name = c->manifest.files[file].name;
    int rank = rank_of_file(name);
    return ot_fail_cause(
        OT_E_INPUT, OT_CAUSE_CHECKPOINT,
        "%s: %s is not here: rank %d kept it on host %s (--save-local); start the same ranks on the "
        "same hosts, or copy this directory of every host into one, which is then an ordinary "
        "checkpoint",
        c->dir, name, rank, ot_checkpoint_record_host(&c->record, rank, host));
}

int ot_checkpoint_check_whole(const struct ot_checkpoint *checkpoint) {
    for (int i = 0; i < checkpoint->manifest.n_files; i++)
        if (!ot_checkpoint_has_file(checkpoint, i))
            return ot_checkpoint_fail_missing(checkpoint, i);
    return 0;
}

int64_t ot_checkpoint_find_span(const struct ot_checkpoint *checkpoint,
                                const struct ot_manifest_segment *segment, int64_t at) {
    int64_t low = segment->first_span, high = segment->first_span + segment->n_spans - 1;
    while (low < high) { /* find the last span that begins at or before `at` */
        int64_t middle = low + (high - low + 1) / 2;
        if (checkpoint->span_begin[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- reading ahead ---- */

/* Reads whole spans ahead of a caller who needs them in a known order.
 *
 * The WINDOW is a run of consecutive places of that order. Each place of the window has a slot: the slot of
 * place p is number p % n_slots. The window follows the caller: a few spans stay behind it, and all others
 * are being read ahead or have been read. A caller who leaves the window begins a new one. */

/* Enough reads of 1 MiB for the full rate of a disk, with time to spare while the caller works on a span. */
enum { WINDOW_BYTES = 64 << 20, MOST_SLOTS = 64 };
/* A range of weights needs at most 4 spans at once: its low bits and its weights lie in different spans, and
 * each may cross the border of two spans. */
enum { BEHIND = 4, LEAST_SLOTS = BEHIND + 2 };

struct slot {
    char *memory;
    struct ot_io_chunk chunk;
    int64_t result; /* of a read that failed */
    bool in_flight, failed, is_checked;
};

struct ot_span_reader {
    struct ot_checkpoint *checkpoint;
    const int64_t *order; /* [n] spans */
    int64_t n;
    int64_t *place;      /* [n_spans]: the span's place in the order; -1: none */
    int64_t begin, next; /* the window: places that have a slot */
    int n_slots;
    struct slot slots[MOST_SLOTS];
    char *memory;
    bool *direct; /* [n_files] */
    struct ot_io_engine *engine;
};

/* ---- opening ---- */

static int allocate(struct ot_span_reader *r, enum ot_io_choice io_engine, const struct ot_io_calls *calls) {
    const struct ot_checkpoint *c = r->checkpoint;
    const struct ot_manifest *m = &c->manifest;
    int64_t most = OT_STORE_ALIGN;
    for (int64_t i = 0; i < r->n; i++)
        most = ot_max(m->spans[r->order[i]].bytes, most);
    r->n_slots = most * MOST_SLOTS <= WINDOW_BYTES ? MOST_SLOTS : (int)(WINDOW_BYTES / most);
    r->n_slots = ot_max(r->n_slots, LEAST_SLOTS);
    r->memory = aligned_alloc(OT_STORE_ALIGN, (size_t)(most * r->n_slots));
    r->place = malloc((size_t)(m->n_spans + 1) * sizeof *r->place);
    r->direct = calloc((size_t)m->n_files + 1, sizeof *r->direct);
    if (!r->memory || !r->place || !r->direct)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read spans of %lld bytes", c->dir, (long long)most);
    for (int64_t i = 0; i < m->n_spans; i++)
        r->place[i] = -1;
    for (int64_t i = 0; i < r->n; i++)
        r->place[r->order[i]] = i;
    for (int i = 0; i < r->n_slots; i++)
        r->slots[i] = (struct slot){.memory = r->memory + i * most};
    for (int i = 0; i < m->n_files; i++)
        r->direct[i] = ot_checkpoint_has_file(c, i) && ot_set_direct(c->fds[i], true);
    const struct ot_io_engine_config engine = {.choice = io_engine,
                                               .calls = calls,
                                               .n_files = m->n_files,
                                               .files = c->fds,
                                               .depth = r->n_slots,
                                               .arena = r->memory,
                                               .arena_bytes = (size_t)(most * r->n_slots)};
    return ot_io_engine_open(&engine, &r->engine);
}

int ot_span_reader_open(struct ot_checkpoint *checkpoint, const int64_t *order, int64_t n,
                        enum ot_io_choice io_engine, const struct ot_io_calls *calls,
                        struct ot_span_reader **out) {
    struct ot_span_reader *r = *out = calloc(1, sizeof *r);
    if (!r)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the checkpoint", checkpoint->dir);
    r->checkpoint = checkpoint;
    r->order = order;
    r->n = n;
    return allocate(r, io_engine, calls);
}

void ot_span_reader_close(struct ot_span_reader *r) {
    if (!r)
        return;
    ot_io_engine_close(r->engine); /* waits for the reads: afterwards nothing writes to the slots */
    for (int i = 0; r->direct && i < r->checkpoint->manifest.n_files; i++)
        ot_set_direct(r->checkpoint->fds[i], false);
    free(r->direct);
    free(r->place);
    free(r->memory);
    free(r);
}

/* ---- reads ---- */

static int reap(struct ot_span_reader *r) {
    struct ot_io_result result;
    OT_TRY(ot_io_engine_reap(r->engine, &result, 1));
    struct slot *slot = result.owner;
    enum ot_io_end end = ot_io_chunk_end(r->engine, &slot->chunk, result.result);
    if (end == OT_IO_AGAIN)
        return ot_io_chunk_start(r->engine, &slot->chunk);
    ot_io_chunk_drop_cache(r->engine, &slot->chunk);
    slot->in_flight = false;
    slot->failed = end == OT_IO_FAILED;
    slot->result = result.result;
    return 0;
}

/* Starts to read the span of r->next. */
static int start_next(struct ot_span_reader *r) {
    struct slot *slot = &r->slots[r->next % r->n_slots];
    const struct ot_store_span *span = &r->checkpoint->manifest.spans[r->order[r->next]];
    while (slot->in_flight)
        OT_TRY(reap(r));
    *slot = (struct slot){.memory = slot->memory,
                          .in_flight = true,
                          .chunk = {.request = {.file = span->file,
                                                .memory = slot->memory,
                                                .bytes = (size_t)span->bytes,
                                                .offset = (off_t)span->offset,
                                                .owner = slot},
                                    .direct = &r->direct[span->file]}};
    r->next++;
    return ot_io_chunk_start(r->engine, &slot->chunk);
}

/* Moves the window to the caller, who is at this place. */
static int follow(struct ot_span_reader *r, int64_t place) {
    if (place < r->begin || place > r->next)
        r->begin = r->next = place;
    if (place - BEHIND > r->begin)
        r->begin = place - BEHIND;
    while (r->next < r->n && r->next < r->begin + r->n_slots)
        OT_TRY(start_next(r));
    return 0;
}

static int check(const struct ot_span_reader *r, struct slot *slot, const struct ot_store_span *span) {
    if (slot->failed)
        return ot_checkpoint_fail_read(r->checkpoint, span, (int64_t)ot_io_chunk_rest(&slot->chunk).offset,
                                       slot->result);
    if (slot->is_checked)
        return 0;
    uint32_t crc = ot_crc32(0, slot->memory, (size_t)span->bytes);
    slot->is_checked = crc == span->crc;
    return slot->is_checked ? 0 : ot_checkpoint_fail_span(r->checkpoint, span, crc);
}

int ot_span_reader_get(struct ot_span_reader *r, int64_t span, const char **bytes) {
    int64_t place = r->place[span];
    assert(place >= 0);
    OT_TRY(follow(r, place));
    struct slot *slot = &r->slots[place % r->n_slots];
    while (slot->in_flight)
        OT_TRY(reap(r));
    OT_TRY(check(r, slot, &r->checkpoint->manifest.spans[span]));
    *bytes = slot->memory;
    return 0;
}
