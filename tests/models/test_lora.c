/* Adapters (models/lora.h): their tensors and initial values, and what is refused. test_families.c compares
 * their gradients, test_runs.c whole runs, test_levels.c the bits of what forward keeps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/models/golden_case.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static bool ends(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static struct ot_model *open_with(const struct ot_model_config *config, const struct ot_lora *lora) {
    const struct ot_model_setup parts = {.lora = lora};
    struct ot_model *model;
    check_ok(ot_model_open_setup(config, OT_BF16, config->max_position, &parts, &model));
    return model;
}

/* NULL if there is none. */
static const struct ot_tensor *find(const struct ot_model *model, const char *name) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (strcmp(ot_model_tensor(model, i)->name, name) == 0)
            return ot_model_tensor(model, i);
    return NULL;
}

static const struct ot_tensor *find_adapter(const struct ot_model *model, const char *module,
                                            const char *matrix) {
    char name[128];
    snprintf(name, sizeof name, "base_model.model.%s.%s.weight", module, matrix);
    return find(model, name);
}

/* ---- tensors ---- */

static struct ot_lora_rank q_and_v(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){ends(module, "q_proj") ? 4 : ends(module, "v_proj") ? 6 : 0, 8};
}

static struct ot_lora_rank only_v(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){ends(module, "v_proj") ? 6 : 0, 8};
}

static struct ot_lora_rank only_head(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){strcmp(module, "lm_head") == 0 ? 3 : 0, 8};
}

static struct ot_lora_rank embedding(const void *context, const char *module) {
    (void)context;
    return (struct ot_lora_rank){ends(module, "embed_tokens") ? 8 : 0, 8};
}

/* The defaults of PEFT for all linear maps of a Llama 7B: 39,976,960 parameters at rank 16. */
static void test_all_maps_of_a_llama_7b(void **state) {
    (void)state;
    const struct ot_model_config *c = &ot_preset_find("llama-7b")->config;
    const struct ot_lora lora = {.all = {16, 32}};
    struct ot_model *model = open_with(c, &lora);
    int64_t trained = 0, frozen = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        assert_true(t->trained == (strstr(t->name, ".lora_") != NULL));
        assert_true(t->trained == !ot_model_chain(model)->slabs[t->slab].frozen);
        *(t->trained ? &trained : &frozen) += t->rows * t->cols;
    }
    assert_int_equal(trained, 39976960);
    assert_int_equal(frozen, ot_preset_find("llama-7b")->n_params);
    const struct ot_tensor *a = find_adapter(model, "model.layers.31.mlp.down_proj", "lora_A");
    const struct ot_tensor *b = find_adapter(model, "model.layers.31.mlp.down_proj", "lora_B");
    assert_true(a->rows == 16 && a->cols == c->ffn && b->rows == c->hidden && b->cols == 16);
    assert_true(a->dims == 2 && b->dims == 2 && a->decay && b->decay);
    assert_null(find_adapter(model, "lm_head", "lora_A"));
    ot_model_close(model);
}

/* q and v, with k between them: their A are adjacent, so that one product computes what both need. */
static void test_ranks_of_modules(void **state) {
    (void)state;
    const struct ot_model_config *c = &ot_preset_find("tiny-test")->config;
    const struct ot_lora lora = {.choose = q_and_v}, head = {.choose = only_head};
    struct ot_model *model = open_with(c, &lora);
    const struct ot_tensor *q = find_adapter(model, "model.layers.1.self_attn.q_proj", "lora_A"),
                           *v = find_adapter(model, "model.layers.1.self_attn.v_proj", "lora_A"),
                           *b = find_adapter(model, "model.layers.1.self_attn.v_proj", "lora_B");
    assert_true(q->rows == 4 && v->rows == 6 && q->slab == v->slab && q->first + 4 * c->hidden == v->first);
    assert_true(b->rows == c->n_kv_heads * c->head_dim && b->cols == 6);
    assert_null(find_adapter(model, "model.layers.1.self_attn.k_proj", "lora_A"));
    ot_model_close(model);

    struct ot_model_config tied = *c;
    tied.tied = true;
    model = open_with(&tied, &head);
    assert_int_equal(find_adapter(model, "lm_head", "lora_B")->rows, c->vocab);
    assert_int_equal(ot_model_chain(model)->blocks[c->n_layers + 1].n_uses, 3);
    ot_model_close(model);
}

