#include "src/checkpoint/writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/checkpoint/slot_writer.h"
#include "src/checkpoint/step_dir.h"

enum { STATE_NAME_BYTES = 32 };
enum { STATE_FILE = 0 }; /* index in the manifest's files; the store's files that are referred to follow it */

struct ot_checkpoint_writer {
    struct ot_checkpoint_writer_config config; /* config.record and record_text are NULL after open */
    char name[OT_STEP_NAME_BYTES], partial[OT_STEP_NAME_BYTES];
    char state[STATE_NAME_BYTES];
    char *path, *partial_path, *state_path; /* for error messages */
    int parent_fd, dir_fd, state_fd;
    bool owned;    /* close must remove the directory */
    bool in_place; /* the rename is done */
    bool direct;
    struct ot_slot_writer *slots;

    /* used by the snapshot's thread only */
    struct ot_error error; /* the first failure */
    struct ot_slot *lent;
    struct ot_manifest manifest;
    int manifest_file[OT_STORE_MAX_DIRS]; /* index in the manifest; 0: no segment refers to the store file */
    size_t segment_capacity, span_capacity;
    int64_t written, referred;
};

/* ---- sizes ---- */

int64_t ot_checkpoint_state_bytes(const struct ot_chain *chain) {
    int64_t bytes = 0;
    for (int s = 0; s < chain->n_slabs; s++) {
        struct ot_segment segment = ot_segment_of(chain, true, true, ot_manifest_params_of(&chain->slabs[s]));
        bytes += (int64_t)ot_segment_padded_bytes(chain->dtype, &segment);
    }
    return bytes;
}

/* A hard link needs the same mount, not only the same device. */
static bool mount_of(const char *path, struct statx *out) {
    return statx(AT_FDCWD, path, 0, STATX_TYPE | STATX_MNT_ID, out) == 0;
}

bool ot_checkpoint_can_refer(const char *parent, const char *store_dir) {
    struct statx a, b;
    char nearest[PATH_MAX];
    if (!ot_path_find_nearest(parent, nearest) || !mount_of(nearest, &a) || !mount_of(store_dir, &b))
        return false;
    bool known = a.stx_mask & b.stx_mask & STATX_MNT_ID;
    return a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor &&
           (!known || a.stx_mnt_id == b.stx_mnt_id);
}

/* ---- files ---- */

static int fail_file(const struct ot_checkpoint_writer *w, const char *name, int error, const char *what) {
    return ot_fail_errno(OT_E_IO, error, "%s/%s: cannot %s", w->partial_path, name, what);
}

/* Writes a small file and flushes it to the disk. */
static int put_file(const struct ot_checkpoint_writer *w, const char *name, const void *data, size_t bytes) {
    const struct ot_io_calls *calls = w->config.calls;
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = calls->open(calls->context, w->dir_fd, name, flags, 0666);
    if (fd < 0)
        return fail_file(w, name, -fd, "create");
    const char *what = "write";
    int error = ot_write_all(calls, fd, data, bytes);
    if (error == 0) {
        what = "flush";
        error = calls->fsync(calls->context, fd);
    }
    if (close(fd) < 0 && error == 0) {
        what = "close";
        error = -errno;
    }
    return error < 0 ? fail_file(w, name, -error, what) : 0;
}

/* ---- opening ---- */

