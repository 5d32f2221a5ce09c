#include "src/checkpoint/manifest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/checkpoint/record.h"

static const char magic[8] = {'O', 'T', 'C', 'K', 'P', 'T', '\r', '\n'};

/* Sizes in the file, in bytes. FILE_BYTES is without the name. */
enum {
    MAGIC_BYTES = sizeof magic,
    HEAD_BYTES = MAGIC_BYTES + 6 * 4 + 8 + 4,
    SLAB_BYTES = 8,
    FILE_BYTES = 2 + 8,
    SEGMENT_BYTES = 4 + 8 + 8 + 1 + 4,
    SPAN_BYTES = 4 + 8 + 4 + 4,
    CRC_BYTES = 4
};
enum {
    HAS_STATE = 1,
    HAS_WEIGHTS = 2,
    STATE_FORMAT_SHIFT = 2,
    STATE_FORMAT_MASK = 3,
    NO_MASTERS = 16,
    NO_MOMENTS = 32
};
enum { MAX_NAME_BYTES = 64 };

/* Most parameters of a slab, and most bytes of a file. Sums, and products with the bytes of a parameter, stay
 * below 2^63. */
#define MAX_COUNT ((int64_t)1 << 56)

void ot_manifest_free(struct ot_manifest *manifest) {
    for (int i = 0; manifest->files && i < manifest->n_files; i++)
        free(manifest->files[i].name);
    free(manifest->files);
    free(manifest->slab_params);
    free(manifest->segments);
    free(manifest->spans);
    *manifest = (struct ot_manifest){0};
}

/* ---- encoding ---- */

static unsigned char *put(unsigned char *at, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
    return at + bytes;
}

static size_t encoded_bytes(const struct ot_manifest *manifest) {
    size_t bytes = HEAD_BYTES + CRC_BYTES + (size_t)manifest->n_slabs * SLAB_BYTES +
                   (size_t)manifest->n_segments * SEGMENT_BYTES + (size_t)manifest->n_spans * SPAN_BYTES;
    for (int i = 0; i < manifest->n_files; i++)
        bytes += FILE_BYTES + strlen(manifest->files[i].name);
    return bytes;
}

static unsigned flags_of(const struct ot_segment *segment) {
    unsigned state = HAS_STATE | (unsigned)segment->state << STATE_FORMAT_SHIFT |
                     (segment->masters == OT_MASTERS_NONE ? NO_MASTERS : 0) |
                     (segment->lacks_moments ? NO_MOMENTS : 0);
    return (segment->has_state ? state : 0) | (segment->has_weights ? HAS_WEIGHTS : 0);
}

/* The inverse of flags_of. Ignores bits that flags_of does not set. */
static struct ot_segment segment_with(unsigned flags) {
    return (struct ot_segment){
        .has_state = flags & HAS_STATE,
        .has_weights = flags & HAS_WEIGHTS,
        .lacks_moments = flags & NO_MOMENTS,
        .state = (enum ot_state_format)(flags >> STATE_FORMAT_SHIFT & STATE_FORMAT_MASK),
        .masters = flags & NO_MASTERS ? OT_MASTERS_NONE : OT_MASTERS_F32,
    };
}

static unsigned char *put_head(unsigned char *at, const struct ot_manifest *manifest) {
    memcpy(at, magic, MAGIC_BYTES);
    at = put(at + MAGIC_BYTES, 4, OT_CHECKPOINT_FORMAT);
    at = put(at, 4, manifest->dtype);
    at = put(at, 4, (uint32_t)manifest->n_slabs);
    at = put(at, 4, (uint32_t)manifest->n_files);
    at = put(at, 4, (uint32_t)manifest->n_segments);
    at = put(at, 4, (uint32_t)manifest->n_spans);
    at = put(at, 8, (uint64_t)manifest->record_bytes);
    return put(at, 4, manifest->record_crc);
}

