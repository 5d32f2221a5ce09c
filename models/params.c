/* Places every tensor in its slab. One walk over a block's tensors fills the tensor table, the slabs' groups
 * and the layouts, so they cannot disagree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/params.h"
#include "src/base/error.h"

/* The tensors of a block with adapters and biases everywhere, and those of its experts. */
static size_t most_tensors(const struct ot_model_config *c) {
    return 48 + 3 * (size_t)c->n_experts;
}

static bool is_trained(const struct ot_model_setup *setup, const struct ot_tensor *tensor) {
    if (setup && setup->trains)
        return setup->trains(setup->context, tensor);
    return !setup || !setup->lora;
}

struct ot_tensor *ot_params_append(struct ot_params_walk *w, struct ot_place *place, int64_t rows,
                                   int64_t cols, enum ot_init init) {
    struct ot_tensor *t = &w->tensors[w->n];
    w->places[w->n++] = place;
    *t = (struct ot_tensor){.rows = rows ? rows : 1,
                            .cols = cols,
                            .dims = rows ? 2 : 1,
                            .decay = rows != 0,
                            .init = init,
                            .expert = -1};
    return t;
}

/* Adds a tensor of a module. expert: -1, or that of one expert. end: ".weight", ".bias", "_bias" or "".
 * rows 0: a vector. */
static void add(struct ot_params_walk *w, struct ot_place *place, enum ot_module module, int64_t expert,
                const char *end, int64_t rows, int64_t cols, enum ot_init init) {
    const struct ot_model_config *c = &w->model->config;
    struct ot_tensor *t = ot_params_append(w, place, rows, cols, init);
    t->number = w->numbered++;
    t->module = module;
    t->layer = w->layer;
    t->expert = expert;
    t->is_fused = module == OT_MODULE_QKV && c->fused_groups > 1;
    if (rows != 0 && ot_module_is_map(module) && ot_model_names(c)->transposed)
        t->file_form = OT_FORM_TRANSPOSED;
    if (expert >= 0)
        ot_model_expert_name(c, module, w->layer, expert, t->name, sizeof t->name);
    else
        ot_model_module_name(c, module, w->layer, t->name, sizeof t->name);
    snprintf(t->name + strlen(t->name), sizeof t->name - strlen(t->name), "%s", end);
    t->trained = is_trained(w->setup, t);
}

static void add_matrix(struct ot_params_walk *w, struct ot_place *place, enum ot_module module, int64_t rows,
                       int64_t cols, enum ot_init init) {
    add(w, place, module, -1, ".weight", rows, cols, init);
}

static void add_bias(struct ot_params_walk *w, struct ot_place *place, enum ot_module module, int64_t cols) {
    add(w, place, module, -1, ".bias", 0, cols, OT_INIT_ZERO);
}

static void add_norm_weight(struct ot_params_walk *w, struct ot_place *place, enum ot_module module,
                            int64_t cols) {
    enum ot_init init = w->model->config.norm_adds_one ? OT_INIT_ZERO : OT_INIT_ONE;
    add(w, place, module, -1, ".weight", 0, cols, init);
}

static void add_norm(struct ot_params_walk *w, struct ot_norm_layout *norm, enum ot_module module) {
    add_norm_weight(w, &norm->weight, module, w->model->config.hidden);
    if (w->model->config.norm == OT_NORM_LAYER)
        add_bias(w, &norm->bias, module, w->model->config.hidden);
}

/* Adds the adapters of the unit that the last n tensors are. */
static void add_lora_of_last(struct ot_params_walk *w, int n, struct ot_lora_unit *unit) {
    ot_params_add_lora(w, &w->tensors[w->n - n], n, unit);
}

/* ---- from tensors to slabs ---- */

/* The end of the unit that begins with tensor `first`. */
static int unit_end(const struct ot_params_walk *w, int first) {
    int end = first + 1;
    while (end < w->n && !w->places[end])
        end++;
    return end;
}

static bool unit_is_frozen(const struct ot_params_walk *w, int first) {
    for (int i = first; i < unit_end(w, first); i++)
        if (w->tensors[i].trained)
            return false;
    return true;
}

