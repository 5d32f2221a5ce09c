#include "tests/models/golden_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/offload/tiny_encode.h"
#include "tests/support/check.h"

const char *const golden_case_names[] = {
    "llama",      "llama3",  "llama_bias", "mistral",    "qwen2",        "qwen3",   "qwen3_tied",
    "gpt2",       "bloom",   "falcon",     "falcon_two", "falcon_alibi", "codegen", "phi3",
    "gemma",      "gemma2",  "gemma3",     "olmo2",      "olmo3",        "smollm3", "ministral",
    "ministral3", "granite", "mixtral",    "qwen3_moe",  "gpt_oss",      NULL};
const char *const golden_pair_names[] = {"t5", "t5_gated", NULL};
const char *const golden_lora_names[] = {"llama-all",
                                         "qwen2-qv_rslora",
                                         "qwen3-patterns",
                                         "qwen3_tied-head",
                                         "llama_bias-save",
                                         "qwen3-dropout",
                                         "llama-embed",
                                         "qwen3_tied-embed_head",
                                         "qwen2-embed_only",
                                         "llama-dora",
                                         "qwen2-dora_qv",
                                         "qwen3-dora_patterns",
                                         "qwen3_tied-dora_head",
                                         "llama_bias-dora_save",
                                         "llama-dora_dropout",
                                         "qwen2-dora_dropout_qv",
                                         "qwen3-dora_dropout_head",
                                         "qwen3-plus",
                                         "llama-nf4",
                                         "llama-double",
                                         "llama_bias-nf4",
                                         "qwen3-nf4_dropout",
                                         "gpt2-all",
                                         "bloom-qkv",
                                         "falcon_two-dora",
                                         "gemma3-embed",
                                         "phi3-all",
                                         "mixtral-attention",
                                         "mixtral-nf4",
                                         "qwen3_moe-attention",
                                         "mixtral-experts",
                                         "qwen3_moe-experts",
                                         "gpt_oss-experts",
                                         "t5-all",
                                         "t5_gated-qv_head",
                                         "t5_gated-dropout",
                                         "t5_gated-dora",
                                         "t5-dora_dropout",
                                         NULL};
const char *const golden_regular_names[] = {"qwen3_moe-regular",
                                            "mixtral-regular",
                                            "granite-regular",
                                            "gemma2-regular",
                                            "bloom-regular",
                                            "gpt2-regular",
                                            "codegen-regular",
                                            "falcon_two-regular",
                                            "falcon_alibi-regular",
                                            "phi3-regular",
                                            "t5-regular",
                                            "t5_gated-regular",
                                            NULL};
const char *const golden_step_names[] = {
    "gpt2-steps",    "bloom-steps",     "falcon_two-steps", "codegen-steps", "gemma2-steps",   "olmo3-steps",
    "mixtral-steps", "qwen3_moe-steps", "gpt_oss-steps",    "t5-steps",      "t5_gated-steps", NULL};

const char *const golden_long_names[] = {"llama-long",  "mistral-long", "bloom-long",
                                         "gemma2-long", "gpt_oss-long", NULL};

static struct ot_model_config read_config(const struct ot_golden *golden, const char *key) {
    struct ot_model_config config;
    struct ot_json *root;
    int64_t bytes;
    const char *text = golden_text(golden, key, &bytes);
    check_ok(ot_json_parse(text, (size_t)bytes, "config_json", &root));
    check_ok(ot_model_config_read(root, "config_json", &config));
    ot_json_free(root);
    return config;
}

/* ---- adapters ---- */

static bool has_final(const void *context, const struct ot_tensor *tensor) {
    const struct golden_case *c = context;
    char array[128];
    snprintf(array, sizeof array, "final.%s", tensor->name);
    return golden_has(c->golden, golden_case_key(c, array));
}