int ot_manifest_encode(const struct ot_manifest *manifest, unsigned char **bytes, size_t *n) {
    *n = encoded_bytes(manifest);
    if (*n > OT_MANIFEST_MAX_BYTES)
        return ot_fail(OT_E_BUDGET,
                       "the manifest of this checkpoint would have %zu bytes, at most %d are allowed", *n,
                       OT_MANIFEST_MAX_BYTES);
    unsigned char *at = *bytes = malloc(*n);
    if (!at)
        return ot_fail(OT_E_BUDGET, "no memory for the %zu bytes of a checkpoint's manifest", *n);
    at = put_head(at, manifest);
    for (int i = 0; i < manifest->n_slabs; i++)
        at = put(at, 8, (uint64_t)manifest->slab_params[i]);
    for (int i = 0; i < manifest->n_files; i++) {
        const struct ot_manifest_file *file = &manifest->files[i];
        size_t length = strlen(file->name);
        at = put(at, 2, length);
        memcpy(at, file->name, length);
        at = put(at + length, 8, (uint64_t)file->bytes);
    }
    for (int64_t i = 0; i < manifest->n_segments; i++) {
        const struct ot_manifest_segment *segment = &manifest->segments[i];
        at = put(at, 4, (uint32_t)segment->segment.slab);
        at = put(at, 8, (uint64_t)segment->segment.first);
        at = put(at, 8, (uint64_t)segment->segment.n);
        at = put(at, 1, flags_of(&segment->segment));
        at = put(at, 4, (uint32_t)segment->n_spans);
    }
    for (int64_t i = 0; i < manifest->n_spans; i++) {
        const struct ot_store_span *span = &manifest->spans[i];
        at = put(at, 4, (uint32_t)span->file);
        at = put(at, 8, (uint64_t)span->offset);
        at = put(at, 4, (uint32_t)span->bytes);
        at = put(at, 4, span->crc);
    }
    at = put(at, 4, ot_crc32(0, *bytes, *n - CRC_BYTES));
    assert(at == *bytes + *n);
    return 0;
}

/* ---- decoding: the bytes ---- */

struct decoder {
    const unsigned char *bytes;
    size_t n, at; /* n: end of the bytes to decode */
    const char *where;
    struct ot_manifest *out;
};

#define FAIL_AT(d, place, ...)                                                                               \
    ot_fail_context(ot_fail(OT_E_INPUT, __VA_ARGS__), "%s: byte %zu", (d)->where, place)

/* The caller has checked that the bytes exist. */
static uint64_t take(struct decoder *d, int bytes) {
    uint64_t value = 0;
    assert((size_t)bytes <= d->n - d->at);
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)d->bytes[d->at++] << 8 * i;
    return value;
}

/* Checks magic, checksum and format. A damaged file and a newer format get different messages. */
static int take_frame(struct decoder *d, size_t n) {
    if (n < HEAD_BYTES + CRC_BYTES || n > OT_MANIFEST_MAX_BYTES)
        return ot_fail(OT_E_INPUT, "%s: damaged: a manifest cannot have %zu bytes", d->where, n);
    if (memcmp(d->bytes, magic, MAGIC_BYTES) != 0)
        return ot_fail(OT_E_INPUT, "%s: damaged: its first bytes are not those of a checkpoint's manifest",
                       d->where);
    d->n = n;
    d->at = n - CRC_BYTES;
    uint32_t want = (uint32_t)take(d, CRC_BYTES), crc = ot_crc32(0, d->bytes, n - CRC_BYTES);
    if (crc != want)
        return ot_fail(OT_E_INPUT, "%s: damaged: its CRC-32 is %08x, should be %08x", d->where, crc, want);
    d->n = n - CRC_BYTES;
    d->at = MAGIC_BYTES;
    uint64_t format = take(d, 4);
    if (format != OT_CHECKPOINT_FORMAT)
        return ot_fail(OT_E_INPUT,
                       "%s: has format %u, but this version of offload-train reads only format %d; use the "
                       "version that wrote it",
                       d->where, (unsigned)format, OT_CHECKPOINT_FORMAT);
    return 0;
}

