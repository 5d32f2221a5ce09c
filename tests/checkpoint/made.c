#include "tests/checkpoint/made.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/plan/layout.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/checkpoint/record.h"
#include "tests/support/damage.h"

static const int64_t slab_params[MADE_SLABS] = {19 * OT_SLAB_ALIGN_PARAMS, 401 * OT_SLAB_ALIGN_PARAMS,
                                                5 * OT_SLAB_ALIGN_PARAMS};

/* The thread sanitizer need not see the arithmetic and the scratch of one thread: values are made in blocks,
 * and it sees one access for each block of the memory that threads share. */
#define ONE_THREAD __attribute__((no_sanitize("thread")))
enum { BLOCK_VALUES = 512 };

ONE_THREAD uint32_t made_bits(enum made_kind kind, int slab, int64_t index) {
    if (slab == MADE_ZERO_SLAB && kind != MADE_WEIGHTS)
        return 0;
    uint64_t x =
        ((uint64_t)index * 4 + kind + 1) * 0x9e3779b97f4a7c15u + (uint64_t)slab * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

ONE_THREAD static void make_values(char *out, int width, enum made_kind kind, int slab, int64_t first,
                                   int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = made_bits(kind, slab, first + i);
        for (int b = 0; b < width; b++)
            *out++ = (char)(bits >> 8 * b);
    }
}

/* Writes the values of an array, or compares them. */
static void do_array(char *memory, struct ot_segment_values place, enum made_kind kind,
                     const struct ot_segment *segment, bool put) {
    char values[BLOCK_VALUES * sizeof(uint32_t)];
    const int64_t first = segment->first / place.per, n = place.width ? segment->n / place.per : 0;
    for (int64_t i = 0; i < n; i += BLOCK_VALUES) {
        const int64_t count = ot_min(n - i, BLOCK_VALUES);
        const size_t bytes = (size_t)count * place.width;
        make_values(values, (int)place.width, kind, segment->slab, first + i, count);
        if (put)
            memcpy(memory, values, bytes);
        else if (memcmp(memory, values, bytes) != 0)
            fail_msg("array %d of slab %d is wrong in the %lld values from value %lld", (int)kind,
                     segment->slab, (long long)count, (long long)(first + i));
        memory += bytes;
    }
}

static void do_segment(enum ot_dtype dtype, const struct ot_segment *segment, char *memory, bool put) {
    static const enum made_kind kinds[OT_SEGMENT_ARRAYS] = {[OT_SEGMENT_M] = MADE_M,
                                                            [OT_SEGMENT_V] = MADE_V,
                                                            [OT_SEGMENT_MASTER_REST] = MADE_REST,
                                                            [OT_SEGMENT_SCALES] = MADE_SCALES,
                                                            [OT_SEGMENT_WEIGHTS] = MADE_WEIGHTS};
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values place = ot_segment_find(dtype, segment, array);
        do_array(memory + place.offset, place, kinds[array], segment, put);
    }
}

void check_segment(const struct made *made, const struct ot_segment *segment, const void *memory) {
    do_segment(made->manifest.dtype, segment, (char *)(uintptr_t)memory, false);
}

struct writing {
    struct made *made;
    struct dice dice;
    int fds[MADE_FILES];
    int64_t end[MADE_FILES];
    enum ot_state_format state;
};

static void write_span(struct writing *w, int file, const char *bytes, int64_t n) {
    struct ot_manifest *m = &w->made->manifest;
    struct ot_store_span span = {file, w->end[file], n, ot_crc32(0, bytes, (size_t)n)};
    assert_int_equal(pwrite(w->fds[file], bytes, (size_t)n, (off_t)span.offset), n);
    m->spans = realloc(m->spans, (size_t)(m->n_spans + 1) * sizeof *m->spans);
    m->spans[m->n_spans++] = span;
    w->end[file] += n;
}

