/* The formats in which the optimizer's moments m and v are stored, and the rounding of weights without
 * masters. An update (kernels/adamw.h) decodes the moments to fp32, computes in fp32, and encodes the new
 * ones. Every operation below is exact or rounds once, in the order written here, so all engines store the
 * same bits.
 *
 * OT_STATE_F32    m and v are fp32: 8 bytes a parameter. Nothing is lost. The default.
 * OT_STATE_16BIT  m and v are bf16, rounded stochastically: 4 bytes a parameter.
 * OT_STATE_8BIT   m and v have 1 byte each. Every OT_STATE_GROUP parameters share two scales: 2.125 bytes a
 *                 parameter. As in FlashOptim (Ortiz et al., arXiv 2602.23349), the codes of m are denser
 *                 near zero, and v is coded by its square root.
 *
 * A state of zero bytes means m = v = 0 in every format. With OT_MASTERS_F32 the fp32 master weight is exact
 * in all three (src/base/dtype.h).
 *
 * MASTERS. With OT_MASTERS_NONE there is no master: a weight is bf16 alone, which saves 2 bytes a parameter
 * (Zamirai et al., "Revisiting BFloat16 Training", arXiv 2010.06192; llm.c and llmq train so too). An update
 * begins at the bf16 weight and rounds its fp32 result stochastically, as 16BIT rounds m and v, with half of
 * a word that rounds weights alone. Rounding to nearest would drop most updates, because they are smaller
 * than half a step of bf16. The mean of a rounded weight is the exact result, but each update of a weight may
 * add an error of up to one step.
 *
 * RANDOM NUMBERS. Rounding to nearest would stop the decay of v: with beta2 = 0.999, v changes by less than
 * half a step of bf16 or of 8 bits. So rounding is stochastic, which is right on average. A random word is a
 * pure function of the seed, the update (counted from 1), the slab, and a place in the slab, so neither
 * tiles, ranks, threads nor engines change it. One block of Philox (src/base/random.h) makes two keys for an
 * update of a slab, and another block two keys for its weights; a hash makes the words from them: that of
 * lowbias32 (Wellons, "Prospecting for Hash Functions", 2018) without its last step, and with the second key
 * added in the middle. It takes eight integer operations a word, a fifth of what Philox takes, and rounding
 * asks for no more.
 *
 * 16BIT. bits(x) + r is cut to its upper 16 bits, where r are 16 random bits, for m the low half of the
 * parameter's word and for v the high half; r is 0 if |x| is at least the largest finite bf16. The error is
 * less than one step of bf16 (2^-7 of x). A bf16 value stays itself.
 *
 * 8BIT. Group j of a slab has the parameters [32 j, 32 j + 32). Its scales are two bf16 numbers:
 *
 *     s = the largest min(|m|, 2^126) / 174, rounded up to bf16
 *     u = the largest min(sqrt(v), 2^64) / 255, rounded up to bf16
 *
 *     m:  size(c) = c + max(c - 80, 0)                       0..174: first steps of 1, then of 2
 *         t = round(least of |m| k, |m| (k / 2) + 40960, and 130048), where k = 1024 / max(s, 2^-100)
 *         code = floor((t + r) / 1024), with the sign of m   int8, -127..127; r: the upper 10 of 16 bits
 *         m = size(|code|) * s, with the sign of the code    exact
 *     v:  t = round(least of sqrt(v) (1024 / max(u, 2^-100)) and 261120)
 *         code = floor((t + r) / 1024), at least 1 if v > 0  uint8; r: the lower 10 of the 16 bits
 *         v = (code * u)^2                                   code * u is exact
 *
 * round() is to the nearest integer, ties to even. A product and a sum in t round once (fma). A NaN counts as
 * the largest number. A code is rounded in steps of 1/1024, so a value that was decoded from a code has that
 * code again, with any random number, if the scale is the same (and unless it is so small that v underflows,
 * u < 2^-62). Errors: |m' - m| is less than the distance of the two neighbouring sizes, s or 2 s;
 * |sqrt(v') - sqrt(v)| < u (1 + 1/2048). The means of m and of sqrt(v) are exact up to 1/2048 of a step; that
 * of v is too large by up to u^2 / 4, because the square is curved.
 *
 * Three things differ from FlashOptim. The scales are bf16, not fp16: gradients below 6e-8, common in large
 * models, would vanish in fp16. A v > 0 never becomes 0: m / (sqrt(v) + eps) would explode. And m is coded by
 * two straight lines instead of softsign, x / (1 + |x|). The standard deviation of an error is 1 % larger if
 * m is normally distributed, and 6 % if it has long tails (Student's t, 3 degrees of freedom), but its mean
 * is 0. Neither coding nor decoding divides, so updates are faster.
 *
 * A call may update only some parameters of a group. The others are decoded and encoded with the group's new
 * scales, so a slab must be cut into tiles, shares and threads' chunks at multiples of OT_STATE_GROUP.
 */
