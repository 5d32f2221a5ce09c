/* Files of torch.save: which tensors and archives are accepted, and that all others are refused. The files
 * are made by a small writer, or by PyTorch (scripts/golden/torch_files.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/safetensors.h"
#include "src/files/torch_file.h"
#include "tests/files/fixture.h"
#include "tests/files/torch_writer.h"
#include "tests/support/golden.h"

static int open_folder(void **state) {
    *state = make_folder();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

/* ---- tensors ---- */

static void check_refused(const struct tensor *tensor, const char *words) {
    struct ot_safetensors *file;
    struct text pickle = pickle_of(tensor, 1);
    check_fails(open_pickle(&pickle, &file), OT_E_INPUT, words);
}

static void test_reads_tensors_that_share_a_storage(void **state) {
    (void)state;
    struct tensor tensors[] = {plain("b"),    plain("a"),     plain("row"),
                               plain("ones"), plain("empty"), plain("one")};
    struct ot_safetensors *file;
    tensors[2].offset = 3;
    tensors[2].dims = 1;
    tensors[2].size[0] = 3;
    tensors[2].stride[0] = 1;
    tensors[3].size[0] = 1; /* the stride of one element does not matter */
    tensors[3].stride[0] = 77;
    tensors[4].offset = 6;
    tensors[4].size[1] = 0;
    tensors[5].offset = 5;
    tensors[5].dims = 0;
    struct text pickle = pickle_of(tensors, 6);
    check_ok(open_pickle(&pickle, &file));
    assert_int_equal(ot_safetensors_count(file), 6);
    assert_string_equal(ot_safetensors_at(file, 0)->name, "a"); /* sorted */
    check_values(file, "a", six, 6);
    check_values(file, "b", six, 6);
    check_values(file, "row", six + 3, 3);
    check_values(file, "ones", six, 3);
    check_values(file, "empty", six, 0);
    check_values(file, "one", six + 5, 1);
    const struct ot_safetensor *a = ot_safetensors_find(file, "a");
    assert_int_equal(a->dims, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 3);
    ot_safetensors_close(file);
}

