/* The CRC-32 against zlib's: every length up to a few rows of the folding kernel, every alignment, random
 * starting values, and long messages in pieces. */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/base/hash.h"

enum { SHORT = 600, ALIGNMENTS = 64, LONG = 1 << 20 };

static void test_short_messages(void **state) {
    (void)state;
    unsigned char *data = aligned_bytes(SHORT + ALIGNMENTS);
    fill_bytes(data, SHORT + ALIGNMENTS, 1);
    for (size_t at = 0; at < ALIGNMENTS; at++)
        for (size_t bytes = 0; bytes <= SHORT; bytes++) {
            uint32_t start = (uint32_t)(bytes * 2654435761u) * (uint32_t)(at % 3);
            if (ot_crc32(start, data + at, bytes) != crc32_z(start, data + at, bytes))
                fail_msg("wrong CRC-32 of %zu bytes at alignment %zu, starting value %08x", bytes, at, start);
        }
    free(data);
}

/* Messages of equal bytes: random bytes may hide a wrong carry here, and the reverse. */
static void test_plain_messages(void **state) {
    (void)state;
    unsigned char *data = aligned_bytes(SHORT);
    static const unsigned char kinds[] = {0x00, 0xff, 0x01, 0x80, 0xaa};
    for (size_t kind = 0; kind < sizeof kinds; kind++) {
        memset(data, kinds[kind], SHORT);
        for (size_t bytes = 0; bytes <= SHORT; bytes++)
            assert_int_equal(ot_crc32(0, data, bytes), crc32_z(0, data, bytes));
    }
    memset(data, 0, SHORT); /* a single bit, at every place */
    for (size_t bit = 0; bit < SHORT * 8; bit++) {
        data[bit / 8] = (unsigned char)(1 << bit % 8);
        assert_int_equal(ot_crc32(0, data, SHORT), crc32_z(0, data, SHORT));
        data[bit / 8] = 0;
    }
    free(data);
}

static void test_parts(void **state) {
    (void)state;
    unsigned char *data = aligned_bytes(LONG);
    fill_bytes(data, LONG, 2);
    uint32_t whole = (uint32_t)crc32_z(0, data, LONG);
    assert_int_equal(ot_crc32(0, data, LONG), whole);
    for (size_t part = 1; part < LONG; part = part * 3 + 1) {
        uint32_t crc = 0;
        for (size_t at = 0; at < LONG; at += part)
            crc = ot_crc32(crc, data + at, part < LONG - at ? part : LONG - at);
        assert_int_equal(crc, whole);
        assert_int_equal(
            ot_crc32_combine(ot_crc32(0, data, part), ot_crc32(0, data + part, LONG - part), LONG - part),
            whole);
    }
    assert_int_equal(ot_crc32_combine(whole, 0, 0), whole);
    assert_int_equal(ot_crc32_combine(0, whole, LONG), whole);
    free(data);
}

/* The kernel's name must match the CPU's flags, so that a build that lost the fast kernel fails. */
static void test_kernel(void **state) {
    (void)state;
#ifdef __x86_64__
    assert_string_equal(ot_crc32_kernel(), __builtin_cpu_supports("pclmul") ? "pclmulqdq" : "zlib");
#else
    assert_string_equal(ot_crc32_kernel(), "zlib");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_messages),
        cmocka_unit_test(test_plain_messages),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
