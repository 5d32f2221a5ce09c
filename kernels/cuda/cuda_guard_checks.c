#include "kernels/cuda/cuda_guard_checks.h"

#include <stdio.h>

#include "kernels/cuda/gemm_groups.h"
#include "kernels/cuda/gemm_plain.h"

/* ---- memory and comparison ---- */

void *ot_guard_take(struct ot_guard_room *room, int64_t elems, enum ot_dtype dtype) {
    size_t bytes = ((size_t)elems * ot_dtype_bytes(dtype) + 255) / 256 * 256;
    void *taken = room->memory + room->used;
    room->used += bytes;
    return room->used <= room->bytes ? taken : NULL;
}

struct ot_guard_pair ot_guard_make_pair(struct ot_guard_room *room, enum ot_dtype dtype, int64_t n,
                                        double bound) {
    struct ot_guard_pair pair = {.dtype = dtype, .n = n, .bound = bound};
    pair.fast = ot_guard_take(room, n, dtype);
    pair.plain = ot_guard_take(room, n, dtype);
    return pair;
}

cudaError_t ot_guard_spoil(const struct ot_guard_pair *pair, const struct ot_cuda_stream *on) {
    return cudaMemsetAsync(pair->fast, 0xff, (size_t)pair->n * ot_dtype_bytes(pair->dtype), on->stream);
}

static cudaError_t compare(struct ot_guard_pinned *pinned, const struct ot_guard_pair *pair,
                           struct ot_guard_room room, const struct ot_cuda_stream *on, bool *agree) {
    struct ot_guard_distance *distance = ot_guard_take(&room, 2, OT_F32);
    if (!distance)
        return cudaErrorMemoryAllocation;
    OT_GUARD_TRY(cudaMemsetAsync(distance, 0, sizeof *distance, on->stream));
    OT_GUARD_TRY(ot_cuda_guard_compare(pair->dtype, pair->fast, pair->plain, pair->n, distance, on));
    OT_GUARD_TRY(
        cudaMemcpyAsync(&pinned->distance, distance, sizeof *distance, cudaMemcpyDeviceToHost, on->stream));
    OT_GUARD_TRY(cudaStreamSynchronize(on->stream));
    double difference = pinned->distance.difference, magnitude = pinned->distance.magnitude;
    *agree = *agree && magnitude > 0 && difference <= pair->bound * magnitude; /* false for NaN */
    return cudaSuccess;
}

cudaError_t ot_guard_compare(struct ot_guard_pinned *pinned, const struct ot_guard_pair *pairs, int n,
                             struct ot_guard_room room, const struct ot_cuda_stream *on, bool *agree) {
    *agree = true;
    for (int i = 0; i < n; i++)
        OT_GUARD_TRY(compare(pinned, &pairs[i], room, on, agree));
    return cudaSuccess;
}

/* ---- products ----
 *
 * Operands are in [-1, 1), so an element of the result is about sqrt(K / 9). If the result is fp32, the two
 * sums differ by the order of their additions only: some 2^-21 of the element. An arithmetic with fewer
 * bits (TF32: 2^-11 a factor) is far beyond the bound. If the result is rounded to two bytes, the last
 * place may differ. A product without a bias is scaled by SCALE, whatever its own scale is: so the problem
 * is always the same, and no product with a scale is used unchecked. SCALE is a power of 2, which adds no
 * rounding. */

enum { M = 72, N = 88, K = 136 };
static const float SCALE = 0.5f;

int ot_guard_gemm_path(const struct ot_gemm *op) {
    return OT_GUARD_ATTENTION_PATHS + ((int)op->dtype << 5 | (op->c_dtype != op->dtype) << 4 |
                                       op->trans_a << 3 | op->trans_b << 2 | (op->addend != NULL) << 1 |
                                       (op->bias != NULL));
}

void ot_guard_gemm_name(const struct ot_gemm *op, char name[OT_GUARD_NAME_BYTES]) {
    snprintf(name, OT_GUARD_NAME_BYTES, "the product %s %s%s%s of %s into %s", op->trans_a ? "A^T" : "A",
             op->trans_b ? "B^T" : "B", op->bias ? " + bias" : "", op->addend ? " + C" : "",
             ot_dtype_name(op->dtype), ot_dtype_name(op->c_dtype));
}

static double gemm_bound(enum ot_dtype c_dtype) {
    return c_dtype == OT_F32 ? 0x1p-16 : c_dtype == OT_BF16 ? 0x1p-6 : 0x1p-9;
}