static void test_names_every_dtype(void **state) {
    (void)state;
    static const struct {
        const char *class, *name;
        int bytes;
    } cases[] = {
        {"FloatStorage", "F32", 4},  {"HalfStorage", "F16", 2},        {"BFloat16Storage", "BF16", 2},
        {"DoubleStorage", "F64", 8}, {"LongStorage", "I64", 8},        {"IntStorage", "I32", 4},
        {"ShortStorage", "I16", 2},  {"CharStorage", "I8", 1},         {"ByteStorage", "U8", 1},
        {"BoolStorage", "BOOL", 1},  {"ComplexFloatStorage", "C64", 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor tensor = plain("t");
        struct ot_safetensors *file;
        tensor.class = cases[i].class;
        tensor.numel = 24 / cases[i].bytes;
        tensor.dims = 1;
        tensor.size[0] = tensor.numel;
        tensor.stride[0] = 1;
        struct text pickle = pickle_of(&tensor, 1);
        check_ok(open_pickle(&pickle, &file));
        assert_string_equal(ot_safetensors_at(file, 0)->dtype_name, cases[i].name);
        assert_int_equal(ot_safetensors_at(file, 0)->readable, i < 3);
        assert_int_equal(ot_safetensors_at(file, 0)->bytes, 24);
        ot_safetensors_close(file);
    }
    struct tensor tensor = plain("t");
    tensor.class = "QInt8Storage";
    check_refused(&tensor, "names torch.QInt8Storage");
}

/* A tensor in another order is found, and only a load that needs it refuses it. */
static void test_other_orders_cannot_be_read(void **state) {
    (void)state;
    static const int64_t cases[][4] = {{3, 2, 1, 3}, {2, 3, 0, 1}, {2, 2, 3, 1}, {2, 3, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor tensor = plain("t");
        struct ot_safetensors *file;
        memcpy(tensor.size, cases[i], 2 * sizeof(int64_t));
        memcpy(tensor.stride, cases[i] + 2, 2 * sizeof(int64_t));
        struct text pickle = pickle_of(&tensor, 1);
        check_ok(open_pickle(&pickle, &file));
        assert_false(ot_safetensors_at(file, 0)->readable);
        assert_non_null(
            strstr(ot_safetensors_at(file, 0)->dtype_name, "F32 in another order than row-major"));
        ot_safetensors_close(file);
    }
}

static void test_refuses_lying_tensors(void **state) {
    (void)state;
#define BIG INT64_MAX
    static const struct {
        struct tensor tensor;
        const char *words;
    } cases[] = {
        {{"t", "FloatStorage", "0", 6, 1, 2, {2, 3}, {3, 1}, NULL}, "values are outside its storage"},
        {{"t", "FloatStorage", "0", 6, 0, 2, {3, 3}, {3, 1}, NULL}, "values are outside"},
        {{"t", "FloatStorage", "0", 6, 0, 2, {2, 3}, {4, 1}, NULL}, "values are outside"},
        {{"t", "FloatStorage", "0", 6, 7, 1, {0}, {1}, NULL}, "values are outside"},
        {{"t", "FloatStorage", "0", 6, 6, 0, {0}, {0}, NULL}, "values are outside"},
        {{"t", "FloatStorage", "0", 6, BIG, 1, {6}, {1}, NULL}, "values are outside"},
        {{"t", "FloatStorage", "0", 6, -1, 1, {6}, {1}, NULL}, "not described as torch.save does"},
        {{"t", "FloatStorage", "0", 6, 0, 1, {-6}, {1}, NULL}, "a size or a stride is not a whole number"},
        {{"t", "FloatStorage", "0", 6, 5, 1, {6}, {-1}, NULL}, "a size or a stride is not a whole number"},
        {{"t", "FloatStorage", "0", 6, 0, 2, {BIG, 4}, {1, 1}, NULL}, "more than 2^63"},
        {{"t", "FloatStorage", "0", 6, 0, 2, {3, 1}, {BIG, 1}, NULL}, "more than 2^63"},
        {{"t", "FloatStorage", "0", 6, 0, 2, {2, 2}, {BIG, BIG}, NULL}, "more than 2^63"},
        {{"t", "FloatStorage", "0", 6, 0, 9, {1, 1, 1, 1, 1, 1, 1, 1, 6}, {1}, NULL}, "at most 8 sizes"},
        {{"t", "FloatStorage", "0", 5, 0, 1, {5}, {1}, NULL}, "storage data/0 has 24 bytes, which is not 5"},
        {{"t", "FloatStorage", "0", 7, 0, 1, {6}, {1}, NULL}, "which is not 7 values of F32"},
        {{"t", "FloatStorage", "0", BIG, 0, 1, {6}, {1}, NULL}, "which is not 9223372036854775807"},
        {{"t", "FloatStorage", "0", -6, 0, 1, {6}, {1}, NULL}, "its storage is not described"},
        {{"t", "FloatStorage", "1", 6, 0, 1, {6}, {1}, NULL}, "data/1 is not in the archive"},
        {{"t", "FloatStorage", "../data/0", 6, 0, 1, {6}, {1}, NULL}, "is not in the archive"},
        {{"t", "FloatStorage", "0123456789012345678901234567890123456789x", 6, 0, 1, {6}, {1}, NULL},
         "impossible key"},
        {{"t", "FloatStorage", "0", 6, 0, 1, {6}, {1}, "}X\3\0\0\0negK\1s"}, "has metadata"},
        {{"t", "FloatStorage", "0", 6, 0, 1, {6}, {1}, "K\1"}, "has metadata"},
        {{"t", "FloatStorage", "0", 6, 0, 1, {6}, {1}, "NN"}, "not described as torch.save does"},
    };
#undef BIG
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* A NUL ends `more`, so its text of three letters is written here. */
        struct tensor tensor = cases[i].tensor;
        char more[] = "}U\x03negK\x01s";
        if (tensor.more && tensor.more[0] == '}')
            tensor.more = more;
        check_refused(&tensor, cases[i].words);
    }
    struct tensor twice[] = {plain("t"), plain("t")};
    struct text pickle = pickle_of(twice, 2);
    struct ot_safetensors *file;
    check_fails(open_pickle(&pickle, &file), OT_E_INPUT, "two tensors have the name t");
    struct tensor ok = plain("t");
    for (int i = 0; i < 2; i++) { /* metadata that says nothing */
        ok.more = i ? "N" : "}";
        pickle = pickle_of(&ok, 1);
        check_ok(open_pickle(&pickle, &file));
        ot_safetensors_close(file);
    }
}

/* ---- the archive ---- */

/* A good archive with every optional part. */
static void make_archive(struct archive *a, struct text *pickle, bool zip64, bool zip64_sizes) {
    struct tensor tensor = plain("t");
    *a = (struct archive){.zip64 = zip64, .zip64_sizes = zip64_sizes};
    *pickle = pickle_of(&tensor, 1);
    add_entry(a, "m/data.pkl", pickle->bytes, pickle->n);
    add_entry(a, "m/byteorder", "little", 6);
    add_entry(a, "m/data/0", six, sizeof six);
    add_entry(a, "m/version", "3\n", 2);
    write_archive(a);
}

static void test_reads_zip_and_zip64(void **state) {
    (void)state;
    static struct archive a;
    struct text pickle;
    struct ot_safetensors *file;
    for (int i = 0; i < 4; i++) {
        make_archive(&a, &pickle, i & 1, i & 2);
        check_ok(open_bytes(a.file.bytes, a.file.n, &file));
        check_values(file, "t", six, 6);
        ot_safetensors_close(file);
    }
}

static void test_refuses_every_truncation(void **state) {
    (void)state;
    static struct archive a;
    struct text pickle;
    struct ot_safetensors *file;
    for (int i = 0; i < 2; i++) {
        make_archive(&a, &pickle, i, i);
        for (size_t n = 0; n < a.file.n; n++)
            check_fails(open_bytes(a.file.bytes, n, &file), OT_E_INPUT,
                        "does not end with the directory of a zip archive");
    }
}

/* The storage of a file that is cut after its directory was read is not there any more. */
enum place { LOCAL, CENTRAL, RECORD, LOCATOR, END };

static void test_refuses_lying_archives(void **state) {
    (void)state;
    static const struct {
        enum place place;
        int entry, at, bytes;
        uint64_t value;
        const char *words;
        bool zip64;
    } cases[] = {
        {END, 0, 0, 4, 0, "does not end with the directory", false},
        {END, 0, 20, 2, 1, "does not end with the directory", false}, /* a comment */
        {END, 0, 10, 2, 5, "would have 5 entries", false},
        {END, 0, 10, 2, 60000, "would have 60000 entries", false},
        {END, 0, 12, 4, 0xfffffff0, "cannot be", false},
        {END, 0, 12, 4, 200, "is missing from its directory", false},
        {END, 0, 16, 4, 0xfffffff0, "cannot be", false},
        {END, 0, 16, 4, 0, "is missing from its directory", false},
        {LOCATOR, 0, 8, 8, UINT64_MAX, "the zip64 record is outside the file", true},
        {LOCATOR, 0, 8, 8, 0, "has no zip64 record at byte 0", true},
        {LOCATOR, 0, 0, 4, 0, "would have 65535 entries", true},
        {RECORD, 0, 0, 4, 0, "has no zip64 record", true},
        {RECORD, 0, 32, 8, UINT64_MAX, "cannot be", true},
        {RECORD, 0, 40, 8, UINT64_MAX, "cannot be", true},
        {RECORD, 0, 48, 8, UINT64_MAX, "cannot be", true},
        {RECORD, 0, 32, 8, 5, "entry 4 of the archive is missing", true},
        {CENTRAL, 1, 0, 4, 0, "entry 1 of the archive is missing", false},
        {CENTRAL, 3, 28, 2, 9999, "entry 3 of the archive goes past the end", false},
        {CENTRAL, 3, 30, 2, 9999, "goes past the end", false},
        {CENTRAL, 3, 32, 2, 9999, "goes past the end", false},
        {CENTRAL, 2, 42, 4, 0xfffffff0, "entry 2 of the archive begins outside the file", false},
        {CENTRAL, 2, 42, 4, 1, "entry 2 of the archive has no header", false},
        {CENTRAL, 2, 42, 4, 0, "overlaps m/data", false},
        {CENTRAL, 2, 20, 4, 0xfffffff0, "entry 2 of the archive ends outside the file", false},
        {CENTRAL, 2, 20, 4, 100, "m/version overlaps m/data/0", false},
        {CENTRAL, 2, 42, 4, 0xffffffff, "without its sizes", false},
        {CENTRAL, 2, 46 + 8 + 5 + 2, 2, 8, "without its sizes", true},
        {CENTRAL, 2, 46 + 8 + 5 + 2, 2, 40, "without its sizes", true},
        {CENTRAL, 2, 46 + 8 + 5 + 4 + 8, 8, UINT64_MAX, "ends outside the file", true},
        {CENTRAL, 2, 46 + 8 + 5 + 4 + 16, 8, UINT64_MAX, "begins outside the file", true},
        {CENTRAL, 2, 46, 2, 0, "has a NUL in its name", false},
        {CENTRAL, 0, 16, 4, 0, "the checksum of data.pkl is wrong", false},
        {CENTRAL, 0, 10, 2, 8, "m/data.pkl is compressed or encrypted", false},
        {CENTRAL, 2, 10, 2, 8, "m/data/0 is compressed or encrypted", false},
        {CENTRAL, 1, 10, 2, 8, "m/byteorder is compressed or encrypted", false},
        {CENTRAL, 2, 8, 2, 1, "m/data/0 is compressed or encrypted", false},
        {CENTRAL, 2, 24, 4, 25, "m/data/0 is compressed or encrypted", false}, /* a bomb's size */
        {LOCAL, 2, 0, 4, 0, "entry 2 of the archive has no header", false},
        {LOCAL, 2, 28, 2, 65535, "entry 2 of the archive ends outside the file", false},
        {LOCAL, 2, 28, 2, 24, "m/version overlaps m/data/0", false},
        {LOCAL, 1, 30 + 11 + 5, 1, 'b', "its numbers are not little-endian", false},
    };
    static struct archive a;
    struct text pickle;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_safetensors *file;
        make_archive(&a, &pickle, cases[i].zip64, cases[i].zip64);
        const size_t places[] = {[LOCAL] = a.local[cases[i].entry],
                                 [CENTRAL] = a.central[cases[i].entry],
                                 [RECORD] = a.record,
                                 [LOCATOR] = a.locator,
                                 [END] = a.end};
        for (int k = 0; k < cases[i].bytes; k++)
            a.file.bytes[places[cases[i].place] + (size_t)(cases[i].at + k)] =
                (char)(cases[i].value >> (8 * k));
        check_fails(open_bytes(a.file.bytes, a.file.n, &file), OT_E_INPUT, cases[i].words);
    }
}

