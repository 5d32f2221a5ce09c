/* The last part of a vector kernel of AdamW: adamw_avx2.c and adamw_avx512.c include it at their end. It
 * chooses the code for the state's format and the master, both constants in every call. The includer defines
 * INLINE, struct vectors, broadcast, update_f32 and update_16bit (n parameters) and update_block (at most
 * GROUPS groups of 8-bit state). */
#ifndef OT_KERNELS_CPU_ADAMW_ENTRY_H
#define OT_KERNELS_CPU_ADAMW_ENTRY_H

#include "kernels/cpu/adamw_scales.h"
#include "src/base/minmax.h"

INLINE void update_8bit(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                        int64_t n) {
    enum { BLOCK = GROUPS * OT_STATE_GROUP };
    for (int64_t i = 0; i < n; i += BLOCK)
        update_block(args, k, master, i, (int)(ot_min(n - i, BLOCK) / OT_STATE_GROUP),
                     args->scales + i / OT_STATE_GROUP);
}

INLINE void update_format(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master) {
    if (args->state == OT_STATE_F32)
        update_f32(args, k, master, args->n);
    else if (args->state == OT_STATE_16BIT)
        update_16bit(args, k, master, args->n);
    else
        update_8bit(args, k, master, args->n);
}

/* unit: update_f32 needs a multiple of so many parameters if it does not round. */
INLINE void update_all(const struct ot_adamw *args, int64_t unit) {
    if (args->step->skip)
        return;
    struct ot_adamw_cut cut = ot_adamw_cut(args, ot_adamw_rounds(args) ? OT_STATE_GROUP : unit);
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct vectors k = broadcast(&numbers);
    ot_adamw_scalar(&cut.before);
    if (args->dtype == OT_F32)
        update_format(&cut.body, &k, MASTER_F32);
    else if (args->dtype == OT_F16)
        update_format(&cut.body, &k, MASTER_F16);
    else if (args->masters == OT_MASTERS_NONE)
        update_format(&cut.body, &k, MASTER_NONE);
    else
        update_format(&cut.body, &k, MASTER_SPLIT);
    ot_adamw_scalar(&cut.after);
}

#endif
