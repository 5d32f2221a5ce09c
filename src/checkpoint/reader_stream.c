/* Streams a checkpoint. Parts are cut into pieces, one piece a slot. Pieces are cut into reads; many reads
 * are in flight.
 *
 * A piece that is a whole part is read as the part lies in the file. A piece of a larger part has a share of
 * each of the part's arrays (m, v, rest, weights), so the bytes of a span do not arrive in order. The span's
 * checksum is still computed: the CRC-32 of a concatenation is the XOR of the CRC-32 of each section, each
 * shifted by the number of bytes behind that section (zlib's crc32_combine with zero as the other CRC).
 */
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "src/base/crc32.h"
#include "src/base/file_io.h"
#include "src/checkpoint/reader_state.h"
#include "src/checkpoint/writer.h"

/* As for the NVMe store: 32 reads of 1 MiB came near the full rate of every disk that we measured. */
enum { DEPTH = 32, READ_BYTES = 1 << 20 };

struct segment { /* bytes [at, end) of the part are read to `memory` */
    int64_t at, end;
    char *memory;
};

struct piece {                           /* the contents of a slot */
    const struct ot_manifest_part *part; /* NULL: the slot is free */
    struct ot_part what;
    char *memory;
    int n_segments, segment;
    struct segment segments[OT_PART_ARRAYS];
    int in_flight;
    bool is_cut, is_damaged; /* all reads of the piece were started; one of them failed */
};

struct read_io { /* a read that is in flight, or a free entry */
    struct piece *piece;
    int64_t span;
    struct ot_io_chunk chunk;
};

struct span_check {
    uint32_t crc, left; /* crc: of the bytes read so far. left: bytes not read yet */
};

struct place { /* sort key for the order of parts */
    int file;
    int64_t offset, part;
};

struct stream {
    struct ot_checkpoint *checkpoint;
    const struct ot_manifest *manifest;
    const struct ot_checkpoint_read *read;
    size_t slot_bytes;
    struct place *order;       /* [n_parts] */
    int64_t next, next_first;  /* the next piece: index in `order`, first parameter within the part */
    struct piece *pieces;      /* [n_slots] */
    struct piece *cutting;     /* the piece whose reads are being started; NULL: none */
    struct span_check *checks; /* [n_spans] */
    bool *direct;              /* [n_files] */
    struct ot_io_engine *engine;
    struct read_io ios[DEPTH], *free_ios[DEPTH];
    int n_free;
    int64_t bytes; /* read so far and found undamaged */
};

/* ---- pieces ---- */

static int compare_places(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->part > y->part) - (x->part < y->part);
}

static void sort_parts(struct stream *s) {
    const struct ot_manifest *m = s->manifest;
    for (int64_t i = 0; i < m->n_parts; i++) {
        const struct ot_store_span *span = m->parts[i].n_spans ? &m->spans[m->parts[i].first_span] : NULL;
        s->order[i] = (struct place){span ? span->file : -1, span ? span->offset : 0, i};
    }
    qsort(s->order, (size_t)m->n_parts, sizeof *s->order, compare_places);
}

static int64_t padded_bytes(const struct stream *s, const struct ot_manifest_part *part) {
    int64_t last = part->first_span + part->n_spans - 1;
    return part->n_spans == 0 ? (int64_t)ot_part_bytes(s->manifest->dtype, &part->part)
                              : s->checkpoint->span_begin[last] + s->manifest->spans[last].bytes;
}

/* Sets the piece's segments: its share of each array of the part. first: the piece's first parameter, counted
 * from the part's. */
static void cut_arrays(const struct stream *s, struct piece *piece, int64_t first) {
    const struct ot_part *part = &piece->part->part;
    for (enum ot_part_array array = OT_PART_M; array < OT_PART_ARRAYS; array++) {
        struct ot_part_place from = ot_part_find(s->manifest->dtype, part, array);
        struct ot_part_place to = ot_part_find(s->manifest->dtype, &piece->what, array);
        int64_t at = (int64_t)(from.offset + ot_part_run(from, first));
        int64_t end = at + (int64_t)ot_part_run(from, piece->what.n);
        if (from.width > 0)
            piece->segments[piece->n_segments++] = (struct segment){at, end, piece->memory + to.offset};
    }
}

/* The file of the part that is not here, or -1. */
static int find_missing(const struct stream *s, const struct ot_manifest_part *part) {
    for (int64_t i = part->first_span; i < part->first_span + part->n_spans; i++)
        if (!ot_checkpoint_has_file(s->checkpoint, s->manifest->spans[i].file))
            return s->manifest->spans[i].file;
    return -1;
}

