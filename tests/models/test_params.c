/* The tensor table and the slabs cover each other exactly. Initial values depend only on the seed, the tensor
 * and the index. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "offload/block.h"
#include "tests/support/check.h"

static struct ot_model *open_model(const struct ot_model_config *config) {
    struct ot_model *model;
    check_ok(ot_model_open(config, OT_F32, 16, &model));
    return model;
}

static const struct ot_tensor *find_tensor(const struct ot_model *model, const char *name) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (strcmp(ot_model_tensor(model, i)->name, name) == 0)
            return ot_model_tensor(model, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Trainer.get_decay_parameter_names of transformers: all but biases and the weights of norms. The latter are
 * vectors here, and sinks are the only other vectors. */
static bool decays(const struct ot_tensor *t) {
    return !strstr(t->name, "bias") && (t->dims == 2 || strstr(t->name, "sinks"));
}

/* Tensors in order must fill each slab from 0, and the groups must agree with them. Returns the number of
 * trained parameters. */
static int64_t check_cover(const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    int64_t at = 0, trained = 0, index = 0, n = ot_model_tensor_count(model);
    for (int s = 0; s < chain->n_slabs; s++) {
        const struct ot_slab_spec *slab = &chain->slabs[s];
        int64_t slab_trained = 0;
        assert_int_equal(slab->n_params % OT_SLAB_ALIGN_PARAMS, 0);
        assert_int_equal(slab->edge, s == 0 || s == chain->n_slabs - 1);
        at = 0;
        for (int g = 0; g < slab->n_groups; g++) {
            const struct ot_param_group *group = &slab->groups[g];
            assert_int_equal(group->first, at);
            assert_true(group->n > 0);
            for (; group->trained && at < group->first + group->n; index++) {
                const struct ot_tensor *t = ot_model_tensor(model, index);
                assert_true(index < n);
                assert_int_equal(t->slab, s);
                assert_int_equal(t->first, at);
                assert_int_equal(t->decay, group->decay);
                assert_int_equal(t->decay, decays(t));
                assert_true(t->rate == 0 && group->rate == 0);
                assert_true(t->dims == 2 || t->rows == 1);
                at += t->rows * t->cols;
            }
            slab_trained += group->trained ? group->n : 0;
            at = group->first + group->n;
        }
        assert_int_equal(at, slab->n_params);
        assert_true(slab->n_params - slab_trained < OT_SLAB_ALIGN_PARAMS);
        trained += slab_trained;
    }
    assert_int_equal(index, n);
    return trained;
}

static void test_tensors_cover_slabs(void **state) {
    (void)state;
    const struct ot_preset *preset;
    for (int i = 0; (preset = ot_preset_at(i)); i++) {
        struct ot_model *model = open_model(&preset->config);
        assert_int_equal(check_cover(model), preset->n_params);
        ot_model_close(model);
    }
    struct ot_model_config every_bias = ot_preset_find("tiny-test")->config;
    every_bias.qkv_bias = every_bias.out_bias = every_bias.mlp_bias = true;
    every_bias.qk_norm = true;
    struct ot_model *model = open_model(&every_bias);
    assert_int_equal(check_cover(model), ot_model_param_count(&every_bias));
    ot_model_close(model);
}

static void test_chain_shape(void **state) {
    (void)state;
    struct ot_model *model = open_model(&ot_preset_find("tiny-sql")->config); /* tied */
    const struct ot_chain *chain = ot_model_chain(model);
    assert_int_equal(chain->n_blocks, 8);
    assert_int_equal(chain->n_slabs, 8);
    assert_string_equal(chain->slabs[0].name, "embed");
    assert_string_equal(chain->slabs[6].name, "layer.5");
    assert_string_equal(chain->slabs[7].name, "head");
    assert_false(chain->blocks[0].uses[0].needed_in_backward);
    assert_int_equal(chain->blocks[7].n_uses, 2);
    assert_int_equal(chain->blocks[7].uses[0].slab, 7);
    assert_int_equal(chain->blocks[7].uses[1].slab, 0);
    assert_true(chain->blocks[7].uses[1].needed_in_backward);
    assert_int_equal(chain->boundary_elems, 192);
    assert_int_equal(chain->kv_elems, 192);
    assert_int_equal(chain->saved_bytes(chain->context, 0, OT_KEEP_ALL, 64), 0);
    assert_int_equal(chain->saved_bytes(chain->context, 7, OT_KEEP_ALL, 64), 0);
    assert_true(chain->saved_bytes(chain->context, 1, OT_KEEP_PRODUCTS, 64) >=
                64 * 4 * (4 * 192 + 192 + 2 * 512 + 6));
    ot_model_close(model);

    model = open_model(&ot_preset_find("tiny-test")->config); /* untied */
    assert_int_equal(ot_model_chain(model)->blocks[3].n_uses, 1);
    ot_model_close(model);
}

