/* SHA-256, with SHA instructions and without: the vectors of FIPS 180-4 and all lengths up to several
 * blocks. HMAC: the vectors of RFC 4231. SHA-1: vectors of FIPS 180-4, and a file of git. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

#include "src/base/hash.h"

static const char *hex(const uint8_t digest[OT_SHA256_BYTES]) {
    static char text[2 * OT_SHA256_BYTES + 1];
    for (int i = 0; i < OT_SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}

static void sha256(const void *data, size_t bytes, uint8_t digest[OT_SHA256_BYTES]) {
    struct ot_sha256 hash;
    ot_sha256_begin(&hash);
    ot_sha256_add(&hash, data, bytes);
    ot_sha256_end(&hash, digest);
}

static void vectors_of_the_standard(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    uint8_t digest[OT_SHA256_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sha256(cases[i][0], strlen(cases[i][0]), digest);
        assert_string_equal(hex(digest), cases[i][1]);
    }
}

/* The digests of all lengths from 0 to 300, hashed together, as Python's hashlib has them. */
static void all_lengths(void **state) {
    (void)state;
    enum { N = 300 };
    uint8_t data[N], digest[OT_SHA256_BYTES];
    struct ot_sha256 all;
    for (int i = 0; i < N; i++)
        data[i] = (uint8_t)(i * 7 + 3);
    ot_sha256_begin(&all);
    for (size_t n = 0; n <= N; n++) {
        sha256(data, n, digest);
        ot_sha256_add(&all, digest, sizeof digest);
    }
    ot_sha256_end(&all, digest);
    assert_string_equal(hex(digest), "7d917fbd2cf49ddff9ad0a8706bba32d204e92e71d2e369c5a03d6af29278c9f");
}

static void vectors_of_the_rfc(void **state) {
    (void)state;
    static const struct {
        int key_byte; /* repeated; 0: the key is the text */
        size_t key_bytes;
        const char *key;
        int data_byte;
        const char *data;
        const char *digest;
    } cases[] = {
        {0x0b, 20, NULL, 0, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0, 4, "Jefe", 0, "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {0xaa, 20, NULL, 0xdd, NULL, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {0, 25,
         "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18"
         "\x19",
         0xcd, NULL, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {0xaa, 131, NULL, 0, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {0xaa, 131, NULL, 0,
         "This is a test using a larger than block-size key and a larger than block-size data. The key needs "
         "to be hashed before being used by the HMAC algorithm.",
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t key[131], data[50], digest[OT_SHA256_BYTES];
        size_t bytes = cases[i].data ? strlen(cases[i].data) : sizeof data;
        struct ot_hmac mac;
        memset(key, cases[i].key_byte, sizeof key);
        memset(data, cases[i].data_byte, sizeof data);
        ot_hmac_begin(&mac, cases[i].key ? (const void *)cases[i].key : key, cases[i].key_bytes);
        ot_hmac_add(&mac, cases[i].data ? (const void *)cases[i].data : data, bytes);
        ot_hmac_end(&mac, digest);
        assert_string_equal(hex(digest), cases[i].digest);
    }
}

static void digests_are_compared_whole(void **state) {
    (void)state;
    uint8_t a[OT_SHA256_BYTES], b[OT_SHA256_BYTES];
    sha256("abc", 3, a);
    memcpy(b, a, sizeof b);
    assert_true(ot_sha256_is_same(a, b));
    for (int bit = 0; bit < 8 * OT_SHA256_BYTES; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(ot_sha256_is_same(a, b));
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* A text in pieces of all sizes has the hash of the whole text, with both kernels. */
static void pieces(void **state) {
    (void)state;
    enum { N = 1000 };
    uint8_t data[N], whole[OT_SHA256_BYTES], digest[OT_SHA256_BYTES];
    for (int i = 0; i < N; i++)
        data[i] = (uint8_t)(i * i);
    ot_sha256_use_instructions(false);
    sha256(data, N, whole);
    assert_string_equal(hex(whole), "deaa0fa8a12142c2fc4d473ca188ed45615d463857685c7e21aaa36a4b927253");
    for (int use = 0; use < 2; use++) {
        ot_sha256_use_instructions(use);
        for (size_t piece = 1; piece < 200; piece++) {
            struct ot_sha256 hash;
            ot_sha256_begin(&hash);
            for (size_t at = 0; at < N; at += piece)
                ot_sha256_add(&hash, data + at, at + piece < N ? piece : N - at);
            ot_sha256_end(&hash, digest);
            assert_memory_equal(digest, whole, sizeof whole);
        }
    }
    assert_false(ot_sha256_use_instructions(false));
    all_lengths(NULL);
    ot_sha256_use_instructions(true);
}

static void sha1(void **state) {
    (void)state;
    static const char million[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    uint8_t digest[OT_SHA1_BYTES];
    char text[2 * OT_SHA1_BYTES + 1];
    struct ot_sha1 hash;
    ot_sha1_begin(&hash);
    ot_sha1_add(&hash, "abc", 3);
    ot_sha1_end(&hash, digest);
    ot_hash_text(digest, sizeof digest, text);
    assert_string_equal(text, "a9993e364706816aba3e25717850c26c9cd0d89d");
    ot_sha1_begin(&hash);
    for (int i = 0; i < 1000000 / 50; i++)
        ot_sha1_add(&hash, million, 50);
    ot_sha1_end(&hash, digest);
    ot_hash_text(digest, sizeof digest, text);
    assert_string_equal(text, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    ot_sha1_begin(&hash);
    ot_sha1_add(&hash, "blob 6\0hello\n", 13);
    ot_sha1_end(&hash, digest);
    ot_hash_text(digest, sizeof digest, text);
    assert_string_equal(text, "ce013625030ba8dba906f756967f9e9ca394464a");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_the_standard),
        cmocka_unit_test(all_lengths),
        cmocka_unit_test(pieces),
        cmocka_unit_test(sha1),
        cmocka_unit_test(vectors_of_the_rfc),
        cmocka_unit_test(digests_are_compared_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