/* Adds n parameters to the slab's last group, or to a new one. `like` says how they are updated. */
static void add_group(struct ot_slab_spec *spec, struct ot_param_group *groups, int64_t n,
                      const struct ot_tensor *like) {
    struct ot_param_group *last = spec->n_groups > 0 ? &groups[spec->n_groups - 1] : NULL;
    int64_t first = last ? last->first + last->n : 0;
    if (n == 0 || spec->frozen)
        return;
    if (last && last->decay == like->decay && last->trained == like->trained && last->rate == like->rate)
        last->n += n;
    else
        groups[spec->n_groups++] = (struct ot_param_group){first, n, like->decay, like->trained, like->rate};
}

/* Places a unit at the end of the slab. */
static void put_unit(struct ot_params_walk *w, int first, int slab) {
    struct ot_model *model = w->model;
    struct ot_slab_spec *spec = &model->slabs[slab];
    *w->places[first] = (struct ot_place){model->blocks[w->block].n_uses, spec->n_params};
    for (int i = first; i < unit_end(w, first); i++) {
        struct ot_tensor *t = &model->tensors[model->n_tensors++];
        *t = w->tensors[i];
        t->slab = slab;
        t->first = spec->n_params;
        add_group(spec, model->slab_memory[slab].groups, t->rows * t->cols, t);
        if (t->dims == 2 && model->slab_memory[slab].matrix_params == spec->n_params)
            model->slab_memory[slab].matrix_params += t->rows * t->cols;
        spec->n_params += t->rows * t->cols;
    }
}

/* The matrices of an expert are a part of the slab. A tensor may join those of all experts. Adapters of
 * experts lie in the trained slab, but not in its expert parts. */
static void add_pieces(const struct ot_model_config *c, const struct ot_tensor *t,
                       struct ot_slab_spec *spec) {
    bool up = t->module == OT_MODULE_EXPERT_GATE, first = up || t->module == OT_MODULE_EXPERT_DOWN;
    bool all = t->module == OT_MODULE_EXPERTS_GATE_UP || t->module == OT_MODULE_EXPERTS_DOWN;
    int64_t n = t->rows * t->cols, each = all ? n / c->n_experts : up ? 2 * n : n;
    if (ot_lora_has_tensor(t->name) || !(all ? t->dims == 2 : first && t->expert == 0))
        return;
    spec->n_parts = (int)c->n_experts;
    spec->pieces[spec->n_pieces++] = (struct ot_piece_array){t->first, each};
}

/* Makes the block's slab of frozen or of trained units, if there are any. */
static void put_slab(struct ot_params_walk *w, bool frozen) {
    struct ot_model *model = w->model;
    int slab = model->chain.n_slabs;
    struct ot_slab_memory *memory = &model->slab_memory[slab];
    struct ot_slab_spec *spec = &model->slabs[slab];
    struct ot_block_spec *block = &model->blocks[w->block];
    snprintf(memory->name, sizeof memory->name, "%s%s", block->name, frozen ? ".frozen" : "");
    memory->first_tensor = model->n_tensors;
    *spec = (struct ot_slab_spec){.name = memory->name,
                                  .edge = w->edge,
                                  .shared = w->shared,
                                  .frozen = frozen,
                                  .groups = memory->groups};
    for (int dims = 2; dims >= 1; dims--)
        for (int i = 0; i < w->n; i = unit_end(w, i))
            if (w->tensors[i].dims == dims && unit_is_frozen(w, i) == frozen)
                put_unit(w, i, slab);
    if (spec->n_params == 0)
        return;
    int64_t n = (spec->n_params + OT_SLAB_ALIGN_PARAMS - 1) / OT_SLAB_ALIGN_PARAMS * OT_SLAB_ALIGN_PARAMS;
    add_group(spec, memory->groups, n - spec->n_params, &(struct ot_tensor){0});
    spec->n_params = n;
    memory->n_tensors = model->n_tensors - memory->first_tensor;
    for (int64_t i = 0; i < memory->n_tensors; i++)
        add_pieces(&model->config, &model->tensors[memory->first_tensor + i], spec);
    if (w->rc == 0)
        w->rc = ot_slab_encode(model, slab);
    /* Backward of the embedding reads its adapter, but its table only to compute a norm's input again. */
    bool read = w->block > 0 || model->config.embed_norm || (model->embed.lora.n > 0 && !frozen);
    block->uses[block->n_uses++] = (struct ot_block_use){slab, read};
    model->chain.n_slabs++;
}