cudaError_t ot_guard_check_gemm(struct ot_guard_pinned *pinned, struct ot_cuda_gemm *gemm,
                                const struct ot_gemm *like, const struct ot_cuda_stream *on, bool *agree) {
    struct ot_guard_room room = {.memory = (char *)on->scratch + OT_CUDA_GEMM_SCRATCH_BYTES,
                                 .bytes = on->scratch_bytes - OT_CUDA_GEMM_SCRATCH_BYTES};
    void *a = ot_guard_take(&room, M * K, like->dtype), *b = ot_guard_take(&room, K * N, like->dtype);
    void *bias = ot_guard_take(&room, N, like->dtype), *addend = ot_guard_take(&room, M * N, like->c_dtype);
    struct ot_guard_pair c = ot_guard_make_pair(&room, like->c_dtype, M * N, gemm_bound(like->c_dtype));
    if (room.used > room.bytes)
        return cudaErrorMemoryAllocation;
    struct ot_gemm op = *like;
    op.m = M, op.n = N, op.k = K;
    op.a = a, op.b = b, op.bias = like->bias ? bias : NULL, op.c = c.fast;
    op.addend = like->addend ? addend : NULL;
    op.scale = like->bias ? 0 : SCALE;
    op.lda = op.trans_a ? M : K, op.ldb = op.trans_b ? K : N, op.ldc = N;
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, a, M * K, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, b, K * N, 2, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, bias, N, 3, on));
    OT_GUARD_TRY(ot_guard_spoil(&c, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.c_dtype, addend, M * N, 4, on));
    if (ot_cuda_gemm(gemm, &op, on) < 0)
        return cudaErrorInvalidValue; /* the op itself will report the library's error */
    op.c = c.plain;
    OT_GUARD_TRY(ot_cuda_gemm_plain(&op, on));
    return ot_guard_compare(pinned, &c, 1, room, on, agree);
}

/* ---- products by groups ----
 *
 * Three experts, the second without rows; more than a tile of packed rows and of columns, more steps than
 * stages, and sizes that end within a tile. The kernel for compute capability 9.0 has larger tiles and a
 * problem of its own; in the form SUMS its steps are along the rows of a group. Bounds and scale are those of
 * the products above. */

enum { GROUPS = 3, GROUP_SPLIT = 40 };
static const struct groups_problem {
    int rows, n, inner; /* inner: k, or m of SUMS */
} TILED_GROUPS = {180, 136, 104}, HOPPER_ROWS = {180, 264, 264}, HOPPER_SUMS = {400, 264, 72};

int ot_guard_groups_path(const struct ot_gemm_groups *op, bool hopper) {
    return OT_GUARD_ATTENTION_PATHS + OT_GUARD_GEMM_PATHS +
           ((int)op->dtype << 4 | hopper << 3 | (op->c_dtype != op->dtype) << 2 |
            (op->form == OT_GROUPS_SUMS) << 1 | op->trans_b);
}

void ot_guard_groups_name(const struct ot_gemm_groups *op, bool hopper, char name[OT_GUARD_NAME_BYTES]) {
    snprintf(name, OT_GUARD_NAME_BYTES, "the products by groups %s of %s into %s%s",
             op->form == OT_GROUPS_SUMS ? "A^T B"
             : op->trans_b              ? "A B^T"
                                        : "A B",
             ot_dtype_name(op->dtype), ot_dtype_name(op->c_dtype), hopper ? " (compute capability 9.0)" : "");
}

static struct ot_gemm_groups make_groups(const struct ot_gemm_groups *like, struct groups_problem size,
                                         struct ot_guard_room *room, struct ot_guard_pair *c,
                                         int32_t **offsets) {
    bool sums = like->form == OT_GROUPS_SUMS;
    struct ot_gemm_groups op = *like;
    op.experts = GROUPS, op.rows = size.rows, op.m = op.k = size.inner, op.n = size.n;
    op.lda = size.inner, op.ldb = op.trans_b ? size.inner : size.n, op.ldc = size.n;
    op.stride = (int64_t)size.inner * size.n;
    op.offsets = *offsets = ot_guard_take(room, GROUPS + 1, OT_F32);
    op.a = ot_guard_take(room, op.rows * op.lda, op.dtype);
    op.b = ot_guard_take(room, sums ? op.rows * op.n : GROUPS * op.stride, op.dtype);
    op.bias = op.addend = NULL;
    op.scale = SCALE;
    *c = ot_guard_make_pair(room, op.c_dtype, sums ? GROUPS * op.stride : op.rows * op.n,
                            gemm_bound(op.c_dtype));
    return op;
}

cudaError_t ot_guard_check_groups(struct ot_guard_pinned *pinned, const struct ot_gemm_groups *like,
                                  bool hopper, const struct ot_cuda_stream *on, bool *agree) {
    struct ot_guard_room room = {.memory = on->scratch, .bytes = on->scratch_bytes};
    struct ot_guard_pair c;
    int32_t *offsets, *ends = pinned->starts;
    bool sums = like->form == OT_GROUPS_SUMS;
    struct groups_problem size = !hopper ? TILED_GROUPS : sums ? HOPPER_SUMS : HOPPER_ROWS;
    struct ot_gemm_groups op = make_groups(like, size, &room, &c, &offsets);
    if (room.used > room.bytes)
        return cudaErrorMemoryAllocation;
    ends[0] = 0, ends[1] = ends[2] = GROUP_SPLIT, ends[3] = size.rows;
    OT_GUARD_TRY(
        cudaMemcpyAsync(offsets, ends, (GROUPS + 1) * sizeof *ends, cudaMemcpyHostToDevice, on->stream));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, (void *)(uintptr_t)op.a, op.rows * op.lda, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, (void *)(uintptr_t)op.b,
                                   sums ? op.rows * op.n : GROUPS * op.stride, 2, on));
    OT_GUARD_TRY(ot_guard_spoil(&c, on));
    op.c = c.fast;
    OT_GUARD_TRY(ot_cuda_gemm_groups(&op, on));
    op.c = c.plain;
    OT_GUARD_TRY(ot_gemm_groups_plain(&op, on));
    return ot_guard_compare(pinned, &c, 1, room, on, agree);
}