/* The rank of the adapters of experts, from PEFT's module: base_layer is there if down_proj has some too. */
static int64_t experts_rank(const struct golden_case *c, const char *module) {
    char array[160];
    int bytes = (int)(strrchr(module, '.') - module);
    bool up = strstr(module, ".gate_up_proj") != NULL;
    snprintf(array, sizeof array, "weight.base_model.model.%.*s.base_layer.lora_A.weight", bytes, module);
    if (!up || !golden_has(c->golden, golden_case_key(c, array)))
        snprintf(array, sizeof array, "weight.base_model.model.%.*s.lora_A.weight", bytes, module);
    return golden_dim(c->golden, golden_case_key(c, array), 0) / c->config.n_experts;
}

static struct ot_lora_rank rank_of(const void *context, const char *module) {
    const struct golden_case *c = context;
    char array[128];
    snprintf(array, sizeof array, "alpha.%s", module);
    if (!golden_has(c->golden, golden_case_key(c, array)))
        return (struct ot_lora_rank){0};
    double alpha = golden_f64(c->golden, golden_case_key(c, array), NULL)[0];
    char embedding[128];
    ot_model_module_name(&c->config, OT_MODULE_EMBEDDING, -1, embedding, sizeof embedding);
    const char *a = strcmp(module, embedding) == 0 ? "lora_embedding_A" : "lora_A.weight";
    if (ot_lora_is_of_experts(module))
        return (struct ot_lora_rank){experts_rank(c, module), alpha};
    snprintf(array, sizeof array, "weight.base_model.model.%s.%s", module, a);
    return (struct ot_lora_rank){golden_dim(c->golden, golden_case_key(c, array), 0), alpha};
}

/* Opens the file that has the case. */
static void open_results(struct golden_case *c) {
    static const char *const files[] = {"lora.bin",    "qlora.bin",   "steps.bin",    "t5_steps.bin",
                                        "t5_lora.bin", "regular.bin", "long_rows.bin"};
    for (int i = 0; i < 7; i++) {
        c->golden = c->lora_file = golden_open(files[i]);
        if (golden_has(c->golden, golden_case_key(c, "rslora")) ||
            golden_has(c->golden, golden_case_key(c, "step_loss")) ||
            golden_has(c->golden, golden_case_key(c, "config_json")) ||
            golden_has(c->golden, golden_case_key(c, "regular")))
            break;
        golden_close(c->lora_file);
    }
    c->parts = (struct ot_model_setup){.trains = has_final, .context = c};
}

static void read_adapters(struct golden_case *c) {
    if (!golden_has(c->golden, golden_case_key(c, "rslora")))
        return;
    c->lora =
        (struct ot_lora){.choose = rank_of,
                         .context = c,
                         .rslora = golden_i64(c->golden, golden_case_key(c, "rslora"), NULL)[0],
                         .dora = golden_has(c->golden, golden_case_key(c, "dora")) &&
                                 golden_i64(c->golden, golden_case_key(c, "dora"), NULL)[0],
                         .dropout = (float)golden_f64(c->golden, golden_case_key(c, "dropout"), NULL)[0]};
    if (golden_has(c->golden, golden_case_key(c, "lr_ratio")))
        c->lora.lr_ratio = (float)golden_f64(c->golden, golden_case_key(c, "lr_ratio"), NULL)[0];
    c->parts.lora = &c->lora;
    if (golden_has(c->golden, golden_case_key(c, "base_type")))
        c->parts.base = (enum ot_base_type)golden_i64(c->golden, golden_case_key(c, "base_type"), NULL)[0];
}

static void read_regular(struct golden_case *c) {
    if (!golden_has(c->golden, golden_case_key(c, "regular")))
        return;
    const double *numbers = golden_f64(c->golden, golden_case_key(c, "regular"), NULL);
    c->parts = (struct ot_model_setup){0};
    c->has_regular = true;
    c->regular = (struct ot_regular){.neftune = (float)numbers[0],
                                     .label_smoothing = (float)numbers[1],
                                     .z_loss = (float)numbers[2],
                                     .balance = (float)numbers[3],
                                     .dropout = true};
    c->config.embed_drop = (float)numbers[4];
    c->config.attention_drop = (float)numbers[5];
    c->config.o_drop = (float)numbers[6];
    c->config.mlp_drop = (float)numbers[7];
}

/* ---- the case ---- */

