/* The writer: what it writes, the reader reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/thread.h"
#include "tests/gguf/fixture.h"

/* A vector, a matrix of Q8_0, a matrix of heads with an odd number of batches, a vector of heads; two tensors
 * of 3 experts whose pieces alternate, two whose rows alternate in several batches, and two such biases; two
 * that have the same values, in several batches. */
static const struct {
    const char *name;
    enum ot_gguf_type_id type;
    int dims;
    int64_t rows, cols, head_rows, parts;
} SHAPES[] = {
    {"vector", OT_GGUF_F32, 1, 1, 5, 0, 0},          {"matrix", OT_GGUF_Q8_0, 2, 3, 64, 0, 0},
    {"heads", OT_GGUF_F16, 2, 24, 100000, 8, 0},     {"bias", OT_GGUF_F32, 1, 12, 1, 4, 0},
    {"gates", OT_GGUF_Q4_0, 2, 6, 32, 0, 3},         {"ups", OT_GGUF_F32, 2, 9, 7, 0, 3},
    {"pair_gate", OT_GGUF_F16, 2, 8, 150000, 0, 2},  {"pair_up", OT_GGUF_F16, 2, 8, 150000, 0, 2},
    {"pair_gate_bias", OT_GGUF_F32, 1, 10, 1, 0, 2}, {"pair_up_bias", OT_GGUF_F32, 1, 10, 1, 0, 2},
    {"gate_a", OT_GGUF_F16, 2, 6, 300001, 0, 3},     {"up_a", OT_GGUF_F16, 2, 6, 300001, 0, 3},
};
enum { N = sizeof SHAPES / sizeof *SHAPES };

static const struct ot_gguf_piece PIECES[] = {
    {.entry = 0, .rows = 1},
    {.entry = 1, .rows = 3},
    {.entry = 2, .rows = 24},
    {.entry = 3, .rows = 12},
    {.entry = 4, .rows = 2},
    {.entry = 5, .rows = 3},
    {.entry = 4, .first_row = 2, .rows = 2},
    {.entry = 5, .first_row = 3, .rows = 3},
    {.entry = 4, .first_row = 4, .rows = 2},
    {.entry = 5, .first_row = 6, .rows = 3},
    {.entry = 6, .rows = 16, .alternates = true},
    {.entry = 8, .rows = 20, .alternates = true},
    {.entry = 10, .rows = 6, .twice = true},
};
enum { N_PIECES = sizeof PIECES / sizeof *PIECES };

static void make_entries(struct ot_gguf_entry entries[N]) {
    for (int i = 0; i < N; i++) {
        entries[i] = (struct ot_gguf_entry){.type = ot_gguf_type(SHAPES[i].type),
                                            .dims = SHAPES[i].dims,
                                            .rows = SHAPES[i].rows,
                                            .cols = SHAPES[i].cols,
                                            .head_rows = SHAPES[i].head_rows,
                                            .parts = SHAPES[i].parts};
        strcpy(entries[i].name, SHAPES[i].name);
    }
}

static float value_at(int entry, int64_t row, int64_t col) {
    return (float)((row * 131 + col * 7 + entry) % 255 - 127);
}

/* The values of a piece, as they come. */
static float *piece_values(const struct ot_gguf_piece *piece, int64_t *count) {
    int64_t cols = SHAPES[piece->entry].cols;
    *count = piece->rows * cols;
    float *values = malloc((size_t)*count * sizeof *values);
    for (int64_t row = 0; row < piece->rows; row++)
        for (int64_t col = 0; col < cols; col++) {
            int64_t up = piece->alternates ? row % 2 : 0, at = piece->alternates ? row / 2 : row;
            values[row * cols + col] = value_at((int)(piece->entry + up), piece->first_row + at, col);
        }
    return values;
}

/* Puts all values, so many at a time. */
static int put_values(struct ot_gguf_writer *writer, int64_t some) {
    for (int i = 0; i < N_PIECES; i++) {
        int64_t count;
        int rc = 0;
        float *values = piece_values(&PIECES[i], &count);
        for (int64_t at = 0; at < count && rc == 0; at += some)
            rc = ot_gguf_writer_put(writer, values + at, count - at < some ? count - at : some);
        free(values);
        OT_TRY(rc);
    }
    return ot_gguf_writer_finish(writer);
}

