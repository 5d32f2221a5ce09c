#include "tests/models/golden_case.h"

#include <stdio.h>

#include "tests/support/check.h"

const char *const golden_case_names[] = {"llama", "llama3", "llama_bias", "mistral",
                                         "qwen2", "qwen3",  "qwen3_tied", NULL};

static struct ot_model_config read_config(const struct ot_golden *golden) {
    int64_t n;
    const int64_t *count = golden_i64(golden, "config", &n);
    assert_int_equal(n, 18);
    const double *real = golden_f64(golden, "config_real", &n);
    assert_int_equal(n, 6);
    return (struct ot_model_config){
        .family = (enum ot_family)count[0],
        .n_layers = count[1],
        .hidden = count[2],
        .ffn = count[3],
        .n_heads = count[4],
        .n_kv_heads = count[5],
        .head_dim = count[6],
        .rotary_dim = count[6],
        .vocab = count[7],
        .max_position = count[8],
        .window = count[9],
        .window_first_layer = count[10],
        .act = (enum ot_activation)count[11],
        .rope_scaling = (enum ot_rope_scaling)count[12],
        .qkv_bias = count[13],
        .out_bias = count[14],
        .mlp_bias = count[15],
        .qk_norm = count[16],
        .tied = count[17],
        .norm = OT_NORM_RMS,
        .norm_eps = (float)real[0],
        .rope_theta = real[1],
        .rope_factor = real[2],
        .rope_low_freq_factor = real[3],
        .rope_high_freq_factor = real[4],
        .rope_original_max_position = real[5],
    };
}

void golden_case_open(const char *name, struct golden_case *out) {
    char file[64];
    int64_t n, trained = 0;
    snprintf(file, sizeof file, "model_%s.bin", name);
    out->golden = golden_open(file);
    out->config = read_config(out->golden);
    out->batch.tokens = golden_i32(out->golden, "tokens", &n);
    out->batch.n = n;
    out->batch.targets = golden_i32(out->golden, "targets", NULL);
    out->batch.position = golden_i32(out->golden, "position", NULL);
    out->batch.row_start = golden_i32(out->golden, "row_start", NULL);
    for (int64_t i = 0; i < n; i++)
        trained += out->batch.targets[i] >= 0;
    out->batch.grad_scale = 1.0f / (float)trained;
    out->token_loss = golden_f32(out->golden, "token_loss", NULL);
    out->logits = golden_f32(out->golden, "logits", NULL);
}

void golden_case_close(struct golden_case *c) {
    golden_close(c->golden);
}

struct runner *golden_case_runner(const struct golden_case *c, enum ot_dtype dtype, int threads) {
    struct runner *runner = runner_open(&c->config, dtype, c->batch.n, threads);
    const struct ot_model *model = runner_model(runner);
    runner_init_weights(runner, 1); /* so that the padding has values */
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        char array[128];
        int64_t n;
        snprintf(array, sizeof array, "weight.%s", t->name);
        const float *values = golden_f32(c->golden, array, &n);
        assert_int_equal(n, t->rows * t->cols);
        assert_int_equal(golden_dim(c->golden, array, t->dims - 1), t->cols);
        runner_set_tensor(runner, t, values);
    }
    return runner;
}
