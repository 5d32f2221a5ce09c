/* Streams a checkpoint. Segments are cut into pieces, one piece a slot. Pieces are cut into reads; many reads
 * are in flight.
 *
 * THREADS. The calling thread starts the reads and takes their results, in the order of the files, because
 * many disks are slower out of order. A read that is done becomes a JOB: its checksum is computed, and the
 * job that completes a piece gives the piece to the sink. Jobs run on threads of their own, or on the calling
 * thread if there are none; it then starts the next read before it runs a job. The mutex is free while a
 * checksum is computed and while the sink works.
 *
 * A piece that is a whole segment is read as the segment lies in the file. A piece of a larger segment has a
 * share of each of the segment's arrays (m, v, rest, weights), so the bytes of a span do not arrive in order.
 * The span's checksum is still computed: the CRC-32 of a concatenation is the XOR of the CRC-32 of each
 * section, each shifted by the number of bytes behind that section (zlib's crc32_combine with zero as the
 * other CRC). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/checkpoint/reader_state.h"
#include "src/checkpoint/writer.h"

/* As for the NVMe store: 32 reads of 1 MiB came near the full rate of every disk that we measured. */
enum { DEPTH = 32, READ_BYTES = 1 << 20 };
/* Reads in flight, and as many jobs that wait or run. */
enum { READS = 2 * DEPTH };

/* Bytes [at, end) of the segment. They are read in whole blocks: `memory` is for the block of byte `at`. When
 * all is read, n bytes are moved from `from` to their place in the piece. */
struct stretch {
    int64_t at, end;
    char *memory;
    char *from, *to;
    size_t n;
};

struct piece {                                 /* the contents of a slot */
    const struct ot_manifest_segment *segment; /* NULL: the slot is free */
    struct ot_segment what;
    char *memory;
    int n_stretches, stretch;
    struct stretch stretches[OT_SEGMENT_ARRAYS];
    int in_flight;
    bool is_cut, is_damaged; /* all reads of the piece were started; one of them failed */
};

struct read_io { /* a read that is in flight, a job, or a free entry */
    struct piece *piece;
    int64_t span;   /* -1: no read; the piece is zeros */
    int64_t within; /* the first byte of the stretch that is read, counted from the span's first */
    char *memory;   /* where this byte is read to */
    size_t n;       /* bytes of the stretch */
    struct ot_io_chunk chunk;
    bool failed;
    int64_t result; /* of a read that failed */
    struct read_io *next;
};

struct span_check {
    uint32_t crc, left; /* crc: of the bytes read so far. left: bytes not read yet */
};

struct place { /* sort key for the order of segments */
    int file;
    int64_t offset, segment;
};

struct stream {
    struct ot_checkpoint *checkpoint;
    const struct ot_manifest *manifest;
    const struct ot_checkpoint_read *read;
    size_t slot_bytes;
    struct place *order;      /* [n_segments] */
    int64_t next, next_first; /* the next piece: index in `order`, first parameter within the segment */
    struct piece *cutting;    /* the piece whose reads are being started; NULL: none */
    bool *direct;             /* [n_files] */
    struct ot_io_engine *engine;
    int in_flight;
    pthread_t threads[OT_READ_MOST_THREADS];
    int n_threads;

    pthread_mutex_t mutex; /* protects what follows */
    pthread_cond_t queued, ended;
    struct piece *pieces;      /* [n_slots] */
    struct span_check *checks; /* [n_spans] */
    struct read_io reads[READS], *free, *queue, **queue_end;
    int n_jobs;    /* queued or running */
    int64_t bytes; /* read so far and found undamaged */
    struct ot_error error;
    bool stopping;
};

/* ---- pieces ---- */

static int compare_places(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->segment > y->segment) - (x->segment < y->segment);
}

static void sort_segments(struct stream *s) {
    const struct ot_manifest *m = s->manifest;
    for (int64_t i = 0; i < m->n_segments; i++) {
        const struct ot_store_span *span =
            m->segments[i].n_spans ? &m->spans[m->segments[i].first_span] : NULL;
        s->order[i] = (struct place){span ? span->file : -1, span ? span->offset : 0, i};
    }
    qsort(s->order, (size_t)m->n_segments, sizeof *s->order, compare_places);
}

