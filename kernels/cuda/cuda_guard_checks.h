/* What the checks of the guard (cuda_guard.h) have in common: memory, comparison. And the check of attention
 * over spans, cuda_guard_spans.c. Each check computes a small random problem in the scratch, by the fast path
 * and by the plain kernel. The problem depends on the path alone. */
#ifndef OT_KERNELS_CUDA_GUARD_CHECKS_H
#define OT_KERNELS_CUDA_GUARD_CHECKS_H

#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/guard.h"

enum { OT_GUARD_HOPPER_TOKENS = 400, OT_GUARD_NAME_BYTES = 160 };

/* Pinned host memory for the copies of a check. */
struct ot_guard_pinned {
    struct ot_guard_distance distance;
    int32_t starts[OT_GUARD_HOPPER_TOKENS]; /* of rows, or of groups; spans and buckets */
};

/* ---- attention over spans ---- */

enum { OT_GUARD_SPANS_PATHS = 2 * 3 * 2 * 2 }; /* backward; dtype; head size; bias */

/* The number of the op's path among these. Backward: *op are its forward arguments. */
int ot_guard_spans_path(const struct ot_attend_spans *op, bool backward);
/* Its name, for a warning. */
void ot_guard_spans_name(const struct ot_attend_spans *op, bool backward, char name[OT_GUARD_NAME_BYTES]);
/* Checks the path of `like`. *agree: the two results agree within rounding. */
cudaError_t ot_guard_check_spans(struct ot_guard_pinned *pinned, const struct ot_attend_spans *like,
                                 bool backward, const struct ot_cuda_stream *on, bool *agree);

/* ---- for the checks ---- */

#define OT_GUARD_TRY(expr)                                                                                   \
    do {                                                                                                     \
        cudaError_t try_rc_ = (expr);                                                                        \
        if (try_rc_ != cudaSuccess)                                                                          \
            return try_rc_;                                                                                  \
    } while (0)

/* Memory for a check. */
struct ot_guard_room {
    char *memory;
    size_t bytes, used;
};

/* NULL if the room is too small; room->used then exceeds room->bytes. */
void *ot_guard_take(struct ot_guard_room *room, int64_t elems, enum ot_dtype dtype);

/* A result of the fast path, the result of the plain kernel, and the largest allowed difference, relative to
 * the largest element. */
struct ot_guard_pair {
    enum ot_dtype dtype;
    int64_t n;
    void *fast, *plain;
    double bound;
};

struct ot_guard_pair ot_guard_make_pair(struct ot_guard_room *room, enum ot_dtype dtype, int64_t n,
                                        double bound);
/* Fills the result of the fast path before it is written. Bytes of 0xff are NaN in every dtype, so a missing
 * element shows. */
cudaError_t ot_guard_spoil(const struct ot_guard_pair *pair, const struct ot_cuda_stream *on);
/* Compares n pairs; waits for the GPU. */
cudaError_t ot_guard_compare(struct ot_guard_pinned *pinned, const struct ot_guard_pair *pairs, int n,
                             struct ot_guard_room room, const struct ot_cuda_stream *on, bool *agree);

#endif
