#include "kernels/cuda/cuda_guard.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_guard_checks.h"
#include "kernels/cuda/gemm_groups.h"
#include "kernels/cuda/gemm_plain.h"
#include "kernels/cuda/gemm_tune.h"
#include "src/base/build_id.h"
#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/strings.h"
#include "src/base/utf8.h"

/* ---- paths: each has a number and a verdict ---- */

enum verdict { UNKNOWN = '?', TRUSTED = '+', DISTRUSTED = '-' };

static const int head_dims[] = {64, 80, 96, 128, 256}; /* the head sizes of ot_attention_is_tiled */
enum {
    HEAD_DIMS = sizeof head_dims / sizeof *head_dims,
    SCORES = 4,                                   /* with and without a softcap, with and without sinks */
    ATTENTION_PATHS = 4 * 3 * HEAD_DIMS * SCORES, /* enum attention_path; dtype */
    GEMM_PATHS = 3 << 5,                          /* dtype; five flags */
    GROUPS_PATHS = 3 << 3,                        /* dtype; three flags */
    SPANS_FIRST = ATTENTION_PATHS + GEMM_PATHS + GROUPS_PATHS,
    PATHS = SPANS_FIRST + OT_GUARD_SPANS_PATHS,
};

struct ot_cuda_guard {
    bool is_off;
    char *cache_path; /* NULL: verdicts are not stored */
    char identity[384];
    bool said[PATHS];         /* a warning about this path was logged */
    char verdicts[PATHS + 1]; /* one character per path, the second line of the file */
    struct ot_guard_pinned *pinned;
};

enum attention_path { HOPPER_FORWARD, HOPPER_BACKWARD, FORWARD, BACKWARD };

static bool is_backward(enum attention_path path) {
    return path == HOPPER_BACKWARD || path == BACKWARD;
}

static int attention_path(const struct ot_attention *op, enum attention_path path) {
    int dim = 0;
    while (dim < HEAD_DIMS && head_dims[dim] != op->head_dim)
        dim++;
    int scores = (op->softcap > 0) | (op->sinks != NULL) << 1;
    return (((int)path * 3 + (int)op->dtype) * HEAD_DIMS + dim) * SCORES + scores;
}

static int gemm_path(const struct ot_gemm *op) {
    return ATTENTION_PATHS + ((int)op->dtype << 5 | (op->c_dtype != op->dtype) << 4 | op->trans_a << 3 |
                              op->trans_b << 2 | (op->addend != NULL) << 1 | (op->bias != NULL));
}

static int groups_path(const struct ot_gemm_groups *op) {
    return ATTENTION_PATHS + GEMM_PATHS +
           ((int)op->dtype << 3 | (op->c_dtype != op->dtype) << 2 | (op->form == OT_GROUPS_SUMS) << 1 |
            op->trans_b);
}

/* ---- for all checks ---- */

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

/* ---- attention ----
 *
 * The problem is two rows of tokens in one causal sequence, so that masks, row borders and the last, shorter
 * tile occur; two query heads share a key head. The problem of the kernels for compute capability 9.0 is
 * longer, so that their rings of tiles turn. An op with a softcap or with sinks has a problem of its own,
 * which has them too: other instructions compute its scores. Scores are about 1/3, so the softcap is as
 * small as they are. The gradient of the sinks is not compared, because one kernel computes it for all
 * paths. The fast kernels round the weights (and in backward the gradients of the scores) to the dtype
 * before they multiply them; the plain kernels do not. That makes a difference of some units in the last
 * place. A wrong fragment, mask or tile makes a difference as large as the numbers themselves. */

enum { TOKENS = 136, ROW_BORDER = 50, HEADS = 2 };
#define SOFTCAP 0.5f

static double attention_bound(enum ot_dtype dtype) {
    return dtype == OT_BF16 ? 0x1p-5 : 0x1p-8; /* 8 units of roundoff, which are 2^-8 and 2^-11 */
}

/* fp32 sums of exact products, one exp and one log: an error of some 2^-20. */
#define LSE_BOUND 0x1p-12

struct attention_check {
    struct ot_attention_backward op;
    struct ot_guard_pair out, lse, gradients[3];
    struct ot_guard_room room; /* memory that is left for the comparison */
};