/* Checks the counts against the size of the file before it allocates memory for them. */
static int take_counts(struct decoder *d) {
    struct ot_manifest *m = d->out;
    uint64_t dtype = take(d, 4);
    if (dtype > OT_F16)
        return FAIL_AT(d, d->at - 4, "%u is not a dtype", (unsigned)dtype);
    uint64_t slabs = take(d, 4), files = take(d, 4), segments = take(d, 4), spans = take(d, 4);
    uint64_t least =
        slabs * SLAB_BYTES + files * (FILE_BYTES + 1) + segments * SEGMENT_BYTES + spans * SPAN_BYTES;
    if (slabs == 0 || files > OT_MANIFEST_MAX_FILES || least > d->n - HEAD_BYTES)
        return FAIL_AT(d, d->at - 16, "%u slabs, %u files, %u segments and %u spans do not fit in %zu bytes",
                       (unsigned)slabs, (unsigned)files, (unsigned)segments, (unsigned)spans, d->n);
    uint64_t record_bytes = take(d, 8);
    if (record_bytes > OT_RECORD_MAX_BYTES)
        return FAIL_AT(d, d->at - 8, OT_RECORD_NAME " cannot have %llu bytes",
                       (unsigned long long)record_bytes);
    m->dtype = (enum ot_dtype)dtype;
    m->record_bytes = (int64_t)record_bytes;
    m->record_crc = (uint32_t)take(d, 4);
    m->slab_params = calloc(slabs, sizeof *m->slab_params);
    m->files = calloc(files + 1, sizeof *m->files);
    m->segments = calloc(segments + 1, sizeof *m->segments);
    m->spans = calloc(spans + 1, sizeof *m->spans);
    if (!m->slab_params || !m->files || !m->segments || !m->spans)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %u segments and %u spans", d->where,
                       (unsigned)segments, (unsigned)spans);
    m->n_slabs = (int)slabs;
    m->n_files = (int)files;
    m->n_segments = (int64_t)segments;
    m->n_spans = (int64_t)spans;
    return 0;
}

static int take_slabs(struct decoder *d) {
    for (int i = 0; i < d->out->n_slabs; i++) {
        uint64_t params = take(d, 8);
        if (params > MAX_COUNT)
            return FAIL_AT(d, d->at - 8, "slab %d cannot have %llu parameters", i,
                           (unsigned long long)params);
        d->out->slab_params[i] = (int64_t)params;
    }
    return 0;
}

/* A name of the kind that we write: it cannot leave the directory, is not hidden, and has no control
 * characters. */
static bool is_plain_name(const char *name, size_t length) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (length == 0 || length > MAX_NAME_BYTES || name[0] == '.')
        return false;
    for (size_t i = 0; i < length; i++)
        if (!name[i] || !strchr(allowed, name[i]))
            return false;
    return true;
}

static int take_files(struct decoder *d) {
    struct ot_manifest *m = d->out;
    for (int i = 0; i < m->n_files; i++) {
        if (d->n - d->at < FILE_BYTES)
            return FAIL_AT(d, d->at, "the manifest ends before file %d", i);
        size_t length = (size_t)take(d, 2), at = d->at;
        if (d->n - d->at < length + 8)
            return FAIL_AT(d, at, "the manifest ends before file %d", i);
        const char *name = (const char *)d->bytes + at;
        if (!is_plain_name(name, length))
            return FAIL_AT(d, at, "the name of file %d is not allowed in a checkpoint", i);
        m->files[i].name = ot_string_copy(name, length);
        if (!m->files[i].name)
            return ot_fail(OT_E_BUDGET, "%s: no memory for the names of files", d->where);
        bool taken =
            strcmp(m->files[i].name, OT_MANIFEST_NAME) == 0 || strcmp(m->files[i].name, OT_RECORD_NAME) == 0;
        for (int k = 0; k < i; k++)
            taken = taken || strcmp(m->files[i].name, m->files[k].name) == 0;
        if (taken)
            return FAIL_AT(d, at, "file %d has the name of another file, %s", i, m->files[i].name);
        d->at += length;
        uint64_t bytes = take(d, 8);
        if (bytes > MAX_COUNT)
            return FAIL_AT(d, d->at - 8, "%s cannot have %llu bytes", m->files[i].name,
                           (unsigned long long)bytes);
        m->files[i].bytes = (int64_t)bytes;
    }
    size_t needed = (size_t)m->n_segments * SEGMENT_BYTES + (size_t)m->n_spans * SPAN_BYTES;
    if (d->n - d->at != needed)
        return FAIL_AT(d, d->at, "%zu bytes are left, but segments and spans need %zu", d->n - d->at, needed);
    return 0;
}