static int write_all(struct ot_pool *pool, int64_t some, struct sink *sink) {
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_entry entries[N];
    struct ot_gguf_writer *writer;
    make_entries(entries);
    ot_gguf_put_u32(&keys, "a.count", 9);
    ot_gguf_put_f32(&keys, "a.real", 0.5f);
    ot_gguf_put_bool(&keys, "a.yes", true);
    ot_gguf_put_text(&keys, "a.text", "text");
    ot_gguf_put_array(&keys, "a.list", OT_GGUF_KIND_F32, 2);
    ot_gguf_put_f32_item(&keys, 1);
    ot_gguf_put_f32_item(&keys, 2);
    const struct ot_gguf_tensors tensors = {entries, N, PIECES, N_PIECES};
    check_ok(ot_gguf_writer_open(&keys, &tensors, pool, sink_put, sink, &writer));
    int rc = put_values(writer, some);
    if (rc == 0) {
        assert_int_equal(ot_gguf_writer_bytes(writer), sink->n);
        assert_int_equal(sink->written, sink->n);
    }
    ot_gguf_writer_close(writer);
    ot_gguf_keys_free(&keys);
    return rc;
}

static void check_values(const struct ot_gguf *file, int entry) {
    const struct ot_gguf_tensor *tensor = ot_gguf_find_tensor(file, SHAPES[entry].name);
    int64_t cols = SHAPES[entry].cols, head = SHAPES[entry].head_rows, count = SHAPES[entry].rows * cols;
    float *values = malloc((size_t)count * sizeof *values);
    int64_t parts = SHAPES[entry].parts, each = parts ? parts : 1, rows = SHAPES[entry].rows / each;
    bool vector = SHAPES[entry].dims == 1;
    assert_int_equal(tensor->dims, SHAPES[entry].dims + (parts > 0));
    assert_int_equal(tensor->count, count);
    assert_int_equal(tensor->shape[parts > 0], vector ? count / each : rows);
    assert_int_equal(tensor->shape[tensor->dims - 1], vector ? count / each : cols);
    assert_true(!parts || tensor->shape[0] == parts);
    tensor->type->decode(tensor->data, count / tensor->type->block_values, values);
    for (int64_t v = 0; v < count; v++) {
        int64_t row = v / cols, half = head / 2;
        /* row 2 j + p of a head in the file is row p * half + j of Hugging Face */
        int64_t from = head ? row - row % head + row % head % 2 * half + row % head / 2 : row;
        float want = value_at(entry == N - 1 ? N - 2 : entry, from, v % cols);
        /* half a step of blocks whose largest value is 127: of 1, and of 127 / 8 */
        float off = tensor->type->id == OT_GGUF_Q8_0 ? 1 : tensor->type->id == OT_GGUF_Q4_0 ? 16 : 0;
        if (values[v] - want > off || want - values[v] > off)
            fail_msg("%s[%d]: %g, should be %g", tensor->name, (int)v, (double)values[v], (double)want);
    }
    free(values);
}

static void test_what_is_written_is_read(void **state) {
    char *folder = make_folder();
    struct sink sink = {0};
    struct ot_gguf *file;
    double real = 0;
    bool yes = false;
    (void)state;
    check_ok(write_all(NULL, 1 << 20, &sink));
    write_file(folder, "m.gguf", sink.bytes, sink.n);
    check_ok(ot_gguf_open(file_in(folder, "m.gguf"), &file));
    check_ok(ot_gguf_need_real(file, "a.real", true, 0, 1, &real));
    check_ok(ot_gguf_need_bool(file, "a.yes", true, &yes));
    assert_true(real == 0.5 && yes);
    assert_int_equal(ot_gguf_find(file, "a.list")->n, 2);
    for (int i = 0; i < N; i++)
        check_values(file, i);
    ot_gguf_close(file);
    sink_free(&sink);
    remove_folder(folder);
}

static void test_bytes_depend_on_neither_threads_nor_calls(void **state) {
    static const int64_t calls[] = {1 << 22, 77777, 4096};
    struct sink one = {0};
    struct ot_pool *pool;
    (void)state;
    check_ok(ot_pool_open(3, "test", &pool));
    check_ok(write_all(NULL, 1 << 20, &one));
    for (size_t i = 0; i < 3; i++) {
        struct sink other = {0};
        check_ok(write_all(pool, calls[i], &other));
        assert_int_equal(other.n, one.n);
        assert_memory_equal(other.bytes, one.bytes, one.n);
        sink_free(&other);
    }
    sink_free(&one);
    ot_pool_close(pool);
}

static void test_errors_of_the_sink_end_the_write(void **state) {
    static const size_t limits[] = {10, 500, 100000, 3000000};
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct sink sink = {.stop_at = limits[i]};
        check_fails(write_all(NULL, 1 << 20, &sink), OT_E_IO, "the sink is full");
        sink_free(&sink);
    }
}