static float *init_of(const struct ot_model *model, const struct ot_tensor *t) {
    float *values = malloc((size_t)(t->rows * t->cols) * sizeof *values);
    assert_non_null(values);
    ot_model_init_values(model, 7, t->slab, t->first, t->rows * t->cols, values);
    return values;
}

static void check_same_init(const struct ot_model *a, const struct ot_model *b, const char *name) {
    const struct ot_tensor *t = find(a, name), *u = find(b, name);
    assert_true(t && u && t->rows == u->rows && t->cols == u->cols);
    float *x = init_of(a, t), *y = init_of(b, u);
    assert_memory_equal(x, y, (size_t)(t->rows * t->cols) * sizeof *x);
    free(x);
    free(y);
}

/* A is uniform, B is zero. Neither the base's values nor those of an adapter depend on other adapters. */
static void test_initial_values(void **state) {
    (void)state;
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    const struct ot_lora both = {.choose = q_and_v}, one = {.choose = only_v};
    struct ot_model *plain, *model = open_with(&c, &both), *other = open_with(&c, &one);
    check_ok(ot_model_open(&c, OT_BF16, c.max_position, &plain));
    for (int64_t i = 0; i < ot_model_tensor_count(plain); i++)
        check_same_init(plain, model, ot_model_tensor(plain, i)->name);
    check_same_init(other, model, "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight");
    const struct ot_tensor *a = find_adapter(model, "model.layers.1.self_attn.v_proj", "lora_A"),
                           *b = find_adapter(model, "model.layers.1.self_attn.v_proj", "lora_B");
    float *values = init_of(model, a);
    int64_t n = a->rows * a->cols;
    double bound = 1 / sqrt((double)c.hidden), sum = 0, squares = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += values[i], squares += (double)values[i] * values[i];
        most = fmax(most, fabs((double)values[i]));
    }
    /* The mean and the mean square of n uniform numbers, within 5 standard deviations. */
    assert_true(most <= bound && most > 0.98 * bound);
    assert_true(fabs(sum / (double)n) < 5 * bound / sqrt(3 * (double)n));
    assert_true(fabs(squares / (double)n / (bound * bound) - 1.0 / 3) < 5 * sqrt(4.0 / 45 / (double)n));
    free(values);
    values = init_of(model, b);
    for (int64_t i = 0; i < b->rows * b->cols; i++)
        assert_true(values[i] == 0);
    free(values);
    ot_model_close(plain);
    ot_model_close(model);
    ot_model_close(other);
}

/* A is zero and lies transposed, B is normal. Their slab is trained, and backward reads it; the table is
 * frozen, and a tied head reads that alone. */
