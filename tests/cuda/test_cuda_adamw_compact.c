/* AdamW with compact moments on cuda gives the bytes of the CPU's kernels: all formats and dtypes, any place
 * in a slab, aligned or not, for ordinary and extreme numbers. */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <string.h>

#include "kernels/adamw.h"
#include "src/base/random.h"
#include "tests/support/check.h"

enum { GROUP = OT_STATE_GROUP, ROOM = 140 * GROUP, STEPS = 6 };

/* The arrays that lie 4 bytes off their alignment. */
enum shifted { WEIGHT = 1, GRAD = 2, LOW = 4, MASTER = 8, M = 16, V = 32 };

/* Parameters [first, first + n). */
struct range {
    int64_t first, n;
    unsigned shifted; /* set of enum shifted */
};

/* Place of the arrays in the slab: they go on behind parameter 2^32. */
#define FIRST (((int64_t)1 << 32) - 7 * OT_STATE_GROUP)

struct params {
    enum ot_dtype dtype;
    enum ot_state_format format;
    enum ot_masters masters;
    _Alignas(64) char weight[ROOM * 4 + 64];
    _Alignas(64) char grad[ROOM * 4 + 64];
    _Alignas(64) int16_t low[ROOM + 8];
    _Alignas(64) float master[ROOM + 8];
    _Alignas(64) uint16_t m[ROOM + 8];
    _Alignas(64) uint16_t v[ROOM + 8];
    _Alignas(64) struct ot_state_scale scales[ROOM / GROUP];
};

/* wild: finite numbers of any magnitude. */
static float number(bool wild, uint64_t stream, int64_t i, float scale) {
    uint32_t bits = ot_random_u32(7, stream, (uint64_t)i);
    if (!wild)
        return ot_random_normal(7, stream, (uint64_t)i) * scale;
    return ot_f32_from_bits((bits & 0x7f800000u) == 0x7f800000u ? bits ^ 0x40000000u : bits);
}

static void set_gradient(struct params *x, bool wild, int t) {
    for (int64_t i = 0; i < ROOM; i++) {
        float grad = number(wild, 10 + (uint64_t)t, i, 1e-2f);
        if (wild && x->dtype != OT_F32) /* rounding must not make it infinite */
            grad = fmaxf(fminf(grad, 60000), -60000);
        ot_dtype_write(x->dtype, x->grad, i, i % 50 < 35 ? grad : 0); /* some groups have zeros only */
    }
}

static void fill(struct params *x, enum ot_dtype dtype, enum ot_masters masters, enum ot_state_format format,
                 bool wild) {
    memset(x, 0, sizeof *x);
    x->masters = masters;
    x->dtype = dtype;
    x->format = format;
    for (int64_t i = 0; i < ROOM; i++) {
        float weight = number(wild, 1, i, 0.02f);
        if (dtype == OT_F32)
            ((float *)(void *)x->weight)[i] = weight;
        else if (dtype == OT_BF16)
            ot_split_f32(weight, (uint16_t *)(void *)x->weight + i, &x->low[i]);
        if (masters == OT_MASTERS_NONE) /* low must not change */
            x->low[i] = 0;
        x->master[i] = weight;
    }
}

static void *placed(void *array, const struct range *range, enum shifted name) {
    return (char *)array + (range->shifted & name ? 4 : 0);
}

static struct ot_adamw args_for(struct params *x, const struct params *like, const struct range *range,
                                const struct ot_adamw_step *step) {
    bool has_low = like->dtype == OT_BF16 && like->masters == OT_MASTERS_F32;
    struct ot_adamw whole = {.dtype = like->dtype,
                             .state = like->format,
                             .masters = like->masters,
                             .first = FIRST,
                             .n = ROOM,
                             .decay = true,
                             .step = step,
                             .weight = placed(x->weight, range, WEIGHT),
                             .grad = placed(x->grad, range, GRAD),
                             .low = has_low ? placed(x->low, range, LOW) : NULL,
                             .master = like->dtype == OT_F16 ? placed(x->master, range, MASTER) : NULL,
                             .m = placed(x->m, range, M),
                             .v = placed(x->v, range, V),
                             .scales = like->format == OT_STATE_8BIT ? x->scales : NULL};
    return ot_adamw_slice(&whole, range->first, range->n);
}

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

static void check_steps(struct ops_fixture *f, struct params *want, bool wild, const struct range *range) {
    static struct params got;
    struct params *on_device = ops_blank(f, sizeof got);
    struct ot_adamw_step *device_step = ops_blank(f, sizeof *device_step);
    copy(f, OT_COPY_H2D, on_device, want, sizeof *want);
    for (int t = 1; t <= STEPS; t++) {
        struct ot_adamw_step step = {.lr = 3e-4f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .bias1 = (float)(1 - pow(0.9, t)),
                                     .bias2_sqrt = (float)sqrt(1 - pow(0.95, t)),
                                     .grad_scale = 0.73f,
                                     .skip = t == 3,
                                     .noise = {0x89abcdefu + (uint32_t)t, 0x1234567u * (uint32_t)t},
                                     .weight_noise = {0x13579bdfu * (uint32_t)t, 0x2468aceu + (uint32_t)t}};
        set_gradient(want, wild, t);
        copy(f, OT_COPY_H2D, on_device->grad, want->grad, sizeof want->grad);
        copy(f, OT_COPY_H2D, device_step, &step, sizeof step);
        struct ot_adamw on_cuda = args_for(on_device, want, range, device_step);
        struct ot_adamw on_cpu = args_for(want, want, range, &step);
        on_cuda.rate = on_cpu.rate = range->n % 2 ? 2.5f : 0;
        f->ops->adamw(f->lane, &on_cuda);
        ot_adamw_run(&on_cpu);
    }
    copy(f, OT_COPY_D2H, on_device, &got, sizeof got);
    assert_memory_equal(&got, want, sizeof got);
}

static void test_compact_steps_have_the_bytes_of_the_cpu(void **state) {
    (void)state;
    static struct params want;
    static const struct range ranges[] = {{0, ROOM, 0},   {40, ROOM - 77, 0}, {31, 2, 0},
                                          {64, 32, 0},    {13, 1, 0},         {32, 1000, WEIGHT | GRAD},
                                          {5, 0, 0},      {0, 1024, WEIGHT},  {0, 1024, GRAD},
                                          {0, 1024, LOW}, {0, 1024, MASTER},  {0, 1024, M},
                                          {0, 1024, V}};
    static const struct {
        enum ot_dtype dtype;
        enum ot_masters masters;
    } kinds[] = {{OT_F32, OT_MASTERS_F32},
                 {OT_BF16, OT_MASTERS_F32},
                 {OT_F16, OT_MASTERS_F32},
                 {OT_BF16, OT_MASTERS_NONE}};
    for (int kind = 0; kind < 4; kind++)
        for (int format = OT_STATE_16BIT; format < OT_STATE_FORMATS; format++)
            for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
                struct ops_fixture f;
                cuda_open(&f, kinds[kind].dtype);
                fill(&want, kinds[kind].dtype, kinds[kind].masters, (enum ot_state_format)format, r == 1);
                check_steps(&f, &want, r == 1, &ranges[r]);
                ops_close(&f);
            }
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compact_steps_have_the_bytes_of_the_cpu)};
    return cmocka_run_group_tests_name("cuda_adamw_compact", tests, NULL, NULL);
}