static cudaError_t make_attention(const struct ot_cuda_guard *guard, const struct ot_attention *like,
                                  enum attention_path path, const struct ot_cuda_stream *on,
                                  struct attention_check *c) {
    bool backward = is_backward(path);
    int64_t tokens = path == HOPPER_FORWARD || path == HOPPER_BACKWARD ? OT_GUARD_HOPPER_TOKENS : TOKENS;
    int64_t dim = like->head_dim, wide = tokens * HEADS * dim, narrow = tokens * dim;
    double bound = attention_bound(like->dtype);
    struct ot_guard_room *room = &c->room;
    *room = (struct ot_guard_room){.memory = on->scratch, .bytes = on->scratch_bytes};
    void *q = ot_guard_take(room, wide, like->dtype), *k = ot_guard_take(room, narrow, like->dtype);
    void *v = ot_guard_take(room, narrow, like->dtype), *dout = NULL;
    int32_t *row_start = ot_guard_take(room, tokens, OT_F32);
    float *scratch = ot_guard_take(room, tokens * HEADS, OT_F32);
    void *sinks = ot_guard_take(room, HEADS, like->dtype);
    c->out = ot_guard_make_pair(room, like->dtype, wide, bound);
    c->lse = ot_guard_make_pair(room, OT_F32, tokens * HEADS, LSE_BOUND);
    if (backward) {
        dout = ot_guard_take(room, wide, like->dtype);
        c->gradients[0] = ot_guard_make_pair(room, like->dtype, wide, bound);
        c->gradients[1] = ot_guard_make_pair(room, like->dtype, narrow, bound);
        c->gradients[2] = ot_guard_make_pair(room, like->dtype, narrow, bound);
    }
    if (room->used > room->bytes)
        return cudaErrorMemoryAllocation;
    c->op = (struct ot_attention_backward){.forward = {.dtype = like->dtype,
                                                       .n = tokens,
                                                       .n_keys = tokens,
                                                       .heads = HEADS,
                                                       .kv_heads = 1,
                                                       .head_dim = dim,
                                                       .ldq = HEADS * dim,
                                                       .ldk = dim,
                                                       .ldv = dim,
                                                       .ldo = HEADS * dim,
                                                       .scale = 1 / sqrtf((float)dim),
                                                       .softcap = like->softcap > 0 ? SOFTCAP : 0,
                                                       .row_start = row_start,
                                                       .sinks = like->sinks ? sinks : NULL,
                                                       .q = q,
                                                       .k = k,
                                                       .v = v},
                                           .dout = dout,
                                           .scratch = scratch};
    int32_t *starts = guard->pinned->starts;
    for (int i = 0; i < tokens; i++)
        starts[i] = i < ROW_BORDER ? 0 : ROW_BORDER;
    OT_GUARD_TRY(cudaMemcpyAsync(row_start, starts, (size_t)tokens * sizeof *starts, cudaMemcpyHostToDevice,
                                 on->stream));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, q, wide, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, k, narrow, 2, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, v, narrow, 3, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(like->dtype, sinks, HEADS, 5, on));
    return backward ? ot_cuda_gemm_fill(like->dtype, dout, wide, 4, on) : cudaSuccess;
}

/* Runs the fast or the plain kernels: the launchers use the plain ones if on->plain is set. */
static cudaError_t run_attention(struct attention_check *c, bool backward, bool plain,
                                 const struct ot_cuda_stream *device) {
    struct ot_cuda_stream on = *device;
    struct ot_attention_backward *op = &c->op;
    on.plain = plain || backward; /* both backward passes start from the same plain forward pass */
    op->forward.out = on.plain ? c->out.plain : c->out.fast;
    op->forward.lse = on.plain ? c->lse.plain : c->lse.fast;
    OT_GUARD_TRY(ot_cuda_attention(&op->forward, &on));
    if (!backward)
        return cudaSuccess;
    on.plain = plain;
    op->dq = plain ? c->gradients[0].plain : c->gradients[0].fast;
    op->dk = plain ? c->gradients[1].plain : c->gradients[1].fast;
    op->dv = plain ? c->gradients[2].plain : c->gradients[2].fast;
    return ot_cuda_attention_backward(op, &on);
}

