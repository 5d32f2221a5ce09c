/* GGUF headers, right and wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gguf/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

static int open_raw(const char *folder, const struct raw *raw, struct ot_gguf **file) {
    write_file(folder, "m.gguf", raw->bytes, raw->n);
    *file = NULL;
    return ot_gguf_open(file_in(folder, "m.gguf"), file);
}

static void refuse(const char *folder, const struct raw *raw, const char *words) {
    struct ot_gguf *file;
    check_fails(open_raw(folder, raw, &file), OT_E_INPUT, words);
    assert_null(file);
}

/* Two keys, two tensors of 32 bytes, 96 bytes of data: one tensor, a gap, the other tensor. */
static void make_good(struct raw *raw) {
    raw_begin(raw, 3, 2, 3);
    raw_u32_key(raw, "b.count", 7);
    raw_string(raw, "a.text");
    raw_number(raw, OT_GGUF_KIND_STRING, 4);
    raw_string(raw, "hello");
    raw_string(raw, "c.words");
    raw_number(raw, OT_GGUF_KIND_ARRAY, 4);
    raw_number(raw, OT_GGUF_KIND_STRING, 4);
    raw_number(raw, 2, 8);
    raw_string(raw, "one");
    raw_string(raw, "");
    raw_tensor(raw, "second", 8, OT_GGUF_F32, 64);
    raw_tensor(raw, "first", 16, OT_GGUF_F16, 0);
    raw_pad(raw);
    for (int i = 0; i < 96; i++)
        raw_number(raw, (uint64_t)i, 1);
}

static void test_reads_keys_and_tensors(void **state) {
    struct raw raw;
    struct ot_gguf *file;
    struct ot_gguf_string text;
    const struct ot_gguf_value *words;
    int64_t count = 0;
    make_good(&raw);
    check_ok(open_raw(*state, &raw, &file));
    assert_int_equal(ot_gguf_key_count(file), 3);
    assert_string_equal(ot_gguf_value(file, 0)->key, "a.text");
    check_ok(ot_gguf_need_int(file, "b.count", true, 0, 10, &count));
    assert_int_equal(count, 7);
    check_ok(ot_gguf_need_string(file, "a.text", true, &text));
    assert_true(text.bytes == 5 && memcmp(text.text, "hello", 5) == 0);
    check_ok(ot_gguf_need_array(file, "c.words", true, OT_GGUF_KIND_STRING, &words));
    assert_true(words->n == 2 && words->strings[0].bytes == 3 && words->strings[1].bytes == 0);
    const struct ot_gguf_tensor *tensor = ot_gguf_find_tensor(file, "second");
    assert_true(tensor->dims == 1 && tensor->shape[0] == 8 && tensor->bytes == 32);
    assert_int_equal(*(const unsigned char *)tensor->data, 64);
    assert_null(ot_gguf_find_tensor(file, "third"));
    check_fails(ot_gguf_need_int(file, "b.count", true, 0, 6, &count), OT_E_INPUT, "b.count is 7, must be");
    check_fails(ot_gguf_need_int(file, "a.text", true, 0, 6, &count), OT_E_INPUT, "is a string, not a whole");
    check_fails(ot_gguf_need_int(file, "d", true, 0, 6, &count), OT_E_INPUT, "the key d is missing");
    check_ok(ot_gguf_need_int(file, "d", false, 0, 6, &count));
    check_fails(ot_gguf_need_array(file, "c.words", true, OT_GGUF_KIND_F32, &words), OT_E_INPUT,
                "each a string, not a real number");
    ot_gguf_close(file);
}

/* Whatever the length of a truncated file, it is refused, unless only padding is missing. */
static void test_refuses_every_truncation(void **state) {
    struct raw raw;
    struct ot_gguf *file;
    make_good(&raw);
    for (size_t n = 0; n < raw.n; n++) {
        struct raw cut = raw;
        cut.n = n;
        int rc = open_raw(*state, &cut, &file);
        if (rc == 0)
            fail_msg("a file that is cut after %zu of %zu bytes was accepted", n, raw.n);
        assert_int_equal(rc, -OT_E_INPUT);
    }
}

/* Every byte with some other values: no crash, and what is accepted keeps within the file. */
static void test_survives_every_changed_byte(void **state) {
    static const unsigned char changes[] = {0x01, 0x80, 0xff};
    struct raw raw;
    struct ot_gguf *file;
    make_good(&raw);
    for (size_t at = 0; at < raw.n - 96; at++)
        for (size_t c = 0; c < sizeof changes; c++) {
            struct raw changed = raw;
            changed.bytes[at] ^= changes[c];
            int rc = open_raw(*state, &changed, &file);
            assert_true(rc == 0 || rc == -OT_E_INPUT);
            for (int64_t i = 0; rc == 0 && i < ot_gguf_tensor_count(file); i++) {
                const struct ot_gguf_tensor *tensor = ot_gguf_tensor(file, i);
                size_t from = (size_t)((const char *)tensor->data - ot_gguf_map(file)->data);
                assert_true(from <= raw.n && tensor->bytes <= raw.n - from);
            }
            ot_gguf_close(file);
        }
}

static void test_refuses_wrong_headers(void **state) {
    struct raw raw;
    raw_begin(&raw, 1, 0, 0);
    refuse(*state, &raw, "version 1 is not supported");
    raw_begin(&raw, 0x03000000, 0, 0);
    refuse(*state, &raw, "big-endian");
    raw_begin(&raw, 3, 0, 0);
    raw.bytes[0] = 'X';
    refuse(*state, &raw, "not a GGUF file");
    raw_begin(&raw, 3, 0, UINT64_MAX);
    refuse(*state, &raw, "18446744073709551615 keys and 0 tensors, more than fit");
    raw_begin(&raw, 3, UINT64_MAX / 33, 0);
    refuse(*state, &raw, "more than fit in the file's 24 bytes");
}

