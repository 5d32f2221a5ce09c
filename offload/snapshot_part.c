#include "offload/layout.h"
#include "offload/snapshot.h"

size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    size_t each = 0;
    if (part->has_state)
        each += 2 * sizeof(float) + ot_state_rest_bytes(dtype);
    if (part->has_weights)
        each += ot_dtype_bytes(dtype);
    return (size_t)part->n * each;
}
