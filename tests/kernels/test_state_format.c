/* The formats of the optimizer's moments: error bounds over all codes, means over all random bits, values
 * that must keep their code, and extreme values. */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "kernels/state_format.h"
#include "src/base/dtype.h"
#include "src/base/random.h"

enum { GROUP = OT_STATE_GROUP, STEPS = 1024 /* rounding positions between two codes */ };

struct coded {
    int8_t m[GROUP];
    uint8_t v[GROUP];
    struct ot_state_scale scale;
};

static struct coded encode(const struct ot_state_group *group, const uint32_t *words) {
    struct coded c;
    ot_state_encode_group(group, words, c.m, c.v, &c.scale);
    return c;
}

static struct ot_state_group decode(const struct coded *c) {
    struct ot_state_group group;
    ot_state_decode_group(c->m, c->v, &c->scale, &group);
    return group;
}

/* 16 random bits, the same for all parameters. m gets `position`. v gets it with its bits in another order,
 * so all positions of one are all positions of the other. */
static void fill_words(uint32_t *words, uint32_t position) {
    for (int i = 0; i < GROUP; i++)
        words[i] = position << 6 | position >> 4;
}

/* ---- random words ---- */

enum { WORDS = 1 << 16, BINS = 1024 };

/* Pearson's statistic of one 10-bit field of many words: 1023 degrees of freedom, so it is 1023 with a
 * standard deviation of 45. Four deviations: one field in 10,000. */
static void check_even(struct ot_state_noise noise, int shift) {
    static int counts[BINS];
    double sum = 0;
    memset(counts, 0, sizeof counts);
    for (int64_t i = 0; i < WORDS; i++)
        counts[ot_state_word(noise, i) >> shift & (BINS - 1)]++;
    for (int i = 0; i < BINS; i++)
        sum += pow(counts[i] - (double)WORDS / BINS, 2) / ((double)WORDS / BINS);
    assert_true(fabs(sum - (BINS - 1)) < 4 * sqrt(2.0 * (BINS - 1)));
}

/* A 10-bit field as a number of mean 0 and variance 1. */
static double field(struct ot_state_noise noise, int64_t index, int shift) {
    return ((double)(ot_state_word(noise, index) >> shift & (BINS - 1)) - (BINS - 1) / 2.0) / BINS * sqrt(12);
}

/* The correlation of two independent fields has the standard deviation 1 / sqrt(WORDS). */
static void check_apart(struct ot_state_noise one, struct ot_state_noise other, int64_t distance, int shift,
                        int other_shift) {
    double sum = 0;
    for (int64_t i = 0; i < WORDS; i++)
        sum += field(one, i, shift) * field(other, i + distance, other_shift);
    assert_true(fabs(sum / WORDS) < 4 / sqrt(WORDS));
}

/* Words are even, and independent of those of other parameters, other updates and other slabs. The bits for
 * m, for v and for the weight are independent of each other. */
static void test_words_are_random(void **state) {
    (void)state;
    static const int64_t distances[] = {1, 2, 8, 32, 4096, 65536};
    static const int shifts[] = {0, 6, 16, 22};
    for (uint64_t update = 1; update <= 3; update++) {
        struct ot_state_noise noise = ot_state_noise(1, ot_random_stream(OT_RANDOM_ROUNDING, update, 7));
        struct ot_state_noise next = ot_state_noise(1, ot_random_stream(OT_RANDOM_ROUNDING, update + 1, 7));
        struct ot_state_noise slab = ot_state_noise(1, ot_random_stream(OT_RANDOM_ROUNDING, update, 8));
        struct ot_state_noise weights = ot_state_noise(1, ot_random_stream(OT_RANDOM_WEIGHTS, update, 7));
        check_apart(noise, noise, 0, 0, 22);
        for (int s = 0; s < 4; s++) {
            check_even(noise, shifts[s]);
            check_apart(noise, next, 0, shifts[s], shifts[s]);
            check_apart(noise, slab, 0, shifts[s], shifts[s]);
            check_apart(noise, weights, 0, shifts[s], 22); /* the upper half of a word rounds a weight */
            for (size_t d = 0; d < sizeof distances / sizeof *distances; d++)
                check_apart(noise, noise, distances[d], shifts[s], shifts[s]);
        }
    }
}

/* A place beyond 2^32 has a word of its own. The words are the same on every machine and in every version. */
static void test_words_depend_on_the_whole_place(void **state) {
    (void)state;
    struct ot_state_noise noise = ot_state_noise(42, 43);
    uint32_t sum = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t pair = i & ~(int64_t)4;
        assert_int_equal(ot_state_half_word(noise, i),
                         ot_state_word(noise, pair) >> (i == pair ? 0 : 16) & 0xffff);
        assert_int_not_equal(ot_state_word(noise, i), ot_state_word(noise, i + ((int64_t)1 << 32)));
        sum = sum * 31 + ot_state_word(noise, i * 0x12345679);
    }
    assert_int_equal(sum, 0xec948dc2);
}