static void test_bounds_the_directory(void **state) {
    (void)state;
    enum { DIRECTORY = (64 << 20) + 1 };
    static struct archive a;
    struct ot_safetensors *file;
    char *bytes = calloc(DIRECTORY + 22, 1);
    assert_non_null(bytes);
    a = (struct archive){0};
    write_archive(&a);
    memcpy(bytes + DIRECTORY, a.file.bytes + a.end, 22);
    for (int k = 0; k < 4; k++)
        bytes[DIRECTORY + 12 + k] = (char)(DIRECTORY >> (8 * k));
    check_fails(open_bytes(bytes, DIRECTORY + 22, &file), OT_E_INPUT,
                "in 67108865 bytes at byte 0, which cannot be");
    free(bytes);
}

static void test_refuses_other_archives(void **state) {
    static const struct {
        const char *names[3], *data, *words;
    } cases[] = {
        {{"m/data.pkl", "m/data.pkl", NULL}, "", "two entries with the name m/data.pkl"},
        {{"m/data.pkl", "n/data.pkl", NULL}, "", "has two entries data.pkl"},
        {{"m/data/0", "a/b/data.pkl", "data.pkl"}, "", "is a zip archive without data.pkl"},
        {{"m/data.pkl", "m/constants.pkl", NULL}, "", "is a program for TorchScript"},
        {{"m/data.pkl", "m/byteorder", NULL}, "big", "not little-endian"},
        {{"m/data.pkl", "m/byteorder", NULL}, "little-endian", "not little-endian"},
        {{"m/data.pkl", NULL, NULL}, "\x80\x04N.", "data.pkl is not a pickle of protocol 2"},
        {{"m/data.pkl", NULL, NULL}, "\x82\x02N.", "data.pkl is not a pickle of protocol 2"},
        {{"m/data.pkl", NULL, NULL}, "\x80", "data.pkl is not a pickle of protocol 2"},
        {{"m/data.pkl", NULL, NULL}, "\x80\x02", "byte 2: an instruction goes past the end"},
        {{NULL, NULL, NULL}, "", "is a zip archive without data.pkl"},
    };
    static struct archive a;
    struct ot_safetensors *file;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a = (struct archive){0};
        for (int k = 0; k < 3 && cases[i].names[k]; k++)
            add_entry(&a, cases[i].names[k], cases[i].data, strlen(cases[i].data));
        write_archive(&a);
        check_fails(open_bytes(a.file.bytes, a.file.n, &file), OT_E_INPUT, cases[i].words);
    }
    char tar[512] = "pickle";
    memcpy(tar + 257, "ustar  ", 7); /* as GNU tar has it */
    check_fails(open_bytes(tar, sizeof tar, &file), OT_E_INPUT, "the format of PyTorch before 1.6");
    check_fails(open_bytes(tar, 261, &file), OT_E_INPUT, "does not end with the directory");
    check_fails(ot_torch_file_open(in_folder(*state, "absent"), &file), OT_E_IO, "absent: cannot open");
}

