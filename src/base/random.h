/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
 * SC'11). A number is a pure function of (seed, stream, index): no state, so placement, order, threads and
 * resume cannot change it (offload/README.md, rule 6). ot_random_stream() makes a stream from the purpose of
 * its numbers.
 */
#ifndef OT_BASE_RANDOM_H
#define OT_BASE_RANDOM_H

#include <stdint.h>

enum ot_random_use {
    OT_RANDOM_INIT = 1,
    OT_RANDOM_SHUFFLE,
    OT_RANDOM_SPLIT,
    OT_RANDOM_SAMPLE,
    OT_RANDOM_ROUNDING,
    OT_RANDOM_TEST,
    OT_RANDOM_WEIGHTS, /* rounding weights that have no master */
    OT_RANDOM_LORA,    /* initial values of adapters */
    OT_RANDOM_DROPOUT,
    OT_RANDOM_REGULAR /* NEFTune, and dropout of the model's config */
};

/* The stream of numbers for one use. step, tensor: 0 if the use has none. */
uint64_t ot_random_stream(enum ot_random_use use, uint64_t step, uint64_t tensor);
/* Computes four words at once. ot_random_u32 returns word index % 4 of block index / 4. */
void ot_random_block(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
uint32_t ot_random_u32(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, bound). */
uint64_t ot_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound);
double ot_random_unit(uint64_t seed, uint64_t stream, uint64_t index);  /* uniform in [0, 1) */
float ot_random_normal(uint64_t seed, uint64_t stream, uint64_t index); /* mean 0, variance 1 */
/* Those of n successive indices, in half the time. */
void ot_random_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float *out);

#endif
