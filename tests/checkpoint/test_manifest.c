/* The manifest. A written manifest is read back unchanged. Any other file is refused with an error that names
 * the position, or is a valid manifest itself. */
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/random.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/record.h"
#include "tests/support/check.h"
#include "tests/support/damage.h"

enum { MAX_SEGMENTS = 64, MAX_SPANS = 512 };

/* ---- random manifests ---- */

struct making {
    struct dice dice;
    struct ot_manifest *m;
    enum ot_state_format format;
    enum ot_masters masters;
    int64_t file_end[4];
};

static int64_t below(struct making *mk, int64_t bound) {
    return (int64_t)throw_below(&mk->dice, (size_t)bound);
}

static void add_segment(struct making *mk, int slab, int64_t first, int64_t n, bool state, bool weights) {
    struct ot_manifest_segment *segment = &mk->m->segments[mk->m->n_segments++];
    *segment = (struct ot_manifest_segment){.segment = {slab, first, n, state, weights,
                                                        state ? mk->format : OT_STATE_F32,
                                                        state ? mk->masters : OT_MASTERS_F32, false}};
    assert_true(mk->m->n_segments <= MAX_SEGMENTS);
}

/* Cut at random; sometimes state and weights are separate segments. */
static void make_segments(struct making *mk) {
    int64_t unit = mk->format ? OT_STATE_GROUP : 1;
    for (int slab = 0; slab < mk->m->n_slabs; slab++) {
        int64_t params = mk->m->slab_params[slab];
        for (int64_t first = 0, n; first < params; first += n) {
            n = unit * (1 + below(mk, (params - first) / unit));
            if (mk->m->n_segments > MAX_SEGMENTS / 2)
                n = params - first;
            if (below(mk, 2)) {
                add_segment(mk, slab, first, n, true, true);
            } else {
                add_segment(mk, slab, first, n, true, false);
                add_segment(mk, slab, first, n, false, true);
            }
        }
    }
    for (int64_t i = mk->m->n_segments; i > 1; i--) {
        int64_t k = below(mk, i);
        struct ot_manifest_segment last = mk->m->segments[i - 1];
        mk->m->segments[i - 1] = mk->m->segments[k];
        mk->m->segments[k] = last;
    }
}