static int write_one(float value, enum ot_gguf_type_id type, int64_t n) {
    struct ot_gguf_entry entry = {.name = "t", .type = ot_gguf_type(type), .dims = 2, .rows = 1, .cols = 256};
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    float values[256] = {1};
    values[5] = value;
    ot_gguf_put_u32(&keys, "a", 1);
    writer_open(&keys, &entry, 1, &sink, &writer);
    int rc = ot_gguf_writer_put(writer, values, n);
    if (rc == 0)
        rc = ot_gguf_writer_finish(writer);
    ot_gguf_writer_close(writer);
    ot_gguf_keys_free(&keys);
    sink_free(&sink);
    return rc;
}

static void test_refuses_values_that_the_type_cannot_store(void **state) {
    (void)state;
    check_ok(write_one(65504, OT_GGUF_F16, 256));
    check_fails(write_one(65536, OT_GGUF_F16, 256), OT_E_INPUT,
                "tensor t has the value 65536 at element 5, which F16 cannot store");
    check_ok(write_one(65536, OT_GGUF_Q8_0, 256));
    check_fails(write_one(1e9f, OT_GGUF_Q8_0, 256), OT_E_INPUT, "which Q8_0 cannot store");
    check_fails(write_one(1e9f, OT_GGUF_Q4_0, 256), OT_E_INPUT, "which Q4_0 cannot store");
    check_fails(write_one(1e9f, OT_GGUF_Q4_K, 256), OT_E_INPUT, "which Q4_K cannot store");
    check_fails(write_one(-1e9f, OT_GGUF_Q6_K, 256), OT_E_INPUT, "which Q6_K cannot store");
    check_ok(write_one(1e38f, OT_GGUF_BF16, 256));
    check_fails(write_one(__builtin_nanf(""), OT_GGUF_BF16, 256), OT_E_INPUT, "has the value nan");
    check_fails(write_one(__builtin_inff(), OT_GGUF_F32, 256), OT_E_INPUT, "has the value inf");
}

static void test_names_the_value_of_a_pair(void **state) {
    struct ot_gguf_entry entries[2] = {
        {.name = "gate", .type = ot_gguf_type(OT_GGUF_F16), .dims = 2, .rows = 2, .cols = 4}};
    const struct ot_gguf_piece pair = {.rows = 4, .alternates = true};
    const struct ot_gguf_tensors tensors = {entries, 2, &pair, 1};
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    float values[16] = {[3 * 4 + 2] = 1e9f};
    (void)state;
    entries[1] = entries[0];
    strcpy(entries[1].name, "up");
    check_ok(ot_gguf_writer_open(&keys, &tensors, NULL, sink_put, &sink, &writer));
    check_fails(ot_gguf_writer_put(writer, values, 16), OT_E_INPUT,
                "tensor up has the value 1e+09 at element 6");
    ot_gguf_writer_close(writer);
    sink_free(&sink);
}

/* The second piece of a tensor, behind the values of a batch: the place is that in the tensor. */
static void test_names_the_value_of_a_later_piece(void **state) {
    enum { COLS = 4, FIRST = 3, ROWS = (1 << 20) / COLS + 5 };
    struct ot_gguf_entry entry = {
        .name = "t", .type = ot_gguf_type(OT_GGUF_F16), .dims = 2, .rows = FIRST + ROWS, .cols = COLS};
    const struct ot_gguf_piece pieces[] = {{.rows = FIRST}, {.first_row = FIRST, .rows = ROWS}};
    const struct ot_gguf_tensors tensors = {&entry, 1, pieces, 2};
    int64_t n = (int64_t)(FIRST + ROWS) * COLS, bad = n - COLS + 1;
    float *values = calloc((size_t)n, sizeof *values);
    struct ot_gguf_keys keys = {0};
    struct ot_gguf_writer *writer;
    struct sink sink = {0};
    char words[96];
    (void)state;
    assert_non_null(values);
    values[bad] = 1e9f;
    snprintf(words, sizeof words, "tensor t has the value 1e+09 at element %lld", (long long)bad);
    check_ok(ot_gguf_writer_open(&keys, &tensors, NULL, sink_put, &sink, &writer));
    check_fails(ot_gguf_writer_put(writer, values, n), OT_E_INPUT, words);
    ot_gguf_writer_close(writer);
    sink_free(&sink);
    free(values);
}

static void test_wants_all_values_and_no_more(void **state) {
    (void)state;
    check_fails(write_one(1, OT_GGUF_F32, 255), OT_E_INTERNAL, "values of tensor t are missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_bytes_depend_on_neither_threads_nor_calls),
        cmocka_unit_test(test_errors_of_the_sink_end_the_write),
        cmocka_unit_test(test_refuses_values_that_the_type_cannot_store),
        cmocka_unit_test(test_names_the_value_of_a_pair),
        cmocka_unit_test(test_names_the_value_of_a_later_piece),
        cmocka_unit_test(test_wants_all_values_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