static void test_embedding(void **state) {
    (void)state;
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    const struct ot_lora lora = {.choose = embedding};
    c.tied = true;
    struct ot_model *model = open_with(&c, &lora);
    const struct ot_chain *chain = ot_model_chain(model);
    const struct ot_tensor *a = find(model, "base_model.model.model.embed_tokens.lora_embedding_A"),
                           *b = find(model, "base_model.model.model.embed_tokens.lora_embedding_B"),
                           *table = find(model, "model.embed_tokens.weight");
    assert_true(a && b && a->rows == c.vocab && a->cols == 8 && b->rows == c.hidden && b->cols == 8);
    assert_true(a->file_form == OT_FORM_TRANSPOSED && b->file_form == OT_FORM_SAME && a->decay && b->decay);
    assert_true(ot_model_adapted(model, a) == table && ot_model_adapted(model, b) == table);
    const struct ot_block_spec *embed = &chain->blocks[0], *head = &chain->blocks[c.n_layers + 1];
    assert_true(embed->n_uses == 2 && embed->uses[0].slab == table->slab && embed->uses[1].slab == a->slab);
    assert_true(!embed->uses[0].needed_in_backward && embed->uses[1].needed_in_backward);
    assert_true(chain->slabs[table->slab].frozen && !chain->slabs[a->slab].frozen);
    assert_true(head->n_uses == 2 && head->uses[1].slab == table->slab);
    float *values = init_of(model, a), *normal = init_of(model, b);
    double squares = 0;
    int64_t n = b->rows * b->cols;
    for (int64_t i = 0; i < a->rows * a->cols; i++)
        assert_true(values[i] == 0);
    for (int64_t i = 0; i < n; i++)
        squares += (double)normal[i] * normal[i];
    assert_true(fabs(squares / (double)n - 1) < 5 * sqrt(2 / (double)n)); /* 5 standard deviations */
    free(values);
    free(normal);
    ot_model_close(model);
}

/* ---- experts ---- */

static struct ot_lora_rank experts(const void *without_down, const char *module) {
    bool down = ends(module, "experts.down_proj"), up = ends(module, "experts.gate_up_proj");
    return (struct ot_lora_rank){up ? 4 : down && !without_down ? 3 : 0, 8};
}

static struct ot_model_config mixture(enum ot_family family) {
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    c.family = family;
    c.n_experts = 5;
    c.top_experts = 2;
    c.expert_ffn = 24;
    return c;
}

static void check_matrix(const struct ot_tensor *t, int64_t rows, int64_t cols, bool b) {
    assert_non_null(t);
    assert_true(t->rows == rows && t->cols == cols && t->dims == 2 && t->trained && t->decay);
    assert_true(t->parts == (b ? 5 : 0) && t->expert == -1);
    assert_true(t->file_form == (b ? OT_FORM_EXPERT_COLUMNS : OT_FORM_SAME));
    assert_true(t->rate == (b ? 16 : 0));
}

/* A and B of each expert lie in the trained slab, which has no parts; the experts' own slab has them. A
 * adapter begins with the same values under both names that it may have. */
static void test_experts(void **state) {
    (void)state;
    static const enum ot_family families[] = {OT_FAMILY_MIXTRAL, OT_FAMILY_QWEN3_MOE, OT_FAMILY_GPT_OSS};
    for (int i = 0; i < 3; i++) {
        const struct ot_model_config c = mixture(families[i]);
        const struct ot_lora both = {.choose = experts, .lr_ratio = 16},
                             up = {.choose = experts, .context = "", .lr_ratio = 16};
        struct ot_model *model = open_with(&c, &both), *other = open_with(&c, &up);
        const char *outer = "model.layers.1.mlp.experts", *inner = "model.layers.1.mlp.experts.base_layer";
        const struct ot_tensor *a = find_adapter(model, inner, "lora_A"),
                               *only = find_adapter(other, outer, "lora_A");
        check_matrix(a, 5 * 4, c.hidden, false);
        check_matrix(find_adapter(model, inner, "lora_B"), 5 * 2 * 24, 4, true);
        check_matrix(find_adapter(model, outer, "lora_A"), 5 * 3, 24, false);
        check_matrix(find_adapter(model, outer, "lora_B"), 5 * c.hidden, 3, true);
        check_matrix(only, 5 * 4, c.hidden, false);
        assert_null(find_adapter(other, inner, "lora_A"));
        assert_int_equal(ot_model_adapted(model, a)->layer, 1);
        assert_true(ot_module_is_expert(ot_model_adapted(model, a)->module));
        const struct ot_slab_spec *slabs = ot_model_chain(model)->slabs;
        assert_true(slabs[a->slab].n_parts == 0 && !slabs[a->slab].frozen);
        assert_int_equal(slabs[ot_model_adapted(model, a)->slab].n_parts, 5);
        float *values = init_of(model, a), *same = init_of(other, only), bound = 1 / sqrtf((float)c.hidden);
        assert_memory_equal(values, same, (size_t)(a->rows * a->cols) * sizeof *values);
        for (int64_t j = 0; j < a->rows * a->cols; j++)
            assert_true(fabsf(values[j]) <= bound);
        free(values);
        free(same);
        ot_model_close(model);
        ot_model_close(other);
    }
}

