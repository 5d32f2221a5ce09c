#include "offload/plan/segment.h"

#include "offload/store/store.h"

/* Bytes of the segment of a master value that the weight lacks: bf16: a remainder; fp16: the whole master;
 * fp32: nothing. */
static size_t rest_width(enum ot_dtype dtype, enum ot_masters masters) {
    if (dtype == OT_F32 || masters == OT_MASTERS_NONE)
        return 0;
    return dtype == OT_BF16 ? sizeof(int16_t) : sizeof(float);
}

/* Bytes of one value. 0: there is no such array. */
static size_t width_of(enum ot_dtype dtype, enum ot_state_format format, enum ot_masters masters,
                       enum ot_segment_array array) {
    static const size_t moments[OT_STATE_FORMATS] = {sizeof(float), sizeof(uint16_t), sizeof(uint8_t)};
    switch (array) {
    case OT_SEGMENT_M:
    case OT_SEGMENT_V:
        return moments[format];
    case OT_SEGMENT_MASTER_REST:
        return rest_width(dtype, masters);
    case OT_SEGMENT_SCALES:
        return format == OT_STATE_8BIT ? sizeof(struct ot_state_scale) : 0;
    case OT_SEGMENT_WEIGHTS:
        return ot_dtype_bytes(dtype);
    case OT_SEGMENT_ARRAYS:
        break;
    }
    return 0;
}

struct ot_segment ot_segment_of(const struct ot_chain *chain, bool state, bool weights, int64_t n) {
    return (struct ot_segment){
        .n = n, .has_state = state, .has_weights = weights, .state = chain->state, .masters = chain->masters};
}

size_t ot_segment_value_bytes(struct ot_segment_values where, int64_t n) {
    return (size_t)((n + where.per - 1) / where.per) * where.width;
}

struct ot_segment_values ot_segment_find(enum ot_dtype dtype, const struct ot_segment *segment,
                                         enum ot_segment_array array) {
    struct ot_segment_values where = {.per = 1};
    for (enum ot_segment_array i = OT_SEGMENT_M; i <= array; i++) {
        where.offset += ot_segment_value_bytes(where, segment->n);
        bool has = i == OT_SEGMENT_WEIGHTS       ? segment->has_weights
                   : i == OT_SEGMENT_MASTER_REST ? segment->has_state
                                                 : segment->has_state && !segment->lacks_moments;
        where.width = has ? width_of(dtype, segment->state, segment->masters, i) : 0;
        where.per = i == OT_SEGMENT_SCALES ? OT_STATE_GROUP : 1;
    }
    return where;
}

size_t ot_segment_bytes(enum ot_dtype dtype, const struct ot_segment *segment) {
    return ot_segment_find(dtype, segment, OT_SEGMENT_ARRAYS).offset; /* the end of the last array */
}

size_t ot_segment_padded_bytes(enum ot_dtype dtype, const struct ot_segment *segment) {
    return (ot_segment_bytes(dtype, segment) + OT_STORE_ALIGN - 1) / OT_STORE_ALIGN * OT_STORE_ALIGN;
}

size_t ot_segment_slot_bytes(enum ot_dtype dtype) {
    struct ot_segment most = {.n = OT_SEGMENT_PARAMS, .has_state = true, .has_weights = true};
    return ot_segment_padded_bytes(dtype, &most);
}

struct ot_segment_values ot_state_find(const struct ot_chain *chain, enum ot_segment_array array,
                                       int64_t n_params) {
    struct ot_segment segment = ot_segment_of(chain, true, false, n_params);
    return ot_segment_find(chain->dtype, &segment, array);
}

size_t ot_state_bytes(const struct ot_chain *chain, int64_t n_params) {
    /* Written out, because planning asks for it millions of times. */
    size_t scales = width_of(chain->dtype, chain->state, chain->masters, OT_SEGMENT_SCALES), groups = 0;
    size_t moment = width_of(chain->dtype, chain->state, chain->masters, OT_SEGMENT_M);
    if (scales > 0)
        groups = (size_t)((n_params + OT_STATE_GROUP - 1) / OT_STATE_GROUP);
    return (size_t)n_params * (2 * moment + rest_width(chain->dtype, chain->masters)) + groups * scales;
}