static cudaError_t check_attention(const struct ot_cuda_guard *guard, const struct ot_attention *like,
                                   enum attention_path path, const struct ot_cuda_stream *on, bool *agree) {
    struct attention_check c;
    bool backward = is_backward(path);
    OT_GUARD_TRY(make_attention(guard, like, path, on, &c));
    const struct ot_guard_pair forward[] = {c.out, c.lse}, *pairs = backward ? c.gradients : forward;
    int n = backward ? 3 : 2;
    for (int i = 0; i < n; i++)
        OT_GUARD_TRY(ot_guard_spoil(&pairs[i], on));
    OT_GUARD_TRY(run_attention(&c, backward, false, on));
    OT_GUARD_TRY(run_attention(&c, backward, true, on));
    return ot_guard_compare(guard->pinned, pairs, n, c.room, on, agree);
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

static double gemm_bound(enum ot_dtype c_dtype) {
    return c_dtype == OT_F32 ? 0x1p-16 : c_dtype == OT_BF16 ? 0x1p-6 : 0x1p-9;
}

static cudaError_t check_gemm(const struct ot_cuda_guard *guard, struct ot_cuda_gemm *gemm,
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
    return ot_guard_compare(guard->pinned, &c, 1, room, on, agree);
}

/* ---- products by groups ----
 *
 * Three experts, the second without rows; more than a tile of packed rows and of columns, more steps than
 * stages, and sizes that end within a tile. Bounds and scale are those of the products above. */

enum { GROUPS = 3, GROUP_ROWS = 180, GROUP_SPLIT = 40, GROUP_N = 136, GROUP_K = 104 };

static struct ot_gemm_groups make_groups(const struct ot_gemm_groups *like, struct ot_guard_room *room,
                                         struct ot_guard_pair *c, int32_t **offsets) {
    bool sums = like->form == OT_GROUPS_SUMS;
    struct ot_gemm_groups op = *like;
    op.experts = GROUPS, op.rows = GROUP_ROWS, op.m = op.k = GROUP_K, op.n = GROUP_N;
    op.lda = GROUP_K, op.ldb = op.trans_b ? GROUP_K : GROUP_N, op.ldc = GROUP_N;
    op.stride = GROUP_K * GROUP_N;
    op.offsets = *offsets = ot_guard_take(room, GROUPS + 1, OT_F32);
    op.a = ot_guard_take(room, GROUP_ROWS * GROUP_K, op.dtype);
    op.b = ot_guard_take(room, sums ? GROUP_ROWS * GROUP_N : GROUPS * op.stride, op.dtype);
    op.bias = op.addend = NULL;
    op.scale = SCALE;
    *c = ot_guard_make_pair(room, op.c_dtype, sums ? GROUPS * op.stride : GROUP_ROWS * GROUP_N,
                            gemm_bound(op.c_dtype));
    return op;
}

static cudaError_t check_groups(const struct ot_cuda_guard *guard, const struct ot_gemm_groups *like,
                                const struct ot_cuda_stream *on, bool *agree) {
    struct ot_guard_room room = {.memory = on->scratch, .bytes = on->scratch_bytes};
    struct ot_guard_pair c;
    int32_t *offsets, *ends = guard->pinned->starts;
    struct ot_gemm_groups op = make_groups(like, &room, &c, &offsets);
    if (room.used > room.bytes)
        return cudaErrorMemoryAllocation;
    ends[0] = 0, ends[1] = ends[2] = GROUP_SPLIT, ends[3] = GROUP_ROWS;
    OT_GUARD_TRY(
        cudaMemcpyAsync(offsets, ends, (GROUPS + 1) * sizeof *ends, cudaMemcpyHostToDevice, on->stream));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, (void *)(uintptr_t)op.a, GROUP_ROWS * GROUP_K, 1, on));
    OT_GUARD_TRY(ot_cuda_gemm_fill(op.dtype, (void *)(uintptr_t)op.b,
                                   op.form == OT_GROUPS_SUMS ? GROUP_ROWS * GROUP_N : GROUPS * op.stride, 2,
                                   on));
    OT_GUARD_TRY(ot_guard_spoil(&c, on));
    op.c = c.fast;
    OT_GUARD_TRY(ot_cuda_gemm_groups(&op, on));
    op.c = c.plain;
    OT_GUARD_TRY(ot_gemm_groups_plain(&op, on));
    return ot_guard_compare(guard->pinned, &c, 1, room, on, agree);
}

/* ---- verdicts ---- */

/* If the file cannot be written, the run goes on, and the next run checks again. */
static void keep_verdicts(const struct ot_cuda_guard *guard) {
    struct ot_string_builder text = {0};
    ot_string_append_format(&text, "%s\n%s\n", guard->identity, guard->verdicts);
    if (guard->cache_path && !text.failed)
        (void)ot_cache_write(guard->cache_path, text.text, text.bytes);
    free(text.text);
}

