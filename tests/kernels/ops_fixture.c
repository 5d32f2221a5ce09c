#include "tests/kernels/ops_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "src/base/dtype.h"
#include "src/base/random.h"
#include "tests/support/check.h"

enum { GUARD_BYTES = 256, POISON = 0xff /* POISON bytes are a NaN in every dtype */ };

void ops_open_on(struct ops_fixture *f, struct ot_lane *lane, bool guards, enum ot_dtype dtype) {
    memset(f, 0, sizeof *f);
    f->device = ot_lane_device(lane);
    f->lane = lane;
    f->ops = ot_device_ops(f->device);
    f->dtype = dtype;
    f->guard_bytes = guards ? 0 : GUARD_BYTES;
}

void ops_open(struct ops_fixture *f, int threads, enum ot_dtype dtype) {
    struct ot_device_config config = {.kind = "cpu", .threads = threads};
    struct ot_device *device;
    struct ot_lane *lane;
    check_ok(ot_device_open(&config, &device));
    check_ok(ot_lane_open(device, "compute", &lane));
    ops_open_on(f, lane, true, dtype);
    f->owns_device = true;
}

/* ---- copies through pinned host memory ---- */

static void copy_to_device(struct ops_fixture *f, void *device, const void *data, size_t bytes) {
    void *pinned;
    check_ok(ot_device_alloc_pinned(f->device, bytes, "test", &pinned));
    if (bytes)
        memcpy(pinned, data, bytes);
    ot_lane_copy(f->lane, OT_COPY_H2D, device, pinned, bytes);
    check_ok(ot_lane_sync(f->lane));
    ot_device_free_pinned(f->device, pinned, bytes);
}

static void copy_from_device(struct ops_fixture *f, void *data, const void *device, size_t bytes) {
    void *pinned;
    check_ok(ot_device_alloc_pinned(f->device, bytes, "test", &pinned));
    ot_lane_copy(f->lane, OT_COPY_D2H, pinned, device, bytes);
    check_ok(ot_lane_sync(f->lane));
    if (bytes)
        memcpy(data, pinned, bytes);
    ot_device_free_pinned(f->device, pinned, bytes);
}

/* ---- memory ---- */

static void check_guard(struct ops_fixture *f, int index) {
    unsigned char guard[GUARD_BYTES];
    const struct ops_memory *memory = &f->memories[index];
    copy_from_device(f, guard, (const char *)memory->device + memory->bytes, f->guard_bytes);
    for (size_t i = 0; i < f->guard_bytes; i++)
        if (guard[i] != POISON)
            fail_msg("byte %zu after the end of allocation %d (%zu bytes) was written", i, index,
                     memory->bytes);
}

void ops_close(struct ops_fixture *f) {
    check_ok(ot_lane_sync(f->lane));
    for (int i = 0; i < f->n_memories; i++) {
        check_guard(f, i);
        ot_device_free(f->device, f->memories[i].device);
    }
    for (int i = 0; i < f->n_results; i++)
        free(f->results[i].values);
    if (f->owns_device) {
        ot_lane_close(f->lane);
        ot_device_close(f->device);
    }
    memset(f, 0, sizeof *f);
}

void *ops_blank(struct ops_fixture *f, size_t bytes) {
    assert_true(f->n_memories < OPS_MEMORIES);
    struct ops_memory *memory = &f->memories[f->n_memories++];
    memory->bytes = bytes;
    check_ok(ot_device_alloc(f->device, bytes + f->guard_bytes, "test", &memory->device));
    ot_lane_fill(f->lane, memory->device, POISON, bytes + f->guard_bytes);
    return memory->device;
}

void *ops_blank_values(struct ops_fixture *f, enum ot_dtype dtype, int64_t n) {
    size_t shift = (size_t)f->shift * ot_dtype_bytes(dtype);
    return (char *)ops_blank(f, (size_t)n * ot_dtype_bytes(dtype) + shift) + shift;
}

void *ops_upload(struct ops_fixture *f, enum ot_dtype dtype, const float *values, int64_t n) {
    void *memory = ops_blank_values(f, dtype, n);
    size_t bytes = (size_t)n * ot_dtype_bytes(dtype);
    if (dtype == OT_F32) {
        copy_to_device(f, memory, values, bytes);
        return memory;
    }
    uint16_t *half = malloc(bytes);
    assert_non_null(half);
    for (int64_t i = 0; i < n; i++)
        half[i] = dtype == OT_BF16 ? ot_bf16_from_f32(values[i]) : ot_f16_from_f32(values[i]);
    copy_to_device(f, memory, half, bytes);
    free(half);
    return memory;
}