static int open_parent(struct ot_checkpoint_writer *w) {
    /* O_NOFOLLOW: checkpoints must not end up in another place than the user said. */
    w->parent_fd = open(w->config.parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return w->parent_fd >= 0 ? 0
                             : ot_fail_errno(OT_E_IO, errno, "%s: cannot open the directory for checkpoints",
                                             w->config.parent);
}

/* Opens the directory that another rank has made, and holds. */
static int join_dir(struct ot_checkpoint_writer *w) {
    OT_TRY(open_parent(w));
    w->dir_fd = openat(w->parent_fd, w->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir_fd >= 0)
        return 0;
    return ot_fail_errno(OT_E_IO, errno,
                         "%s: cannot open the directory that the first rank has made; checkpoints of several "
                         "ranks need a directory that they share",
                         w->partial_path);
}

/* Removes the files of an unfinished save of this step. A directory that another process holds stays. */
static int make_dir(struct ot_checkpoint_writer *w) {
    const struct ot_io_calls *calls = w->config.calls;
    struct stat info;
    OT_TRY(open_parent(w));
    if (fstatat(w->parent_fd, w->name, &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(info.st_mode))
        return ot_fail(OT_E_INPUT,
                       "%s: a checkpoint needs this name, but it is not a directory; move it away", w->path);
    int error = calls->make_dir(calls->context, w->parent_fd, w->partial);
    if (error < 0 && error != -EEXIST)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot make a directory here", w->config.parent);
    OT_TRY(ot_step_hold(w->parent_fd, w->partial, w->partial_path, &w->dir_fd));
    if (w->dir_fd < 0)
        return ot_fail(
            OT_E_INPUT,
            "%s: another process is saving this step; wait for that process, or choose another --out",
            w->path);
    w->owned = true;
    return ot_step_clear(calls, w->dir_fd, w->partial_path);
}

/* Writes checkpoint.json only if it can be read again: older checkpoints are removed once this one is
 * complete. put_manifest does the same. */
static int put_record(struct ot_checkpoint_writer *w) {
    struct ot_checkpoint_record again;
    char *text = NULL;
    size_t bytes = w->config.record_bytes;
    if (w->config.record_text)
        text = ot_string_copy(w->config.record_text, bytes);
    else
        OT_TRY(ot_checkpoint_record_encode(w->config.record, &text, &bytes));
    if (!text)
        return ot_fail(OT_E_BUDGET, "%s: no memory to write a checkpoint", w->path);
    int rc = ot_checkpoint_record_decode(text, bytes, OT_RECORD_NAME, &again);
    if (rc == 0) {
        ot_checkpoint_record_free(&again);
        rc = put_file(w, OT_RECORD_NAME, text, bytes);
    }
    w->manifest.record_bytes = (int64_t)bytes;
    w->manifest.record_crc = ot_crc32(0, text, bytes);
    free(text);
    return rc;
}

static int64_t free_bytes(const struct ot_checkpoint_writer *w) {
    return w->config.calls->free_bytes(w->config.calls->context, w->config.parent);
}

static int refuse_space(const struct ot_checkpoint_writer *w, int64_t bytes, int error) {
    int64_t room = free_bytes(w);
    return ot_fail(
        OT_E_IO,
        "%s: cannot reserve %.1f MB for a checkpoint: %s; %.1f MB are free: make room there, or keep "
        "fewer checkpoints",
        w->config.parent, (double)bytes * 1e-6, strerror(error), (double)ot_max(room, 0) * 1e-6);
}

/* If the file system cannot reserve space, only checks that enough is free. */
static int reserve(const struct ot_checkpoint_writer *w, int64_t bytes) {
    if (bytes == 0)
        return 0;
    int error = ot_allocate(w->config.calls, w->state_fd, 0, 0, bytes);
    if (error == 0)
        return 0;
    if (error != -EOPNOTSUPP && error != -ENOSYS)
        return refuse_space(w, bytes, -error);
    int64_t room = free_bytes(w);
    return room >= 0 && room < bytes ? refuse_space(w, bytes, ENOSPC) : 0;
}

static int open_state(struct ot_checkpoint_writer *w) {
    w->state_fd = ot_open_direct(w->config.calls, w->dir_fd, w->state, O_WRONLY | O_NOFOLLOW | O_CLOEXEC,
                                 0666, &w->direct);
    if (w->state_fd < 0)
        return fail_file(w, w->state, -w->state_fd, "create");
    return reserve(w, w->config.state_bytes);
}

static int start_slots(struct ot_checkpoint_writer *w) {
    const struct ot_checkpoint_writer_config *config = &w->config;
    return ot_slot_writer_open(
        &(struct ot_slot_writer_config){.fd = w->state_fd,
                                        .path = w->state_path,
                                        .direct = w->direct,
                                        .memory = config->memory,
                                        .slot_bytes = ot_segment_slot_bytes(config->chain->dtype),
                                        .n_slots = config->n_slots,
                                        .io_engine = config->io_engine,
                                        .calls = config->calls},
        &w->slots);
}

static int add_file(struct ot_manifest *m, const char *name) {
    m->files[m->n_files].name = strdup(name);
    if (!m->files[m->n_files].name)
        return ot_fail(OT_E_BUDGET, "no memory for the name of %s", name);
    return m->n_files++;
}

/* Fills in everything that is known before the first segment arrives. */
static int begin_manifest(struct ot_checkpoint_writer *w) {
    const struct ot_chain *chain = w->config.chain;
    struct ot_manifest *m = &w->manifest;
    m->dtype = chain->dtype;
    m->slab_params = calloc((size_t)chain->n_slabs, sizeof *m->slab_params);
    m->files = calloc(1 + OT_STORE_MAX_DIRS, sizeof *m->files);
    if (!m->slab_params || !m->files)
        return ot_fail(OT_E_BUDGET, "no memory for a checkpoint's manifest");
    for (m->n_slabs = 0; m->n_slabs < chain->n_slabs; m->n_slabs++)
        m->slab_params[m->n_slabs] = ot_manifest_params_of(&chain->slabs[m->n_slabs]);
    return add_file(m, w->state);
}

static int name_paths(struct ot_checkpoint_writer *w) {
    snprintf(w->state, sizeof w->state, w->config.rank == 0 ? OT_STATE_NAME : "state-%d.bin", w->config.rank);
    ot_step_name(w->name, w->config.record->progress.step, false);
    ot_step_name(w->partial, w->config.record->progress.step, true);
    OT_TRY(ot_string_format(&w->path, "%s/%s", w->config.parent, w->name));
    OT_TRY(ot_string_format(&w->partial_path, "%s/%s", w->config.parent, w->partial));
    return ot_string_format(&w->state_path, "%s/%s", w->partial_path, w->state);
}

int ot_checkpoint_writer_open(const struct ot_checkpoint_writer_config *config,
                              struct ot_checkpoint_writer **out) {
    struct ot_checkpoint_writer *w = calloc(1, sizeof *w);
    int rc;
    *out = NULL;
    if (!w)
        return ot_fail(OT_E_BUDGET, "%s: no memory to write a checkpoint", config->parent);
    w->config = *config;
    w->config.calls = config->calls ? config->calls : &ot_io_system;
    w->parent_fd = w->dir_fd = w->state_fd = -1;
    OT_TRY_GOTO(name_paths(w), rc, out);
    OT_TRY_GOTO(begin_manifest(w), rc, out);
    OT_TRY_GOTO(config->joins ? join_dir(w) : make_dir(w), rc, out);
    OT_TRY_GOTO(open_state(w), rc, out);
    if (!config->joins)
        OT_TRY_GOTO(put_record(w), rc, out);
    rc = start_slots(w);
    w->config.record = NULL;
    w->config.record_text = NULL;
out:
    if (rc < 0)
        ot_checkpoint_writer_close(w);
    else
        *out = w;
    return rc;
}

void ot_checkpoint_writer_close(struct ot_checkpoint_writer *w) {
    if (!w)
        return;
    const struct ot_io_calls *calls = w->config.calls;
    /* The caller reports the present error. ot_checkpoint_tidy removes the files that this function
     * cannot. */
    struct ot_error why;
    ot_error_save(&why, -OT_E_INTERNAL);
    ot_slot_writer_close(w->slots);
    if (w->state_fd >= 0)
        close(w->state_fd);
    if (w->owned && ot_step_clear(w->config.calls, w->dir_fd, w->partial_path) == 0)
        (void)calls->remove(calls->context, w->parent_fd, w->in_place ? w->name : w->partial, AT_REMOVEDIR);
    if (w->dir_fd >= 0)
        close(w->dir_fd);
    if (w->parent_fd >= 0)
        close(w->parent_fd);
    ot_error_load(&why);
    ot_manifest_free(&w->manifest);
    free(w->path);
    free(w->partial_path);
    free(w->state_path);
    free(w);
}

void ot_checkpoint_writer_count(const struct ot_checkpoint_writer *w, int64_t *written, int64_t *referred) {
    *written = w->written;
    *referred = w->referred;
}

/* ---- segments, on the snapshot's thread ---- */

static int add_segment(struct ot_checkpoint_writer *w, const struct ot_segment *segment, int n_spans) {
    struct ot_manifest *m = &w->manifest;
    OT_TRY(ot_grow(&m->segments, &w->segment_capacity, (size_t)m->n_segments + 1, sizeof *m->segments,
                   "segments of a checkpoint"));
    m->segments[m->n_segments++] =
        (struct ot_manifest_segment){.segment = *segment, .first_span = m->n_spans, .n_spans = n_spans};
    return 0;
}

static int add_span(struct ot_checkpoint_writer *w, struct ot_store_span span) {
    struct ot_manifest *m = &w->manifest;
    struct ot_manifest_file *file = &m->files[span.file];
    OT_TRY(ot_grow(&m->spans, &w->span_capacity, (size_t)m->n_spans + 1, sizeof *m->spans,
                   "spans of a checkpoint"));
    m->spans[m->n_spans++] = span;
    if (file->bytes < span.offset + span.bytes)
        file->bytes = span.offset + span.bytes;
    return 0;
}

/* Copies the checksums of a written slot to the manifest's spans. */
static void take_checksums(struct ot_checkpoint_writer *w, struct ot_slot *slot) {
    for (int i = 0; i < slot->n_chunks; i++)
        w->manifest.spans[slot->tag + i].crc = slot->crc[i];
    slot->n_chunks = 0;
}

/* Keeps the first failure. All later calls return it. */
static int note(struct ot_checkpoint_writer *w, int rc) {
    if (rc < 0)
        ot_error_save(&w->error, rc);
    return rc;
}

static int room(void *context, void **memory) {
    struct ot_checkpoint_writer *w = context;
    OT_TRY(ot_error_load(&w->error));
    OT_TRY(note(w, ot_slot_writer_take(w->slots, &w->lent)));
    take_checksums(w, w->lent);
    *memory = w->lent->memory;
    return 0;
}

static int plan_slot(struct ot_checkpoint_writer *w, const struct ot_segment *segment) {
    struct ot_slot *slot = w->lent;
    size_t bytes = ot_segment_bytes(w->manifest.dtype, segment);
    slot->offset = w->manifest.files[STATE_FILE].bytes;
    slot->bytes = ot_segment_padded_bytes(w->manifest.dtype, segment);
    slot->tag = w->manifest.n_spans;
    memset((char *)slot->memory + bytes, 0, slot->bytes - bytes);
    int n = (int)((slot->bytes + OT_SLOT_CHUNK_BYTES - 1) / OT_SLOT_CHUNK_BYTES);
    OT_TRY(add_segment(w, segment, n));
    for (size_t at = 0; at < slot->bytes; at += OT_SLOT_CHUNK_BYTES) {
        size_t left = slot->bytes - at;
        OT_TRY(add_span(w, (struct ot_store_span){
                               .file = STATE_FILE,
                               .offset = slot->offset + (int64_t)at,
                               .bytes = left < OT_SLOT_CHUNK_BYTES ? (int64_t)left : OT_SLOT_CHUNK_BYTES}));
    }
    w->written += (int64_t)slot->bytes;
    return 0;
}

static int put(void *context, const struct ot_segment *segment, void *memory) {
    struct ot_checkpoint_writer *w = context;
    OT_TRY(ot_error_load(&w->error));
    assert(w->lent && memory == w->lent->memory && segment->n <= OT_SEGMENT_PARAMS);
    (void)memory;
    OT_TRY(note(w, plan_slot(w, segment)));
    ot_slot_writer_start(w->slots, w->lent);
    w->lent = NULL;
    return 0;
}

/* Index of a store's file in the manifest. The first reference adds the file to the manifest. */
static int refer_file(struct ot_checkpoint_writer *w, int file) {
    char name[48];
    assert(file >= 0 && file < OT_STORE_MAX_DIRS);
    if (w->manifest_file[file] == 0) {
        if (w->config.rank == 0)
            snprintf(name, sizeof name, "nvme-%d.store", file);
        else
            snprintf(name, sizeof name, "nvme-%d-%d.store", w->config.rank, file);
        int index = add_file(&w->manifest, name);
        OT_TRY(index);
        w->manifest_file[file] = index;
    }
    return w->manifest_file[file];
}

static int refer_spans(struct ot_checkpoint_writer *w, const struct ot_segment *segment,
                       const struct ot_store_span *spans, int n) {
    OT_TRY(add_segment(w, segment, n));
    for (int i = 0; i < n; i++) {
        struct ot_store_span span = spans[i];
        span.file = refer_file(w, spans[i].file);
        OT_TRY(span.file);
        OT_TRY(add_span(w, span));
        w->referred += span.bytes;
    }
    return 0;
}

static int refer(void *context, const struct ot_segment *segment, const struct ot_store_span *spans, int n) {
    struct ot_checkpoint_writer *w = context;
    OT_TRY(ot_error_load(&w->error));
    return note(w, refer_spans(w, segment, spans, n));
}

/* ---- the end ---- */

static int finish_state(struct ot_checkpoint_writer *w) {
    const struct ot_io_calls *calls = w->config.calls;
    OT_TRY(ot_slot_writer_wait(w->slots));
    for (int i = 0; i < w->config.n_slots; i++)
        take_checksums(w, ot_slot_writer_at(w->slots, i));
    /* Give back the space that was reserved for segments that did not come. */
    int error = calls->truncate(calls->context, w->state_fd, (off_t)w->manifest.files[STATE_FILE].bytes);
    if (error < 0)
        return fail_file(w, w->state, -error, "truncate the file to its size");
    error = calls->fsync(calls->context, w->state_fd);
    return error < 0 ? fail_file(w, w->state, -error, "flush") : 0;
}

static int keep_store_files(struct ot_checkpoint_writer *w) {
    if (w->referred == 0)
        return 0;
    for (int i = 0; i < OT_STORE_MAX_DIRS; i++)
        if (w->manifest_file[i] > 0)
            OT_TRY(ot_store_link(w->config.store, i, w->dir_fd, w->manifest.files[w->manifest_file[i]].name));
    return ot_store_sync(w->config.store);
}

static int put_manifest(struct ot_checkpoint_writer *w) {
    unsigned char *bytes = NULL;
    struct ot_manifest again;
    size_t n;
    int rc;
    OT_TRY(ot_manifest_encode(&w->manifest, &bytes, &n));
    rc = ot_manifest_decode(bytes, n, OT_MANIFEST_NAME, &again);
    ot_manifest_free(&again);
    if (rc == -OT_E_INPUT)
        rc = ot_fail(OT_E_INTERNAL, "%s: the snapshot was not complete: %s", w->path, ot_error_text());
    if (rc == 0)
        rc = put_file(w, OT_MANIFEST_NAME, bytes, n);
    free(bytes);
    return rc;
}

/* Replaces an existing checkpoint of the same step. As soon as its first file is removed, the new checkpoint,
 * which is complete, must stay (owned = false). If the process ends before the rename, ot_checkpoint_tidy
 * renames the new one. */
static int put_in_place(struct ot_checkpoint_writer *w) {
    const struct ot_io_calls *calls = w->config.calls;
    int error = calls->rename(calls->context, w->parent_fd, w->partial, w->name);
    if (error == -ENOTEMPTY || error == -EEXIST) {
        w->owned = false;
        OT_TRY(ot_step_remove(calls, w->parent_fd, w->name, w->path));
        error = calls->rename(calls->context, w->parent_fd, w->partial, w->name);
    }
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot rename the complete checkpoint to this name",
                             w->path);
    w->in_place = true;
    error = calls->fsync(calls->context, w->parent_fd);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory %s", w->path, w->config.parent);
    w->owned = false;
    return 0;
}

static int flush_dir(const struct ot_checkpoint_writer *w) {
    int error = w->config.calls->fsync(w->config.calls->context, w->dir_fd);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s: cannot flush the directory", w->partial_path) : 0;
}

static int finish_own(struct ot_checkpoint_writer *w) {
    OT_TRY(finish_state(w));
    return keep_store_files(w);
}

static int complete(struct ot_checkpoint_writer *w) {
    OT_TRY(put_manifest(w));
    OT_TRY(flush_dir(w));
    return put_in_place(w);
}

/* After a failure the store may overwrite data that the checkpoint refers to. The directory must not look
 * complete until close removes it. */
static int note_end(struct ot_checkpoint_writer *w, int rc) {
    if (note(w, rc) < 0 && w->owned)
        (void)ot_step_clear(w->config.calls, w->dir_fd, w->partial_path);
    return ot_error_load(&w->error);
}

static int end(void *context) {
    struct ot_checkpoint_writer *w = context;
    OT_TRY(ot_error_load(&w->error));
    int rc = finish_own(w);
    if (rc == 0)
        rc = w->config.ranks > 1 ? flush_dir(w) : complete(w);
    return note_end(w, rc);
}

/* ---- several ranks ---- */

int ot_checkpoint_writer_share(const struct ot_checkpoint_writer *w, unsigned char **bytes, size_t *n) {
    return ot_manifest_encode(&w->manifest, bytes, n);
}

int ot_checkpoint_writer_add(struct ot_checkpoint_writer *w, const unsigned char *bytes, size_t n) {
    struct ot_manifest share;
    OT_TRY(ot_manifest_decode_share(bytes, n, w->partial_path, &share));
    for (int64_t i = 0; i < share.n_spans; i++) {
        bool is_state = strncmp(share.files[share.spans[i].file].name, "state", strlen("state")) == 0;
        *(is_state ? &w->written : &w->referred) += share.spans[i].bytes;
    }
    int rc = ot_manifest_merge(&w->manifest, &share);
    ot_manifest_free(&share);
    return rc;
}

int ot_checkpoint_writer_take(struct ot_checkpoint_writer *w, const unsigned char *bytes, size_t n) {
    struct ot_manifest whole;
    OT_TRY(ot_manifest_decode(bytes, n, w->partial_path, &whole));
    ot_manifest_free(&w->manifest);
    w->manifest = whole;
    return 0;
}

int ot_checkpoint_writer_seal(struct ot_checkpoint_writer *w) {
    return note_end(w, complete(w));
}

struct ot_snapshot_sink ot_checkpoint_writer_sink(struct ot_checkpoint_writer *w) {
    return (struct ot_snapshot_sink){
        .context = w, .room = room, .put = put, .refer = w->config.store ? refer : NULL, .end = end};
}