const char *golden_case_key(const struct golden_case *c, const char *name) {
    static char text[2][192];
    static int next;
    char *at = text[next++ & 1];
    snprintf(at, sizeof text[0], "%s%s%s", c->lora_file ? c->name : "", c->lora_file ? "." : "", name);
    return at;
}

/* Reads the tokens of the base's file, or of the results. */
static void read_batch(struct golden_case *c) {
    const struct ot_golden *from = c->golden;
    int64_t n, trained = 0;
    c->batch.tokens = golden_i32(from, golden_case_key(c, "tokens"), &n);
    c->batch.n = n;
    c->batch.targets = golden_i32(from, golden_case_key(c, "targets"), NULL);
    c->batch.position = golden_i32(from, golden_case_key(c, "position"), NULL);
    c->batch.row_start = golden_i32(from, golden_case_key(c, "row_start"), NULL);
    if (golden_has(from, "n_inputs")) {
        c->batch.n_inputs = golden_i64(from, "n_inputs", NULL)[0];
        c->batch.input_first = golden_i32(from, "input_first", NULL);
        c->batch.input_end = golden_i32(from, "input_end", NULL);
    }
    for (int64_t i = 0; i < n; i++)
        trained += c->batch.targets[i] >= 0;
    c->batch.grad_scale = 1.0f / (float)trained;
}

/* Reads the config and the rows of a case that has its own. */
static void read_long(struct golden_case *c) {
    if (!golden_has(c->golden, golden_case_key(c, "config_json")))
        return;
    c->parts = (struct ot_model_setup){0};
    c->config = read_config(c->golden, golden_case_key(c, "config_json"));
    read_batch(c);
}

void golden_case_open(const char *name, struct golden_case *out) {
    char file[64];
    size_t base = strcspn(name, "-");
    *out = (struct golden_case){.name = name};
    snprintf(file, sizeof file, "model_%.*s.bin", (int)base, name);
    out->golden = out->base = golden_open(file);
    out->config = read_config(out->base, "config_json");
    read_batch(out);
    if (name[base]) {
        open_results(out);
        read_adapters(out);
        read_regular(out);
        read_long(out);
    }
    if (golden_has(out->golden, golden_case_key(out, "token_loss")))
        out->token_loss = golden_f32(out->golden, golden_case_key(out, "token_loss"), NULL);
    if (golden_has(out->golden, golden_case_key(out, "logits")))
        out->logits = golden_f32(out->golden, golden_case_key(out, "logits"), NULL);
    if (out->has_regular) /* they do not change the logits of generation */
        out->logits = golden_f32(out->base, "logits", NULL);
}

void golden_case_close(struct golden_case *c) {
    golden_close(c->base);
    if (c->lora_file)
        golden_close(c->lora_file);
}

static const float *tensor_of(const struct ot_golden *golden, const char *array, const struct ot_tensor *t) {
    int64_t n;
    const float *values = golden_f32(golden, array, &n);
    assert_int_equal(n, t->rows * t->cols);
    int64_t parts = t->parts ? t->parts : 1, rows = t->dims == 2 ? t->rows / parts : 1;
    int64_t cols = t->dims == 2 ? t->cols : t->cols / parts;
    bool in_columns = t->file_form == OT_FORM_EXPERT_COLUMNS;
    assert_int_equal(golden_dim(golden, array, t->dims - 1 + (t->parts > 0 && !in_columns)),
                     t->file_form == OT_FORM_TRANSPOSED ? rows
                     : in_columns                       ? cols * parts
                                                        : cols);
    return values;
}

/* Values in the form of a slab, where a file has another. */
static float slab_values[8192];

/* Values in the order of the slab. */
static const float *ordered(const struct golden_case *c, const struct ot_tensor *t, const float *file) {
    int64_t cols = t->dims == 2 ? t->cols : 1, rows = t->rows * t->cols / cols;
    bool turned = t->file_form == OT_FORM_TRANSPOSED, in_columns = t->file_form == OT_FORM_EXPERT_COLUMNS;
    assert_true(rows * cols <= 8192);
    if (!turned && !in_columns && !t->is_fused)
        return file;
    int64_t height = t->parts ? rows / t->parts : rows; /* of a matrix in the file */
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++) {
            int64_t from = turned       ? row / height * height * cols + col * height + row % height
                           : in_columns ? (row % height * cols + col) * t->parts + row / height
                                        : ot_model_fused_row(&c->config, row) * cols + col;
            slab_values[row * cols + col] = file[from];
        }
    return slab_values;
}