/* ---- files of PyTorch ---- */

static void check_golden(const struct ot_golden *golden, const char *name, char *names) {
    struct ot_safetensors *file;
    char array[96];
    int64_t bytes, n = 0;
    snprintf(array, sizeof array, "%s.file", name);
    const char *data = golden_text(golden, array, &bytes);
    check_ok(open_bytes(data, (size_t)bytes, &file));
    char *rest = NULL;
    for (char *tensor_name = strtok_r(names, "\n", &rest); tensor_name;
         tensor_name = strtok_r(NULL, "\n", &rest), n++) {
        const struct ot_safetensor *tensor = ot_safetensors_find(file, tensor_name);
        assert_non_null(tensor);
        snprintf(array, sizeof array, "%s/%s", name, tensor_name);
        if (!golden_has(golden, array)) {
            assert_false(tensor->readable);
            continue;
        }
        int64_t count;
        const float *want = golden_f32(golden, array, &count);
        float *got = malloc((size_t)count * sizeof *got);
        assert_non_null(got);
        assert_true(tensor->readable);
        assert_int_equal(tensor->count, count);
        for (int i = 0; i < tensor->dims; i++)
            assert_int_equal(tensor->shape[i], golden_dim(golden, array, i));
        assert_int_equal(ot_safetensors_convert(tensor->dtype, tensor->data, count, got), -1);
        assert_memory_equal(got, want, (size_t)count * sizeof *got);
        free(got);
    }
    assert_int_equal(ot_safetensors_count(file), n);
    ot_safetensors_close(file);
}