static bool is_wanted(const struct stream *s, int64_t index) {
    const struct ot_checkpoint_read *read = s->read;
    const struct ot_manifest_part *part = &s->manifest->parts[index];
    if (read->wants && !read->wants(read->context, &part->part))
        return false;
    return !read->skips_missing || find_missing(s, part) < 0;
}

/* Before anything is read: the parts of other hosts must not be needed. */
static int check_here(const struct stream *s) {
    for (int64_t i = 0; i < s->manifest->n_parts; i++) {
        int missing = find_missing(s, &s->manifest->parts[i]);
        if (missing >= 0 && is_wanted(s, i))
            return ot_checkpoint_fail_missing(s->checkpoint, missing);
    }
    return 0;
}

/* Cuts the next piece, for a free slot. False: no piece is left. */
static bool cut_piece(struct stream *s, struct piece *piece) {
    while (s->next < s->manifest->n_parts && s->next_first == 0 && !is_wanted(s, s->order[s->next].part))
        s->next++;
    if (s->next == s->manifest->n_parts)
        return false;
    const struct ot_manifest_part *part = &s->manifest->parts[s->order[s->next].part];
    struct ot_part one = part->part;
    int64_t first = s->next_first, n = part->part.n - first, whole_bytes = padded_bytes(s, part);
    one.n = OT_SLAB_ALIGN_PARAMS;
    bool is_whole = whole_bytes <= (int64_t)s->slot_bytes;
    int64_t most = (int64_t)(s->slot_bytes / ot_part_bytes(s->manifest->dtype, &one)) * one.n;
    if (!is_whole && n > most)
        n = most;
    *piece = (struct piece){.part = part, .what = part->part, .memory = piece->memory};
    piece->what.first += first;
    piece->what.n = n;
    if (is_whole)
        piece->segments[piece->n_segments++] = (struct segment){0, whole_bytes, piece->memory};
    else
        cut_arrays(s, piece, first);
    s->next_first += n;
    if (s->next_first == part->part.n) {
        s->next++;
        s->next_first = 0;
    }
    return true;
}

static int end_piece(struct stream *s, struct piece *piece) {
    const struct ot_checkpoint_read *read = s->read;
    piece->part = NULL;
    if (!piece->is_damaged)
        OT_TRY(read->sink(read->context, &piece->what, piece->memory));
    if (read->progress)
        read->progress(read->context, s->bytes, s->checkpoint->bytes);
    return 0;
}

/* ---- reads ---- */

/* Cuts the next read of the piece in s->cutting. */
static void cut_read(struct stream *s, struct read_io *io) {
    struct piece *piece = s->cutting;
    struct segment *segment = &piece->segments[piece->segment];
    int64_t index = ot_checkpoint_find_span(s->checkpoint, piece->part, segment->at);
    const struct ot_store_span *span = &s->manifest->spans[index];
    int64_t within = segment->at - s->checkpoint->span_begin[index];
    int64_t bytes = segment->end - segment->at;
    bytes = bytes < span->bytes - within ? bytes : span->bytes - within;
    bytes = bytes < READ_BYTES ? bytes : READ_BYTES;
    *io = (struct read_io){.piece = piece,
                           .span = index,
                           .chunk = {.request = {.file = span->file,
                                                 .memory = segment->memory,
                                                 .bytes = (size_t)bytes,
                                                 .offset = (off_t)(span->offset + within),
                                                 .owner = io},
                                     .direct = &s->direct[span->file]}};
    piece->in_flight++;
    segment->at += bytes;
    segment->memory += bytes;
    if (segment->at < segment->end || ++piece->segment < piece->n_segments)
        return;
    piece->is_cut = true;
    s->cutting = NULL;
}

static struct piece *find_free(const struct stream *s) {
    for (int i = 0; i < s->read->n_slots; i++)
        if (!s->pieces[i].part)
            return &s->pieces[i];
    return NULL;
}

/* Starts as many reads as may be in flight. A part of zeros needs no read. */
static int start_reads(struct stream *s) {
    while (s->n_free > 0) {
        if (!s->cutting) {
            struct piece *piece = find_free(s);
            if (!piece || !cut_piece(s, piece))
                return 0;
            if (piece->part->n_spans == 0) {
                memset(piece->memory, 0, ot_part_bytes(s->manifest->dtype, &piece->what));
                OT_TRY(end_piece(s, piece));
                continue;
            }
            s->cutting = piece;
        }
        struct read_io *io = s->free_ios[--s->n_free];
        cut_read(s, io);
        OT_TRY(ot_io_chunk_start(s->engine, &io->chunk));
    }
    return 0;
}

/* ---- results ---- */