/* Warns once for each run, also if the verdict is that of an earlier run. */
static bool is_trusted(struct ot_cuda_guard *guard, int path, const char *name) {
    if (guard->verdicts[path] == TRUSTED)
        return true;
    if (!guard->said[path])
        ot_log(
            OT_LOG_WARN,
            "the results of %s differ from those of the plain kernel on this GPU; a slower kernel replaces "
            "it; please report this with the output of probe",
            name);
    guard->said[path] = true;
    return false;
}

/* rc: the result of the check. */
static bool decide(struct ot_cuda_guard *guard, int path, cudaError_t rc, bool agree, const char *name) {
    if (rc !=
        /* a fault stays, and the lane reports it; any other error is cleared, as if no check had run */
        cudaSuccess) {
        if (!ot_cuda_error_is_fault(rc))
            (void)cudaGetLastError();
        return true;
    }
    guard->verdicts[path] = agree ? TRUSTED : DISTRUSTED;
    keep_verdicts(guard);
    return is_trusted(guard, path, name);
}

static bool check_attention_path(struct ot_cuda_guard *guard, const struct ot_attention *op,
                                 enum attention_path kind, const struct ot_cuda_stream *on) {
    static const char *const names[] = {"forward (compute capability 9.0)",
                                        "backward (compute capability 9.0)", "forward", "backward"};
    if (guard->is_off || !ot_attention_is_tiled(op, on->arch))
        return true;
    int path = attention_path(op, kind);
    if (guard->verdicts[path] == TRUSTED)
        return true;
    char name[128];
    bool agree = false;
    snprintf(name, sizeof name, "attention %s in %s with heads of %lld%s%s", names[kind],
             ot_dtype_name(op->dtype), (long long)op->head_dim, op->softcap > 0 ? ", a softcap" : "",
             op->sinks ? ", sinks" : "");
    if (guard->verdicts[path] != UNKNOWN)
        return is_trusted(guard, path, name);
    cudaError_t rc = check_attention(guard, op, kind, on, &agree);
    return decide(guard, path, rc, agree, name);
}

void ot_cuda_guard_attention(struct ot_cuda_guard *guard, const struct ot_attention *op,
                             struct ot_cuda_stream *on) {
    on->plain = on->no_hopper = false;
    if (ot_attention_is_hopper(op, on) && check_attention_path(guard, op, HOPPER_FORWARD, on))
        return;
    on->no_hopper = true;
    on->plain = !check_attention_path(guard, op, FORWARD, on);
}

void ot_cuda_guard_attention_backward(struct ot_cuda_guard *guard, const struct ot_attention *op,
                                      struct ot_cuda_stream *on) {
    on->plain = on->no_hopper = false;
    if (ot_attention_backward_is_hopper(op, on) && check_attention_path(guard, op, HOPPER_BACKWARD, on))
        return;
    on->no_hopper = true;
    on->plain = !check_attention_path(guard, op, BACKWARD, on);
}

bool ot_cuda_guard_gemm(struct ot_cuda_guard *guard, struct ot_cuda_gemm *gemm, const struct ot_gemm *op,
                        const struct ot_cuda_stream *on) {
    int path = gemm_path(op);
    if (guard->is_off || guard->verdicts[path] == TRUSTED)
        return true;
    char name[96];
    bool agree = false;
    snprintf(name, sizeof name, "the product %s %s%s%s of %s into %s", op->trans_a ? "A^T" : "A",
             op->trans_b ? "B^T" : "B", op->bias ? " + bias" : "", op->addend ? " + C" : "",
             ot_dtype_name(op->dtype), ot_dtype_name(op->c_dtype));
    if (guard->verdicts[path] != UNKNOWN)
        return is_trusted(guard, path, name);
    cudaError_t rc = check_gemm(guard, gemm, op, on, &agree);
    return decide(guard, path, rc, agree, name);
}