static void make_spans(struct making *mk) {
    struct ot_manifest *m = mk->m;
    for (int64_t i = 0; i < m->n_segments; i++) {
        struct ot_manifest_segment *segment = &m->segments[i];
        int64_t left = (int64_t)ot_segment_bytes(m->dtype, &segment->segment);
        segment->first_span = m->n_spans;
        if (below(mk, 8) == 0)
            continue; /* all zeros */
        for (int64_t blocks = (left + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN, n; blocks > 0; blocks -= n) {
            int file = (int)below(mk, m->n_files);
            n = 1 + below(mk, blocks);
            assert_true(m->n_spans < MAX_SPANS);
            m->spans[m->n_spans++] = (struct ot_store_span){.file = file,
                                                            .offset = mk->file_end[file],
                                                            .bytes = n * OT_STORE_ALIGN,
                                                            .crc = (uint32_t)below(mk, UINT32_MAX)};
            mk->file_end[file] += (n + below(mk, 3)) * OT_STORE_ALIGN;
            segment->n_spans++;
        }
    }
}

static struct ot_manifest make_manifest(uint64_t round) {
    static const char *const names[] = {"state.bin", "nvme-0.store", "nvme-1.store", "nvme-11.store"};
    struct ot_manifest m = {0};
    struct making mk = {.dice = {.round = round}, .m = &m};
    m.dtype = (enum ot_dtype)below(&mk, 3);
    mk.format = (enum ot_state_format)below(&mk, OT_STATE_FORMATS);
    mk.masters = m.dtype == OT_BF16 && below(&mk, 2) ? OT_MASTERS_NONE : OT_MASTERS_F32;
    m.n_slabs = (int)(1 + below(&mk, 4));
    m.n_files = (int)(1 + below(&mk, 4));
    m.record_bytes = below(&mk, OT_RECORD_MAX_BYTES);
    m.record_crc = (uint32_t)below(&mk, UINT32_MAX);
    m.slab_params = calloc((size_t)m.n_slabs, sizeof *m.slab_params);
    m.files = calloc((size_t)m.n_files, sizeof *m.files);
    m.segments = calloc(MAX_SEGMENTS, sizeof *m.segments);
    m.spans = calloc(MAX_SPANS, sizeof *m.spans);
    for (int i = 0; i < m.n_slabs; i++)
        m.slab_params[i] = mk.format ? OT_STATE_GROUP * (1 + below(&mk, 600)) : 1 + below(&mk, 20000);
    make_segments(&mk);
    make_spans(&mk);
    for (int i = 0; i < m.n_files; i++)
        m.files[i] = (struct ot_manifest_file){strdup(names[i]), mk.file_end[i] + below(&mk, 10000)};
    return m;
}

static void check_same(const struct ot_manifest *a, const struct ot_manifest *b) {
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->n_slabs, b->n_slabs);
    assert_int_equal(a->n_files, b->n_files);
    assert_int_equal(a->n_segments, b->n_segments);
    assert_int_equal(a->n_spans, b->n_spans);
    assert_int_equal(a->record_bytes, b->record_bytes);
    assert_int_equal(a->record_crc, b->record_crc);
    for (int i = 0; i < a->n_slabs; i++)
        assert_int_equal(a->slab_params[i], b->slab_params[i]);
    for (int i = 0; i < a->n_files; i++) {
        assert_string_equal(a->files[i].name, b->files[i].name);
        assert_int_equal(a->files[i].bytes, b->files[i].bytes);
    }
    for (int64_t i = 0; i < a->n_segments; i++) {
        const struct ot_manifest_segment *x = &a->segments[i], *y = &b->segments[i];
        assert_int_equal(x->segment.slab, y->segment.slab);
        assert_int_equal(x->segment.first, y->segment.first);
        assert_int_equal(x->segment.n, y->segment.n);
        assert_int_equal(x->segment.has_state, y->segment.has_state);
        assert_int_equal(x->segment.has_weights, y->segment.has_weights);
        assert_int_equal(x->segment.state, y->segment.state);
        assert_int_equal(x->segment.masters, y->segment.masters);
        assert_int_equal(x->first_span, y->first_span);
        assert_int_equal(x->n_spans, y->n_spans);
    }
    for (int64_t i = 0; i < a->n_spans; i++) {
        assert_int_equal(a->spans[i].file, b->spans[i].file);
        assert_int_equal(a->spans[i].offset, b->spans[i].offset);
        assert_int_equal(a->spans[i].bytes, b->spans[i].bytes);
        assert_int_equal(a->spans[i].crc, b->spans[i].crc);
    }
}

static void test_what_is_written_is_read(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        struct ot_manifest made = make_manifest(round), read;
        unsigned char *bytes;
        size_t n;
        check_ok(ot_manifest_encode(&made, &bytes, &n));
        check_ok(ot_manifest_decode(bytes, n, "manifest.bin", &read));
        check_same(&made, &read);
        ot_manifest_free(&read);
        ot_manifest_free(&made);
        free(bytes);
    }
}