/* Adds the bytes of a finished read to the span's checksum. Compares the checksum when the span is
 * complete. */
static int check_span(struct stream *s, const struct read_io *io) {
    const struct ot_store_span *span = &s->manifest->spans[io->span];
    const struct ot_io_request *request = &io->chunk.request;
    struct span_check *check = &s->checks[io->span];
    int64_t behind = span->offset + span->bytes - (int64_t)request->offset - (int64_t)request->bytes;
    uint32_t crc = ot_crc32(0, request->memory, request->bytes);
    check->crc ^= behind ? (uint32_t)crc32_combine(crc, 0, (z_off_t)behind) : crc;
    check->left -= (uint32_t)request->bytes;
    s->bytes += (int64_t)request->bytes;
    if (check->left > 0 || check->crc == span->crc)
        return 0;
    return ot_checkpoint_fail_span(s->checkpoint, span, check->crc);
}

static int take_result(struct stream *s, struct read_io *io, int64_t result) {
    enum ot_io_end end = ot_io_chunk_end(s->engine, &io->chunk, result);
    if (end == OT_IO_AGAIN)
        return ot_io_chunk_start(s->engine, &io->chunk);
    /* Start the next read first: the disk then works while the CPU checks this one. */
    struct read_io was = *io;
    s->free_ios[s->n_free++] = io;
    OT_TRY(start_reads(s));
    ot_io_chunk_drop_cache(s->engine, &was.chunk);
    struct piece *piece = was.piece;
    const struct ot_checkpoint_read *read = s->read;
    struct ot_io_request rest = ot_io_chunk_rest(&was.chunk);
    int rc = end == OT_IO_WHOLE ? check_span(s, &was)
                                : ot_checkpoint_fail_read(s->checkpoint, &s->manifest->spans[was.span],
                                                          (int64_t)rest.offset, result);
    if (rc < 0) {
        piece->is_damaged = true;
        OT_TRY(read->damaged ? read->damaged(read->context, &piece->part->part, rest.file, rc) : rc);
    }
    piece->in_flight--;
    return piece->is_cut && piece->in_flight == 0 ? end_piece(s, piece) : 0;
}

static int stream_parts(struct stream *s) {
    OT_TRY(start_reads(s));
    while (s->n_free < DEPTH) {
        struct ot_io_result result;
        OT_TRY(ot_io_engine_reap(s->engine, &result, 1));
        OT_TRY(take_result(s, result.owner, result.result));
        OT_TRY(start_reads(s));
    }
    return 0;
}

/* ---- the whole checkpoint ---- */

static int allocate(struct stream *s) {
    const struct ot_manifest *m = s->manifest;
    s->order = malloc((size_t)(m->n_parts + 1) * sizeof *s->order);
    s->checks = malloc((size_t)(m->n_spans + 1) * sizeof *s->checks);
    s->direct = calloc((size_t)m->n_files + 1, sizeof *s->direct);
    s->pieces = calloc((size_t)s->read->n_slots, sizeof *s->pieces);
    if (!s->order || !s->checks || !s->direct || !s->pieces)
        return ot_fail(OT_E_BUDGET, "%s: no memory to read the checkpoint's %lld parts", s->checkpoint->dir,
                       (long long)m->n_parts);
    sort_parts(s);
    for (int64_t i = 0; i < m->n_spans; i++)
        s->checks[i] = (struct span_check){0, (uint32_t)m->spans[i].bytes};
    for (int i = 0; i < m->n_files; i++)
        s->direct[i] = ot_checkpoint_has_file(s->checkpoint, i) &&
                       ot_set_direct(s->checkpoint->fds[i], true); /* opened without O_DIRECT */
    for (int i = 0; i < s->read->n_slots; i++)
        s->pieces[i].memory = (char *)s->read->memory + (size_t)i * s->slot_bytes;
    for (; s->n_free < DEPTH; s->n_free++)
        s->free_ios[s->n_free] = &s->ios[s->n_free];
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
    s->slot_bytes = ot_part_slot_bytes(checkpoint->manifest.dtype);
    OT_TRY_GOTO(check_here(s), rc, out);
    OT_TRY_GOTO(allocate(s), rc, out);
    OT_TRY_GOTO(open_engine(s), rc, out);
    rc = stream_parts(s);
out:
    ot_io_engine_close(s->engine); /* waits for the reads: afterwards nothing writes to the slots */
    for (int i = 0; s->direct && i < s->manifest->n_files; i++)
        ot_set_direct(s->checkpoint->fds[i], false);
    free(s->pieces);
    free(s->direct);
    free(s->checks);
    free(s->order);
    free(s);
    return rc;
}
