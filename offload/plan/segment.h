/* A segment: the unit of snapshots and checkpoints.
 *
 * A segment is consecutive parameters of one slab. With state it has m[n] and v[n] in the segment's format
 * (kernels/state_format.h) and rest[n]: the bits of the master that the weights lack (bf16: int16, or nothing
 * with OT_MASTERS_NONE; fp16: the whole master in fp32; fp32: nothing). With 8-bit moments it then has their
 * scales, one for each group. With weights it then has weights[n] in the chain's dtype. Values are
 * little-endian, without gaps. A segment does not depend on the plan, so an engine with any plan can take it
 * back (ot_engine_put). A snapshot has the state and the weights of every parameter exactly once, in any
 * order.
 *
 * A segment may lack the moments: then its state is rest[n] alone. Together with the weights that is the
 * exact model, in a third of the bytes (bf16: 4 of 12 bytes a parameter).
 */
#ifndef OT_OFFLOAD_PLAN_SEGMENT_H
#define OT_OFFLOAD_PLAN_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/block.h"

struct ot_segment {
    int slab;
    int64_t first, n; /* parameters */
    bool has_state, has_weights;
    enum ot_state_format state; /* not OT_STATE_F32: first and n are multiples of OT_STATE_GROUP */
    enum ot_masters masters;
    bool lacks_moments; /* the state is without m, v and scales; its format is then OT_STATE_F32 */
};

/* A segment of n parameters as the chain stores them; slab and first are 0. */
struct ot_segment ot_segment_of(const struct ot_chain *chain, bool state, bool weights, int64_t n);

/* The arrays of a segment, in order. A state buffer (layout.h) has the arrays before the weights in the same
 * order. An extent of the NVMe store is a segment that has either state or weights. */
enum ot_segment_array {
    OT_SEGMENT_M,
    OT_SEGMENT_V,
    OT_SEGMENT_MASTER_REST,
    OT_SEGMENT_SCALES,
    OT_SEGMENT_WEIGHTS,
    OT_SEGMENT_ARRAYS,
    OT_SEGMENT_STATE_ARRAYS = OT_SEGMENT_WEIGHTS
};

struct ot_segment_values {
    size_t offset; /* bytes from the beginning of the segment */
    size_t width;  /* bytes of one value; 0: the segment has no such array */
    int64_t per;   /* parameters that share one value: 1, or OT_STATE_GROUP for scales */
};
/* Bytes of the values of n parameters. */
size_t ot_segment_value_bytes(struct ot_segment_values place, int64_t n);
struct ot_segment_values ot_segment_find(enum ot_dtype dtype, const struct ot_segment *segment,
                                         enum ot_segment_array array);
size_t ot_segment_bytes(enum ot_dtype dtype, const struct ot_segment *segment);
/* The bytes of a segment in a file: rounded up to whole blocks of OT_STORE_ALIGN. */
size_t ot_segment_padded_bytes(enum ot_dtype dtype, const struct ot_segment *segment);
/* The most parameters that a snapshot copies as one segment, and the bytes of such a segment in the largest
 * format: whole pages. */
enum { OT_SEGMENT_PARAMS = 1 << 18 };
size_t ot_segment_slot_bytes(enum ot_dtype dtype);

/* The state of n_params parameters of a chain in a buffer: the place of an array, and the bytes of all
 * arrays. */
struct ot_segment_values ot_state_find(const struct ot_chain *chain, enum ot_segment_array array,
                                       int64_t n_params);
size_t ot_state_bytes(const struct ot_chain *chain, int64_t n_params);

#endif
