/* What the tests of AdamW share: parameters with state of every kind, extreme inputs, and the kernels that a
 * test can run here. */
#ifndef OT_TESTS_ADAMW_FIXTURE_H
#define OT_TESTS_ADAMW_FIXTURE_H

#include <math.h>
#include <string.h>

#include "kernels/adamw.h"
#include "src/base/dtype.h"
#include "src/base/random.h"
#include "tests/support/check.h"

/* ---- kernels ---- */

#ifdef OT_TEST_EMULATED_AVX512
void ot_adamw_avx512_emulated(const struct ot_adamw *args);
#endif

/* Returns the kernel with a name of kernels/adamw.h, or "emulated avx512": the kernel for AVX-512 with its
 * instructions in plain C. NULL: this CPU lacks it. */
static inline ot_adamw_fn find_adamw_kernel(const char *name) {
#ifdef OT_TEST_EMULATED_AVX512
    if (strcmp(name, "emulated avx512") == 0)
        return ot_adamw_kernel("avx2") ? ot_adamw_avx512_emulated : NULL;
#endif
    return ot_adamw_kernel(name);
}

/* ---- parameters with their state ---- */

enum { ROOM = 1152, GROUP = OT_STATE_GROUP };
/* Place of the arrays in the slab: they go on behind parameter 2^32. */
#define FIRST (((int64_t)1 << 32) - 5 * OT_STATE_GROUP)

/* What is stored. The kinds below KINDS_F32 have fp32 moments. */
struct kind {
    enum ot_dtype dtype;
    enum ot_masters masters;
    enum ot_state_format state;
};
enum { KINDS_F32 = 4, KINDS = KINDS_F32 * OT_STATE_FORMATS };

static inline struct kind kind_at(int i) {
    static const enum ot_dtype dtypes[KINDS_F32] = {OT_F32, OT_BF16, OT_F16, OT_BF16};
    return (struct kind){dtypes[i % KINDS_F32], i % KINDS_F32 == 3 ? OT_MASTERS_NONE : OT_MASTERS_F32,
                         (enum ot_state_format)(i / KINDS_F32)};
}

struct params {
    struct kind kind;
    float weight[ROOM], grad[ROOM];       /* weight: also the master of fp16 */
    uint16_t half[ROOM], half_grad[ROOM]; /* the same in bf16 or fp16 */
    int16_t low[ROOM];
    float m[ROOM], v[ROOM]; /* compact moments use a part of them */
    struct ot_state_scale scales[ROOM / GROUP];
};

/* Numbers as in training; finite numbers of any magnitude; zeros, subnormals and the largest numbers. */
enum inputs { ORDINARY, ANY_SIZE, EDGES, N_INPUTS };

static inline float input(enum inputs inputs, uint64_t stream, int64_t i, float scale) {
    static const float edges[] = {0.0f,      -0.0f,   0x1p-149f, -0x1p-149f,      0x1.fffffcp-127f,
                                  0x1p-126f, 1.0f,    -1.0f,     0x1.fffffep127f, -0x1.fffffep127f,
                                  0x1p-75f,  0x1p64f, 0x1.01p0f, 0x1.ffp0f};
    uint32_t bits = ot_random_u32(7, stream, (uint64_t)i);
    if (inputs == ORDINARY)
        return ot_random_normal(7, stream, (uint64_t)i) * scale;
    if (inputs == ANY_SIZE)
        return ot_f32_from_bits((bits & 0x7f800000u) == 0x7f800000u ? bits ^ 0x40000000u : bits);
    return edges[bits % (sizeof edges / sizeof *edges)];
}

static inline uint16_t finite_half(enum ot_dtype dtype, float value) {
    uint16_t half = dtype == OT_BF16 ? ot_bf16_from_f32(value) : ot_f16_from_f32(value);
    uint16_t exponent = dtype == OT_BF16 ? 0x7f80u : 0x7c00u;
    return (half & exponent) == exponent ? half ^ 0x4000u : half;
}

static inline void set_gradient(struct params *x, int i, float grad) {
    x->grad[i] = grad;
    x->half_grad[i] = finite_half(x->kind.dtype, grad);
}

