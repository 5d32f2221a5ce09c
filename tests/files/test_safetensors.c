/* Safetensors: which headers are accepted and refused, and that reading a written file gives the same
 * values. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/files/out_dir.h"
#include "src/files/safetensors.h"
#include "tests/files/fixture.h"

static int open_folder(void **state) {
    *state = make_folder();
    faults_clear();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

/* ---- reading ---- */

static void test_reads_what_the_header_says(void **state) {
    const float data[7] = {1, -2, 3.5f, 0, 5, 6, 7};
    struct ot_safetensors *file;
    write_raw_safetensors(*state, "a.safetensors",
                          "{\"__metadata__\":{\"format\":\"pt\"},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                          "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]},"
                          "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[16,16]},"
                          "\"c\\u00e9\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[24,25]}}   ",
                          data, 25);
    check_ok(ot_safetensors_open(in_folder(*state, "a.safetensors"), &file));
    assert_int_equal(ot_safetensors_count(file), 4);
    assert_string_equal(ot_safetensors_at(file, 0)->name, "a");
    const struct ot_safetensor *b = ot_safetensors_find(file, "b");
    assert_non_null(b);
    assert_true(b->readable);
    assert_int_equal(b->dtype, OT_F32);
    assert_int_equal(b->dims, 2);
    assert_int_equal(b->count, 4);
    check_ok(ot_mapped_file_fetch(ot_safetensors_map(file), b->data, b->bytes));
    assert_memory_equal(b->data, data, 16);
    const struct ot_safetensor *a = ot_safetensors_find(file, "a");
    assert_false(a->readable);
    assert_string_equal(a->dtype_name, "I64");
    assert_int_equal(ot_safetensors_find(file, "c\xc3\xa9")->count, 1);
    assert_int_equal(ot_safetensors_find(file, "empty")->count, 0);
    assert_null(ot_safetensors_find(file, "d"));
    ot_safetensors_close(file);
}

