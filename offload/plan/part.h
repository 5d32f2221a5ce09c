/* A part: what snapshots and checkpoints are made of.
 *
 * A part is consecutive parameters of one slab: m[n] and v[n] in fp32 and rest[n] (what the weights lack of
 * the master: bf16: int16; fp16: the master in fp32; fp32: nothing) where it has the state, then weights[n]
 * in the chain's dtype where it has the weights. Little-endian, without gaps; nothing in it depends on the
 * plan, so that any plan can take it back: ot_engine_put. Every parameter of every slab comes exactly once
 * with its state and once with its weights, in any order.
 *
 * In a buffer of state (layout.h), m, v and rest lie in the same order.
 */
#ifndef OT_OFFLOAD_PLAN_PART_H
#define OT_OFFLOAD_PLAN_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/dtype.h"

struct ot_part {
    int slab;
    int64_t first, n; /* parameters */
    bool has_state, has_weights;
};
size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part);
/* Parameters of a part that is copied, at most, and the memory that takes: whole pages. */
enum { OT_PART_PARAMS = 1 << 18 };
size_t ot_part_slot_bytes(enum ot_dtype dtype);

/* Where the parts of the state of n_params parameters lie, in bytes from the buffer's start. */
static inline size_t ot_state_m_offset(int64_t n_params) {
    (void)n_params; /* they come first */
    return 0;
}
static inline size_t ot_state_v_offset(int64_t n_params) {
    return (size_t)n_params * 4;
}
/* What the weights lack of the master: bf16: lo; fp16: all of it. */
static inline size_t ot_state_rest_offset(int64_t n_params) {
    return (size_t)n_params * 8;
}
static inline size_t ot_state_rest_bytes(enum ot_dtype dtype) {
    return dtype == OT_F32 ? 0 : dtype == OT_BF16 ? 2 : 4;
}
/* In a state slot, behind the state. */
static inline size_t ot_state_grad_offset(enum ot_dtype dtype, int64_t n_params) {
    return (size_t)n_params * (8 + ot_state_rest_bytes(dtype));
}

#endif