int32_t *ops_upload_ids(struct ops_fixture *f, const int32_t *ids, int64_t n) {
    int32_t *memory = ops_blank(f, (size_t)n * sizeof *ids);
    copy_to_device(f, memory, ids, (size_t)n * sizeof *ids);
    return memory;
}

void ops_collect(struct ops_fixture *f, const char *name, enum ot_dtype dtype, const void *device,
                 int64_t n) {
    assert_true(f->n_results < OPS_RESULTS);
    struct ops_result *result = &f->results[f->n_results++];
    *result = (struct ops_result){name, malloc((size_t)n * sizeof(float)), n, dtype};
    uint16_t *half = malloc((size_t)n * sizeof *half);
    assert_non_null(result->values);
    assert_non_null(half);
    void *to = dtype == OT_F32 ? (void *)result->values : (void *)half;
    copy_from_device(f, to, device, (size_t)n * ot_dtype_bytes(dtype));
    for (int64_t i = 0; dtype != OT_F32 && i < n; i++)
        result->values[i] = dtype == OT_BF16 ? ot_bf16_to_f32(half[i]) : ot_f16_to_f32(half[i]);
    free(half);
}

const float *ops_result(const struct ops_fixture *f, const char *name, int64_t *n) {
    for (int i = 0; i < f->n_results; i++) {
        if (strcmp(f->results[i].name, name) != 0)
            continue;
        if (n)
            *n = f->results[i].n;
        return f->results[i].values;
    }
    fail_msg("the case collected no '%s'", name);
    return NULL;
}

float *ops_random(uint64_t seed, int64_t n, float scale) {
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    ot_random_normals(seed, 0, 0, n, values);
    for (int64_t i = 0; i < n; i++) {
        float wide = ot_bf16_to_f32(ot_bf16_from_f32(scale * values[i]));
        values[i] = ot_f16_to_f32(ot_f16_from_f32(wide));
    }
    return values;
}

void ops_check_threads(struct ops_fixture *f, ops_case run, const void *argument, enum ot_dtype dtype) {
    static const int threads[] = {2, 3, 5};
    ops_open(f, 1, dtype);
    run(f, argument);
    for (int t = tests_are_brief() ? 2 : 0; t < 3; t++) {
        struct ops_fixture other;
        ops_open(&other, threads[t], dtype);
        run(&other, argument);
        assert_int_equal(other.n_results, f->n_results);
        for (int i = 0; i < f->n_results; i++)
            if (memcmp(other.results[i].values, f->results[i].values,
                       (size_t)f->results[i].n * sizeof(float)) != 0)
                fail_msg("%s differs between 1 and %d threads (%s)", f->results[i].name, threads[t],
                         ot_dtype_name(dtype));
        ops_close(&other);
    }
}

static void check_half(ops_case run, const void *argument, enum ot_dtype dtype, double bound) {
    struct ops_fixture single, half;
    ops_open(&single, 2, OT_F32);
    ops_open(&half, 2, dtype);
    run(&single, argument);
    run(&half, argument);
    assert_int_equal(single.n_results, half.n_results);
    for (int i = 0; i < single.n_results; i++) {
        const struct ops_result *want = &single.results[i], *got = &half.results[i];
        double error = relative_error(got->values, want->values, want->n);
        if (!(error < bound))
            fail_msg("%s in %s differs from fp32 by %.3g, allowed %.3g", want->name, ot_dtype_name(dtype),
                     error, bound);
    }
    ops_close(&single);
    ops_close(&half);
}

void ops_check_half(ops_case run, const void *argument, double bound) {
    check_half(run, argument, OT_BF16, bound);
    check_half(run, argument, OT_F16, bound / 8); /* fp16 has three more bits of mantissa */
}

void ops_check_build(ops_case run, const void *argument, const char *build, enum ot_dtype dtype) {
    struct ops_fixture best, other;
    ops_open(&best, 1, dtype);
    ops_open(&other, 1, dtype);
    other.ops = ot_cpu_ops_named(build);
    run(&best, argument);
    run(&other, argument);
    for (int i = 0; i < best.n_results; i++)
        if (memcmp(best.results[i].values, other.results[i].values,
                   (size_t)best.results[i].n * sizeof(float)) != 0)
            fail_msg("%s differs in the %s build (%s)", best.results[i].name, build, ot_dtype_name(dtype));
    ops_close(&best);
    ops_close(&other);
}