/* ---- 16 bits ---- */

/* The 16 bits below the bf16 decide: of 65536 random numbers as many round up as those bits say. Every sign,
 * exponent and some mantissas. */
static void test_bf16_rounds_up_as_often_as_it_should(void **state) {
    (void)state;
    for (uint32_t high = 0; high < 0x10000u; high += 251) {
        uint32_t low = ot_random_u32(1, 2, high) & 0xffffu, ups = 0;
        if ((high & 0x7fffu) >= 0x7f7fu)
            continue;
        for (uint32_t random = 0; random < 0x10000u; random++) {
            uint16_t rounded = ot_state_round_bf16(ot_f32_from_bits(high << 16 | low), random);
            assert_in_range(rounded, high, high + 1);
            ups += rounded - high;
        }
        assert_int_equal(ups, low);
    }
}

static void test_bf16_values_stay(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000u; bits++)
        assert_int_equal(ot_state_round_bf16(ot_bf16_to_f32((uint16_t)bits), 0xffffu), bits);
    assert_int_equal(ot_state_round_bf16(0x1.fffffep127f, 0xffffu), 0x7f7f); /* does not become infinite */
}

/* ---- 8 bits ---- */

/* The exact position of a value among the codes, and the value of a position, by the definition in double
 * precision. s: the scale. */
static double place_of_m(double m, double s) {
    double t = fabs(m) / s;
    return copysign(fmin(t, t / 2 + 40), m);
}

static double size_of_place(double place) {
    double c = fabs(place);
    return copysign(c + fmax(c - 80, 0), place);
}

static float bf16_up(double value) {
    uint16_t up = ot_bf16_from_f32((float)value);
    return (double)ot_bf16_to_f32(up) < value ? ot_bf16_to_f32((uint16_t)(up + 1)) : ot_bf16_to_f32(up);
}

/* A group in which parameter 0 sets the scales, and the others lie between the codes. */
static struct ot_state_group make_group(uint64_t stream, float largest_m, float largest_v) {
    struct ot_state_group group = {{largest_m}, {largest_v}};
    for (int i = 1; i < GROUP; i++) {
        double place = ot_random_unit(3, stream, (uint64_t)i) * 254 - 127;
        group.m[i] = largest_m * (float)(size_of_place(place) / 174);
        double root = ot_random_unit(4, stream, (uint64_t)i);
        group.v[i] = largest_v * (float)(root * root);
    }
    return group;
}

static const float sizes[] = {1.0f, 0x1.8p-1f, 3e-9f, 1.7e-5f, 250.0f, 0x1p-60f, 0x1p60f};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* With every random position, a code is one of the two neighbours; its mean over all positions is the place
 * of the value up to half a step of 1/1024, and up to the roundings before it (two of m, of 127 codes; two of
 * v, of 255: below 1e-4). The mean of m itself is as exact, because sizes between two codes lie on a straight
 * line of slope 2 at most. Decoded values stay within the distance of the neighbours. */
static void test_codes_are_right_on_average(void **state) {
    (void)state;
    const double most = 0.5 / STEPS + 1e-4;
    for (uint64_t stream = 0; stream < 4 * N_SIZES; stream++) {
        struct ot_state_group group = make_group(stream, sizes[stream % N_SIZES], sizes[stream % N_SIZES]);
        double codes[GROUP] = {0}, m_sum[GROUP] = {0}, v_sum[GROUP] = {0};
        double s = (double)bf16_up((double)group.m[0] / 174 * (1 - 0x1p-23));
        double u = (double)bf16_up(sqrt((double)group.v[0]) / 255 * (1 - 0x1p-23));
        for (uint32_t position = 0; position < STEPS; position++) {
            uint32_t words[GROUP];
            fill_words(words, position);
            struct coded c = encode(&group, words);
            struct ot_state_group got = decode(&c);
            for (int i = 0; i < GROUP; i++) {
                codes[i] += c.m[i];
                m_sum[i] += (double)got.m[i];
                v_sum[i] += c.v[i];
                double t = fabs((double)group.m[i]) / s, gap = t < 80 ? 1 : 2;
                assert_true(fabs((double)got.m[i] - (double)group.m[i]) < gap * s * (1 + most));
                assert_true(fabs(sqrt((double)got.v[i]) - sqrt((double)group.v[i])) < u * (1 + most));
            }
        }
        for (int i = 0; i < GROUP; i++) {
            double root = sqrt((double)group.v[i]) / u;
            assert_true(fabs(codes[i] / STEPS - place_of_m((double)group.m[i], s)) <= most);
            assert_true(fabs(m_sum[i] / STEPS - (double)group.m[i]) <= 2 * s * most);
            assert_true(root < 1 || fabs(v_sum[i] / STEPS - root) <= most);
        }
    }
}

/* Every code of m and v, at many scales: what was decoded is encoded to the same bytes with any random
 * number. Code 127 of m and 255 of v must be in the group, so that the scale is the same. */
