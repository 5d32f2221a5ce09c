#include "offload/plan/part.h"

#include "offload/store/store.h"

size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    size_t each = 0;
    if (part->has_state)
        each += 2 * sizeof(float) + ot_state_rest_bytes(dtype);
    if (part->has_weights)
        each += ot_dtype_bytes(dtype);
    return (size_t)part->n * each;
}

size_t ot_part_slot_bytes(enum ot_dtype dtype) {
    struct ot_part most = {.n = OT_PART_PARAMS, .has_state = true, .has_weights = true};
    return (ot_part_bytes(dtype, &most) + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN * OT_STORE_ALIGN;
}