static int64_t padded_bytes(const struct stream *s, const struct ot_manifest_segment *segment) {
    int64_t last = segment->first_span + segment->n_spans - 1;
    return segment->n_spans == 0 ? (int64_t)ot_segment_bytes(s->manifest->dtype, &segment->segment)
                                 : s->checkpoint->span_begin[last] + s->manifest->spans[last].bytes;
}

static int64_t block_of(int64_t at) {
    return at / OT_STORE_ALIGN * OT_STORE_ALIGN;
}

static int64_t block_behind(int64_t end) {
    return block_of(end + OT_STORE_ALIGN - 1);
}

/* Room in a slot for the first and the last block of each array, which may lie in the piece only in segment.
 */
enum { SLACK_BYTES = 2 * OT_SEGMENT_ARRAYS * OT_STORE_ALIGN };

/* Sets the piece's stretches: its share of each array of the segment, and behind the last array the segment's
 * padding. first: the piece's first parameter, counted from the segment's. */
static void cut_arrays(const struct stream *s, struct piece *piece, int64_t first) {
    const struct ot_segment *segment = &piece->segment->segment;
    int64_t bytes = (int64_t)ot_segment_bytes(s->manifest->dtype, segment);
    char *memory = piece->memory;
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values from = ot_segment_find(s->manifest->dtype, segment, array);
        struct ot_segment_values to = ot_segment_find(s->manifest->dtype, &piece->what, array);
        int64_t at = (int64_t)(from.offset + ot_segment_value_bytes(from, first));
        size_t n = ot_segment_value_bytes(from, piece->what.n);
        if (from.width == 0)
            continue;
        int64_t end = at + (int64_t)n == bytes ? padded_bytes(s, piece->segment) : at + (int64_t)n;
        piece->stretches[piece->n_stretches++] =
            (struct stretch){at, end, memory, memory + (at - block_of(at)), piece->memory + to.offset, n};
        memory += block_behind(end) - block_of(at);
    }
}

/* The file of the segment that is not here, or -1. */
static int find_missing(const struct stream *s, const struct ot_manifest_segment *segment) {
    for (int64_t i = segment->first_span; i < segment->first_span + segment->n_spans; i++)
        if (!ot_checkpoint_has_file(s->checkpoint, s->manifest->spans[i].file))
            return s->manifest->spans[i].file;
    return -1;
}

static bool is_wanted(const struct stream *s, int64_t index) {
    const struct ot_checkpoint_read *read = s->read;
    const struct ot_manifest_segment *segment = &s->manifest->segments[index];
    if (read->wants && !read->wants(read->context, &segment->segment))
        return false;
    return !read->skips_missing || find_missing(s, segment) < 0;
}

/* Before anything is read: the segments of other hosts must not be needed. */
static int check_here(const struct stream *s) {
    for (int64_t i = 0; i < s->manifest->n_segments; i++) {
        int missing = find_missing(s, &s->manifest->segments[i]);
        if (missing >= 0 && is_wanted(s, i))
            return ot_checkpoint_fail_missing(s->checkpoint, missing);
    }
    return 0;
}

/* Cuts the next piece, for a free slot. False: no piece is left. */
static bool cut_piece(struct stream *s, struct piece *piece) {
    while (s->next < s->manifest->n_segments && s->next_first == 0 &&
           !is_wanted(s, s->order[s->next].segment))
        s->next++;
    if (s->next == s->manifest->n_segments)
        return false;
    const struct ot_manifest_segment *segment = &s->manifest->segments[s->order[s->next].segment];
    struct ot_segment one = segment->segment;
    int64_t first = s->next_first, n = segment->segment.n - first, whole_bytes = padded_bytes(s, segment);
    one.n = OT_SLAB_ALIGN_PARAMS;
    bool is_whole = whole_bytes <= (int64_t)s->slot_bytes;
    size_t room = s->slot_bytes - SLACK_BYTES;
    int64_t most = (int64_t)(room / ot_segment_bytes(s->manifest->dtype, &one)) * one.n;
    if (!is_whole && n > most)
        n = most;
    *piece = (struct piece){.segment = segment, .what = segment->segment, .memory = piece->memory};
    piece->what.first += first;
    piece->what.n = n;
    if (is_whole)
        piece->stretches[piece->n_stretches++] =
            (struct stretch){.end = whole_bytes, .memory = piece->memory};
    else
        cut_arrays(s, piece, first);
    s->next_first += n;
    if (s->next_first == segment->segment.n) {
        s->next++;
        s->next_first = 0;
    }
    return true;
}