static void begin_block(struct ot_params_walk *w, int block, const char *name) {
    struct ot_model *model = w->model;
    snprintf(model->block_names[block], sizeof model->block_names[block], "%s", name);
    model->blocks[block].name = model->block_names[block];
    w->block = block;
    w->layer = -1;
    w->edge = block == 0 || block == model->chain.n_blocks - 1;
    w->n = 0;
}

static void end_block(struct ot_params_walk *w) {
    put_slab(w, true);
    put_slab(w, false);
}

/* ---- the blocks ---- */

static const struct ot_place ABSENT = {OT_ABSENT, 0};
#define NO_NORM ((struct ot_norm_layout){ABSENT, ABSENT})

static void build_embed(struct ot_params_walk *w) {
    const struct ot_model_config *c = &w->model->config;
    struct ot_embed_layout *at = &w->model->embed;
    begin_block(w, 0, "embed");
    *at = (struct ot_embed_layout){.positions = ABSENT, .norm = NO_NORM, .new_rows = ABSENT};
    add_matrix(w, &at->table, OT_MODULE_EMBEDDING, c->vocab, c->hidden, OT_INIT_NORMAL);
    ot_params_add_embedding_lora(w);
    ot_params_add_token_rows(w, w->tensors[0], &at->lora, &at->new_rows);
    if (c->positions == OT_POSITIONS_LEARNED)
        add_matrix(w, &at->positions, OT_MODULE_POSITIONS, c->max_position, c->hidden, OT_INIT_NORMAL);
    if (c->embed_norm)
        add_norm(w, &at->norm, OT_MODULE_EMBED_NORM);
    end_block(w);
}

/* A tensor of all experts, or of their biases. */
static void add_joined(struct ot_params_walk *w, struct ot_place *place, enum ot_module module,
                       const char *end, int64_t rows, int64_t cols, enum ot_init init) {
    add(w, place, module, -1, end, rows, cols, init);
    w->tensors[w->n - 1].parts = w->model->config.n_experts;
    if (rows > 0)
        w->tensors[w->n - 1].file_form = OT_FORM_TRANSPOSED;
}

static void add_joined_experts(struct ot_params_walk *w, const struct ot_model_config *c,
                               struct ot_layer_layout *at) {
    add_joined(w, &at->expert_gate_up, OT_MODULE_EXPERTS_GATE_UP, "", c->n_experts * 2 * c->expert_ffn,
               c->hidden, OT_INIT_NORMAL);
    add_joined(w, &at->expert_down, OT_MODULE_EXPERTS_DOWN, "", c->n_experts * c->hidden, c->expert_ffn,
               OT_INIT_NORMAL_RESIDUAL);
    ot_params_add_experts_lora(w, &w->tensors[w->n - 2], &w->tensors[w->n - 1], at);
}

static void add_experts(struct ot_params_walk *w, const struct ot_model_config *c,
                        struct ot_layer_layout *at) {
    int64_t h = c->hidden, ffn = c->expert_ffn;
    add_matrix(w, &at->router, OT_MODULE_ROUTER, c->n_experts, h, OT_INIT_NORMAL);
    if (ot_model_names(c)->modules[OT_MODULE_EXPERTS_GATE_UP]) {
        add_joined_experts(w, c, at);
        return;
    }
    for (int64_t e = 0; e < c->n_experts; e++) {
        struct ot_place *place = e == 0 ? &at->expert_gate_up : NULL;
        add(w, place, OT_MODULE_EXPERT_GATE, e, ".weight", ffn, h, OT_INIT_NORMAL);
        add(w, NULL, OT_MODULE_EXPERT_UP, e, ".weight", ffn, h, OT_INIT_NORMAL);
    }
    for (int64_t e = 0; e < c->n_experts; e++) {
        struct ot_place *place = e == 0 ? &at->expert_down : NULL;
        add(w, place, OT_MODULE_EXPERT_DOWN, e, ".weight", h, ffn, OT_INIT_NORMAL_RESIDUAL);
    }
    ot_params_add_experts_lora(w, &w->tensors[w->n - 3 * c->n_experts], &w->tensors[w->n - c->n_experts], at);
}