static int take_segments(struct decoder *d) {
    struct ot_manifest *m = d->out;
    int64_t n_spans = 0;
    for (int64_t i = 0; i < m->n_segments; i++) {
        size_t at = d->at;
        uint64_t slab = take(d, 4), first = take(d, 8), n = take(d, 8), flags = take(d, 1),
                 spans = take(d, 4);
        if (slab >= (uint64_t)m->n_slabs)
            return FAIL_AT(d, at, "segment %lld is of slab %u, but the number of slabs is %d", (long long)i,
                           (unsigned)slab, m->n_slabs);
        uint64_t params = (uint64_t)m->slab_params[slab];
        if (n == 0 || first > params || n > params - first)
            return FAIL_AT(d, at + 4, "segment %lld is empty or not within slab %u", (long long)i,
                           (unsigned)slab);
        struct ot_segment segment = segment_with((unsigned)flags);
        if ((flags & (HAS_STATE | HAS_WEIGHTS)) == 0 || segment.state >= OT_STATE_FORMATS ||
            flags_of(&segment) != flags || (segment.masters == OT_MASTERS_NONE && m->dtype != OT_BF16) ||
            (segment.lacks_moments && segment.state))
            return FAIL_AT(d, at + 20, "segment %lld has unknown flags %u", (long long)i, (unsigned)flags);
        if (segment.state && (first % OT_STATE_GROUP || n % OT_STATE_GROUP))
            return FAIL_AT(d, at + 4, "segment %lld has a compact state, but is not of whole groups of %d",
                           (long long)i, OT_STATE_GROUP);
        if (spans > (uint64_t)(m->n_spans - n_spans))
            return FAIL_AT(d, at + 21, "segment %lld has %u spans, but only %lld are left", (long long)i,
                           (unsigned)spans, (long long)(m->n_spans - n_spans));
        segment.slab = (int)slab;
        segment.first = (int64_t)first;
        segment.n = (int64_t)n;
        m->segments[i] =
            (struct ot_manifest_segment){.segment = segment, .first_span = n_spans, .n_spans = (int)spans};
        n_spans += (int64_t)spans;
    }
    if (n_spans != m->n_spans)
        return FAIL_AT(d, d->at, "%lld spans belong to no segment", (long long)(m->n_spans - n_spans));
    return 0;
}

static int take_spans(struct decoder *d) {
    struct ot_manifest *m = d->out;
    for (int64_t i = 0; i < m->n_spans; i++) {
        size_t at = d->at;
        uint64_t file = take(d, 4), offset = take(d, 8), bytes = take(d, 4), crc = take(d, 4);
        if (file >= (uint64_t)m->n_files)
            return FAIL_AT(d, at, "span %lld is of file %u, but the number of files is %d", (long long)i,
                           (unsigned)file, m->n_files);
        uint64_t file_bytes = (uint64_t)m->files[file].bytes;
        if (bytes == 0 || bytes > OT_SPAN_MAX_BYTES || bytes % OT_STORE_ALIGN || offset % OT_STORE_ALIGN ||
            offset > file_bytes || bytes > file_bytes - offset)
            return FAIL_AT(d, at + 4,
                           "span %lld (%u bytes at offset %llu) is not valid in %s, which has %llu bytes",
                           (long long)i, (unsigned)bytes, (unsigned long long)offset, m->files[file].name,
                           (unsigned long long)file_bytes);
        m->spans[i] = (struct ot_store_span){
            .file = (int)file, .offset = (int64_t)offset, .bytes = (int64_t)bytes, .crc = (uint32_t)crc};
    }
    return 0;
}

/* ---- decoding: consistency ---- */

struct ot_segment ot_manifest_state(const struct ot_manifest *m) {
    for (int64_t i = 0; i < m->n_segments; i++)
        if (m->segments[i].segment.has_state)
            return m->segments[i].segment;
    return (struct ot_segment){0};
}