/* The norms of the rows of the weight that a magnitude belongs to, in the order of the slab. */
static void find_norms(const struct golden_case *c, const struct ot_tensor *t, float norms[1024]) {
    char array[128], embedding[96];
    int64_t n;
    const char *module = t->name + strlen("base_model.model.");
    int length = (int)(strrchr(module, '.') - module);
    bool is_map = ot_module_is_map(t->module);
    ot_model_module_name(&c->config, OT_MODULE_EMBEDDING, -1, embedding, sizeof embedding);
    if (c->config.tied && t->module == OT_MODULE_HEAD)
        snprintf(array, sizeof array, "weight.%s.weight", embedding);
    else
        snprintf(array, sizeof array, "weight.%.*s.weight", length, module);
    const float *file = golden_f32(c->base, array, &n);
    assert_true(t->cols <= 1024 && n % t->cols == 0);
    bool turned = is_map && ot_model_names(&c->config)->transposed;
    const struct ot_tensor weight = {.rows = t->cols,
                                     .cols = n / t->cols,
                                     .dims = 2,
                                     .file_form = turned ? OT_FORM_TRANSPOSED : OT_FORM_SAME,
                                     .is_fused = t->is_fused};
    ot_lora_row_norms(ordered(c, &weight, file), weight.rows, weight.cols, norms);
}

/* A magnitude in a file minus the norms of the rows of its weight. */
static const float *above_norms(const struct golden_case *c, const struct ot_tensor *t, const float *file) {
    static float changes[1024];
    float norms[1024];
    find_norms(c, t, norms);
    const float *values = ordered(c, t, file);
    for (int64_t i = 0; i < t->cols; i++)
        changes[i] = values[i] - norms[i];
    return changes;
}

const float *golden_case_tensor(const struct golden_case *c, const char *kind, const struct ot_tensor *t) {
    char array[128];
    snprintf(array, sizeof array, "%s.%s", kind, t->name);
    const float *values = tensor_of(c->golden, golden_case_key(c, array), t);
    bool above = t->file_form == OT_FORM_ABOVE_NORM && strcmp(kind, "grad") != 0;
    return above ? above_norms(c, t, values) : ordered(c, t, values);
}

const float *golden_case_weight(const struct golden_case *c, const struct ot_tensor *t) {
    char array[128];
    if (strstr(t->name, ".lora_"))
        return golden_case_tensor(c, "weight", t);
    snprintf(array, sizeof array, "weight.%s", t->name);
    return ordered(c, t, tensor_of(c->base, array, t));
}

float *golden_case_slab(const struct golden_case *c, const struct ot_model *model, int slab) {
    float *values = calloc((size_t)ot_model_chain(model)->slabs[slab].n_params, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (t->slab == slab)
            memcpy(values + t->first, golden_case_weight(c, t), (size_t)(t->rows * t->cols) * sizeof *values);
    }
    return values;
}

struct runner *golden_case_runner(const struct golden_case *c, enum ot_dtype dtype, int threads) {
    const struct ot_model_setup *parts = c->lora_file ? &c->parts : NULL;
    struct runner *runner = runner_open(&c->config, parts, dtype, c->batch.n, threads);
    const struct ot_model *model = runner_model(runner);
    const struct ot_chain *chain = ot_model_chain(model);
    runner_set_regular(runner, &c->regular);
    runner_init_weights(runner, 1); /* so that the padding has values */
    for (int slab = 0; slab < chain->n_slabs; slab++) {
        float *values = golden_case_slab(c, model, slab);
        if (chain->slabs[slab].encoded_bytes > 0)
            tiny_decode(model, slab, values);
        for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
            const struct ot_tensor *t = ot_model_tensor(model, i);
            if (t->slab == slab)
                runner_set_tensor(runner, t, values + t->first);
        }
        free(values);
    }
    return runner;
}
