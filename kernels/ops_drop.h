/* The numbers of dropout (Srivastava et al., "Dropout", 2014): an element is dropped if its random word is
 * below its share of all words. The others are multiplied, so that the mean stays. Whoever knows noise and
 * place drops the same elements again. C and CUDA C++ compile this file.
 */
#ifndef OT_KERNELS_OPS_DROP_H
#define OT_KERNELS_OPS_DROP_H

#include <stdint.h>

#include "kernels/state_format.h"

/* The least word of a kept element, and that element's factor. drop: in [0, 1). */
static inline uint32_t ot_dropout_least(float drop) {
    return (uint32_t)((double)drop * 0x1p32);
}

static inline float ot_dropout_factor(float drop) {
    return (float)(1 / (1 - (double)drop));
}

/* Dropout of attention's weights, behind the softmax: out is the sum of c p v, with c = 0 for a dropped
 * weight p and the factor for the others. The softmax's sum has all weights. The word of a pair is
 * ot_state_word(noise, (head * n + query) * n_keys + key). Backward gets the same numbers, and
 *
 *     dv += c p dout     ds = p (c dout.v - dot(out, dout))
 *
 * The kernels on tensor cores do not know it: the others compute then, which takes longer. */
struct ot_weight_drop {
    float share; /* 0: nothing is dropped */
    struct ot_state_noise noise;
};

#endif