static int check_lengths(const struct ot_manifest *m, const char *where) {
    struct ot_segment state = ot_manifest_state(m);
    for (int64_t i = 0; i < m->n_segments; i++) {
        const struct ot_manifest_segment *segment = &m->segments[i];
        if (segment->segment.has_state && segment->segment.state != state.state)
            return ot_fail(OT_E_INPUT, "%s: segment %lld has a state in %s, but others have it in %s", where,
                           (long long)i, ot_state_format_name(segment->segment.state),
                           ot_state_format_name(state.state));
        if (segment->segment.has_state && segment->segment.lacks_moments != state.lacks_moments)
            return ot_fail(OT_E_INPUT, "%s: some segments have moments, and others have none (segment %lld)",
                           where, (long long)i);
        if (segment->segment.has_state && segment->segment.masters != state.masters)
            return ot_fail(OT_E_INPUT,
                           "%s: some segments have fp32 masters, and others have none (segment %lld)", where,
                           (long long)i);
        int64_t want = (int64_t)ot_segment_padded_bytes(m->dtype, &segment->segment), have = 0;
        for (int64_t s = 0; s < segment->n_spans; s++)
            have += m->spans[segment->first_span + s].bytes;
        if (segment->n_spans > 0 && have != want)
            return ot_fail(OT_E_INPUT, "%s: segment %lld has %lld bytes, should have %lld", where,
                           (long long)i, (long long)have, (long long)want);
    }
    return 0;
}

/* A range: bytes of a file, or parameters of a slab. line: index of the file or the slab. */
struct stretch {
    int line;
    int64_t first, n;
};