/* ---- magnitudes ---- */

/* Each target has a magnitude that belongs to its weight, begins with its norms, and does not decay. */
static void check_magnitudes(const struct ot_model *model, int64_t want) {
    int64_t found = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        bool magnitude = ends(t->name, ".lora_magnitude_vector");
        assert_true((t->file_form == OT_FORM_ABOVE_NORM) == magnitude);
        if (!ot_lora_has_tensor(t->name))
            continue;
        const struct ot_tensor *weight = ot_model_adapted(model, t);
        size_t module = strlen(weight->name) - strlen(".weight");
        assert_true(strncmp(t->name + strlen("base_model.model."), weight->name, module) == 0 ||
                    (strstr(t->name, "lm_head") && strcmp(weight->name, "model.embed_tokens.weight") == 0));
        if (!magnitude)
            continue;
        float *values = init_of(model, t);
        assert_true(t->dims == 1 && t->cols == weight->rows && t->trained && !t->decay);
        for (int64_t j = 0; j < t->cols; j++)
            assert_true(values[j] == 0);
        free(values);
        found++;
    }
    assert_int_equal(found, want);
}

static void test_magnitudes(void **state) {
    (void)state;
    struct ot_model_config c = ot_preset_find("tiny-test")->config;
    const struct ot_lora all = {.all = {4, 8}, .dora = true}, some = {.choose = q_and_v, .dora = true},
                         head = {.choose = only_head, .dora = true}, plain = {.all = {4, 8}};
    const struct ot_lora *const cases[] = {&all, &some, &head, &plain};
    c.qkv_bias = c.out_bias = c.mlp_bias = c.tied = true;
    c.qk_norm = c.tied = true; /* a layer has the most tensors */
    const int64_t want[] = {7 * c.n_layers, 2 * c.n_layers, 1, 0};
    for (int i = 0; i < 4; i++) {
        struct ot_model *model = open_with(&c, cases[i]);
        check_magnitudes(model, want[i]);
        ot_model_close(model);
    }
}

/* ---- LoRA+ ---- */

static struct ot_lora_rank v_and_embedding(const void *context, const char *module) {
    return only_v(context, module).rank > 0 ? only_v(context, module) : embedding(context, module);
}

/* Returns the group of a trained tensor, which has one rate. */
static const struct ot_param_group *group_of(const struct ot_model *model, const struct ot_tensor *t) {
    const struct ot_slab_spec *slab = &ot_model_chain(model)->slabs[t->slab];
    const struct ot_param_group *group = slab->groups;
    while (group->first + group->n <= t->first)
        group++;
    assert_true(group->first + group->n >= t->first + t->rows * t->cols);
    return group;
}

/* B of a linear map has the higher rate; A, magnitudes and an embedding's adapter have not. */
static void test_rates(void **state) {
    (void)state;
    const struct ot_model_config *c = &ot_preset_find("tiny-test")->config;
    const struct ot_lora cases[] = {{.choose = v_and_embedding, .lr_ratio = 16},
                                    {.choose = only_v, .lr_ratio = 16, .dora = true},
                                    {.choose = only_v}};
    for (int i = 0; i < 3; i++) {
        struct ot_model *model = open_with(c, &cases[i]);
        for (int64_t j = 0; j < ot_model_tensor_count(model); j++) {
            const struct ot_tensor *t = ot_model_tensor(model, j);
            assert_true(t->rate == (i < 2 && strstr(t->name, ".lora_B.") ? 16 : 0));
            assert_true(!t->trained || group_of(model, t)->rate == t->rate);
        }
        ot_model_close(model);
    }
}