#ifndef OT_KERNELS_STATE_FORMAT_H
#define OT_KERNELS_STATE_FORMAT_H

#include <stdint.h>

enum ot_state_format { OT_STATE_F32, OT_STATE_16BIT, OT_STATE_8BIT, OT_STATE_FORMATS };
enum { OT_STATE_GROUP = 32 };

/* OT_MASTERS_NONE: with bf16 weights only. fp32 weights are their own masters. */
enum ot_masters { OT_MASTERS_F32, OT_MASTERS_NONE };

/* "fp32", "16bit", "8bit" */
const char *ot_state_format_name(enum ot_state_format format);
/* "fp32", "none" */
const char *ot_masters_name(enum ot_masters masters);

/* The keys of the random words of one update of a slab. */
struct ot_state_noise {
    uint32_t begin, key;
};
/* stream: ot_random_stream(OT_RANDOM_ROUNDING, update, slab), or OT_RANDOM_WEIGHTS for weights without
 * masters. Dropout (kernels/ops.h) takes its words from the same hash, with other streams. */
struct ot_state_noise ot_state_noise(uint64_t seed, uint64_t stream);

/* The constants of the hash. OT_NOISE_STEP and OT_NOISE_PAGE spread the low and the high half of a place. */
#define OT_NOISE_STEP 0x9e3779b1u
#define OT_NOISE_PAGE 0x85ebca77u
#define OT_NOISE_MIX1 0x7feb352du
#define OT_NOISE_MIX2 0x846ca68bu

/* The word of the parameter at place `index` of the slab. */
static inline uint32_t ot_state_word(struct ot_state_noise noise, int64_t index) {
    uint32_t x =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    x = (x ^ x >> 16) * OT_NOISE_MIX1;
    return (x ^ x >> 15 ^ noise.key) * OT_NOISE_MIX2;
}

/* The 16 random bits of a parameter with 8-bit state, or of a weight without a master. Two parameters share a
 * word: those at places that differ in bit 2 alone. */
static inline uint32_t ot_state_half_word(struct ot_state_noise noise, int64_t index) {
    return ot_state_word(noise, index & ~(int64_t)4) >> (index & 4 ? 16 : 0) & 0xffffu;
}

/* The scales of a group, as bf16 bits. */
struct ot_state_scale {
    uint16_t m, v; /* s and u */
};

/* The moments of one group in fp32. */
struct ot_state_group {
    float m[OT_STATE_GROUP], v[OT_STATE_GROUP];
};

/* One group as 8 bits: codes of m and v, OT_STATE_GROUP of each. halves: each parameter's 16 random bits. */
void ot_state_decode_group(const int8_t *m, const uint8_t *v, const struct ot_state_scale *scale,
                           struct ot_state_group *out);
void ot_state_encode_group(const struct ot_state_group *group, const uint32_t *halves, int8_t *m, uint8_t *v,
                           struct ot_state_scale *scale);
/* fp32 to bf16, rounded stochastically with the 16 bits of random. */
uint16_t ot_state_round_bf16(float value, uint32_t random);

/* A range of a state in any format. m, v: arrays of fp32, bf16 bits, or codes. scales: OT_STATE_8BIT only;
 * the first one belongs to the first parameter. */
struct ot_state_arrays {
    enum ot_state_format format;
    void *m, *v;
    struct ot_state_scale *scales;
};

/* The same, to read from. */
struct ot_state_view {
    enum ot_state_format format;
    const void *m, *v;
    const struct ot_state_scale *scales;
};

static inline struct ot_state_view ot_state_view_of(const struct ot_state_arrays *a) {
    struct ot_state_view view = {a->format, a->m, a->v, a->scales};
    return view;
}

/* Copies the moments of n parameters from one format to another, for example when a run resumes with another
 * format. first: the place of the first one in its slab. n: a multiple of OT_STATE_GROUP. seed, stream: for
 * the random words (ot_state_noise). A compact state that is copied to its own format keeps its bits. The
 * arrays must not overlap. */
void ot_state_convert(struct ot_state_view from, const struct ot_state_arrays *to, int64_t first, int64_t n,
                      uint64_t seed, uint64_t stream);

#endif
