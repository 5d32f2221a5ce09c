#include "offload/plan/part.h"

#include "offload/store/store.h"

/* What the weights lack of the master: bf16: the low half; fp16: all of it; fp32: nothing. */
static size_t rest_width(enum ot_dtype dtype) {
    return dtype == OT_F32 ? 0 : dtype == OT_BF16 ? sizeof(int16_t) : sizeof(float);
}

size_t ot_part_width(enum ot_dtype dtype, enum ot_part_array array) {
    switch (array) {
    case OT_PART_M:
    case OT_PART_V:
        return sizeof(float);
    case OT_PART_REST:
        return rest_width(dtype);
    case OT_PART_WEIGHTS:
        return ot_dtype_bytes(dtype);
    case OT_PART_ARRAYS:
        break;
    }
    return 0;
}

struct ot_part_place ot_part_find(enum ot_dtype dtype, const struct ot_part *part, enum ot_part_array array) {
    struct ot_part_place place = {0};
    for (enum ot_part_array i = OT_PART_M; i <= array; i++) {
        place.offset += (size_t)part->n * place.width;
        bool has = i == OT_PART_WEIGHTS ? part->has_weights : part->has_state;
        place.width = has ? ot_part_width(dtype, i) : 0;
    }
    return place;
}

size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    return ot_part_find(dtype, part, OT_PART_ARRAYS).offset; /* where they end */
}

size_t ot_part_padded_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    return (ot_part_bytes(dtype, part) + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN * OT_STORE_ALIGN;
}

size_t ot_part_slot_bytes(enum ot_dtype dtype) {
    struct ot_part most = {.n = OT_PART_PARAMS, .has_state = true, .has_weights = true};
    return ot_part_padded_bytes(dtype, &most);
}

size_t ot_state_offset(enum ot_dtype dtype, enum ot_part_array array, int64_t n_params) {
    return ot_part_find(dtype, &(struct ot_part){.n = n_params, .has_state = true}, array).offset;
}

size_t ot_state_bytes(enum ot_dtype dtype, int64_t n_params) {
    return ot_state_offset(dtype, OT_PART_ARRAYS, n_params);
}