static void test_reads_as_torch_load_does(void **state) {
    (void)state;
    static const char *const cases[] = {"plain", "tied", "views", "parameters", "module", "kinds"};
    static const struct {
        const char *name, *words;
    } refused[] = {
        {"legacy", "the format of PyTorch before 1.6"},
        {"protocol4", "not a pickle of protocol 2"},
        {"code", "names __builtin__.print"},
        {"nested", "model is a dict, not a tensor"},
        {"object", "names torch.nn.modules.linear.Linear"},
        {"script", "a program for TorchScript"},
        {"negated", "tensor n: has metadata"},
        {"float8", "names torch._utils._rebuild_tensor_v3"},
    };
    struct ot_golden *golden = golden_open("torch_files.bin");
    char array[64];
    int64_t bytes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(array, sizeof array, "%s.names", cases[i]);
        const char *names = golden_text(golden, array, &bytes);
        char *copy = strndup(names, (size_t)bytes);
        assert_non_null(copy);
        check_golden(golden, cases[i], copy);
        free(copy);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct ot_safetensors *file;
        snprintf(array, sizeof array, "%s.file", refused[i].name);
        const char *data = golden_text(golden, array, &bytes);
        check_fails(open_bytes(data, (size_t)bytes, &file), OT_E_INPUT, refused[i].words);
    }
    golden_close(golden);
}