static void add_mlp(struct ot_params_walk *w, const struct ot_model_config *c, struct ot_layer_layout *at) {
    int64_t h = c->hidden;
    if (ot_model_names(c)->modules[OT_MODULE_GATE_UP] || c->plain_mlp) {
        enum ot_module module = c->plain_mlp ? OT_MODULE_UP : OT_MODULE_GATE_UP;
        add_matrix(w, &at->gate_up, module, w->model->inner_elems, h, OT_INIT_NORMAL);
        add_lora_of_last(w, 1, &at->gate_up_lora);
    } else {
        add_matrix(w, &at->gate_up, OT_MODULE_GATE, c->ffn, h, OT_INIT_NORMAL);
        add_matrix(w, NULL, OT_MODULE_UP, c->ffn, h, OT_INIT_NORMAL);
        add_lora_of_last(w, 2, &at->gate_up_lora);
    }
    add_matrix(w, &at->down, OT_MODULE_DOWN, h, c->ffn, OT_INIT_NORMAL_RESIDUAL);
    add_lora_of_last(w, 1, &at->down_lora);
}

/* The attention of a decoder to the encoder's output. */
static void add_cross_matrices(struct ot_params_walk *w, const struct ot_model_config *c,
                               struct ot_layer_layout *at) {
    int64_t inner = w->model->q_elems, h = c->hidden;
    add_matrix(w, &at->cross_q, OT_MODULE_CROSS_Q, inner, h, OT_INIT_NORMAL);
    add_lora_of_last(w, 1, &at->cross_q_lora);
    add_matrix(w, &at->cross_kv, OT_MODULE_CROSS_K, inner, h, OT_INIT_NORMAL);
    add_matrix(w, NULL, OT_MODULE_CROSS_V, inner, h, OT_INIT_NORMAL);
    add_lora_of_last(w, 2, &at->cross_kv_lora);
    add_matrix(w, &at->cross_o, OT_MODULE_CROSS_O, h, inner, OT_INIT_NORMAL_RESIDUAL);
    add_lora_of_last(w, 1, &at->cross_o_lora);
}

static void add_layer_matrices(struct ot_params_walk *w, const struct ot_model_config *c,
                               struct ot_layer_layout *at) {
    const struct ot_model *model = w->model;
    const struct ot_family_names *names = ot_model_layer_names(c, w->layer);
    int64_t q = model->q_elems, kv = model->kv_elems, h = c->hidden;
    if (names->modules[OT_MODULE_QKV]) {
        add_matrix(w, &at->qkv, OT_MODULE_QKV, model->qkv_elems, h, OT_INIT_NORMAL);
        add_lora_of_last(w, 1, &at->qkv_lora);
    } else {
        add_matrix(w, &at->qkv, OT_MODULE_Q, q, h, OT_INIT_NORMAL);
        add_matrix(w, NULL, OT_MODULE_K, kv, h, OT_INIT_NORMAL);
        add_matrix(w, NULL, OT_MODULE_V, kv, h, OT_INIT_NORMAL);
        add_lora_of_last(w, 3, &at->qkv_lora);
    }
    add_matrix(w, &at->o, OT_MODULE_O, h, q, OT_INIT_NORMAL_RESIDUAL);
    add_lora_of_last(w, 1, &at->o_lora);
    if (names->modules[OT_MODULE_CROSS_Q])
        add_cross_matrices(w, c, at);
    if (ot_model_layer_has_experts(c, w->layer))
        add_experts(w, c, at);
    else
        add_mlp(w, c, at);
}

static void add_expert_biases(struct ot_params_walk *w, const struct ot_model_config *c,
                              struct ot_layer_layout *at) {
    if (c->router_bias)
        add(w, &at->router_bias, OT_MODULE_ROUTER, -1, ".bias", 0, c->n_experts, OT_INIT_NORMAL);
    if (!c->expert_bias)
        return;
    add_joined(w, &at->expert_gate_up_bias, OT_MODULE_EXPERTS_GATE_UP, "_bias", 0,
               c->n_experts * 2 * c->expert_ffn, OT_INIT_ZERO);
    add_joined(w, &at->expert_down_bias, OT_MODULE_EXPERTS_DOWN, "_bias", 0, c->n_experts * c->hidden,
               OT_INIT_ZERO);
}

