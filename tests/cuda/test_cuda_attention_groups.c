/* Attention of some of the heads in a call of their own has the bits of a call with all heads
 * (offload/block.h, KEY GROUPS): forward and backward of a section, on both devices, with the kernels of
 * every head size. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cuda_fixture.h"
#include "tests/support/check.h"

struct shape {
    int64_t n, past, heads, kv_heads, dim, groups;
    int64_t window, row; /* row: the length of the packed rows; 0: one row */
    bool slopes;
    float softcap, sink;
    int64_t pad; /* more elements between the tokens of q, and of all keys */
};

/* The arrays of a call, and where the heads of a group begin in them. */
enum { OUT, LSE, DQ, DK, DV, DK_SUMS, DV_SUMS, DSINKS, RESULTS };
static const char *const whole_names[RESULTS] = {"out", "lse",     "dq",      "dk",
                                                 "dv",  "dk_sums", "dv_sums", "dsinks"};
static const char *const group_names[RESULTS] = {"out by group",     "lse by group",   "dq by group",
                                                 "dk by group",      "dv by group",    "dk_sums by group",
                                                 "dv_sums by group", "dsinks by group"};

struct arrays {
    const struct shape *shape;
    struct ops_fixture *f;
    int32_t *row_start;
    float *q, *k, *v, *dout, *sums, *sinks, *slopes; /* on the host */
    void *device_q, *device_dout, *device_sinks;
    float *device_slopes;
    int32_t *device_rows;
};

static int64_t keys_of(const struct shape *s) {
    return s->n + s->past;
}

/* [keys, kv_heads / groups, dim] of one group, from an array of all heads; with pad, if it is one group. */
static float *of_group(const struct shape *s, const float *all, int64_t group, int64_t groups) {
    int64_t width = s->kv_heads * s->dim, part = width / groups, ld = part + (groups == 1 ? s->pad : 0);
    float *out = calloc((size_t)(keys_of(s) * ld), sizeof *out);
    assert_non_null(out);
    for (int64_t key = 0; key < keys_of(s); key++)
        memcpy(out + key * ld, all + key * width + group * part, (size_t)part * sizeof *out);
    return out;
}

static void *upload_group(struct arrays *a, enum ot_dtype dtype, const float *all, int64_t group,
                          int64_t groups, bool padded) {
    struct shape s = *a->shape;
    s.pad = padded ? s.pad : 0;
    float *part = of_group(&s, all, group, groups);
    int64_t ld = s.kv_heads * s.dim / groups + (groups == 1 ? s.pad : 0);
    void *device = dtype == OT_F32
                       ? (void *)ops_upload_ids(a->f, (const int32_t *)(const void *)part, keys_of(&s) * ld)
                       : ops_upload(a->f, dtype, part, keys_of(&s) * ld);
    free(part);
    return device;
}

static void *at(const struct ops_fixture *f, void *base, int64_t index) {
    return (char *)base + (size_t)index * ot_dtype_bytes(f->dtype);
}