static int compare_stretches(const void *a, const void *b) {
    const struct stretch *x = a, *y = b;
    if (x->line != y->line)
        return x->line < y->line ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Sorts the ranges. Returns the first range that begins within the range before it, or NULL. */
static const struct stretch *find_overlap(struct stretch *stretches, int64_t n) {
    qsort(stretches, (size_t)n, sizeof *stretches, compare_stretches);
    for (int64_t i = 1; i < n; i++)
        if (stretches[i].line == stretches[i - 1].line &&
            stretches[i].first - stretches[i - 1].first < stretches[i - 1].n)
            return &stretches[i];
    return NULL;
}

static int check_spans(const struct ot_manifest *m, const char *where, struct stretch *spans) {
    for (int64_t i = 0; i < m->n_spans; i++)
        spans[i] = (struct stretch){m->spans[i].file, m->spans[i].offset, m->spans[i].bytes};
    const struct stretch *twice = find_overlap(spans, m->n_spans);
    return twice ? ot_fail(OT_E_INPUT, "%s: two spans of %s overlap at offset %lld", where,
                           m->files[twice->line].name, (long long)twice->first)
                 : 0;
}

/* Checks that the sorted segments that have the state (or the weights) cover each slab from its first
 * parameter to its last without gap or overlap. */
static int check_coverage(const struct ot_manifest *m, const char *where, bool state,
                          struct stretch *segments) {
    const char *what = state ? "state" : "weights";
    int64_t n = 0, i = 0;
    for (int64_t k = 0; k < m->n_segments; k++) {
        const struct ot_segment *segment = &m->segments[k].segment;
        if (state ? segment->has_state : segment->has_weights)
            segments[n++] = (struct stretch){segment->slab, segment->first, segment->n};
    }
    const struct stretch *twice = find_overlap(segments, n);
    if (twice)
        return ot_fail(OT_E_INPUT, "%s: parameter %lld of slab %d has %s twice", where,
                       (long long)twice->first, twice->line, what);
    for (int slab = 0; slab < m->n_slabs; slab++) {
        int64_t next = 0;
        for (; i < n && segments[i].line == slab && segments[i].first == next; i++)
            next += segments[i].n;
        if (next < m->slab_params[slab])
            return ot_fail(OT_E_INPUT, "%s: parameter %lld of slab %d has no %s", where, (long long)next,
                           slab, what);
    }
    return 0;
}

static int check_all(const struct ot_manifest *m, const char *where, bool whole) {
    int64_t most = ot_max(m->n_segments, m->n_spans);
    struct stretch *sorted = malloc((size_t)(most + 1) * sizeof *sorted);
    if (!sorted)
        return ot_fail(OT_E_BUDGET, "%s: no memory to check %lld spans", where, (long long)most);
    int rc = check_lengths(m, where);
    if (rc == 0)
        rc = check_spans(m, where, sorted);
    if (rc == 0 && whole)
        rc = check_coverage(m, where, true, sorted);
    if (rc == 0 && whole)
        rc = check_coverage(m, where, false, sorted);
    free(sorted);
    return rc;
}

static int decode(const unsigned char *bytes, size_t n, const char *where, bool whole,
                  struct ot_manifest *out) {
    struct decoder d = {.bytes = bytes, .where = where, .out = out};
    int rc;
    *out = (struct ot_manifest){0};
    OT_TRY_GOTO(take_frame(&d, n), rc, out);
    OT_TRY_GOTO(take_counts(&d), rc, out);
    OT_TRY_GOTO(take_slabs(&d), rc, out);
    OT_TRY_GOTO(take_files(&d), rc, out);
    OT_TRY_GOTO(take_segments(&d), rc, out);
    OT_TRY_GOTO(take_spans(&d), rc, out);
    rc = check_all(out, where, whole);
out:
    if (rc < 0)
        ot_manifest_free(out);
    return rc;
}

int ot_manifest_check_model(const struct ot_manifest *m, const struct ot_chain *chain, const char *where) {
    if (m->n_slabs != chain->n_slabs)
        return ot_fail(OT_E_INPUT, "%s: the checkpoint has %d slabs, but the model of this run has %d", where,
                       m->n_slabs, chain->n_slabs);
    for (int i = 0; i < chain->n_slabs; i++)
        if (m->slab_params[i] != ot_manifest_params_of(&chain->slabs[i]))
            return ot_fail(OT_E_INPUT, "%s: %s has %lld parameters, but %lld in the model of this run", where,
                           chain->slabs[i].name, (long long)m->slab_params[i],
                           (long long)ot_manifest_params_of(&chain->slabs[i]));
    return 0;
}

int ot_manifest_decode(const unsigned char *bytes, size_t n, const char *where, struct ot_manifest *out) {
    return decode(bytes, n, where, true, out);
}

int ot_manifest_decode_share(const unsigned char *bytes, size_t n, const char *where,
                             struct ot_manifest *out) {
    return decode(bytes, n, where, false, out);
}

/* ---- joining the manifests of several ranks ---- */

static int check_same_model(const struct ot_manifest *whole, const struct ot_manifest *share) {
    bool same = whole->dtype == share->dtype && whole->n_slabs == share->n_slabs;
    for (int s = 0; s < whole->n_slabs && same; s++)
        same = whole->slab_params[s] == share->slab_params[s];
    if (!same)
        return ot_fail(OT_E_INTERNAL, "the segments of two ranks are of different models");
    for (int i = 0; i < whole->n_files; i++)
        for (int k = 0; k < share->n_files; k++)
            if (strcmp(whole->files[i].name, share->files[k].name) == 0)
                return ot_fail(OT_E_INTERNAL, "two ranks have written %s", whole->files[i].name);
    return 0;
}

/* Makes room behind the entries of `whole` for those of `share`. */
static int make_room(struct ot_manifest *whole, const struct ot_manifest *share) {
    size_t n_files = (size_t)whole->n_files + (size_t)share->n_files;
    size_t n_segments = (size_t)(whole->n_segments + share->n_segments);
    size_t n_spans = (size_t)(whole->n_spans + share->n_spans);
    size_t files = 0, segments = 0, spans = 0; /* capacities: the arrays always grow */
    OT_TRY(ot_grow(&whole->files, &files, n_files + 1, sizeof *whole->files, "files"));
    OT_TRY(ot_grow(&whole->segments, &segments, n_segments + 1, sizeof *whole->segments, "segments"));
    return ot_grow(&whole->spans, &spans, n_spans + 1, sizeof *whole->spans, "spans");
}

int ot_manifest_merge(struct ot_manifest *whole, struct ot_manifest *share) {
    OT_TRY(check_same_model(whole, share));
    OT_TRY(make_room(whole, share));
    for (int64_t i = 0; i < share->n_segments; i++) {
        whole->segments[whole->n_segments + i] = share->segments[i];
        whole->segments[whole->n_segments + i].first_span += whole->n_spans;
    }
    for (int64_t i = 0; i < share->n_spans; i++) {
        whole->spans[whole->n_spans + i] = share->spans[i];
        whole->spans[whole->n_spans + i].file += whole->n_files;
    }
    for (int i = 0; i < share->n_files; i++)
        whole->files[whole->n_files + i] = share->files[i]; /* with its name */
    whole->n_segments += share->n_segments;
    whole->n_spans += share->n_spans;
    whole->n_files += share->n_files;
    share->n_files = 0;
    ot_manifest_free(share);
    return 0;
}
