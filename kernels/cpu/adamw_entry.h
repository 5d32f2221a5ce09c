/* The last part of a vector kernel of AdamW: adamw_avx2.c and adamw_avx512.c include it at their end. It
 * chooses the code for the state's format and the dtype, both constants in every call. The includer defines
 * INLINE, struct vectors, broadcast, update_f32 and update_16bit (n parameters) and update_block (at most
 * GROUPS groups of 8-bit state). */
#ifndef OT_KERNELS_CPU_ADAMW_ENTRY_H
#define OT_KERNELS_CPU_ADAMW_ENTRY_H

#include "kernels/cpu/adamw_scales.h"

INLINE void update_8bit(const struct ot_adamw *args, const struct vectors *k, enum ot_dtype dtype,
                        int64_t n) {
    enum { BLOCK = GROUPS * OT_STATE_GROUP };
    for (int64_t i = 0; i < n; i += BLOCK)
        update_block(args, k, dtype, i, (int)((n - i < BLOCK ? n - i : BLOCK) / OT_STATE_GROUP),
                     args->scales + i / OT_STATE_GROUP);
}

INLINE void update_format(const struct ot_adamw *args, const struct vectors *k, enum ot_dtype dtype) {
    if (args->state == OT_STATE_F32)
        update_f32(args, k, dtype, args->n);
    else if (args->state == OT_STATE_16BIT)
        update_16bit(args, k, dtype, args->n);
    else
        update_8bit(args, k, dtype, args->n);
}

/* unit: the number of parameters of which update_f32 needs a multiple. */
INLINE void update_all(const struct ot_adamw *args, int64_t unit) {
    if (args->step->skip)
        return;
    struct ot_adamw_cut cut = ot_adamw_cut(args, args->state == OT_STATE_F32 ? unit : OT_STATE_GROUP);
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct vectors k = broadcast(&numbers);
    ot_adamw_scalar(&cut.before);
    if (args->dtype == OT_F32)
        update_format(&cut.body, &k, OT_F32);
    else if (args->dtype == OT_BF16)
        update_format(&cut.body, &k, OT_BF16);
    else
        update_format(&cut.body, &k, OT_F16);
    ot_adamw_scalar(&cut.after);
}

#endif
