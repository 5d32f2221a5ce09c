/* Places every tensor in its slab. One walk fills the tensor table, the slabs' groups and the layouts, so
 * they cannot disagree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/decoder.h"
#include "src/base/error.h"
#include "src/base/random.h"

enum { MAX_LAYER_TENSORS = 18 };

/* A walk over one slab. */
struct walk {
    struct ot_model *model;
    int slab;
    const char *prefix; /* "model.layers.3." */
    int64_t next;       /* parameters placed so far */
};

static int64_t add(struct walk *w, const char *name, int64_t rows, int64_t cols, enum ot_init init) {
    struct ot_tensor *t = &w->model->tensors[w->model->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s%s", w->prefix, name);
    t->slab = w->slab;
    t->first = w->next;
    t->rows = rows ? rows : 1;
    t->cols = cols;
    t->dims = rows ? 2 : 1;
    t->decay = rows != 0;
    t->init = init;
    w->next += t->rows * cols;
    return t->first;
}

static int64_t add_matrix(struct walk *w, const char *name, int64_t rows, int64_t cols, enum ot_init init) {
    return add(w, name, rows, cols, init);
}

static int64_t add_vector(struct walk *w, const char *name, int64_t cols, enum ot_init init) {
    return add(w, name, 0, cols, init);
}

static void begin_slab(struct walk *w, struct ot_model *model, int slab, const char *prefix) {
    *w = (struct walk){.model = model, .slab = slab, .prefix = prefix};
    model->slab_memory[slab].first_tensor = model->n_tensors;
}

static void add_group(struct ot_slab_spec *spec, struct ot_param_group *groups, struct ot_param_group group) {
    if (group.n > 0)
        groups[spec->n_groups++] = group;
}

/* n_matrices: parameters of all matrices of the slab. The matrices come first. */
static void end_slab(const struct walk *w, int64_t n_matrices, bool edge) {
    struct ot_model *model = w->model;
    struct ot_slab_memory *memory = &model->slab_memory[w->slab];
    struct ot_slab_spec *spec = &model->slabs[w->slab];
    int64_t n = (w->next + OT_SLAB_ALIGN_PARAMS - 1) / OT_SLAB_ALIGN_PARAMS * OT_SLAB_ALIGN_PARAMS;
    memory->n_tensors = model->n_tensors - memory->first_tensor;
    *spec =
        (struct ot_slab_spec){.name = memory->name, .n_params = n, .edge = edge, .groups = memory->groups};
    add_group(spec, memory->groups, (struct ot_param_group){0, n_matrices, true, true});
    add_group(spec, memory->groups, (struct ot_param_group){n_matrices, w->next - n_matrices, false, true});
    add_group(spec, memory->groups, (struct ot_param_group){w->next, n - w->next, false, false});
}

static void build_embed(struct ot_model *model) {
    const struct ot_model_config *c = &model->config;
    struct walk w;
    snprintf(model->slab_memory[0].name, sizeof model->slab_memory[0].name, "embed");
    begin_slab(&w, model, 0, "model.");
    add_matrix(&w, "embed_tokens.weight", c->vocab, c->hidden, OT_INIT_NORMAL);
    end_slab(&w, w.next, true);
}

static void add_layer_vectors(struct walk *w, const struct ot_model_config *c, struct ot_layer_layout *at) {
    const struct ot_model *model = w->model;
    if (c->qkv_bias) {
        at->qkv_bias = add_vector(w, "self_attn.q_proj.bias", model->q_elems, OT_INIT_ZERO);
        add_vector(w, "self_attn.k_proj.bias", model->kv_elems, OT_INIT_ZERO);
        add_vector(w, "self_attn.v_proj.bias", model->kv_elems, OT_INIT_ZERO);
    }
    if (c->out_bias)
        at->o_bias = add_vector(w, "self_attn.o_proj.bias", c->hidden, OT_INIT_ZERO);
    if (c->mlp_bias) {
        at->gate_up_bias = add_vector(w, "mlp.gate_proj.bias", c->ffn, OT_INIT_ZERO);
        add_vector(w, "mlp.up_proj.bias", c->ffn, OT_INIT_ZERO);
        at->down_bias = add_vector(w, "mlp.down_proj.bias", c->hidden, OT_INIT_ZERO);
    }
    if (c->qk_norm) {
        at->q_norm = add_vector(w, "self_attn.q_norm.weight", c->head_dim, OT_INIT_ONE);
        at->k_norm = add_vector(w, "self_attn.k_norm.weight", c->head_dim, OT_INIT_ONE);
    }
    at->norm1 = add_vector(w, "input_layernorm.weight", c->hidden, OT_INIT_ONE);
    at->norm2 = add_vector(w, "post_attention_layernorm.weight", c->hidden, OT_INIT_ONE);
}

static void build_layer(struct ot_model *model, int layer) {
    const struct ot_model_config *c = &model->config;
    int slab = 1 + layer;
    char prefix[48];
    struct walk w;
    struct ot_layer_layout at = {.qkv_bias = OT_ABSENT,
                                 .o_bias = OT_ABSENT,
                                 .gate_up_bias = OT_ABSENT,
                                 .down_bias = OT_ABSENT,
                                 .q_norm = OT_ABSENT,
                                 .k_norm = OT_ABSENT};
    snprintf(model->slab_memory[slab].name, sizeof model->slab_memory[slab].name, "layer.%d", layer);
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    begin_slab(&w, model, slab, prefix);
    at.qkv = add_matrix(&w, "self_attn.q_proj.weight", model->q_elems, c->hidden, OT_INIT_NORMAL);
    add_matrix(&w, "self_attn.k_proj.weight", model->kv_elems, c->hidden, OT_INIT_NORMAL);
    add_matrix(&w, "self_attn.v_proj.weight", model->kv_elems, c->hidden, OT_INIT_NORMAL);
    at.o = add_matrix(&w, "self_attn.o_proj.weight", c->hidden, model->q_elems, OT_INIT_NORMAL_RESIDUAL);
    at.gate_up = add_matrix(&w, "mlp.gate_proj.weight", c->ffn, c->hidden, OT_INIT_NORMAL);
    add_matrix(&w, "mlp.up_proj.weight", c->ffn, c->hidden, OT_INIT_NORMAL);
    at.down = add_matrix(&w, "mlp.down_proj.weight", c->hidden, c->ffn, OT_INIT_NORMAL_RESIDUAL);
    int64_t n_matrices = w.next;
    add_layer_vectors(&w, c, &at);
    end_slab(&w, n_matrices, false);
    model->layer = at; /* the same for all layers */
}

static void build_head(struct ot_model *model) {
    const struct ot_model_config *c = &model->config;
    int slab = model->chain.n_slabs - 1;
    struct walk w;
    snprintf(model->slab_memory[slab].name, sizeof model->slab_memory[slab].name, "head");
    begin_slab(&w, model, slab, "");
    model->head.projection_use = c->tied ? 1 : 0;
    model->head.projection = 0;
    if (!c->tied)
        model->head.projection = add_matrix(&w, "lm_head.weight", c->vocab, c->hidden, OT_INIT_NORMAL);
    int64_t n_matrices = w.next;
    model->head.norm = add_vector(&w, "model.norm.weight", c->hidden, OT_INIT_ONE);
    end_slab(&w, n_matrices, true);
}

int ot_model_build_params(struct ot_model *model) {
    size_t n_slabs = (size_t)model->chain.n_slabs;
    model->tensors = calloc(n_slabs * MAX_LAYER_TENSORS, sizeof *model->tensors);
    model->slab_memory = calloc(n_slabs, sizeof *model->slab_memory);
    model->slabs = calloc(n_slabs, sizeof *model->slabs);
    if (!model->tensors || !model->slab_memory || !model->slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the tensor table of %lld layers",
                       (long long)model->config.n_layers);
    build_embed(model);
    for (int l = 0; l < model->config.n_layers; l++)
        build_layer(model, l);
    build_head(model);
    return 0;
}

int64_t ot_model_tensor_count(const struct ot_model *model) {
    return model->n_tensors;
}

const struct ot_tensor *ot_model_tensor(const struct ot_model *model, int64_t index) {
    return &model->tensors[index];
}

static void init_part(const struct ot_model *model, uint64_t seed, int64_t tensor, int64_t first, int64_t n,
                      float *out) {
    const struct ot_tensor *t = &model->tensors[tensor];
    double std = model->config.init_std;
    uint64_t stream = ot_random_stream(OT_RANDOM_INIT, 0, (uint64_t)tensor);
    if (t->init == OT_INIT_NORMAL_RESIDUAL)
        std /= sqrt(2.0 * (double)model->config.n_layers);
    for (int64_t i = 0; i < n; i++) {
        if (t->init == OT_INIT_ZERO || t->init == OT_INIT_ONE)
            out[i] = t->init == OT_INIT_ONE ? 1.0f : 0.0f;
        else
            out[i] = (float)std * ot_random_normal(seed, stream, (uint64_t)(first + i));
    }
}

void ot_model_init_values(const struct ot_model *model, uint64_t seed, int slab, int64_t first, int64_t n,
                          float *values) {
    const struct ot_slab_memory *memory = &model->slab_memory[slab];
    int64_t at = first, end = first + n;
    for (int64_t i = 0; i < memory->n_tensors && at < end; i++) {
        int64_t tensor = memory->first_tensor + i;
        const struct ot_tensor *t = &model->tensors[tensor];
        int64_t tensor_end = t->first + t->rows * t->cols;
        if (at >= tensor_end)
            continue;
        int64_t stop = end < tensor_end ? end : tensor_end;
        init_part(model, seed, tensor, at - t->first, stop - at, values + (at - first));
        at = stop;
    }
    for (; at < end; at++) /* padding */
        values[at - first] = 0.0f;
}