/* The format is what the header says, byte by byte, so that a new program reads an old checkpoint. */
static void test_format_is_fixed(void **state) {
    (void)state;
    static const unsigned char want[] = {
        'O', 'T', 'C', 'K', 'P', 'T', '\r', '\n', /* magic */
        1,   0,   0,   0,   1,   0,   0,    0,    /* format, bf16 */
        1,   0,   0,   0,   1,   0,   0,    0,    /* slabs, files */
        2,   0,   0,   0,   2,   0,   0,    0,    /* segments, spans */
        9,   0,   0,   0,   0,   0,   0,    0,    /* bytes of checkpoint.json */
        4,   3,   2,   1,                         /* its CRC-32 */
        0,   8,   0,   0,   0,   0,   0,    0,    /* 2048 parameters */
        9,   0,   's', 't', 'a', 't', 'e',  '.',  'b', 'i',  'n',  0,    0x60, 0, 0, 0, 0, 0, 0, /* 24 KiB */
        0,   0,   0,   0,   0,   0,   0,    0,    0,   0,    0,    0,    0,    8, 0, 0, 0, 0, 0,
        0,   1,   2,   0,   0,   0,   0,    0,    0,   0,    0,    0,    0,    0, 0, 0, 0, 0, 0,
        8,   0,   0,   0,   0,   0,   0,    2,    0,   0,    0,    0,    0,    0, 0, 0, 0, 0, 0,
        0,   0,   0,   0,   0,   0,   0x40, 0,    0,   0xef, 0xbe, 0xad, 0xde, 0, 0, 0, 0, 0, 0x50,
        0,   0,   0,   0,   0,   0,   0,    0x10, 0,   0,    7,    0,    0,    0,
    };
    struct ot_manifest_file file = {.name = (char[]){"state.bin"}, .bytes = 0x6000};
    struct ot_manifest_segment segments[] = {
        {{0, 0, 2048, true, false, OT_STATE_F32, OT_MASTERS_F32, false}, 0, 2},
        {{0, 0, 2048, false, true, OT_STATE_F32, OT_MASTERS_F32, false}, 2, 0}};
    struct ot_store_span spans[] = {{0, 0, 0x4000, 0xdeadbeef}, {0, 0x5000, 0x1000, 7}};
    struct ot_manifest m = {.dtype = OT_BF16,
                            .n_slabs = 1,
                            .n_files = 1,
                            .n_segments = 2,
                            .n_spans = 2,
                            .slab_params = (int64_t[]){2048},
                            .files = &file,
                            .segments = segments,
                            .spans = spans,
                            .record_bytes = 9,
                            .record_crc = 0x01020304},
                       read;
    unsigned char *bytes;
    size_t n;
    check_ok(ot_manifest_encode(&m, &bytes, &n));
    assert_int_equal(n, sizeof want + 4);
    assert_memory_equal(bytes, want, sizeof want);
    check_ok(ot_manifest_decode(bytes, n, "manifest.bin", &read));
    ot_manifest_free(&read);
    free(bytes);
}

/* ---- damage ---- */

static void test_every_damaged_byte_is_found(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 3; round++) {
        struct ot_manifest made = make_manifest(round), read;
        struct dice dice = {.round = round};
        unsigned char *bytes;
        size_t n;
        check_ok(ot_manifest_encode(&made, &bytes, &n));
        for (size_t at = 0; at < n; at++) {
            unsigned char was = bytes[at];
            bytes[at] ^= (unsigned char)(1 + throw_below(&dice, 255));
            check_fails(ot_manifest_decode(bytes, n, "a/manifest.bin", &read), OT_E_INPUT,
                        "a/manifest.bin: ");
            assert_null(read.segments);
            bytes[at] = was;
        }
        for (size_t length = 0; length < n; length++)
            check_fails(ot_manifest_decode(bytes, length, "manifest.bin", &read), OT_E_INPUT, "damaged");
        unsigned char *longer = malloc(n + 1);
        memcpy(longer, bytes, n);
        longer[n] = 0;
        check_fails(ot_manifest_decode(longer, n + 1, "manifest.bin", &read), OT_E_INPUT, "damaged");
        ot_manifest_free(&made);
        free(longer);
        free(bytes);
    }
}

static void seal(unsigned char *bytes, size_t n) {
    uint32_t crc = ot_crc32(0, bytes, n - 4);
    for (int i = 0; i < 4; i++)
        bytes[n - 4 + (size_t)i] = (unsigned char)(crc >> 8 * i);
}

/* A hostile file has the right checksum. If it is accepted, it is a valid manifest: writing it again gives
 * the same bytes. */
static void test_sealed_damage_is_refused_or_whole(void **state) {
    (void)state;
    int accepted = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        struct ot_manifest made = make_manifest(round % 20), read;
        struct dice dice = {.round = round};
        unsigned char *bytes, *again;
        size_t n, n_again;
        check_ok(ot_manifest_encode(&made, &bytes, &n));
        for (size_t times = 1 + throw_below(&dice, 3); times > 0; times--)
            bytes[8 + throw_below(&dice, n - 12)] = (unsigned char)throw_below(&dice, 256);
        seal(bytes, n);
        int rc = ot_manifest_decode(bytes, n, "manifest.bin", &read);
        if (rc == 0) {
            accepted++;
            check_ok(ot_manifest_encode(&read, &again, &n_again));
            assert_int_equal(n, n_again);
            assert_memory_equal(bytes, again, n);
            ot_manifest_free(&read);
            free(again);
        } else {
            assert_int_equal(rc, -OT_E_INPUT);
        }
        ot_manifest_free(&made);
        free(bytes);
    }
    /* Checksums of spans, and padding between spans, may have any value. */
    assert_in_range(accepted, 1, 2000);
}