/* Compact moments begin as zeros. */
static inline void fill(struct params *x, enum inputs inputs, struct kind kind) {
    memset(x, 0, sizeof *x);
    x->kind = kind;
    for (int i = 0; i < ROOM; i++) {
        x->weight[i] = input(inputs, 1, i, 0.02f);
        set_gradient(x, i, input(inputs, 4, i, 1e-2f));
        if (kind.masters == OT_MASTERS_NONE)
            x->half[i] = finite_half(OT_BF16, x->weight[i]);
        else if (kind.dtype == OT_BF16)
            ot_split_f32(x->weight[i], &x->half[i], &x->low[i]);
        else if (kind.dtype == OT_F16)
            x->half[i] = ot_f16_from_f32(x->weight[i]);
        if (kind.state == OT_STATE_F32) {
            x->m[i] = input(inputs, 2, i, 1e-3f);
            x->v[i] = fabsf(input(inputs, 3, i, 1e-3f));
        }
    }
}

/* The arguments for parameters [first, first + n) of x. */
static inline struct ot_adamw args_for(struct params *x, int64_t first, int64_t n, bool decay,
                                       const struct ot_adamw_step *step) {
    struct kind kind = x->kind;
    struct ot_adamw whole = {.dtype = kind.dtype,
                             .state = kind.state,
                             .masters = kind.masters,
                             .first = FIRST,
                             .n = ROOM,
                             .decay = decay,
                             .step = step,
                             .m = x->m,
                             .v = x->v};
    whole.weight = kind.dtype == OT_F32 ? (void *)x->weight : x->half;
    whole.grad = kind.dtype == OT_F32 ? (void *)x->grad : x->half_grad;
    whole.low = kind.dtype == OT_BF16 && kind.masters == OT_MASTERS_F32 ? x->low : NULL;
    whole.master = kind.dtype == OT_F16 ? x->weight : NULL;
    whole.scales = kind.state == OT_STATE_8BIT ? x->scales : NULL;
    return ot_adamw_slice(&whole, first, n);
}

static inline struct ot_adamw_step step_number(int t) {
    return (struct ot_adamw_step){.lr = 3e-4f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = 1e-8f,
                                  .weight_decay = 0.1f,
                                  .bias1 = (float)(1 - pow(0.9, t)),
                                  .bias2_sqrt = (float)sqrt(1 - pow(0.95, t)),
                                  .grad_scale = 0.73f,
                                  .noise = {0x89abcdefu + (uint32_t)t, 0x1234567u * (uint32_t)t},
                                  .weight_noise = {0x13579bdfu * (uint32_t)t, 0x2468aceu + (uint32_t)t}};
}

/* ---- comparison ---- */

/* NaNs (from infinities among the extreme inputs) may differ in sign and payload, which depend on the
 * instructions. */
static inline void check_same_float(const char *what, int i, float got, float want) {
    if (ot_f32_bits(got) != ot_f32_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("%s of %d: %a, not %a", what, i, (double)got, (double)want);
}

static inline float half_value(const struct params *x, int i) {
    return x->kind.dtype == OT_F16 ? ot_f16_to_f32(x->half[i]) : ot_join_f32(x->half[i], x->low[i]);
}

/* Compares all arrays, so what lies outside an update must not have changed. */
static inline void check_same_params(const struct params *got, const struct params *want) {
    bool compact = want->kind.state != OT_STATE_F32;
    for (int i = 0; i < ROOM; i++) {
        check_same_float("weight", i, got->weight[i], want->weight[i]);
        check_same_float("half weight", i, half_value(got, i), half_value(want, i));
        if (!isnan(half_value(want, i)) && (got->half[i] != want->half[i] || got->low[i] != want->low[i]))
            fail_msg("halves of %d: %04x %d, not %04x %d", i, got->half[i], got->low[i], want->half[i],
                     want->low[i]);
        if (!compact) {
            check_same_float("m", i, got->m[i], want->m[i]);
            check_same_float("v", i, got->v[i], want->v[i]);
        }
    }
    if (compact) {
        assert_memory_equal(got->m, want->m, sizeof want->m);
        assert_memory_equal(got->v, want->v, sizeof want->v);
        assert_memory_equal(got->scales, want->scales, sizeof want->scales);
    }
}

#endif