static void test_refuses_wrong_keys(void **state) {
    struct raw raw;
    raw_begin(&raw, 3, 0, 2);
    raw_u32_key(&raw, "same", 1);
    raw_u32_key(&raw, "same", 2);
    refuse(*state, &raw, "the key same is twice");
    raw_begin(&raw, 3, 0, 1);
    raw_u32_key(&raw, "with space", 1);
    refuse(*state, &raw, "not printable ASCII");
    raw_begin(&raw, 3, 0, 1);
    raw_u32_key(&raw, "", 1);
    refuse(*state, &raw, "must have 1 to");
    raw_begin(&raw, 3, 0, 1);
    raw_string(&raw, "kind");
    raw_number(&raw, 13, 4);
    raw_number(&raw, 0, 8);
    refuse(*state, &raw, "key kind has a value of the unknown kind 13");
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 8, 1000};
    for (size_t i = 0; i < 3; i++)
        for (uint32_t item = OT_GGUF_KIND_U8; item <= OT_GGUF_KIND_STRING; item += 4) {
            raw_begin(&raw, 3, 0, 1);
            raw_string(&raw, "long");
            raw_number(&raw, OT_GGUF_KIND_ARRAY, 4);
            raw_number(&raw, item, 4);
            raw_number(&raw, counts[i], 8);
            refuse(*state, &raw, "more than fit in the file");
        }
    raw_begin(&raw, 3, 0, 1);
    raw_string(&raw, "nest");
    raw_number(&raw, OT_GGUF_KIND_ARRAY, 4);
    raw_number(&raw, OT_GGUF_KIND_ARRAY, 4);
    raw_number(&raw, 0, 8);
    refuse(*state, &raw, "array of arrays");
    raw_begin(&raw, 3, 0, 1);
    raw_number(&raw, UINT64_MAX, 8);
    raw_number(&raw, 0, 8);
    refuse(*state, &raw, "would have 18446744073709551615 bytes");
    raw_begin(&raw, 3, 0, 1);
    raw_u32_key(&raw, "general.alignment", 24);
    refuse(*state, &raw, "must be a power of two");
    raw_begin(&raw, 3, 0, 1);
    raw_u32_key(&raw, "general.alignment", 0);
    refuse(*state, &raw, "general.alignment is 0");
}

/* One wrong tensor, and 64 bytes of data. */
static void refuse_tensor(const char *folder, uint64_t values, uint32_t type, uint64_t offset,
                          const char *words) {
    struct raw raw;
    raw_begin(&raw, 3, 2, 0);
    raw_tensor(&raw, "good", 8, OT_GGUF_F32, 0);
    raw_tensor(&raw, "wrong", values, type, offset);
    raw_pad(&raw);
    for (int i = 0; i < 8; i++)
        raw_number(&raw, 0, 8);
    refuse(folder, &raw, words);
}

static void test_refuses_wrong_tensors(void **state) {
    struct raw raw;
    refuse_tensor(*state, 8, 4, 32, "tensor wrong has the unknown type 4");
    refuse_tensor(*state, 16, OT_GGUF_Q8_0, 32, "not whole blocks of Q8_0");
    refuse_tensor(*state, 8, OT_GGUF_F32, 16, "not a multiple of the alignment");
    refuse_tensor(*state, 8, OT_GGUF_F32, 0, "overlaps tensor");
    refuse_tensor(*state, 9, OT_GGUF_F32, 32, "needs 36 bytes at 32, but the file has 64 bytes of data");
    refuse_tensor(*state, 8, OT_GGUF_F32, UINT64_MAX - 31, "but the file has 64 bytes of data");
    refuse_tensor(*state, UINT64_MAX, OT_GGUF_F32, 32, "more than 2^63 values");
    refuse_tensor(*state, INT64_MAX / 2, OT_GGUF_F32, 32, "more than 2^63 bytes");
    raw_begin(&raw, 3, 2, 0);
    raw_tensor(&raw, "same", 8, OT_GGUF_F32, 0);
    raw_tensor(&raw, "same", 8, OT_GGUF_F32, 32);
    raw_pad(&raw);
    for (int i = 0; i < 8; i++)
        raw_number(&raw, 0, 8);
    refuse(*state, &raw, "the tensor same is twice");
    for (uint64_t dims = 0; dims <= 5; dims += 5) {
        raw_begin(&raw, 3, 1, 0);
        raw_string(&raw, "dims");
        raw_number(&raw, dims, 4);
        for (int i = 0; i < 6; i++)
            raw_number(&raw, 1, 8);
        refuse(*state, &raw, "dimensions, must have 1 to 4");
    }
    raw_begin(&raw, 3, 1, 0);
    raw_tensor(&raw, "a.name.that.is.longer.than.the.sixty-four.bytes.that.ggml.has.for.it", 8, 0, 0);
    refuse(*state, &raw, "must have 1 to 64");
}

static void test_refuses_other_files(void **state) {
    struct ot_gguf *file;
    check_fails(ot_gguf_open(file_in(*state, "absent.gguf"), &file), OT_E_IO, "cannot open");
    check_fails(ot_gguf_open(*state, &file), OT_E_INPUT, "not a regular file");
    write_file(*state, "m.gguf", "", 0);
    check_fails(ot_gguf_open(file_in(*state, "m.gguf"), &file), OT_E_INPUT, "it is empty");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_keys_and_tensors, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_every_truncation, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_survives_every_changed_byte, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_wrong_headers, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_wrong_keys, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_wrong_tensors, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_other_files, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
