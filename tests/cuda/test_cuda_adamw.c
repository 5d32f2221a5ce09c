/* AdamW on cuda gives the same bits as the CPU's kernels after 100 steps, for ordinary inputs and for extreme
 * ones (infinities, NaNs, subnormals). */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "src/base/dtype.h"
#include "src/base/random.h"
#include "tests/support/check.h"

enum { ROOM = 4099 + 32, EDGE = 16 /* EDGE: elements on either side of the update, which must not change */ };
/* Place of the arrays in the slab: they go on behind parameter 2^32. */
#define FIRST (((int64_t)1 << 32) - 1024)

/* ---- parameters with their state ---- */

enum kind { FULL, SPLIT, APART, BARE, N_KINDS }; /* of masters: fp32, bf16, fp16, bf16 without */
static const enum ot_dtype dtypes[N_KINDS] = {OT_F32, OT_BF16, OT_F16, OT_BF16};

/* The arrays as the op takes them: weight and grad in the dtype, low only with bf16, master only with fp16.
 * All arrays begin 16-byte aligned, so element i is aligned in all of them or in none. */
struct params {
    enum kind kind;
    enum ot_dtype dtype;
    _Alignas(64) char weight[ROOM * 4];
    _Alignas(64) char grad[ROOM * 4];
    _Alignas(64) int16_t low[ROOM];
    _Alignas(64) float master[ROOM];
    _Alignas(64) float m[ROOM];
    _Alignas(64) float v[ROOM];
};

enum inputs { ORDINARY, ANY_SIZE, EDGES, N_INPUTS };

/* A finite number of any magnitude. */
static float any_size(uint64_t stream, int64_t i) {
    uint32_t bits = ot_random_u32(7, stream, (uint64_t)i);
    return ot_f32_from_bits((bits & 0x7f800000u) == 0x7f800000u ? bits ^ 0x40000000u : bits);
}

static float input(enum inputs inputs, uint64_t stream, int64_t i, float scale) {
    static const float edges[] = {0.0f,      -0.0f,   0x1p-149f, -0x1p-149f,      0x1.fffffcp-127f,
                                  0x1p-126f, 1.0f,    -1.0f,     0x1.fffffep127f, -0x1.fffffep127f,
                                  0x1p-75f,  0x1p64f, 0x1.01p0f, INFINITY,        -INFINITY};
    switch (inputs) {
    case ORDINARY:
        return ot_random_normal(7, stream, (uint64_t)i) * scale;
    case ANY_SIZE:
        return any_size(stream, i);
    default:
        return edges[ot_random_below(7, stream, (uint64_t)i, sizeof edges / sizeof *edges)];
    }
}

static void set_gradient(struct params *x, enum inputs inputs, int t) {
    for (int64_t i = 0; i < ROOM; i++) {
        float grad = input(inputs, 10 + (uint64_t)t, i, 1e-2f);
        if (x->dtype == OT_F32)
            ((float *)(void *)x->grad)[i] = grad;
        else
            ((uint16_t *)(void *)x->grad)[i] =
                x->dtype == OT_BF16 ? ot_bf16_from_f32(grad) : ot_f16_from_f32(grad);
    }
}

static void fill(struct params *x, enum kind kind, enum inputs inputs) {
    enum ot_dtype dtype = dtypes[kind];
    memset(x, 0, sizeof *x);
    x->kind = kind;
    x->dtype = dtype;
    for (int64_t i = 0; i < ROOM; i++) {
        float weight = input(inputs, 1, i, 0.02f);
        x->m[i] = input(inputs, 2, i, 1e-3f);
        x->v[i] = fabsf(input(inputs, 3, i, 1e-3f));
        if (dtype == OT_F32)
            ((float *)(void *)x->weight)[i] = weight;
        else if (kind == BARE)
            ((uint16_t *)(void *)x->weight)[i] = ot_bf16_from_f32(weight);
        else if (kind == SPLIT)
            ot_split_f32(weight, (uint16_t *)(void *)x->weight + i, &x->low[i]);
        x->master[i] = weight;
    }
}

static struct ot_adamw_step step_number(int t, enum inputs inputs) {
    return (struct ot_adamw_step){.lr = 3e-4f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .eps = inputs == ORDINARY ? 1e-8f : 0x1p-149f,
                                  .weight_decay = 0.1f,
                                  .bias1 = (float)(1 - pow(0.9, t)),
                                  .bias2_sqrt = (float)sqrt(1 - pow(0.95, t)),
                                  .grad_scale = 0.73f,
                                  .skip = t % 10 == 9,
                                  .weight_noise = {0x89abcdefu + (uint32_t)t, 0x1234567u * (uint32_t)t}};
}

/* ---- on the device ---- */

static void copy(struct ops_fixture *f, enum ot_copy_kind kind, void *device, void *host, size_t bytes) {
    void *pinned;
    check_ok(ot_device_alloc_pinned(f->device, bytes, "test", &pinned));
    memcpy(pinned, host, bytes);
    ot_lane_copy(f->lane, kind, kind == OT_COPY_H2D ? device : pinned, kind == OT_COPY_H2D ? pinned : device,
                 bytes);
    check_ok(ot_lane_sync(f->lane));
    memcpy(host, pinned, bytes);
    ot_device_free_pinned(f->device, pinned, bytes);
}

struct on_device {
    struct params *x;
    struct ot_adamw_step *step;
};

static void upload_step(struct ops_fixture *f, struct on_device *d, struct params *x,
                        struct ot_adamw_step *step) {
    copy(f, OT_COPY_H2D, d->x->grad, x->grad, sizeof x->grad);
    copy(f, OT_COPY_H2D, d->step, step, sizeof *step);
}