/* ---- reads ---- */

/* Cuts the next read of the piece in s->cutting: whole blocks of one span, because O_DIRECT needs them. */
static void cut_read(struct stream *s, struct read_io *io) {
    struct piece *piece = s->cutting;
    struct stretch *stretch = &piece->stretches[piece->stretch];
    int64_t index = ot_checkpoint_find_span(s->checkpoint, piece->segment, stretch->at);
    const struct ot_store_span *span = &s->manifest->spans[index];
    int64_t span_begin = s->checkpoint->span_begin[index], block = block_of(stretch->at);
    int64_t end = ot_min(stretch->end, span_begin + span->bytes);
    end = ot_min(end, block + READ_BYTES);
    *io = (struct read_io){.piece = piece,
                           .span = index,
                           .within = stretch->at - span_begin,
                           .memory = stretch->memory + (stretch->at - block),
                           .n = (size_t)(end - stretch->at),
                           .chunk = {.request = {.file = span->file,
                                                 .memory = stretch->memory,
                                                 .bytes = (size_t)(block_behind(end) - block),
                                                 .offset = (off_t)(span->offset + block - span_begin),
                                                 .owner = io},
                                     .direct = &s->direct[span->file]}};
    piece->in_flight++;
    stretch->at = end;
    stretch->memory += end - block;
    if (stretch->at < stretch->end || ++piece->stretch < piece->n_stretches)
        return;
    piece->is_cut = true;
    s->cutting = NULL;
}

static struct piece *find_free(const struct stream *s) {
    for (int i = 0; i < s->read->n_slots; i++)
        if (!s->pieces[i].segment)
            return &s->pieces[i];
    return NULL;
}

static void queue_job(struct stream *s, struct read_io *io) {
    io->next = NULL;
    *s->queue_end = io;
    s->queue_end = &io->next;
    s->n_jobs++;
    pthread_cond_signal(&s->queued);
}

/* Starts as many reads as may be in flight. A piece of zeros needs no read. The mutex is held. */
static int start_reads(struct stream *s) {
    while (s->in_flight < DEPTH && s->free) {
        struct read_io *io = s->free;
        if (!s->cutting) {
            struct piece *piece = find_free(s);
            if (!piece || !cut_piece(s, piece))
                return 0;
            if (piece->segment->n_spans == 0) {
                s->free = io->next;
                *io = (struct read_io){.piece = piece, .span = -1};
                piece->n_stretches = 0;
                piece->in_flight = 1;
                piece->is_cut = true;
                queue_job(s, io);
                continue;
            }
            s->cutting = piece;
        }
        s->free = io->next;
        cut_read(s, io);
        s->in_flight++;
        OT_TRY(ot_io_chunk_start(s->engine, &io->chunk));
    }
    return 0;
}

/* Waits for a read. *done: NULL if it has to go on. */
static int take_result(struct stream *s, struct read_io **done) {
    struct ot_io_result result;
    *done = NULL;
    OT_TRY(ot_io_engine_reap(s->engine, &result, 1));
    struct read_io *io = result.owner;
    enum ot_io_end end = ot_io_chunk_end(s->engine, &io->chunk, result.result);
    if (end == OT_IO_AGAIN)
        return ot_io_chunk_start(s->engine, &io->chunk);
    ot_io_chunk_drop_cache(s->engine, &io->chunk);
    s->in_flight--;
    io->failed = end == OT_IO_FAILED;
    io->result = result.result;
    *done = io;
    return 0;
}

/* ---- jobs ---- */

/* Adds the bytes of a read to the span's checksum. Compares the checksum when the span is complete. The mutex
 * is held. */