static void add_layer_biases(struct ot_params_walk *w, const struct ot_model_config *c,
                             struct ot_layer_layout *at) {
    const struct ot_model *model = w->model;
    const struct ot_family_names *names = ot_model_layer_names(c, w->layer);
    if (c->qkv_bias && names->modules[OT_MODULE_QKV]) {
        add_bias(w, &at->qkv_bias, OT_MODULE_QKV, model->qkv_elems);
    } else if (c->qkv_bias) {
        add_bias(w, &at->qkv_bias, OT_MODULE_Q, model->q_elems);
        add_bias(w, NULL, OT_MODULE_K, model->kv_elems);
        add_bias(w, NULL, OT_MODULE_V, model->kv_elems);
    }
    if (c->out_bias)
        add_bias(w, &at->o_bias, OT_MODULE_O, c->hidden);
    if (c->sinks) {
        add(w, &at->sinks, OT_MODULE_SINKS, -1, "", 0, c->n_heads, OT_INIT_NORMAL);
        w->tensors[w->n - 1].decay = true; /* a vector; transformers decides by the name */
    }
    if (ot_model_layer_has_experts(c, w->layer))
        add_expert_biases(w, c, at);
    if (!c->mlp_bias)
        return;
    if (names->modules[OT_MODULE_GATE_UP] || c->plain_mlp) {
        add_bias(w, &at->gate_up_bias, c->plain_mlp ? OT_MODULE_UP : OT_MODULE_GATE_UP, model->inner_elems);
    } else {
        add_bias(w, &at->gate_up_bias, OT_MODULE_GATE, c->ffn);
        add_bias(w, NULL, OT_MODULE_UP, c->ffn);
    }
    add_bias(w, &at->down_bias, OT_MODULE_DOWN, c->hidden);
}

static void add_layer_norms(struct ot_params_walk *w, const struct ot_model_config *c,
                            struct ot_layer_layout *at) {
    bool whole = c->qk_norm == OT_QK_NORM_WHOLE;
    if (c->qk_norm != OT_QK_NORM_NONE) {
        add_norm_weight(w, &at->q_norm, OT_MODULE_Q_NORM, whole ? w->model->q_elems : c->head_dim);
        add_norm_weight(w, &at->k_norm, OT_MODULE_K_NORM, whole ? w->model->kv_elems : c->head_dim);
    }
    if (ot_model_has_norms_before(c))
        add_norm(w, &at->norm1, OT_MODULE_NORM1);
    if (ot_model_layer_names(c, w->layer)->modules[OT_MODULE_CROSS_NORM])
        add_norm(w, &at->cross_norm, OT_MODULE_CROSS_NORM);
    if (ot_model_has_norms_before(c) && c->residual != OT_PARALLEL)
        add_norm(w, &at->norm2, OT_MODULE_NORM2);
    if (ot_model_has_norms_after(c)) {
        add_norm(w, &at->post1, OT_MODULE_POST1);
        add_norm(w, &at->post2, OT_MODULE_POST2);
    }
}

/* ---- tensors that all layers of an encoder-decoder share ---- */

/* All shared tensors are one unit, so that they form one slab. Each layer uses this slab and its own. */
static void build_stacks(struct ot_params_walk *w) {
    struct ot_model *model = w->model;
    const struct ot_model_config *c = &model->config;
    struct ot_stacks_layout *at = &model->stacks;
    int64_t table = c->position_buckets * c->n_heads;
    begin_block(w, 1, "stacks");
    w->shared = true;
    at->slab = model->chain.n_slabs;
    add_matrix(w, &at->encoder_bias, OT_MODULE_ENCODER_BIAS, c->position_buckets, c->n_heads, OT_INIT_NORMAL);
    add_matrix(w, NULL, OT_MODULE_DECODER_BIAS, c->position_buckets, c->n_heads, OT_INIT_NORMAL);
    for (int i = 1; i <= 2; i++) /* matrices; transformers decides by the name */
        w->tensors[w->n - i].decay = false;
    add_norm(w, &at->encoder_norm, OT_MODULE_ENCODER_NORM);
    w->places[w->n - 1] = NULL;
    end_block(w);
    w->shared = false;
    at->decoder_bias = ot_place_behind(at->encoder_bias, table);
    at->encoder_norm = (struct ot_norm_layout){ot_place_behind(at->encoder_bias, 2 * table), ABSENT};
    model->blocks[1].n_uses = 0; /* use_stacks */
}