/* Runs forward and backward for each of `groups` groups of heads, into arrays of all heads. */
static void run_groups(struct arrays *a, int64_t groups, const char *const names[RESULTS]) {
    const struct shape *s = a->shape;
    struct ops_fixture *f = a->f;
    int64_t q_width = s->heads * s->dim, kv_width = s->kv_heads * s->dim, part = kv_width / groups;
    int64_t heads = s->heads / groups, ldq = q_width + s->pad, sums_elems = keys_of(s) * kv_width;
    void *out = ops_blank_values(f, f->dtype, s->n * q_width),
         *dq = ops_blank_values(f, f->dtype, s->n * ldq);
    void *dk = ops_blank_values(f, f->dtype, s->n * kv_width),
         *dv = ops_blank_values(f, f->dtype, s->n * kv_width);
    float *lse = ops_blank(f, (size_t)(s->heads * s->n) * sizeof *lse);
    float *dsinks = ops_upload(f, OT_F32, a->slopes, s->heads); /* any numbers: dsinks is accumulated */
    float *scratch = ops_blank(f, ot_attention_backward_scratch_bytes(s->n, s->heads));
    float *sums[2][8];
    for (int64_t g = 0; g < groups; g++) {
        int64_t head = g * heads, ld = part + (groups == 1 ? s->pad : 0);
        struct ot_attention op = {.dtype = f->dtype,
                                  .n = s->n,
                                  .n_keys = keys_of(s),
                                  .heads = heads,
                                  .kv_heads = s->kv_heads / groups,
                                  .head_dim = s->dim,
                                  .window = s->window,
                                  .ldq = ldq,
                                  .ldk = ld,
                                  .ldv = ld,
                                  .ldo = q_width,
                                  .scale = 1.0f / sqrtf((float)s->dim),
                                  .softcap = s->softcap,
                                  .row_start = a->device_rows,
                                  .slopes = s->slopes ? a->device_slopes + head : NULL,
                                  .sinks = s->sink != 0 ? at(f, a->device_sinks, head) : NULL,
                                  .q = at(f, a->device_q, head * s->dim),
                                  .k = upload_group(a, f->dtype, a->k, g, groups, true),
                                  .v = upload_group(a, f->dtype, a->v, g, groups, true),
                                  .out = at(f, out, head * s->dim),
                                  .lse = lse + head * s->n};
        for (int i = 0; i < 2; i++)
            sums[i][g] = upload_group(a, OT_F32, a->sums, g, groups, false);
        struct ot_attention_backward back = {.forward = op,
                                             .dout = at(f, a->device_dout, head * s->dim),
                                             .dq = at(f, dq, head * s->dim),
                                             .dk = at(f, dk, g * part),
                                             .dv = at(f, dv, g * part),
                                             .lddk = kv_width,
                                             .lddv = kv_width,
                                             .dk_sums = sums[0][g],
                                             .dv_sums = sums[1][g],
                                             .dsinks = s->sink != 0 ? dsinks + head : NULL,
                                             .scratch = scratch};
        f->ops->attention(f->lane, &op);
        f->ops->attention_backward(f->lane, &back);
    }
    float *joined[2];
    for (int i = 0; i < 2; i++) { /* the groups one after the other */
        joined[i] = ops_blank(f, (size_t)sums_elems * sizeof **joined);
        for (int64_t g = 0; g < groups; g++)
            ot_lane_copy(f->lane, OT_COPY_D2D, joined[i] + g * (sums_elems / groups), sums[i][g],
                         (size_t)(sums_elems / groups) * sizeof **joined);
    }
    ops_collect(f, names[OUT], f->dtype, out, s->n * q_width);
    ops_collect(f, names[LSE], OT_F32, lse, s->heads * s->n);
    ops_collect(f, names[DQ], f->dtype, dq, s->n * ldq);
    ops_collect(f, names[DK], f->dtype, dk, s->n * kv_width);
    ops_collect(f, names[DV], f->dtype, dv, s->n * kv_width);
    ops_collect(f, names[DK_SUMS], OT_F32, joined[0], sums_elems);
    ops_collect(f, names[DV_SUMS], OT_F32, joined[1], sums_elems);
    ops_collect(f, names[DSINKS], OT_F32, dsinks, s->heads);
}

static void run_case(struct ops_fixture *f, const void *argument) {
    struct arrays a = *(const struct arrays *)argument;
    const struct shape *s = a.shape;
    int64_t q_width = s->heads * s->dim;
    float *wide = calloc((size_t)(s->n * (q_width + s->pad)), sizeof *wide);
    assert_non_null(wide);
    a.f = f;
    for (int64_t i = 0; i < s->n; i++)
        memcpy(wide + i * (q_width + s->pad), a.q + i * q_width, (size_t)q_width * sizeof *wide);
    a.device_q = ops_upload(f, f->dtype, wide, s->n * (q_width + s->pad));
    a.device_dout = ops_upload(f, f->dtype, a.dout, s->n * q_width);
    a.device_sinks = ops_upload(f, f->dtype, a.sinks, s->heads);
    a.device_slopes = ops_upload(f, OT_F32, a.slopes, s->heads);
    a.device_rows = ops_upload_ids(f, a.row_start, s->n);
    run_groups(&a, 1, whole_names);
    run_groups(&a, s->groups, group_names);
    free(wide);
}

/* The place of an element of all heads' sums, where groups lie one after the other. */
static int64_t place_of(const struct shape *s, int64_t i) {
    int64_t width = s->kv_heads * s->dim, part = width / s->groups, key = i / width, column = i % width;
    return column / part * keys_of(s) * part + key * part + column % part;
}