static int check_span(struct stream *s, const struct read_io *io, uint32_t crc) {
    const struct ot_store_span *span = &s->manifest->spans[io->span];
    struct span_check *check = &s->checks[io->span];
    int64_t behind = span->bytes - io->within - (int64_t)io->n;
    check->crc ^= behind ? (uint32_t)crc32_combine(crc, 0, (z_off_t)behind) : crc;
    check->left -= (uint32_t)io->n;
    s->bytes += (int64_t)io->n;
    if (check->left > 0 || check->crc == span->crc)
        return 0;
    return ot_checkpoint_fail_span(s->checkpoint, span, check->crc);
}

/* Moves the arrays together. No array is moved over an array that is still to be moved. */
static void close_gaps(const struct piece *piece) {
    for (int i = 0; i < piece->n_stretches; i++)
        if (piece->stretches[i].to != piece->stretches[i].from)
            memmove(piece->stretches[i].to, piece->stretches[i].from, piece->stretches[i].n);
}

/* The mutex is held, but not while the sink works. */
static int end_piece(struct stream *s, struct piece *piece) {
    const struct ot_checkpoint_read *read = s->read;
    int rc = 0;
    if (!piece->is_damaged) {
        pthread_mutex_unlock(&s->mutex);
        close_gaps(piece);
        rc = read->sink(read->context, &piece->what, piece->memory);
        pthread_mutex_lock(&s->mutex);
    }
    piece->segment = NULL;
    if (rc >= 0 && read->progress)
        read->progress(read->context, s->bytes, s->checkpoint->bytes);
    return rc;
}

/* The mutex is held, but not while the checksum is computed. */
static int do_job(struct stream *s, const struct read_io *io) {
    const struct ot_checkpoint_read *read = s->read;
    struct piece *piece = io->piece;
    uint32_t crc = 0;
    int rc = 0;
    pthread_mutex_unlock(&s->mutex);
    if (io->span < 0)
        memset(piece->memory, 0, ot_segment_bytes(s->manifest->dtype, &piece->what));
    else if (!io->failed)
        crc = ot_crc32(0, io->memory, io->n);
    pthread_mutex_lock(&s->mutex);
    if (io->failed)
        rc = ot_checkpoint_fail_read(s->checkpoint, &s->manifest->spans[io->span],
                                     (int64_t)ot_io_chunk_rest(&io->chunk).offset, io->result);
    else if (io->span >= 0)
        rc = check_span(s, io, crc);
    if (rc < 0) {
        piece->is_damaged = true;
        OT_TRY(read->damaged
                   ? read->damaged(read->context, &piece->segment->segment, io->chunk.request.file, rc)
                   : rc);
    }
    piece->in_flight--;
    return piece->is_cut && piece->in_flight == 0 ? end_piece(s, piece) : 0;
}

/* Runs the first job of the queue. The mutex is held when it begins and when it ends. */
static void run_job(struct stream *s) {
    struct read_io *io = s->queue;
    s->queue = io->next;
    if (!s->queue)
        s->queue_end = &s->queue;
    int rc = do_job(s, io);
    if (rc < 0 && s->error.code == 0)
        ot_error_save(&s->error, rc);
    io->next = s->free;
    s->free = io;
    s->n_jobs--;
    pthread_cond_signal(&s->ended);
}

static void *work(void *arg) {
    struct stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->queue && !s->stopping)
            pthread_cond_wait(&s->queued, &s->mutex);
        if (s->stopping)
            break;
        run_job(s);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* The mutex is held. Returns with 0 when every piece has reached the sink. */
static int stream_segments(struct stream *s) {
    while (s->error.code == 0) {
        OT_TRY(start_reads(s));
        if (s->n_threads == 0 && s->queue) {
            run_job(s);
        } else if (s->in_flight > 0) {
            struct read_io *done;
            pthread_mutex_unlock(&s->mutex);
            int rc = take_result(s, &done);
            pthread_mutex_lock(&s->mutex);
            OT_TRY(rc);
            if (done)
                queue_job(s, done);
        } else if (s->n_jobs > 0) {
            pthread_cond_wait(&s->ended, &s->mutex);
        } else {
            break;
        }
    }
    return ot_error_load(&s->error);
}