static void test_row_norms(void **state) {
    (void)state;
    const float weight[] = {3, -4, 0, 0, 0x1p-100f, 0, 1e30f, 1e30f, 1};
    float norms[3];
    ot_lora_row_norms(weight, 3, 3, norms);
    assert_true(norms[0] == 5 && norms[1] == 0x1p-100f && norms[2] == (float)(sqrt(2.0) * (double)1e30f));
}

/* ---- refusals ---- */

static struct ot_lora_rank nothing(const void *context, const char *module) {
    (void)context, (void)module;
    return (struct ot_lora_rank){0};
}

static bool everything(const void *context, const struct ot_tensor *tensor) {
    (void)context, (void)tensor->name;
    return true;
}

static void refuse_parts(const struct ot_model_setup *parts, const char *words) {
    const struct ot_model_config *c = &ot_preset_find("tiny-test")->config;
    struct ot_model *model;
    check_fails(ot_model_open_setup(c, OT_F32, c->max_position, parts, &model), OT_E_INPUT, words);
    assert_null(model);
}

static void refuse(const struct ot_lora *lora, const char *words) {
    refuse_parts(&(struct ot_model_setup){.lora = lora}, words);
}

static void test_wrong_adapters_are_refused(void **state) {
    (void)state;
    const char *rank = "adapter of model.layers.0.self_attn.q_proj: its rank is";
    const char *alpha = "adapter of model.layers.0.self_attn.q_proj: its alpha is";
    refuse(&(struct ot_lora){.all = {-1, 8}}, rank);
    refuse(&(struct ot_lora){.all = {OT_LORA_MAX_RANK + 1, 8}}, rank);
    refuse(&(struct ot_lora){.all = {INT64_MIN, 8}}, rank);
    refuse(&(struct ot_lora){.all = {8, 0}}, alpha);
    refuse(&(struct ot_lora){.all = {8, (double)NAN}}, alpha);
    refuse(&(struct ot_lora){.all = {8, 1e300}}, alpha);
    refuse(&(struct ot_lora){.all = {8, 8}, .dropout = 1}, "its dropout is 1");
    refuse(&(struct ot_lora){.all = {8, 8}, .dropout = NAN}, "its dropout is");
    refuse(&(struct ot_lora){.choose = embedding, .dora = true}, "an embedding cannot have DoRA");
    const struct ot_model_setup both = {.lora = &(struct ot_lora){.choose = embedding}, .trains = everything};
    refuse_parts(&both, "adapter of model.embed_tokens: the embedding itself is trained");
    refuse(&(struct ot_lora){.choose = nothing}, "no module has an adapter");
    refuse(&(struct ot_lora){0}, "no module has an adapter");
}

/* ---- dropout in the head ---- */

/* Equal rows, as long as the pieces in which the head computes its logits; a chunk of four pieces, and one of
 * one (decoder_head.c). */
enum { PIECE = 256, PIECES = 5, LONG = PIECE * PIECES, LONG_VOCAB = 20000 };

struct long_batch {
    int32_t tokens[LONG], targets[LONG], position[LONG], row_start[LONG];
};

static struct runner_batch fill_long(struct long_batch *b) {
    for (int i = 0; i < LONG; i++) {
        int at = i % PIECE;
        b->tokens[i] = at * 77;
        b->targets[i] = at * 31 + 5;
        b->position[i] = at % 64;
        b->row_start[i] = i - at;
    }
    return (struct runner_batch){LONG,        b->tokens, b->targets, b->position, b->row_start,
                                 1.0f / LONG, 0,         NULL,       NULL};
}

