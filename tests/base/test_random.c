#include "tests/support/check.h"

#include <math.h>

#include "src/base/hash.h"
#include "src/base/random.h"

/* Vectors of Random123's kat_vectors for philox4x32-10: counter (index, stream), key (seed), result. */
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t index, stream, seed;
        uint32_t want[4];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t got[4];
        ot_random_block(vectors[i].seed, vectors[i].stream, vectors[i].index, got);
        assert_memory_equal(got, vectors[i].want, sizeof got);
    }
}

static void test_u32_walks_through_the_blocks(void **state) {
    (void)state;
    for (uint64_t block = 0; block < 5; block++) {
        uint32_t words[4];
        ot_random_block(3, 4, block, words);
        for (uint64_t i = 0; i < 4; i++)
            assert_int_equal(ot_random_u32(3, 4, block * 4 + i), words[i]);
    }
}

static void test_streams_differ(void **state) {
    (void)state;
    uint64_t streams[6 * 16 * 16];
    size_t n = 0;
    for (int use = OT_RANDOM_INIT; use <= OT_RANDOM_TEST; use++)
        for (uint64_t step = 0; step < 16; step++)
            for (uint64_t tensor = 0; tensor < 16; tensor++)
                streams[n++] = ot_random_stream((enum ot_random_use)use, step, tensor);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(streams[i] != streams[j]);
}

static void test_below(void **state) {
    (void)state;
    enum { DRAWS = 70000 };
    int counts[7] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t value = ot_random_below(1, 2, i, 7);
        assert_in_range(value, 0, 6);
        counts[value]++;
        assert_int_equal(ot_random_below(1, 2, i, 1), 0);
        assert_true(ot_random_below(1, 2, i, UINT64_MAX) < UINT64_MAX);
    }
    double chi2 = 0;
    for (int v = 0; v < 7; v++)
        chi2 += pow(counts[v] - DRAWS / 7, 2) / (DRAWS / 7);
    assert_true(chi2 < 22.5); /* 6 degrees of freedom: one seed in a thousand exceeds this */
}

static void test_unit(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = ot_random_unit(1, 3, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 4 * 0.2887 / sqrt(DRAWS));
    assert_true(fabs(squares / DRAWS - 1.0 / 3) < 4 * 0.2982 / sqrt(DRAWS));
}

/* Box-Muller with libm, from the same random words: equal within fp32 rounding. */
static void test_normal_follows_libm(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        uint32_t words[4];
        ot_random_block(5, 6, i / 4, words);
        const uint32_t *pair = words + 2 * (i % 4 / 2);
        double radius = sqrt(-2 * log(((double)pair[0] + 1) * 0x1p-32)),
               angle = 2 * M_PI * (double)pair[1] * 0x1p-32;
        double want = radius * (i % 2 ? sin(angle) : cos(angle));
        double got = (double)ot_random_normal(5, 6, i);
        if (!(fabs(got - want) <= 0x1p-23 * fabs(want) + 1e-14))
            fail_msg("number %d: %.9g, not %.9g", (int)i, got, want);
    }
}

static void test_normal_moments(void **state) {
    (void)state;
    enum { DRAWS = 200000 };
    double sum = 0, squares = 0, fourth = 0, neighbours = 0, last = 0, largest = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = (double)ot_random_normal(1, 4, i);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        neighbours += x * last;
        last = x;
        largest = fmax(largest, fabs(x));
    }
    double error = 4 / sqrt(DRAWS); /* four standard deviations of a mean of unit variance */
    assert_true(fabs(sum / DRAWS) < error);
    assert_true(fabs(squares / DRAWS - 1) < error * sqrt(2));
    assert_true(fabs(fourth / DRAWS - 3) < error * sqrt(96));
    assert_true(fabs(neighbours / DRAWS) < error);
    assert_true(largest > 4 && largest < 6.7); /* sqrt(2 ln 2^32) = 6.66 */
}

/* The bits themselves: a seed must give the same numbers on every machine and in every version. */
static void test_normal_bits(void **state) {
    (void)state;
    uint64_t hash = OT_FNV64; /* over the first numbers */
    for (uint64_t i = 0; i < 10000; i++) {
        float x = ot_random_normal(42, ot_random_stream(OT_RANDOM_INIT, 0, 1), i);
        hash = ot_fnv64(hash, &x, sizeof x);
    }
    for (uint64_t first = 0, n; first < 10000;
         first += n) { /* runs that begin and end at each place of a block */
        float run[13], one;
        n = first % 13 + 1;
        ot_random_normals(42, 9, first, (int64_t)n, run);
        for (uint64_t i = 0; i < n; i++) {
            one = ot_random_normal(42, 9, first + i);
            assert_memory_equal(&run[i], &one, sizeof one);
        }
    }
    if (hash != UINT64_C(0xcad29926ec19601a))
        fail_msg("the hash of the numbers is %016llx, which is not the fixed one", (unsigned long long)hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),  cmocka_unit_test(test_u32_walks_through_the_blocks),
        cmocka_unit_test(test_streams_differ), cmocka_unit_test(test_below),
        cmocka_unit_test(test_unit),           cmocka_unit_test(test_normal_follows_libm),
        cmocka_unit_test(test_normal_moments), cmocka_unit_test(test_normal_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
