/* A part: the unit of snapshots and checkpoints.
 *
 * A part is consecutive parameters of one slab. With state it has m[n] and v[n] in the part's format
 * (kernels/state_format.h) and rest[n]: the bits of the master that the weights lack (bf16: int16, or nothing
 * with OT_MASTERS_NONE; fp16: the whole master in fp32; fp32: nothing). With 8-bit moments it then has their
 * scales, one for each group. With weights it then has weights[n] in the chain's dtype. Values are
 * little-endian, without gaps. A part does not depend on the plan, so an engine with any plan can take it
 * back (ot_engine_put). A snapshot has the state and the weights of every parameter exactly once, in any
 * order.
 */
#ifndef OT_OFFLOAD_PLAN_PART_H
#define OT_OFFLOAD_PLAN_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/block.h"

struct ot_part {
    int slab;
    int64_t first, n; /* parameters */
    bool has_state, has_weights;
    enum ot_state_format state; /* not OT_STATE_F32: first and n are multiples of OT_STATE_GROUP */
    enum ot_masters masters;
};

/* A part of n parameters as the chain stores them; slab and first are 0. */
struct ot_part ot_part_of(const struct ot_chain *chain, bool state, bool weights, int64_t n);

/* The arrays of a part, in order. A state buffer (layout.h) has the arrays before the weights in the same
 * order. An extent of the NVMe store is a part that has either state or weights. */
enum ot_part_array {
    OT_PART_M,
    OT_PART_V,
    OT_PART_MASTER_REST,
    OT_PART_SCALES,
    OT_PART_WEIGHTS,
    OT_PART_ARRAYS,
    OT_PART_STATE_ARRAYS = OT_PART_WEIGHTS
};

struct ot_part_place {
    size_t offset; /* bytes from the beginning of the part */
    size_t width;  /* bytes of one value; 0: the part has no such array */
    int64_t per;   /* parameters that share one value: 1, or OT_STATE_GROUP for scales */
};
/* Bytes of the values of n parameters. */
size_t ot_part_run(struct ot_part_place place, int64_t n);
struct ot_part_place ot_part_find(enum ot_dtype dtype, const struct ot_part *part, enum ot_part_array array);
size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part);
/* The bytes of a part in a file: rounded up to whole blocks of OT_STORE_ALIGN. */
size_t ot_part_padded_bytes(enum ot_dtype dtype, const struct ot_part *part);
/* The most parameters that a snapshot copies as one part, and the bytes of such a part in the largest format:
 * whole pages. */
enum { OT_PART_PARAMS = 1 << 18 };
size_t ot_part_slot_bytes(enum ot_dtype dtype);

/* The state of n_params parameters of a chain in a buffer: the place of an array, and the bytes of all
 * arrays. */
struct ot_part_place ot_state_find(const struct ot_chain *chain, enum ot_part_array array, int64_t n_params);
size_t ot_state_bytes(const struct ot_chain *chain, int64_t n_params);

#endif
