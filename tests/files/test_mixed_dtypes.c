/* A model with tensors of two dtypes: a save beside it keeps each tensor's dtype and exact value. */
#include <stdlib.h>
#include <string.h>

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

static bool is_norm(const struct ot_tensor *tensor) {
    return strstr(tensor->name, "norm") != NULL;
}

/* More digits than bf16 has. */
static float exact_value(int64_t index) {
    return 1.0f + (float)(index % 97) / 65536.0f;
}

/* Writes a model with norms in dtype `norms` and all other tensors in bf16. All values are exact in their
 * dtype. */
static void write_base(const char *path, const struct ot_model *model, enum ot_dtype norms) {
    int64_t n = ot_model_tensor_count(model);
    struct ot_safetensors_entry *entries = calloc((size_t)n, sizeof *entries);
    struct ot_out_dir *dir;
    struct ot_safetensors_writer *writer;
    assert_non_null(entries);
    for (int64_t i = 0; i < n; i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        entries[i] = (struct ot_safetensors_entry){
            .name = t->name, .dims = t->dims, .dtype = is_norm(t) ? norms : OT_BF16};
        entries[i].shape[0] = t->dims == 1 ? t->cols : t->rows;
        entries[i].shape[1] = t->cols;
    }
    check_ok(ot_out_dir_open(path, NULL, NULL, &dir));
    check_ok(ot_safetensors_writer_open(dir, "model", entries, n, OT_SHARD_BYTES, &writer));
    for (int64_t i = 0; i < n; i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        for (int64_t k = 0; k < t->rows * t->cols; k++) {
            float value = is_norm(t) ? exact_value(k) : tiny_value(t->slab, t->first + k);
            check_ok(ot_safetensors_writer_put(writer, &value, 1));
        }
    }
    check_ok(ot_safetensors_writer_finish(writer));
    check_ok(
        ot_out_dir_put(dir, "config.json", tiny_config_text(false, ""), strlen(tiny_config_text(false, ""))));
    check_ok(ot_out_dir_commit(dir));
    ot_safetensors_writer_close(writer);
    ot_out_dir_close(dir);
    free(entries);
}

/* Loads PATH into params and saves them as OUT. OUT must then have PATH's weights, tensor for tensor. */
static void check_saved(const char *path, const char *out, const struct ot_model *model,
                        enum ot_dtype norms) {
    struct ot_model_dir *base;
    struct params *params = params_open(model);
    struct ot_safetensors *file;
    int64_t bytes;
    size_t file_bytes;
    check_ok(ot_model_dir_open(path, &base));
    assert_int_equal(ot_model_dir_facts(base)->dtype, OT_BF16);
    check_ok(ot_model_dir_load(base, model, NULL, params_sink, params));
    struct ot_model_save save = {.out = out, .model = model, .base = base, .dtype = OT_BF16};
    check_ok(ot_model_dir_save_bytes(&save, &bytes));
    check_ok(ot_model_dir_save(&save, params_source, params));
    free(read_text(out, "model.safetensors", &file_bytes));
    assert_true(bytes >= (int64_t)file_bytes);
    check_ok(ot_safetensors_open(in_folder(out, "model.safetensors"), &file));
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        const struct ot_safetensor *saved = ot_safetensors_find(file, t->name);
        assert_non_null(saved);
        assert_int_equal(saved->dtype, is_norm(t) ? norms : OT_BF16);
        float value;
        ot_safetensors_convert(saved->dtype, saved->data, 1, &value);
        assert_true(value == params->slabs[t->slab][t->first]);
        const char *last = (const char *)saved->data + saved->bytes - ot_dtype_bytes(saved->dtype);
        ot_safetensors_convert(saved->dtype, last, 1, &value);
        assert_true(value == params->slabs[t->slab][t->first + saved->count - 1]);
    }
    ot_safetensors_close(file);
    params_close(params);
    ot_model_dir_close(base);
}

static void test_each_tensor_keeps_its_dtype(void **state) {
    struct ot_model_config config = tiny_config(false);
    struct ot_model *model;
    check_ok(ot_model_open(&config, OT_F32, config.max_position, &model));
    static const enum ot_dtype norms[] = {OT_F32, OT_BF16};
    for (int i = 0; i < 2; i++) {
        const char *base = in_folder(*state, i ? "b16" : "b32"), *out = in_folder(*state, i ? "o16" : "o32");
        write_base(base, model, norms[i]);
        check_saved(base, out, model, norms[i]);
    }
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_tensor_keeps_its_dtype, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
