/* FNV-1a: the vectors that its authors publish. */
#include "src/base/hash.h"

#include <string.h>

#include "tests/support/check.h"

static const struct {
    const char *text;
    uint64_t hash64;
    uint32_t hash32;
} vectors[] = {{"", 0xcbf29ce484222325, 0x811c9dc5},
               {"a", 0xaf63dc4c8601ec8c, 0xe40c292c},
               {"b", 0xaf63df4c8601f1a5, 0xe70c2de5},
               {"foobar", 0x85944171f73967e8, 0xbf9cf968},
               {"chongo was here!\n", 0x46810940eff5f915, 0xd49930d5}};

static void test_published_vectors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        size_t bytes = strlen(vectors[i].text);
        assert_true(ot_fnv64(OT_FNV64, vectors[i].text, bytes) == vectors[i].hash64);
        assert_true(ot_fnv32(OT_FNV32, vectors[i].text, bytes) == vectors[i].hash32);
    }
}

/* A hash continues from that of the bytes before. A byte of 128 and more is not a negative number. */
static void test_pieces(void **state) {
    static const char text[] = "\xff\x80 two\0pieces";
    (void)state;
    for (size_t cut = 0; cut < sizeof text; cut++) {
        uint64_t hash64 = ot_fnv64(OT_FNV64, text, cut);
        uint32_t hash32 = ot_fnv32(OT_FNV32, text, cut);
        hash64 = ot_fnv64(hash64, text + cut, sizeof text - cut);
        hash32 = ot_fnv32(hash32, text + cut, sizeof text - cut);
        assert_true(hash64 == UINT64_C(0xf5787236b606e19d));
        assert_true(hash32 == 0xf48d0ddd);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published_vectors),
                                       cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