static int start_threads(struct stream *s) {
    for (; s->n_threads < s->read->threads; s->n_threads++) {
        int error = ot_thread_start(&s->threads[s->n_threads], "checkpoint", work, s);
        if (error)
            return ot_fail_errno(OT_E_IO, error, "%s: cannot start a thread to read the checkpoint",
                                 s->checkpoint->dir);
    }
    return 0;
}

static void stop_threads(struct stream *s) {
    pthread_mutex_lock(&s->mutex);
    s->stopping = true;
    pthread_cond_broadcast(&s->queued);
    pthread_mutex_unlock(&s->mutex);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
}

/* ---- the whole checkpoint ---- */

static int allocate(struct stream *s) {
    const struct ot_manifest *m = s->manifest;
    s->order = malloc((size_t)(m->n_segments + 1) * sizeof *s->order);
    s->checks = malloc((size_t)(m->n_spans + 1) * sizeof *s->checks);
    s->direct = calloc((size_t)m->n_files + 1, sizeof *s->direct);
    s->pieces = calloc((size_t)s->read->n_slots, sizeof *s->pieces);
    if (!s->order || !s->checks || !s->direct || !s->pieces)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the checkpoint's %lld segments",
                       s->checkpoint->dir, (long long)m->n_segments);
    sort_segments(s);
    for (int64_t i = 0; i < m->n_spans; i++)
        s->checks[i] = (struct span_check){0, (uint32_t)m->spans[i].bytes};
    for (int i = 0; i < m->n_files; i++)
        s->direct[i] = ot_checkpoint_has_file(s->checkpoint, i) &&
                       ot_set_direct(s->checkpoint->fds[i], true); /* opened without O_DIRECT */
    for (int i = 0; i < s->read->n_slots; i++)
        s->pieces[i].memory = (char *)s->read->memory + (size_t)i * s->slot_bytes;
    for (int i = 0; i < READS; i++) {
        s->reads[i].next = s->free;
        s->free = &s->reads[i];
    }
    s->queue_end = &s->queue;
    return 0;
}

static int open_engine(struct stream *s) {
    struct ot_io_engine_config config = {.choice = s->read->io_engine,
                                         .n_files = s->manifest->n_files,
                                         .files = s->checkpoint->fds,
                                         .depth = DEPTH,
                                         .arena = s->read->memory,
                                         .arena_bytes = (size_t)s->read->n_slots * s->slot_bytes,
                                         .calls = s->read->calls};
    return ot_io_engine_open(&config, &s->engine);
}

int ot_checkpoint_read(struct ot_checkpoint *checkpoint, const struct ot_checkpoint_read *read) {
    struct stream *s = calloc(1, sizeof *s);
    int rc;
    if (!s)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the checkpoint", checkpoint->dir);
    s->checkpoint = checkpoint;
    s->manifest = &checkpoint->manifest;
    s->read = read;
    s->slot_bytes = ot_segment_slot_bytes(checkpoint->manifest.dtype);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->queued, NULL);
    pthread_cond_init(&s->ended, NULL);
    OT_TRY_GOTO(check_here(s), rc, out);
    OT_TRY_GOTO(allocate(s), rc, out);
    OT_TRY_GOTO(open_engine(s), rc, out);
    OT_TRY_GOTO(start_threads(s), rc, out);
    pthread_mutex_lock(&s->mutex);
    rc = stream_segments(s);
    pthread_mutex_unlock(&s->mutex);
out:
    stop_threads(s);
    ot_io_engine_close(s->engine); /* waits for the reads: afterwards nothing writes to the slots */
    for (int i = 0; s->direct && i < s->manifest->n_files; i++)
        ot_set_direct(s->checkpoint->fds[i], false);
    pthread_cond_destroy(&s->ended);
    pthread_cond_destroy(&s->queued);
    pthread_mutex_destroy(&s->mutex);
    free(s->pieces);
    free(s->direct);
    free(s->checks);
    free(s->order);
    free(s);
    return rc;
}