/* The mean loss of a training pass after a tensor was moved by `by` along a direction. */
static double loss_after(struct runner *runner, const struct runner_batch *batch, const struct ot_tensor *t,
                         const float *values, float by, float *token_loss) {
    float *moved = malloc((size_t)(t->rows * t->cols) * sizeof *moved);
    double sum = 0;
    assert_non_null(moved);
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        moved[i] = values[i] + by * (float)(i % 5 - 2);
    runner_set_tensor(runner, t, moved);
    free(moved);
    runner_begin_grads(runner);
    runner_train(runner, batch, OT_KEEP_NONE, token_loss);
    for (int i = 0; i < LONG; i++)
        sum += token_loss[i];
    return sum / LONG;
}

static bool final_norm(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strcmp(tensor->name, "model.norm.weight") == 0;
}

static struct runner *open_long(struct ot_lora *lora) {
    struct ot_model_config config = ot_preset_find("tiny-test")->config;
    const struct ot_model_setup parts = {.lora = lora, .trains = final_norm};
    config.n_layers = 1;
    config.hidden = config.ffn = 16;
    config.vocab = LONG_VOCAB;
    struct runner *runner = runner_open(&config, &parts, OT_F32, LONG, 1);
    const struct ot_tensor *b = find_adapter(runner_model(runner), "lm_head", "lora_B");
    float *values = malloc((size_t)(b->rows * b->cols) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < b->rows * b->cols; i++)
        values[i] = 0.5f * (float)(i % 7 - 3);
    runner_init_weights(runner, 3);
    runner_set_tensor(runner, b, values);
    free(values);
    return runner;
}

/* Each piece of the head drops other elements, and backward drops those of forward: the gradient of a tensor
 * is the slope of the loss. */
static void check_head(struct ot_lora *lora, const char *name) {
    struct long_batch tokens;
    const struct runner_batch batch = fill_long(&tokens);
    struct runner *runner = open_long(lora);
    const struct ot_tensor *t = find(runner_model(runner), name);
    float loss[LONG], *values = init_of(runner_model(runner), t), by = 2e-3f;
    double slope = 0;
    loss_after(runner, &batch, t, values, 0, loss);
    for (int p = 1; p < PIECES; p++)
        assert_memory_not_equal(loss, loss + (ptrdiff_t)p * PIECE, PIECE * sizeof *loss);
    float *grad = runner_slab_grad(runner, t->slab);
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        slope += grad[t->first + i] * (double)(i % 5 - 2);
    double more = loss_after(runner, &batch, t, values, by, loss),
           less = loss_after(runner, &batch, t, values, -by, loss);
    /* The third derivative, and the rounding of losses of 10 to fp32. */
    if (!(fabs((more - less) / (2 * (double)by) - slope) < 5e-3 * fabs(slope)))
        fail_msg("%s: the slope is %.6f, the gradient says %.6f", name, (more - less) / (2 * (double)by),
                 slope);
    free(grad);
    free(values);
    runner_close(runner);
}

/* With DoRA the gradient of A is not the slope, because it takes |V| for a constant. */
static void test_head_drops_by_place(void **state) {
    (void)state;
    struct ot_lora lora = {.choose = only_head, .dropout = 0.5f};
    check_head(&lora, "base_model.model.lm_head.lora_A.weight");
    if (!tests_are_few())
        check_head(&lora, "model.norm.weight");
    lora.dora = true;
    check_head(&lora, "base_model.model.lm_head.lora_magnitude_vector");
    if (!tests_are_few()) /* the same code, another slope */
        check_head(&lora, "model.norm.weight");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_maps_of_a_llama_7b),
        cmocka_unit_test(test_ranks_of_modules),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_magnitudes),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_row_norms),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_wrong_adapters_are_refused),
        cmocka_unit_test(test_head_drops_by_place),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