static void check_refused(const struct ot_manifest *m, const char *words) {
    struct ot_manifest read;
    unsigned char *bytes;
    size_t n;
    check_ok(ot_manifest_encode(m, &bytes, &n));
    check_fails(ot_manifest_decode(bytes, n, "manifest.bin", &read), OT_E_INPUT, words);
    free(bytes);
}

/* One slab of 4096 parameters in bf16, in two segments with state and weights. Each segment has a span of 24
 * KiB. */
struct small {
    struct ot_manifest m;
    int64_t slab_params[1];
    struct ot_manifest_file files[2];
    struct ot_manifest_segment segments[3];
    struct ot_store_span spans[3];
};
static void make_small(struct small *s) {
    *s =
        (struct small){.slab_params = {4096},
                       .files = {{(char *)"state.bin", 49152}, {(char *)"nvme-0.store", 0}},
                       .segments = {{{0, 0, 2048, true, true, OT_STATE_F32, OT_MASTERS_F32, false}, 0, 1},
                                    {{0, 2048, 2048, true, true, OT_STATE_F32, OT_MASTERS_F32, false}, 1, 1}},
                       .spans = {{0, 0, 24576, 1}, {0, 24576, 24576, 2}}};
    s->m = (struct ot_manifest){.dtype = OT_BF16,
                                .n_slabs = 1,
                                .n_files = 2,
                                .n_segments = 2,
                                .n_spans = 2,
                                .slab_params = s->slab_params,
                                .files = s->files,
                                .segments = s->segments,
                                .spans = s->spans};
}

#define REFUSED(words, ...)                                                                                  \
    do {                                                                                                     \
        struct small s;                                                                                      \
        make_small(&s);                                                                                      \
        __VA_ARGS__;                                                                                         \
        check_refused(&s.m, words);                                                                          \
    } while (0)