static void test_decoded_codes_stay(void **state) {
    (void)state;
    for (int exponent = -60; exponent <= 54; exponent += 3)
        for (int first = 0; first < 256; first += GROUP - 1) {
            uint16_t bits = (uint16_t)((127 + exponent) << 7 | (first * 37 & 0x7f));
            struct coded c = {.scale = {bits, bits}}, again;
            for (int i = 0; i < GROUP; i++) {
                int code = first + i < 256 ? first + i : 255;
                c.v[i] = (uint8_t)code;
                c.m[i] = (int8_t)(code < 255 ? code - 127 : 0);
            }
            c.m[GROUP - 1] = -127;
            c.v[GROUP - 1] = 255;
            for (uint32_t position = 0; position < STEPS; position += 93) {
                uint32_t words[GROUP];
                fill_words(words, position);
                struct ot_state_group group = decode(&c);
                again = encode(&group, words);
                assert_memory_equal(&again, &c, sizeof c);
            }
        }
}

/* Zeros stay zero bytes; a positive v never becomes 0; extreme values stay finite codes of the right sign. */
static void test_extreme_values(void **state) {
    (void)state;
    uint32_t words[GROUP];
    static const struct coded zeros;
    struct ot_state_group group = {{0}, {0}};
    fill_words(words, STEPS - 1);
    struct coded c = encode(&group, words);
    assert_memory_equal(&c, &zeros, sizeof c);
    fill_words(words, 0);
    group.v[0] = 1.0f, group.v[1] = 0x1p-149f;
    c = encode(&group, words);
    assert_in_range(c.v[0], 254, 255); /* u was rounded up */
    assert_int_equal(c.v[1], 1);
    assert_int_equal(c.v[2], 0);
    group.v[0] = INFINITY, group.m[0] = 0x1.fffffep127f, group.m[1] = -INFINITY;
    c = encode(&group, words);
    assert_int_equal(c.m[0], 127);
    assert_int_equal(c.m[1], -127);
    assert_true(isfinite(ot_bf16_to_f32(c.scale.m)) && isfinite(ot_bf16_to_f32(c.scale.v)));
    float most = decode(&c).m[0]; /* 2^126, up to the rounding of the scale */
    assert_true(decode(&c).v[0] > 0x1.ffp127f && most >= 0x1p126f && most < 0x1.02p126f);
}

/* ---- from format to format ---- */

/* fp32 to compact and back; a compact format converted to fp32 and back keeps its bytes, as does a copy. */
static void test_conversions(void **state) {
    (void)state;
    enum { N = 64 * GROUP };
    static float m[N], v[N], back_m[N], back_v[N];
    static uint16_t codes[2][2][N];
    static struct ot_state_scale scales[2][N / GROUP];
    for (int i = 0; i < N; i++) {
        m[i] = ot_random_normal(1, 1, (uint64_t)i);
        v[i] = m[i] * m[i] * 3;
    }
    struct ot_state_arrays full = {OT_STATE_F32, m, v, NULL}, back = {OT_STATE_F32, back_m, back_v, NULL};
    for (int format = OT_STATE_16BIT; format < OT_STATE_FORMATS; format++) {
        struct ot_state_arrays one = {(enum ot_state_format)format, codes[0][0], codes[0][1], scales[0]};
        struct ot_state_arrays two = {(enum ot_state_format)format, codes[1][0], codes[1][1], scales[1]};
        memset(codes, 0, sizeof codes);
        ot_state_convert(ot_state_view_of(&full), &one, 2048, N, 5, 6);
        ot_state_convert(ot_state_view_of(&one), &back, 2048, N, 5, 6);
        for (int i = 0; i < N; i++) /* |m| is below 6: the widest gap of 8 bits there is 6 * 2 / 174 */
            assert_true(fabsf(back_m[i] - m[i]) < 0.1f && fabsf(back_v[i] - v[i]) < 0.04f * v[i] + 0.5f);
        memset(scales[1], 0, sizeof scales[1]);
        ot_state_convert(ot_state_view_of(&one), &two, 2048, N, 7, 8);
        assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
        assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
    }
}

static void test_format_names(void **state) {
    (void)state;
    assert_string_equal(ot_state_format_name(OT_STATE_F32), "fp32");
    assert_string_equal(ot_state_format_name(OT_STATE_16BIT), "16bit");
    assert_string_equal(ot_state_format_name(OT_STATE_8BIT), "8bit");
    assert_string_equal(ot_masters_name(OT_MASTERS_F32), "fp32");
    assert_string_equal(ot_masters_name(OT_MASTERS_NONE), "none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_are_random),
        cmocka_unit_test(test_words_depend_on_the_whole_place),
        cmocka_unit_test(test_bf16_rounds_up_as_often_as_it_should),
        cmocka_unit_test(test_bf16_values_stay),
        cmocka_unit_test(test_codes_are_right_on_average),
        cmocka_unit_test(test_decoded_codes_stay),
        cmocka_unit_test(test_extreme_values),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_format_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
