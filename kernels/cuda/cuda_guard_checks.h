/* The checks of the guard (cuda_guard.h): its comparisons, and the numbers of the kinds of ops. Each check
 * computes a small random problem in the scratch, by the fast path and by the plain kernel. The problem
 * depends on the path alone. */
#ifndef OT_KERNELS_CUDA_GUARD_CHECKS_H
#define OT_KERNELS_CUDA_GUARD_CHECKS_H

#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/guard.h"

/* ---- paths: each has a number ---- */

enum ot_guard_attention {
    OT_GUARD_HOPPER_FORWARD,
    OT_GUARD_HOPPER_BACKWARD,
    OT_GUARD_FORWARD,
    OT_GUARD_BACKWARD
};

enum {
    OT_GUARD_HEAD_DIMS = 5, /* the head sizes of ot_attention_is_tiled */
    OT_GUARD_FEATURES = 5,  /* flags that select other code: softcap, sinks, slopes, window, earlier keys */
    OT_GUARD_ATTENTION_PATHS = 4 * 3 * OT_GUARD_HEAD_DIMS << OT_GUARD_FEATURES, /* kind; dtype */
    OT_GUARD_GEMM_PATHS = 3 << 5,                                               /* dtype; five flags */
    OT_GUARD_GROUPS_PATHS = 3 << 4,                                             /* dtype; four flags */
    OT_GUARD_SPANS_PATHS = 2 * 3 * 2 * 2, /* backward; dtype; head size; bias */
    OT_GUARD_PATHS =
        OT_GUARD_ATTENTION_PATHS + OT_GUARD_GEMM_PATHS + OT_GUARD_GROUPS_PATHS + OT_GUARD_SPANS_PATHS,
    OT_GUARD_NAME_BYTES = 160,
};

/* The number of the op's path. */
int ot_guard_attention_path(const struct ot_attention *op, enum ot_guard_attention kind);
int ot_guard_gemm_path(const struct ot_gemm *op);
int ot_guard_groups_path(const struct ot_gemm_groups *op, bool hopper);
/* Backward: *op are its forward arguments. */
int ot_guard_spans_path(const struct ot_attend_spans *op, bool backward);
/* Its name, for a warning. */
void ot_guard_attention_name(const struct ot_attention *op, enum ot_guard_attention kind,
                             char name[OT_GUARD_NAME_BYTES]);
void ot_guard_gemm_name(const struct ot_gemm *op, char name[OT_GUARD_NAME_BYTES]);
void ot_guard_groups_name(const struct ot_gemm_groups *op, bool hopper, char name[OT_GUARD_NAME_BYTES]);
void ot_guard_spans_name(const struct ot_attend_spans *op, bool backward, char name[OT_GUARD_NAME_BYTES]);

/* ---- checks ---- */

enum { OT_GUARD_TOKENS = 136, OT_GUARD_HOPPER_TOKENS = 400, OT_GUARD_HEADS = 2 };

/* Pinned host memory for the copies of a check. */
struct ot_guard_pinned {
    struct ot_guard_distance distance;
    int32_t starts[OT_GUARD_HOPPER_TOKENS]; /* starts of rows or groups; spans; buckets */
    float slopes[OT_GUARD_HEADS];
};

/* Each check of an op of the path of `like`. *agree: the two results agree within rounding. */
cudaError_t ot_guard_check_attention(struct ot_guard_pinned *pinned, const struct ot_attention *like,
                                     enum ot_guard_attention kind, const struct ot_cuda_stream *on,
                                     bool *agree);
cudaError_t ot_guard_check_gemm(struct ot_guard_pinned *pinned, struct ot_cuda_gemm *gemm,
                                const struct ot_gemm *like, const struct ot_cuda_stream *on, bool *agree);
cudaError_t ot_guard_check_groups(struct ot_guard_pinned *pinned, const struct ot_gemm_groups *like,
                                  bool hopper, const struct ot_cuda_stream *on, bool *agree);
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