static void test_each_lie_has_its_sentence(void **state) {
    (void)state;
    REFUSED("parameter 2048 of slab 0 has no state", s.segments[1].segment.has_state = false;
            s.spans[1].bytes = 4096);
    REFUSED("parameter 2047 of slab 0 has state twice", s.segments[1].segment.first = 2047);
    REFUSED("parameter 4095 of slab 0 has no weights", s.segments[1].segment.n = 2047;
            s.segments[2] =
                (struct ot_manifest_segment){
                    {0, 4095, 1, true, false, OT_STATE_F32, OT_MASTERS_F32, false}, 2, 0};
            s.m.n_segments = 3);
    REFUSED("two spans of state.bin overlap at offset 20480", s.spans[1].offset = 20480);
    REFUSED("segment 1 has 20480 bytes, should have 24576", s.spans[1].bytes = 20480);
    REFUSED("segment 0 is empty or not within slab 0", s.segments[0].segment.n = 4097);
    REFUSED("segment 0 is empty or not within slab 0", s.segments[0].segment.first = INT64_MAX);
    REFUSED("segment 0 is empty or not within slab 0", s.segments[0].segment.n = 0);
    REFUSED("segment 1 is of slab 1, but the number of slabs is 1", s.segments[1].segment.slab = 1);
    /* after a header of 44 bytes, a slab of 8, files of 19 and 22, and 20 bytes of the segment */
    REFUSED("byte 113: segment 0 has unknown flags 0",
            s.segments[0].segment.has_state = s.segments[0].segment.has_weights = false);
    REFUSED("byte 113: segment 0 has unknown flags 15",
            s.segments[0].segment.state = (enum ot_state_format)3);
    REFUSED("byte 113: segment 0 has unknown flags 19", s.segments[0].segment.masters = OT_MASTERS_NONE;
            s.m.dtype = OT_F16);
    REFUSED("some segments have fp32 masters, and others have none (segment 1)",
            s.segments[1].segment.masters = OT_MASTERS_NONE);
    REFUSED("some segments have moments, and others have none (segment 1)",
            s.segments[1].segment.lacks_moments = true);
    REFUSED("byte 113: segment 0 has unknown flags 39", s.segments[0].segment.lacks_moments = true;
            s.segments[0].segment.state = OT_STATE_16BIT);
    REFUSED("segment 0 has 24576 bytes, should have 8192",
            s.segments[0].segment.lacks_moments = s.segments[1].segment.lacks_moments = true);
    REFUSED("segment 1 has a state in 8bit, but others have it in fp32",
            s.segments[1].segment.state = OT_STATE_8BIT);
    REFUSED("segment 1 has a compact state, but is not of whole groups of 32", s.segments[1].segment.n = 2047;
            s.segments[1].segment.state = OT_STATE_16BIT);
    REFUSED("segment 1 has 2 spans, but only 1 are left", s.segments[1].n_spans = 2);
    REFUSED("1 spans belong to no segment", s.segments[1].n_spans = 0);
    REFUSED("span 1 is of file 2, but the number of files is 2", s.spans[1].file = 2);
    REFUSED("is not valid in nvme-0.store, which has 0", s.spans[1].file = 1);
    REFUSED("is not valid in state.bin, which has 49151", s.files[0].bytes = 49151);
    REFUSED("span 1 (24576 bytes at offset 24577)", s.spans[1].offset = 24577);
    REFUSED("is not valid in state.bin", s.spans[1].offset = INT64_MIN);
    REFUSED("segment 0 is empty or not within slab 0",
            s.slab_params[0] = 0); /* frozen slabs have no segments */
    REFUSED("slab 0 cannot have", s.slab_params[0] = INT64_MAX);
    REFUSED("0 slabs", s.m.n_slabs = 0);
    REFUSED("7 is not a dtype", s.m.dtype = (enum ot_dtype)7);
    REFUSED("checkpoint.json cannot have", s.m.record_bytes = OT_RECORD_MAX_BYTES + 1);
    static const char *const names[] = {"../x", "a/b", "..",      ".hidden",
                                        "",     "a b", "\033[2J", "nvme-0.stor\303\251"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        REFUSED("the name of file 0 is not allowed in a checkpoint", s.files[0].name = (char *)names[i]);
    static const char *const taken[] = {"nvme-0.store", "manifest.bin", "checkpoint.json"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        REFUSED("has the name of another file", s.files[0].name = (char *)taken[i]);
}

/* A manifest of the weights alone. Without the rest of the masters their state has no bytes. */
static void test_the_moments_may_lack(void **state) {
    (void)state;
    for (int masters = OT_MASTERS_F32; masters <= OT_MASTERS_NONE; masters++) {
        struct small s;
        struct ot_manifest read;
        unsigned char *bytes;
        size_t n;
        make_small(&s);
        for (int i = 0; i < 2; i++) {
            s.segments[i].segment.lacks_moments = true;
            s.segments[i].segment.masters = (enum ot_masters)masters;
            s.spans[i].bytes = masters == OT_MASTERS_NONE ? 4096 : 8192;
        }
        check_ok(ot_manifest_encode(&s.m, &bytes, &n));
        check_ok(ot_manifest_decode(bytes, n, "manifest.bin", &read));
        struct ot_segment found = ot_manifest_state(&read);
        assert_true(found.lacks_moments && found.has_weights);
        assert_int_equal(found.state, OT_STATE_F32);
        assert_int_equal(found.masters, masters);
        ot_manifest_free(&read);
        free(bytes);
    }
}

/* Counts of billions in a short file are refused before anything is allocated for them. */
static void test_counts_are_bounded_by_the_bytes(void **state) {
    (void)state;
    struct small s;
    struct ot_manifest read;
    unsigned char *bytes;
    size_t n;
    make_small(&s);
    check_ok(ot_manifest_encode(&s.m, &bytes, &n));
    for (size_t field = 0; field < 4; field++) { /* slabs, files, segments, spans */
        unsigned char was[4];
        memcpy(was, bytes + 16 + 4 * field, 4);
        memset(bytes + 16 + 4 * field, 0xff, 4);
        seal(bytes, n);
        check_fails(ot_manifest_decode(bytes, n, "manifest.bin", &read), OT_E_INPUT, "byte 16: ");
        memcpy(bytes + 16 + 4 * field, was, 4);
    }
    bytes[8] = 2;
    seal(bytes, n);
    check_fails(ot_manifest_decode(bytes, n, "manifest.bin", &read), OT_E_INPUT, "has format 2");
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_format_is_fixed),
        cmocka_unit_test(test_every_damaged_byte_is_found),
        cmocka_unit_test(test_sealed_damage_is_refused_or_whole),
        cmocka_unit_test(test_each_lie_has_its_sentence),
        cmocka_unit_test(test_the_moments_may_lack),
        cmocka_unit_test(test_counts_are_bounded_by_the_bytes),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