/* The slab is the first use of every layer. */
static void use_stacks(struct ot_params_walk *w, int layer) {
    struct ot_block_spec *block = &w->model->blocks[1 + layer];
    block->uses[block->n_uses++] = (struct ot_block_use){w->model->stacks.slab, true};
}

static void build_layer(struct ot_params_walk *w, int layer) {
    const struct ot_model_config *c = &w->model->config;
    struct ot_layer_layout *at = &w->model->layers[layer];
    char name[24];
    snprintf(name, sizeof name, "layer.%d", layer);
    begin_block(w, 1 + layer, name);
    if (ot_model_has_pairs(c))
        use_stacks(w, layer);
    w->layer = layer;
    *at = (struct ot_layer_layout){.gate_up = ABSENT,
                                   .down = ABSENT,
                                   .router = ABSENT,
                                   .expert_gate_up = ABSENT,
                                   .expert_down = ABSENT,
                                   .router_bias = ABSENT,
                                   .expert_gate_up_bias = ABSENT,
                                   .expert_down_bias = ABSENT,
                                   .sinks = ABSENT,
                                   .qkv_bias = ABSENT,
                                   .o_bias = ABSENT,
                                   .gate_up_bias = ABSENT,
                                   .down_bias = ABSENT,
                                   .q_norm = ABSENT,
                                   .k_norm = ABSENT,
                                   .cross_q = ABSENT,
                                   .cross_norm = NO_NORM,
                                   .norm1 = NO_NORM,
                                   .norm2 = NO_NORM,
                                   .post1 = NO_NORM,
                                   .post2 = NO_NORM};
    add_layer_matrices(w, c, at);
    add_layer_biases(w, c, at);
    add_layer_norms(w, c, at);
    end_block(w);
    if (c->residual == OT_PARALLEL)
        at->norm2 = at->norm1;
}

/* Adds the output projection; if it is tied, only its adapter. */
static void add_projection(struct ot_params_walk *w) {
    struct ot_model *model = w->model;
    const struct ot_model_config *c = &model->config;
    struct ot_tensor tied = {.number = model->tensors[0].number,
                             .module = OT_MODULE_HEAD,
                             .layer = -1,
                             .expert = -1,
                             .rows = c->vocab,
                             .cols = c->hidden};
    if (c->tied) {
        ot_model_module_name(c, OT_MODULE_HEAD, -1, tied.name, sizeof tied.name);
        snprintf(tied.name + strlen(tied.name), sizeof tied.name - strlen(tied.name), ".weight");
        ot_params_add_lora(w, &tied, 1, &model->head.lora);
        return;
    }
    add_matrix(w, &model->head.projection, OT_MODULE_HEAD, c->vocab, c->hidden, OT_INIT_NORMAL);
    const struct ot_tensor projection = w->tensors[w->n - 1];
    add_lora_of_last(w, 1, &model->head.lora);
    if (!c->head_has_new)
        return;
    ot_params_add_token_rows(w, projection, &model->head.lora, &model->head.new_rows);
    bool in_embedding = model->embed.new_rows.use != OT_ABSENT;
    if (w->rc == 0 && c->n_new > 0 && w->setup && w->setup->lora && in_embedding == projection.trained)
        w->rc = ot_fail(OT_E_INPUT,
                        "new tokens beside adapters: of the embedding and the head, train both or none as "
                        "a whole");
}

/* A tied head uses the table of the embedding, and the rows of new tokens beside it. */
static void tie_head(struct ot_model *model, struct ot_block_spec *block) {
    const struct ot_block_spec *embed = &model->blocks[0];
    const struct ot_place table = model->embed.table, rows = model->embed.new_rows;
    model->head.projection = (struct ot_place){block->n_uses, table.at};
    block->uses[block->n_uses++] = (struct ot_block_use){embed->uses[table.use].slab, true};
    if (rows.use == OT_ABSENT)
        return;
    model->head.new_rows = (struct ot_place){block->n_uses, rows.at};
    block->uses[block->n_uses++] = (struct ot_block_use){embed->uses[rows.use].slab, true};
}

