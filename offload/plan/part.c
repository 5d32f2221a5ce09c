#include "offload/plan/part.h"

#include "offload/store/store.h"

/* Bytes of the part of a master value that the weight lacks: bf16: a remainder; fp16: the whole master; fp32:
 * nothing. */
static size_t rest_width(enum ot_dtype dtype, enum ot_masters masters) {
    if (dtype == OT_F32 || masters == OT_MASTERS_NONE)
        return 0;
    return dtype == OT_BF16 ? sizeof(int16_t) : sizeof(float);
}

/* Bytes of one value. 0: there is no such array. */
static size_t width_of(enum ot_dtype dtype, enum ot_state_format format, enum ot_masters masters,
                       enum ot_part_array array) {
    static const size_t moments[OT_STATE_FORMATS] = {sizeof(float), sizeof(uint16_t), sizeof(uint8_t)};
    switch (array) {
    case OT_PART_M:
    case OT_PART_V:
        return moments[format];
    case OT_PART_MASTER_REST:
        return rest_width(dtype, masters);
    case OT_PART_SCALES:
        return format == OT_STATE_8BIT ? sizeof(struct ot_state_scale) : 0;
    case OT_PART_WEIGHTS:
        return ot_dtype_bytes(dtype);
    case OT_PART_ARRAYS:
        break;
    }
    return 0;
}

struct ot_part ot_part_of(const struct ot_chain *chain, bool state, bool weights, int64_t n) {
    return (struct ot_part){
        .n = n, .has_state = state, .has_weights = weights, .state = chain->state, .masters = chain->masters};
}

size_t ot_part_run(struct ot_part_place place, int64_t n) {
    return (size_t)((n + place.per - 1) / place.per) * place.width;
}

struct ot_part_place ot_part_find(enum ot_dtype dtype, const struct ot_part *part, enum ot_part_array array) {
    struct ot_part_place place = {.per = 1};
    for (enum ot_part_array i = OT_PART_M; i <= array; i++) {
        place.offset += ot_part_run(place, part->n);
        bool has = i == OT_PART_WEIGHTS ? part->has_weights : part->has_state;
        place.width = has ? width_of(dtype, part->state, part->masters, i) : 0;
        place.per = i == OT_PART_SCALES ? OT_STATE_GROUP : 1;
    }
    return place;
}

size_t ot_part_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    return ot_part_find(dtype, part, OT_PART_ARRAYS).offset; /* the end of the last array */
}

size_t ot_part_padded_bytes(enum ot_dtype dtype, const struct ot_part *part) {
    return (ot_part_bytes(dtype, part) + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN * OT_STORE_ALIGN;
}

size_t ot_part_slot_bytes(enum ot_dtype dtype) {
    struct ot_part most = {.n = OT_PART_PARAMS, .has_state = true, .has_weights = true};
    return ot_part_padded_bytes(dtype, &most);
}

struct ot_part_place ot_state_find(const struct ot_chain *chain, enum ot_part_array array, int64_t n_params) {
    struct ot_part part = ot_part_of(chain, true, false, n_params);
    return ot_part_find(chain->dtype, &part, array);
}

size_t ot_state_bytes(const struct ot_chain *chain, int64_t n_params) {
    /* Written out, because planning asks for it millions of times. */
    size_t scales = width_of(chain->dtype, chain->state, chain->masters, OT_PART_SCALES), groups = 0;
    size_t moment = width_of(chain->dtype, chain->state, chain->masters, OT_PART_M);
    if (scales > 0)
        groups = (size_t)((n_params + OT_STATE_GROUP - 1) / OT_STATE_GROUP);
    return (size_t)n_params * (2 * moment + rest_width(chain->dtype, chain->masters)) + groups * scales;
}