void ot_cuda_guard_gemm_groups(struct ot_cuda_guard *guard, const struct ot_gemm_groups *op,
                               struct ot_cuda_stream *on) {
    int path = groups_path(op);
    on->plain = false;
    if (guard->is_off || !ot_gemm_groups_is_tiled(op) || guard->verdicts[path] == TRUSTED)
        return;
    char name[96];
    bool agree = false;
    snprintf(name, sizeof name, "the products by groups %s of %s into %s",
             op->form == OT_GROUPS_SUMS ? "A^T B"
             : op->trans_b              ? "A B^T"
                                        : "A B",
             ot_dtype_name(op->dtype), ot_dtype_name(op->c_dtype));
    if (guard->verdicts[path] != UNKNOWN) {
        on->plain = !is_trusted(guard, path, name);
        return;
    }
    cudaError_t rc = check_groups(guard, op, on, &agree);
    on->plain = !decide(guard, path, rc, agree, name);
}

static bool may_attend_spans(struct ot_cuda_guard *guard, const struct ot_attend_spans *op, bool backward,
                             const struct ot_cuda_stream *on) {
    int path = SPANS_FIRST + ot_guard_spans_path(op, backward);
    if (guard->is_off || guard->verdicts[path] == TRUSTED)
        return true;
    char name[OT_GUARD_NAME_BYTES];
    bool agree = false;
    ot_guard_spans_name(op, backward, name);
    if (guard->verdicts[path] != UNKNOWN)
        return is_trusted(guard, path, name);
    cudaError_t rc = ot_guard_check_spans(guard->pinned, op, backward, on, &agree);
    return decide(guard, path, rc, agree, name);
}

void ot_cuda_guard_spans(struct ot_cuda_guard *guard, const struct ot_attend_spans *op,
                         struct ot_cuda_stream *on) {
    on->plain = ot_attend_spans_is_tiled(op, on) && !may_attend_spans(guard, op, false, on);
}

void ot_cuda_guard_spans_backward(struct ot_cuda_guard *guard, const struct ot_attend_spans_backward *op,
                                  struct ot_cuda_stream *on) {
    on->plain = ot_attend_spans_backward_is_tiled(op, on) && !may_attend_spans(guard, &op->forward, true, on);
}

/* ---- opening ---- */

/* Reads the verdicts of an earlier run, if the file is complete and belongs to the same GPU, driver, library
 * and build. */
static int read_verdicts(struct ot_cuda_guard *guard) {
    size_t bytes, identity = strlen(guard->identity);
    char *text;
    OT_TRY(ot_cache_read(guard->cache_path, sizeof guard->identity + PATHS + 2, &text, &bytes));
    if (text && bytes == identity + PATHS + 2 && memcmp(text, guard->identity, identity) == 0 &&
        text[identity] == '\n' && strspn(text + identity + 1, "?+-") == PATHS)
        memcpy(guard->verdicts, text + identity + 1, PATHS);
    free(text);
    return 0;
}

static int open_cache(struct ot_cuda_guard *guard, const struct ot_cuda_guard_config *config) {
    char build[OT_BUILD_ID_BYTES];
    ot_build_id(build);
    if (!config->cache_folder || !build[0])
        return 0;
    snprintf(guard->identity, sizeof guard->identity, "guard 5, %s, driver %d, %s, build %s", config->gpu,
             config->driver_version, config->library, build);
    ot_utf8_keep_line(guard->identity);
    OT_TRY(ot_string_format(&guard->cache_path, "%s/guard-%s", config->cache_folder, build));
    return read_verdicts(guard);
}

int ot_cuda_guard_open(const struct ot_cuda_guard_config *config, struct ot_cuda_guard **out) {
    const char *wish = getenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    struct ot_cuda_guard *guard = calloc(1, sizeof *guard);
    void *pinned = NULL;
    int rc;
    *out = NULL;
    if (!guard)
        return ot_fail(OT_E_BUDGET, "no host memory to check kernels with");
    guard->is_off = wish && strcmp(wish, "off") == 0;
    memset(guard->verdicts, UNKNOWN, PATHS);
    OT_TRY_GOTO(ot_cuda_check(cudaHostAlloc(&pinned, sizeof *guard->pinned, cudaHostAllocPortable),
                              "pin host memory"),
                rc, out);
    guard->pinned = pinned;
    OT_TRY_GOTO(open_cache(guard, config), rc, out);
    *out = guard;
    return 0;
out:
    ot_cuda_guard_close(guard);
    return rc;
}

void ot_cuda_guard_close(struct ot_cuda_guard *guard) {
    if (!guard)
        return;
    if (guard->pinned)
        cudaFreeHost(guard->pinned);
    free(guard->cache_path);
    free(guard);
}