static void build_head(struct ot_params_walk *w) {
    struct ot_model *model = w->model;
    const struct ot_model_config *c = &model->config;
    struct ot_block_spec *block = &model->blocks[model->chain.n_blocks - 1];
    begin_block(w, model->chain.n_blocks - 1, "head");
    model->head = (struct ot_head_layout){.bias = ABSENT, .norm = NO_NORM, .new_rows = ABSENT};
    add_projection(w);
    if (c->head_bias)
        add_bias(w, &model->head.bias, OT_MODULE_HEAD, c->vocab);
    add_norm(w, &model->head.norm, OT_MODULE_NORM);
    end_block(w);
    if (c->tied)
        tie_head(model, block);
}

/* Allocates the tables, each block with room for two slabs. */
static bool allocate(struct ot_model *model) {
    size_t n_blocks = (size_t)model->chain.n_blocks, n_layers = (size_t)model->config.n_layers;
    size_t most = most_tensors(&model->config);
    model->tensors = calloc(n_blocks * most, sizeof *model->tensors);
    model->slab_memory = calloc(2 * n_blocks + 1, sizeof *model->slab_memory);
    model->groups = calloc((2 * n_blocks + 1) * (most + 1), sizeof *model->groups);
    model->slabs = calloc(2 * n_blocks + 1, sizeof *model->slabs);
    model->blocks = calloc(n_blocks, sizeof *model->blocks);
    model->block_names = calloc(n_blocks, sizeof *model->block_names);
    model->layers = calloc(n_layers, sizeof *model->layers);
    if (!model->tensors || !model->slab_memory || !model->groups || !model->slabs || !model->blocks ||
        !model->block_names || !model->layers)
        return false;
    for (size_t s = 0; s < 2 * n_blocks + 1; s++)
        model->slab_memory[s].groups = model->groups + s * (most + 1);
    return true;
}

/* n: the modules that have adapters. */
static int check_adapters(const struct ot_model *model, const struct ot_lora *lora, int64_t n) {
    const struct ot_model_config *c = &model->config;
    bool scales = c->residual_scale != 0 || (c->logit_divisor != 0 && model->head.lora.n > 0);
    if (n == 0)
        return ot_fail(OT_E_INPUT, "no module has an adapter");
    if (lora->dora && scales)
        return ot_fail(OT_E_INPUT,
                       "adapters with DoRA over maps whose results are scaled (residual_multiplier, "
                       "logits_scaling, the tied head of a T5) are not supported; train adapters without "
                       "dora, or merge trained ones with PEFT");
    if (ot_model_has_pairs(c) && model->tensors[0].trained)
        return ot_fail(OT_E_INPUT,
                       "%s cannot be trained beside adapters: PEFT has no form of that for an "
                       "encoder-decoder; train the adapters alone, or all parameters without them",
                       model->tensors[0].name);
    return 0;
}

int ot_model_build_params(struct ot_model *model, const struct ot_model_setup *setup) {
    struct ot_params_walk w = {.model = model, .setup = setup};
    int rc = 0;
    w.tensors = calloc(most_tensors(&model->config), sizeof *w.tensors);
    w.places = calloc(most_tensors(&model->config), sizeof *w.places);
    if (!w.tensors || !w.places || !allocate(model)) {
        rc = ot_fail(OT_E_BUDGET, "no memory for the tensor table of %lld layers",
                     (long long)model->config.n_layers);
        goto out;
    }
    build_embed(&w);
    if (ot_model_has_pairs(&model->config))
        build_stacks(&w);
    for (int l = 0; l < model->config.n_layers; l++)
        build_layer(&w, l);
    build_head(&w);
    rc = w.rc;
    if (rc == 0 && setup && setup->lora)
        rc = check_adapters(model, setup->lora, w.adapted);
out:
    free(w.tensors);
    free(w.places);
    return rc;
}

int64_t ot_model_tensor_count(const struct ot_model *model) {
    return model->n_tensors;
}

const struct ot_tensor *ot_model_tensor(const struct ot_model *model, int64_t index) {
    return &model->tensors[index];
}

const struct ot_tensor *ot_model_adapted(const struct ot_model *model, const struct ot_tensor *adapter) {
    int64_t i = 0;
    while (model->tensors[i].number != adapter->number || ot_lora_has_tensor(model->tensors[i].name))
        i++;
    return &model->tensors[i];
}