/* ---- the directory ---- */

static void test_refuses_bad_indexes(void **state) {
    static const struct {
        const char *index;
        int code;
        const char *words;
    } cases[] = {
        {"{\"weight_map\": {\"t\": \"../m.bin\"}}", OT_E_INPUT, "'../m.bin' is not the name of a .bin file"},
        {"{\"weight_map\": {\"t\": \"m.safetensors\"}}", OT_E_INPUT, "is not the name of a .bin file"},
        {"{\"weight_map\": {\"t\": \"absent.bin\"}}", OT_E_IO, "absent.bin: cannot open"},
        {"{\"weight_map\": {\"u\": \"m.bin\"}}", OT_E_INPUT, "says that tensor u is in m.bin"},
        {"{\"weight_map\": {\"t\": \"bad.bin\"}}", OT_E_INPUT, "bad.bin: does not end with the directory"},
    };
    static struct archive a;
    struct text pickle;
    struct ot_model_dir *dir;
    make_archive(&a, &pickle, true, false);
    write_file(*state, "m.bin", a.file.bytes, a.file.n);
    write_text(*state, "bad.bin", "rubbish");
    write_text(*state, "config.json", tiny_config_text(false, ""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(*state, "pytorch_model.bin.index.json", cases[i].index);
        check_fails(ot_model_dir_open(*state, &dir), cases[i].code, cases[i].words);
    }
    /* One file goes before an index, and safetensors go before both. */
    write_text(*state, "pytorch_model.bin", "rubbish");
    check_fails(ot_model_dir_open(*state, &dir), OT_E_INPUT, "pytorch_model.bin: does not end");
    write_raw_safetensors(*state, "model.safetensors", "{}", "", 0);
    check_ok(ot_model_dir_open(*state, &dir));
    ot_model_dir_close(dir);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_reads_tensors_that_share_a_storage),
        TEST(test_names_every_dtype),
        TEST(test_other_orders_cannot_be_read),
        TEST(test_refuses_lying_tensors),
        TEST(test_reads_zip_and_zip64),
        TEST(test_refuses_every_truncation),
        TEST(test_refuses_lying_archives),
        TEST(test_bounds_the_directory),
        TEST(test_refuses_other_archives),
        TEST(test_reads_as_torch_load_does),
        TEST(test_refuses_bad_indexes),
    };
    return cmocka_run_group_tests_name("torch_file", tests, NULL, NULL);
}