static void check_device(const struct ops_fixture *f, const struct shape *s, const char *device) {
    for (int r = 0; r < RESULTS; r++) {
        int64_t n;
        const float *whole = ops_result(f, whole_names[r], &n), *part = ops_result(f, group_names[r], NULL);
        for (int64_t i = 0; i < n; i++) {
            int64_t place = r == DK_SUMS || r == DV_SUMS ? place_of(s, i) : i;
            if (memcmp(whole + i, part + place, sizeof *whole) != 0)
                fail_msg("%s: %s[%lld] is %.9g, and by group %.9g", device, whole_names[r], (long long)i,
                         (double)whole[i], (double)part[place]);
        }
    }
}

static void check_shape(const struct shape *s, enum ot_dtype dtype) {
    int64_t q_elems = s->n * s->heads * s->dim, kv_elems = keys_of(s) * s->kv_heads * s->dim;
    struct arrays a = {.shape = s,
                       .row_start = calloc((size_t)s->n, sizeof *a.row_start),
                       .q = ops_random(1, q_elems, 1),
                       .k = ops_random(2, kv_elems, 1),
                       .v = ops_random(3, kv_elems, 1),
                       .dout = ops_random(4, q_elems, 1),
                       .sums = ops_random(5, kv_elems, 0.05f),
                       .sinks = ops_random(6, s->heads, 1),
                       .slopes = ops_random(7, s->heads, 0.25f)};
    struct cuda_pair pair;
    assert_non_null(a.row_start);
    for (int64_t i = 0; s->row && i < s->n; i++)
        a.row_start[i] = (int32_t)((i + s->past) / s->row * s->row);
    for (int64_t h = 0; h < s->heads; h++)
        a.sinks[h] += s->sink;
    cuda_run(&pair, run_case, &a, dtype, 0);
    check_device(&pair.cuda, s, "cuda");
    check_device(&pair.cpu, s, "cpu");
    cuda_close(&pair);
    float *const host[] = {a.q, a.k, a.v, a.dout, a.sums, a.sinks, a.slopes};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    free(a.row_start);
}

/* ---- tests ---- */

static const struct shape tensor_cores[] = {
    {.n = 70, .past = 133, .heads = 4, .kv_heads = 4, .dim = 64, .groups = 4},
    {.n = 45, .past = 96, .heads = 8, .kv_heads = 4, .dim = 128, .groups = 2, .window = 60, .row = 100},
    {.n = 40,
     .past = 128,
     .heads = 4,
     .kv_heads = 2,
     .dim = 64,
     .groups = 2,
     .slopes = true,
     .softcap = 1.5f,
     .sink = 1,
     .pad = 8},
    {.n = 33, .past = 0, .heads = 6, .kv_heads = 3, .dim = 128, .groups = 3, .sink = -1},
};
static const struct shape other_sizes[] = {
    {.n = 40, .past = 61, .heads = 4, .kv_heads = 2, .dim = 80, .groups = 2, .row = 50},
    {.n = 40, .past = 61, .heads = 2, .kv_heads = 2, .dim = 96, .groups = 2, .slopes = true},
    {.n = 40, .past = 61, .heads = 4, .kv_heads = 2, .dim = 256, .groups = 2, .softcap = 2},
};
static const struct shape plain[] = {
    {.n = 37, .past = 50, .heads = 4, .kv_heads = 4, .dim = 7, .groups = 4, .window = 30, .sink = 1},
    {.n = 37, .past = 50, .heads = 6, .kv_heads = 3, .dim = 72, .groups = 3, .slopes = true, .pad = 3},
    {.n = 37, .past = 50, .heads = 4, .kv_heads = 2, .dim = 64, .groups = 2, .softcap = 2},
};

#define CHECK(shapes, dtype)                                                                                 \
    for (size_t i = 0; i < sizeof(shapes) / sizeof *(shapes); i++)                                           \
    check_shape(&(shapes)[i], dtype)

static void test_tensor_cores(void **state) {
    (void)state;
    CHECK(tensor_cores, OT_BF16);
    check_shape(&tensor_cores[2], OT_F16);
}

static void test_other_sizes(void **state) {
    (void)state;
    CHECK(other_sizes, OT_BF16);
}

static void test_plain(void **state) {
    (void)state;
    CHECK(plain, OT_F32);
    CHECK(plain, OT_BF16);
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_cores),
        cmocka_unit_test(test_other_sizes),
        cmocka_unit_test(test_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