/* Elements [first, first + n) of x. */
static struct ot_adamw args_for(struct params *x, enum kind kind, bool decay, int64_t first, int64_t n,
                                const struct ot_adamw_step *step) {
    struct ot_adamw whole = {
        .dtype = dtypes[kind], .n = ROOM, .decay = decay, .step = step, .weight = x->weight, .grad = x->grad};
    whole.masters = kind == BARE ? OT_MASTERS_NONE : OT_MASTERS_F32;
    whole.first = FIRST;
    whole.m = x->m;
    whole.v = x->v;
    whole.low = kind == SPLIT ? x->low : NULL;
    whole.master = kind == APART ? x->master : NULL;
    return ot_adamw_slice(&whole, first, n);
}

/* ---- comparison ---- */

/* Both may be NaN with different signs and payloads: these depend on the instructions. */
static void check_float(const char *what, int64_t i, float got, float want) {
    if (ot_f32_bits(got) != ot_f32_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("%s[%d]: %a, not %a", what, (int)i, (double)got, (double)want);
}

static float weight_at(const struct params *x, int64_t i) {
    if (x->dtype == OT_F32)
        return ((const float *)(const void *)x->weight)[i];
    if (x->dtype == OT_F16)
        return ot_f16_to_f32(((const uint16_t *)(const void *)x->weight)[i]);
    return ot_join_f32(((const uint16_t *)(const void *)x->weight)[i], x->low[i]);
}

/* hi and low follow from the joined weight if it is a number, because rounding has one result. */
static void check_same(const struct params *got, const struct params *want) {
    for (int64_t i = 0; i < ROOM; i++) {
        check_float("m", i, got->m[i], want->m[i]);
        check_float("v", i, got->v[i], want->v[i]);
        check_float("weight", i, weight_at(got, i), weight_at(want, i));
        check_float("master", i, got->master[i], want->master[i]);
        if (got->dtype == OT_BF16 && !isnan(weight_at(want, i)))
            assert_int_equal(got->low[i], want->low[i]);
    }
}

static void check_steps(enum kind kind, enum inputs inputs, int64_t first, int64_t n, bool decay, int steps) {
    static struct params got, want;
    struct ops_fixture f;
    cuda_open(&f, dtypes[kind]);
    struct on_device d = {ops_blank(&f, sizeof got), ops_blank(&f, sizeof *d.step)};
    fill(&want, kind, inputs);
    copy(&f, OT_COPY_H2D, d.x, &want, sizeof want);
    for (int t = 1; t <= steps; t++) {
        struct ot_adamw_step step = step_number(t, inputs);
        set_gradient(&want, inputs, t);
        upload_step(&f, &d, &want, &step);
        struct ot_adamw on_cuda = args_for(d.x, kind, decay, first, n, d.step);
        struct ot_adamw on_cpu = args_for(&want, kind, decay, first, n, &step);
        on_cuda.rate = on_cpu.rate = n % 2 ? 2.5f : 0;
        f.ops->adamw(f.lane, &on_cuda);
        ot_adamw_run(&on_cpu);
    }
    copy(&f, OT_COPY_D2H, d.x, &got, sizeof got);
    check_same(&got, &want);
    ops_close(&f);
}

static void test_hundred_steps(void **state) {
    (void)state;
    for (int kind = FULL; kind < N_KINDS; kind++)
        for (int inputs = 0; inputs < N_INPUTS; inputs++)
            check_steps((enum kind)kind, (enum inputs)inputs, EDGE, ROOM - 2 * EDGE, inputs != ANY_SIZE, 100);
}

static void test_sizes_and_alignments(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1037};
    for (int kind = FULL; kind < N_KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check_steps((enum kind)kind, s % 2 ? EDGES : ORDINARY, (int64_t)(EDGE + s % 9), sizes[s], s % 3,
                        2);
}

/* No 16-byte access fits all arrays: m begins at another offset than weight. */
static void test_arrays_out_of_step(void **state) {
    (void)state;
    enum { N = 1000 };
    for (int kind = FULL; kind < N_KINDS; kind++) {
        static struct params got, want;
        struct ops_fixture f;
        cuda_open(&f, dtypes[kind]);
        struct on_device d = {ops_blank(&f, sizeof got), ops_blank(&f, sizeof *d.step)};
        fill(&want, (enum kind)kind, ORDINARY);
        set_gradient(&want, ORDINARY, 1);
        copy(&f, OT_COPY_H2D, d.x, &want, sizeof want);
        struct ot_adamw_step step = step_number(1, ORDINARY);
        upload_step(&f, &d, &want, &step);
        struct ot_adamw on_cuda = args_for(d.x, want.kind, true, EDGE, N, d.step);
        struct ot_adamw on_cpu = args_for(&want, want.kind, true, EDGE, N, &step);
        on_cuda.m = (float *)on_cuda.m + 1;
        on_cpu.m = (float *)on_cpu.m + 1;
        f.ops->adamw(f.lane, &on_cuda);
        ot_adamw_run(&on_cpu);
        copy(&f, OT_COPY_D2H, d.x, &got, sizeof got);
        check_same(&got, &want);
        ops_close(&f);
    }
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hundred_steps),
        cmocka_unit_test(test_sizes_and_alignments),
        cmocka_unit_test(test_arrays_out_of_step),
    };
    return cmocka_run_group_tests_name("cuda_adamw", tests, NULL, NULL);
}