/* One tensor "t" of 4 floats, with one error in the header. */
static void test_refuses_lying_headers(void **state) {
    static const struct {
        const char *header, *words;
    } cases[] = {
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,20]}}",
         "are outside the file's 16 bytes"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", "are outside"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}",
         "data_offsets must be [begin, end]"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", "data_offsets must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,32]}}", "data_offsets must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16.0]}}", "data_offsets must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,18446744073709551616]}}",
         "data_offsets must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4]}}", "data_offsets must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}", "does not fill the 16 bytes"},
        {"{\"t\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,16]}}", "does not fill"},
        {"{\"t\":{\"dtype\":\"F4\",\"shape\":[31],\"data_offsets\":[0,16]}}", "does not fill"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}}",
         "more than 2^63 elements"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2305843009213693952],\"data_offsets\":[0,16]}}",
         "does not fill"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
         "shape[0] is not a whole number"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[\"4\"],\"data_offsets\":[0,16]}}",
         "shape[0] is not a whole number"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}",
         "shape is an integer, not a list"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}", "9 dimensions"},
        {"{\"t\":{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[0,16]}}", "unknown dtype 'F33'"},
        {"{\"t\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "unknown dtype ''"},
        {"{\"t\":7}", "tensor t is described by an integer"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "8 bytes after the last tensor belong to no tensor"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "the 8 bytes before tensor t"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
         "the 4 bytes before tensor u (at 8) belong to no tensor"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
         "tensor u overlaps tensor t"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "overlaps"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
         "\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "two entries of the header have the same name"},
        {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "two entries of the header have the same name"},
        {"{\"t\\u0000\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "NUL"},
        {"{\"t\xff\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "UTF-8"},
        {"{\"__metadata__\":{\"a\":1},\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "a is an integer, not a string"},
        {"{\"__metadata__\":\"x\",\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "__metadata__ is not an object"},
        {" {\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "does not begin with '{'"},
        {"[1,2]", "does not begin with '{'"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}", "not valid JSON"},
        {"{}", "16 bytes after the last tensor belong to no tensor"},
        {"{\"t\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "64 levels"},
    };
    const char data[16] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_safetensors *file = NULL;
        const char *path = in_folder(*state, "bad.safetensors");
        write_raw_safetensors(*state, "bad.safetensors", cases[i].header, data, sizeof data);
        check_fails(ot_safetensors_open(path, &file), OT_E_INPUT, cases[i].words);
        check_fails(ot_safetensors_open(path, &file), OT_E_INPUT, "bad.safetensors");
        assert_null(file);
    }
}

static void test_refuses_files_that_are_none(void **state) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        {"", 0, "it has only 0 bytes"},
        {"\1\0\0\0\0\0\0\0{", 9, "it has only 9 bytes"},
        {"\0\0\0\0\0\0\0\0{}", 10, "the header is empty"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "the limit is 100000000"},
        {"\1\xe1\xf5\5\0\0\0\0{}", 10, "a header of 100000001 bytes"},
        {"\0\xe1\xf5\5\0\0\0\0{}", 10, "the header needs 100000000 bytes, but the file has only 10"},
        {"\3\0\0\0\0\0\0\0{}", 10, "truncated"},
        {"PK\3\4pytorch", 11, "not a safetensors file"},
    };
    struct ot_safetensors *file = NULL;
    const char *path = in_folder(*state, "x.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(*state, "x.safetensors", cases[i].bytes, cases[i].n);
        check_fails(ot_safetensors_open(path, &file), OT_E_INPUT, cases[i].words);
    }
    check_fails(ot_safetensors_open(in_folder(*state, "absent"), &file), OT_E_IO, "No such file");
    check_fails(ot_safetensors_open(*state, &file), OT_E_INPUT, "not a regular file");
}

/* Every prefix of a good file is refused, and none crashes the program. */
static void test_refuses_every_truncation(void **state) {
    const float data[4] = {1, 2, 3, 4};
    size_t bytes;
    write_raw_safetensors(*state, "whole",
                          "{\"t\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", data,
                          sizeof data);
    char *whole = read_text(*state, "whole", &bytes);
    for (size_t n = 0; n < bytes; n++) {
        struct ot_safetensors *file;
        write_file(*state, "part", whole, n);
        assert_int_equal(ot_safetensors_open(in_folder(*state, "part"), &file), -OT_E_INPUT);
    }
    free(whole);
}

static void test_file_that_shrinks_is_an_error(void **state) {
    enum { N = 1 << 14 };
    float *data = calloc(N, sizeof *data);
    struct ot_safetensors *file;
    char header[128];
    snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", N,
             N * 4);
    write_raw_safetensors(*state, "t.safetensors", header, data, N * sizeof *data);
    check_ok(ot_safetensors_open(in_folder(*state, "t.safetensors"), &file));
    const struct ot_safetensor *t = ot_safetensors_at(file, 0);
    check_ok(ot_mapped_file_fetch(ot_safetensors_map(file), t->data, t->bytes));
    ot_mapped_file_prefetch(ot_safetensors_map(file), (const char *)t->data + t->bytes - 1,
                            1 << 20); /* past the end; the call is only a hint */
    ot_mapped_file_release(t->data, t->bytes);
    assert_int_equal(truncate(in_folder(*state, "t.safetensors"), 4096), 0);
    check_fails(ot_mapped_file_fetch(ot_safetensors_map(file), t->data, t->bytes), OT_E_IO,
                "the file was cut from");
    ot_safetensors_close(file);
    free(data);
}

static void test_converts_exactly(void **state) {
    (void)state;
    float values[5];
    unsigned char raw[1 + 4 * sizeof(float)];
    const float plain[4] = {1, -0.0f, 1e-45f, 3.4e38f};
    memcpy(raw + 1, plain, sizeof plain); /* a misaligned address */
    assert_int_equal(ot_safetensors_convert(OT_F32, raw + 1, 4, values), -1);
    assert_memory_equal(values, plain, sizeof plain);
    const uint16_t brain[4] = {0x3f80, 0x8000, 0x0001, 0x7f7f};
    memcpy(raw + 1, brain, sizeof brain);
    assert_int_equal(ot_safetensors_convert(OT_BF16, raw + 1, 4, values), -1);
    const float brain_values[4] = {1, -0.0f, 0x1p-133f, 0x1.fep127f};
    assert_memory_equal(values, brain_values, sizeof brain_values);
    const uint16_t half[5] = {0x3c00, 0x8000, 0x0001, 0x7bff, 0x7c00};
    memcpy(raw + 1, half, sizeof half);
    assert_int_equal(ot_safetensors_convert(OT_F16, raw + 1, 4, values), -1);
    const float half_values[4] = {1, -0.0f, 0x1p-24f, 65504};
    assert_memory_equal(values, half_values, sizeof half_values);
    assert_int_equal(ot_safetensors_convert(OT_F16, raw + 1, 5, values), 4);
    const float bad[4] = {1, 2, NAN, INFINITY};
    assert_int_equal(ot_safetensors_convert(OT_F32, bad, 4, values), 2);
}

/* ---- writing ---- */

static const struct ot_safetensors_entry entries[] = {{.name = "model.a.weight", .dims = 2, .shape = {3, 5}},
                                                      {.name = "model.b.weight", .dims = 1, .shape = {7}},
                                                      {.name = "model.\"q\"", .dims = 2, .shape = {2, 2}},
                                                      {.name = "s"}};
enum { N_ENTRIES = 4, N_VALUES = 15 + 7 + 4 + 1 };

static void open_writer(struct ot_out_dir *dir, enum ot_dtype dtype, int64_t shard_bytes,
                        struct ot_safetensors_writer **writer) {
    static struct ot_safetensors_entry typed[N_ENTRIES]; /* static, because the writer only borrows it */
    for (int i = 0; i < N_ENTRIES; i++) {
        typed[i] = entries[i];
        typed[i].dtype = dtype;
    }
    check_ok(ot_safetensors_writer_open(dir, "model", typed, N_ENTRIES, shard_bytes, writer));
}

static void write_values(const char *out, enum ot_dtype dtype, int64_t shard_bytes, const float *values,
                         int step) {
    struct ot_out_dir *dir;
    struct ot_safetensors_writer *writer;
    check_ok(ot_out_dir_open(out, NULL, NULL, &dir));
    open_writer(dir, dtype, shard_bytes, &writer);
    for (int i = 0; i < N_VALUES; i += step)
        check_ok(ot_safetensors_writer_put(writer, values + i, i + step < N_VALUES ? step : N_VALUES - i));
    check_ok(ot_safetensors_writer_finish(writer));
    check_ok(ot_out_dir_commit(dir));
    ot_safetensors_writer_close(writer);
    ot_out_dir_close(dir);
}

static void read_back(const char *path, int first, int n, enum ot_dtype dtype, const float *values) {
    struct ot_safetensors *file;
    float got[N_VALUES];
    check_ok(ot_safetensors_open(path, &file));
    assert_int_equal(ot_safetensors_count(file), n);
    int64_t at = 0;
    for (int i = 0; i < first + n; i++) {
        int64_t count =
            entries[i].dims == 0 ? 1 : entries[i].shape[0] * (entries[i].dims == 2 ? entries[i].shape[1] : 1);
        if (i >= first) {
            const struct ot_safetensor *t = ot_safetensors_find(file, entries[i].name);
            assert_non_null(t);
            assert_int_equal(t->dtype, dtype);
            assert_int_equal(t->dims, entries[i].dims);
            assert_int_equal(t->count, count);
            assert_int_equal((uintptr_t)t->data % ot_dtype_bytes(dtype), 0);
            assert_int_equal(ot_safetensors_convert(dtype, t->data, count, got), -1);
            assert_memory_equal(got, values + at, (size_t)count * sizeof *got);
        }
        at += count;
    }
    ot_safetensors_close(file);
}

static void test_round_trip_of_each_dtype(void **state) {
    static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16};
    float values[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        values[i] = tiny_value(1, i);
    for (int step = 1; step <= N_VALUES; step += 13)
        for (size_t d = 0; d < 3; d++) {
            const char *out = in_folder(*state, "one");
            write_values(out, dtypes[d], OT_SHARD_BYTES, values, step);
            read_back(in_folder(out, "model.safetensors"), 0, N_ENTRIES, dtypes[d], values);
            assert_int_equal(count_entries(out), 2); /* the marker and one file, no index */
        }
}

static void test_rounds_to_nearest_even(void **state) {
    float values[N_VALUES] = {1.00390625f, 1.01171875f, 1 + 0x1p-11f, 1 + 0x3p-11f, 1e-8f};
    struct ot_safetensors *file;
    uint16_t want_brain[] = {0x3f80, 0x3f82, 0x3f80, 0x3f80},
             want_half[] = {0x3c04, 0x3c0c, 0x3c00, 0x3c02, 0};
    const char *out = in_folder(*state, "r");
    write_values(out, OT_BF16, OT_SHARD_BYTES, values, N_VALUES);
    check_ok(ot_safetensors_open(in_folder(out, "model.safetensors"), &file));
    assert_memory_equal(ot_safetensors_find(file, "model.a.weight")->data, want_brain, sizeof want_brain);
    ot_safetensors_close(file);
    write_values(out, OT_F16, OT_SHARD_BYTES, values, N_VALUES);
    check_ok(ot_safetensors_open(in_folder(out, "model.safetensors"), &file));
    assert_memory_equal(ot_safetensors_find(file, "model.a.weight")->data, want_half, sizeof want_half);
    ot_safetensors_close(file);
}

/* 60 + 28 + 16 + 4 bytes, at most 50 in a shard. The first tensor is larger than a shard and gets a shard of
 * its own. */
static void test_cuts_shards_and_writes_the_index(void **state) {
    float values[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        values[i] = tiny_value(2, i);
    const char *out = in_folder(*state, "many");
    write_values(out, OT_F32, 50, values, 4);
    read_back(in_folder(out, "model-00001-of-00002.safetensors"), 0, 1, OT_F32, values);
    read_back(in_folder(out, "model-00002-of-00002.safetensors"), 1, 3, OT_F32, values);
    char *index = read_text(out, "model.safetensors.index.json", NULL);
    assert_non_null(strstr(index, "\"total_size\": 108"));
    assert_non_null(strstr(index, "\"s\": \"model-00002-of-00002.safetensors\""));
    assert_non_null(strstr(index, "\"model.a.weight\": \"model-00001-of-00002.safetensors\""));
    free(index);
    /* A new save with one shard removes the old shards and the index. */
    write_values(out, OT_F32, 108, values, 4);
    assert_int_equal(count_entries(out), 2);
    read_back(in_folder(out, "model.safetensors"), 0, N_ENTRIES, OT_F32, values);
}

static void test_writer_knows_its_bytes(void **state) {
    float values[N_VALUES] = {0};
    struct ot_safetensors_writer *writer;
    size_t bytes, total = 0;
    open_writer(NULL, OT_BF16, 30, &writer);
    const char *out = in_folder(*state, "sum"),
               *names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"};
    write_values(out, OT_BF16, 30, values, 5);
    for (int i = 0; i < 3; i++, total += bytes)
        free(read_text(out, names[i], &bytes));
    assert_int_equal(ot_safetensors_writer_bytes(writer), total);
    ot_safetensors_writer_close(writer);
}

static void test_writer_wants_all_values_and_no_more(void **state) {
    float values[N_VALUES] = {0};
    struct ot_out_dir *dir;
    struct ot_safetensors_writer *writer;
    const char *out = in_folder(*state, "o");
    check_ok(ot_out_dir_open(out, NULL, NULL, &dir));
    open_writer(dir, OT_F32, OT_SHARD_BYTES, &writer);
    check_ok(ot_safetensors_writer_put(writer, values, N_VALUES - 1));
    check_fails(ot_safetensors_writer_finish(writer), OT_E_INTERNAL, "only 0 of 1 shards");
    check_fails(ot_safetensors_writer_put(writer, values, 2), OT_E_INTERNAL, "1 values too many");
    ot_safetensors_writer_close(writer);
    ot_out_dir_close(dir);
    assert_false(file_exists(*state, "o"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_what_the_header_says, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_lying_headers, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_files_that_are_none, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_every_truncation, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_file_that_shrinks_is_an_error, open_folder, drop_folder),
        cmocka_unit_test(test_converts_exactly),
        cmocka_unit_test_setup_teardown(test_round_trip_of_each_dtype, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_rounds_to_nearest_even, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_cuts_shards_and_writes_the_index, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_writer_knows_its_bytes, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_writer_wants_all_values_and_no_more, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
