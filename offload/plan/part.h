/* A part: what snapshots and checkpoints are made of.
 *
 * A part is consecutive parameters of one slab: m[n] and v[n] in fp32 and rest[n] (what the weights lack of
 * the master: bf16: int16; fp16: the master in fp32; fp32: nothing) where it has the state, then weights[n]
 * in the chain's dtype where it has the weights. Little-endian, without gaps; nothing in it depends on the
 * plan, so that any plan can take it back: ot_engine_put. Every parameter of every slab comes exactly once
 * with its state and once with its weights, in any order.
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

/* The arrays of a part, in their order. A buffer of state (layout.h) has m, v and rest in this order too, and
 * an extent of the NVMe store is a part that has either state or weights. */
enum ot_part_array { OT_PART_M, OT_PART_V, OT_PART_REST, OT_PART_WEIGHTS, OT_PART_ARRAYS };

/* Bytes of one value; 0: there is no such array in this dtype. */
size_t ot_part_width(enum ot_dtype dtype, enum ot_part_array array);

struct ot_part_place {
    size_t offset; /* bytes from the begin of the part */
    size_t width;  /* bytes of one value; 0: the part has no such array */
};
struct ot_part_place ot_part_find(enum ot_dtype dtype, const struct ot_part *part, enum ot_part_array array);
size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part);
/* As it lies in a file: whole blocks of OT_STORE_ALIGN. */
size_t ot_part_padded_bytes(enum ot_dtype dtype, const struct ot_part *part);
/* Parameters of a part that is copied, at most, and the memory that takes: whole pages. */
enum { OT_PART_PARAMS = 1 << 18 };
size_t ot_part_slot_bytes(enum ot_dtype dtype);

/* The state of n_params parameters in a buffer: where an array begins (OT_PART_WEIGHTS: what follows the
 * state), and the bytes of all. */
size_t ot_state_offset(enum ot_dtype dtype, enum ot_part_array array, int64_t n_params);
size_t ot_state_bytes(enum ot_dtype dtype, int64_t n_params);

#endif