/* on_disks: in short spans that alternate between two files, with gaps between them. */
static void add_segment(struct writing *w, struct ot_segment segment, bool zeros, bool on_disks) {
    struct ot_manifest *m = &w->made->manifest;
    int64_t bytes = (int64_t)ot_segment_padded_bytes(m->dtype, &segment), at = 0;
    struct ot_manifest_segment added = {.segment = segment, .first_span = m->n_spans};
    memset(w->made->segment, 0x5a, (size_t)bytes); /* padding counts too */
    do_segment(m->dtype, &segment, w->made->segment, true);
    while (!zeros && at < bytes) {
        int64_t n = bytes - at, most = (1 + (int64_t)throw_below(&w->dice, 60)) * OT_STORE_ALIGN;
        int file = on_disks ? 1 + (int)throw_below(&w->dice, 2) : 0;
        n = on_disks && n > most ? most : n;
        write_span(w, file, w->made->segment + at, n);
        w->end[file] += on_disks ? (int64_t)throw_below(&w->dice, 3) * OT_STORE_ALIGN : 0;
        at += n;
    }
    added.n_spans = (int)(m->n_spans - added.first_span);
    m->segments = realloc(m->segments, (size_t)(m->n_segments + 1) * sizeof *m->segments);
    m->segments[m->n_segments++] = added;
}

static void add_slab(struct writing *w, int slab) {
    int64_t n = slab_params[slab], step = (slab == 1 ? 64 : 7) * OT_SLAB_ALIGN_PARAMS;
    bool apart = slab > 0;
    if (apart)
        add_segment(w, (struct ot_segment){slab, 0, n, true, false, w->state, OT_MASTERS_F32, false},
                    slab == MADE_ZERO_SLAB, true);
    for (int64_t first = 0; first < n; first += step)
        add_segment(w,
                    (struct ot_segment){slab, first, n - first < step ? n - first : step, !apart, true,
                                        w->state, OT_MASTERS_F32, false},
                    false, slab == 1);
}

static void write_record(struct made *made) {
    struct ot_checkpoint_record record = {.progress = {120, 119, 1.0f, 0}, .steps = 500};
    char *text;
    size_t bytes;
    check_ok(ot_checkpoint_record_encode(&record, &text, &bytes));
    write_file(made->folder, OT_RECORD_NAME, text, bytes);
    made->manifest.record_bytes = (int64_t)bytes;
    made->manifest.record_crc = ot_crc32(0, text, bytes);
    free(text);
}

void write_manifest(struct made *made) {
    unsigned char *bytes;
    size_t n;
    check_ok(ot_manifest_encode(&made->manifest, &bytes, &n));
    write_file(made->folder, OT_MANIFEST_NAME, bytes, n);
    free(bytes);
}

void make_checkpoint(struct made *made, enum ot_dtype dtype) {
    make_checkpoint_with(made, dtype, OT_STATE_F32);
}

void make_checkpoint_with(struct made *made, enum ot_dtype dtype, enum ot_state_format state) {
    static const char *const names[MADE_FILES] = {OT_STATE_NAME, "nvme-0.store", "nvme-1.store"};
    char path[512];
    *made = (struct made){.folder = make_folder(),
                          .segment = malloc((size_t)slab_params[1] * 14 + OT_STORE_ALIGN)};
    struct ot_manifest *m = &made->manifest;
    struct writing w = {.made = made, .state = state};
    m->dtype = dtype;
    m->n_slabs = MADE_SLABS;
    m->slab_params = malloc(sizeof slab_params);
    memcpy(m->slab_params, slab_params, sizeof slab_params);
    m->n_files = MADE_FILES;
    m->files = calloc(MADE_FILES, sizeof *m->files);
    for (int i = 0; i < MADE_FILES; i++) {
        m->files[i].name = strdup(names[i]);
        snprintf(path, sizeof path, "%s/%s", made->folder, names[i]);
        w.fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(w.fds[i] >= 0);
    }
    for (int slab = MADE_SLABS - 1; slab >= 0; slab--)
        add_slab(&w, slab);
    for (int i = 0; i < MADE_FILES; i++) {
        m->files[i].bytes = w.end[i];
        assert_int_equal(ftruncate(w.fds[i], (off_t)w.end[i]), 0);
        close(w.fds[i]);
    }
    write_record(made);
    write_manifest(made);
}

void remove_made(struct made *made) {
    ot_manifest_free(&made->manifest);
    free(made->segment);
    remove_folder(made->folder);
}