/* One GEMM computes q, k and v, and another computes gate and up, so their weights must be adjacent. */
static void test_fused_matrices_are_neighbours(void **state) {
    (void)state;
    struct ot_model *model = open_model(&ot_preset_find("qwen2.5-7b")->config);
    static const char *const runs[][3] = {
        {"model.layers.27.self_attn.q_proj.weight", "model.layers.27.self_attn.k_proj.weight",
         "model.layers.27.self_attn.v_proj.weight"},
        {"model.layers.27.self_attn.q_proj.bias", "model.layers.27.self_attn.k_proj.bias",
         "model.layers.27.self_attn.v_proj.bias"},
        {"model.layers.27.mlp.gate_proj.weight", "model.layers.27.mlp.up_proj.weight", NULL},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        for (int j = 0; j < 2 && runs[i][j + 1]; j++) {
            const struct ot_tensor *a = find_tensor(model, runs[i][j]),
                                   *b = find_tensor(model, runs[i][j + 1]);
            assert_int_equal(a->first + a->rows * a->cols, b->first);
        }
    const struct ot_tensor *k = find_tensor(model, "model.layers.27.self_attn.k_proj.weight");
    assert_int_equal(k->slab, 28);
    assert_int_equal(k->rows, 512);
    assert_int_equal(k->cols, 3584);
    assert_int_equal(find_tensor(model, "lm_head.weight")->slab, 29);
    assert_int_equal(find_tensor(model, "model.norm.weight")->slab, 29);
    assert_int_equal(find_tensor(model, "model.embed_tokens.weight")->slab, 0);
    ot_model_close(model);
}

static void check_init_pieces(const struct ot_model *model, int slab, int64_t piece) {
    int64_t n = ot_model_chain(model)->slabs[slab].n_params;
    float *whole = malloc((size_t)n * sizeof *whole), *part = malloc((size_t)piece * sizeof *part);
    assert_true(whole && part);
    ot_model_init_values(model, 42, slab, 0, n, whole);
    for (int64_t first = 0; first < n; first += piece) {
        int64_t count = n - first < piece ? n - first : piece;
        ot_model_init_values(model, 42, slab, first, count, part);
        assert_memory_equal(part, whole + first, (size_t)count * sizeof *part);
    }
    free(whole);
    free(part);
}

static void test_init_is_pure(void **state) {
    (void)state;
    struct ot_model_config config = ot_preset_find("tiny-test")->config;
    config.qkv_bias = true;
    config.qk_norm = OT_QK_NORM_HEADS;
    struct ot_model *model = open_model(&config);
    for (int slab = 0; slab < 4; slab++) {
        check_init_pieces(model, slab, 777);
        check_init_pieces(model, slab, 5000);
    }
    ot_model_close(model);
}

/* Mean and standard deviation of a tensor's initial values. */
static void init_moments(const struct ot_model *model, uint64_t seed, const char *name, double *mean,
                         double *std) {
    const struct ot_tensor *t = find_tensor(model, name);
    int64_t n = t->rows * t->cols;
    float *values = malloc((size_t)n * sizeof *values);
    double sum = 0, squares = 0;
    assert_non_null(values);
    ot_model_init_values(model, seed, t->slab, t->first, n, values);
    for (int64_t i = 0; i < n; i++)
        sum += values[i], squares += (double)values[i] * values[i];
    *mean = sum / (double)n;
    *std = sqrt(squares / (double)n - *mean * *mean);
    free(values);
}

static void test_init_distribution(void **state) {
    (void)state;
    struct ot_model_config config = ot_preset_find("tiny-test")->config;
    config.qkv_bias = true;
    struct ot_model *model = open_model(&config);
    double mean, std, residual = 0.02 / sqrt(2 * 2);
    /* 24,576 and 8,192 normally distributed values: the mean within 5 deviations / sqrt(n), the deviation
     * within 5 %. */
    init_moments(model, 1, "model.embed_tokens.weight", &mean, &std);
    assert_true(fabs(mean) < 5 * 0.02 / sqrt(24576) && fabs(std / 0.02 - 1) < 0.05);
    init_moments(model, 1, "model.layers.1.mlp.down_proj.weight", &mean, &std);
    assert_true(fabs(mean) < 5 * residual / sqrt(8192) && fabs(std / residual - 1) < 0.05);
    init_moments(model, 1, "model.layers.0.input_layernorm.weight", &mean, &std);
    assert_true(mean == 1 && std == 0);
    init_moments(model, 1, "model.layers.0.self_attn.k_proj.bias", &mean, &std);
    assert_true(mean == 0 && std == 0);

    float a[64], b[64], c[64];
    ot_model_init_values(model, 1, 1, 0, 64, a);
    ot_model_init_values(model, 2, 1, 0, 64, b);
    ot_model_init_values(model, 1, 2, 0, 64, c);
    assert_memory_not_equal(a, b, sizeof a); /* another seed */
    assert_memory_not_equal(a, c, sizeof a); /* another layer */
    int64_t end = ot_model_chain(model)->slabs[1].n_params;
    ot_model_init_values(model, 1, 1, end - 8, 8, a);
    for (int i = 0; i < 8; i++)
        assert_true(a[i] == 0); /* padding */
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_cover_slabs),
        cmocka_unit_test(test_chain_shape),
        cmocka_unit_test(test_fused_matrices_are_neighbours),
        cmocka_unit_test(test_init_is_pure),
        cmocka_unit_test(test_init_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
