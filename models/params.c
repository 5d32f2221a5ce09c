/* Places every tensor in its slab. One walk over a block's tensors fills the tensor table, the slabs' groups
 * and the layouts, so they cannot disagree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/decoder.h"
#include "src/base/error.h"
#include "src/base/random.h"

/* The tensors of a block, before they have places. */
struct walk {
    struct ot_model *model;
    const struct ot_model_parts *parts;
    int block;
    const char *prefix; /* "model.layers.3." */
    bool edge;
    int64_t numbered; /* tensors with a number of their own so far */
    int64_t adapted;  /* modules with an adapter so far */
    int rc;           /* the first wrong adapter, or matrix that cannot be encoded */
    int n;
    struct ot_tensor tensors[OT_MAX_BLOCK_TENSORS];
    struct ot_place *places[OT_MAX_BLOCK_TENSORS]; /* of the unit that begins with the tensor; else NULL */
};

static bool is_trained(const struct ot_model_parts *parts, const char *name) {
    if (parts && parts->trains)
        return parts->trains(parts->context, name);
    return !parts || !parts->lora;
}

/* place: where the place of a unit goes, whose first tensor this is. NULL: the tensor goes on with the unit
 * before it. */
static struct ot_tensor *append(struct walk *w, struct ot_place *place, int64_t rows, int64_t cols,
                                enum ot_init init) {
    struct ot_tensor *t = &w->tensors[w->n];
    w->places[w->n++] = place;
    *t = (struct ot_tensor){
        .rows = rows ? rows : 1, .cols = cols, .dims = rows ? 2 : 1, .decay = rows != 0, .init = init};
    return t;
}

static void add(struct walk *w, struct ot_place *place, const char *name, int64_t rows, int64_t cols,
                enum ot_init init) {
    struct ot_tensor *t = append(w, place, rows, cols, init);
    t->number = w->numbered++;
    snprintf(t->name, sizeof t->name, "%s%s", w->prefix, name);
    t->trained = is_trained(w->parts, t->name);
}

static void add_matrix(struct walk *w, struct ot_place *place, const char *name, int64_t rows, int64_t cols,
                       enum ot_init init) {
    add(w, place, name, rows, cols, init);
}

static void add_vector(struct walk *w, struct ot_place *place, const char *name, int64_t cols,
                       enum ot_init init) {
    add(w, place, name, 0, cols, init);
}

/* ---- adapters ---- */

/* The name of a tensor's module: its own name without ".weight". */
static void module_of(const struct ot_tensor *t, char module[sizeof t->name]) {
    snprintf(module, sizeof t->name, "%s", t->name);
    *strrchr(module, '.') = '\0';
}

/* rows 0: a vector. */
static struct ot_tensor *add_lora_tensor(struct walk *w, struct ot_place *place,
                                         const struct ot_tensor *target, const char *name, int64_t rows,
                                         int64_t cols, enum ot_init init) {
    char module[sizeof target->name];
    struct ot_tensor *t = append(w, place, rows, cols, init);
    module_of(target, module);
    t->number = target->number;
    t->trained = true;
    snprintf(t->name, sizeof t->name, OT_LORA_PREFIX "%.56s.%s", module, name);
    return t;
}

/* Finds the adapter of a target, whose outputs begin at `first` of its unit's. */
static void find_lora_map(struct walk *w, const struct ot_tensor *target, int64_t first,
                          struct ot_lora_map *out) {
    struct ot_lora_rank rank = {0};
    char module[sizeof target->name];
    module_of(target, module);
    *out = (struct ot_lora_map){.first = first, .out = target->rows};
    if (!w->parts || !w->parts->lora || w->rc < 0)
        return;
    w->rc = ot_lora_find(w->parts->lora, module, &rank);
    if (w->rc < 0 || rank.rank == 0)
        return;
    out->rank = rank.rank;
    out->scale = ot_lora_scale(w->parts->lora, rank);
    w->adapted++;
}

/* Adds the adapters of a unit of linear maps. */
static void add_lora(struct walk *w, const struct ot_tensor *targets, int n, struct ot_lora_unit *unit) {
    const struct ot_tensor *adapted[OT_MAX_UNIT_MAPS];
    int64_t first = 0;
    *unit = (struct ot_lora_unit){.number = targets[0].number};
    if (w->parts && w->parts->lora)
        unit->drop = w->parts->lora->dropout;
    for (int i = 0; i < n; first += targets[i++].rows) {
        struct ot_lora_map *map = &unit->maps[unit->n];
        find_lora_map(w, &targets[i], first, map);
        if (map->rank == 0)
            continue;
        adapted[unit->n++] = &targets[i];
        unit->rank += map->rank;
    }
    for (int i = 0; i < unit->n; i++)
        add_lora_tensor(w, i == 0 ? &unit->a : NULL, adapted[i], "lora_A.weight", unit->maps[i].rank,
                        adapted[i]->cols, OT_INIT_LORA_A);
    for (int i = 0; i < unit->n; i++)
        add_lora_tensor(w, &unit->maps[i].b, adapted[i], "lora_B.weight", unit->maps[i].out,
                        unit->maps[i].rank, OT_INIT_ZERO)
            ->rate = w->parts->lora->lr_ratio;
    unit->dora = unit->n > 0 && w->parts->lora->dora;
    for (int i = 0; unit->dora && i < unit->n; i++)
        add_lora_tensor(w, &unit->maps[i].change, adapted[i], "lora_magnitude_vector", 0, unit->maps[i].out,
                        OT_INIT_ZERO)
            ->file_form = OT_FORM_ABOVE_NORM;
}

/* Adds the adapters of the unit that the last n tensors are. */
static void add_lora_of_last(struct walk *w, int n, struct ot_lora_unit *unit) {
    add_lora(w, &w->tensors[w->n - n], n, unit);
}

struct ot_lora_unit ot_lora_unit_part(const struct ot_lora_unit *unit, int64_t first, int64_t in) {
    struct ot_lora_unit part = {.a = unit->a, .drop = unit->drop, .dora = unit->dora, .number = unit->number};
    for (int i = 0; i < unit->n; i++) {
        if (unit->maps[i].first == first) {
            part.n = 1;
            part.rank = unit->maps[i].rank;
            part.maps[0] = unit->maps[i];
            part.maps[0].first = 0;
            break;
        }
        part.a = ot_place_behind(part.a, unit->maps[i].rank * in);
    }
    return part;
}

/* ---- from tensors to slabs ---- */

/* The end of the unit that begins with tensor `first`. */
static int unit_end(const struct walk *w, int first) {
    int end = first + 1;
    while (end < w->n && !w->places[end])
        end++;
    return end;
}

static bool unit_is_frozen(const struct walk *w, int first) {
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
static void put_unit(struct walk *w, int first, int slab) {
    struct ot_model *model = w->model;
    struct ot_slab_spec *spec = &model->slabs[slab];
    *w->places[first] = (struct ot_place){model->blocks[w->block].n_uses, spec->n_params};
    for (int i = first; i < unit_end(w, first); i++) {
        struct ot_tensor *t = &model->tensors[model->n_tensors++];
        *t = w->tensors[i];
        t->slab = slab;
        t->first = spec->n_params;
        add_group(spec, model->slab_memory[slab].groups, t->rows * t->cols, t);
        spec->n_params += t->rows * t->cols;
    }
}

/* Makes the block's slab of frozen or of trained units, if there are any. */
static void put_slab(struct walk *w, bool frozen) {
    struct ot_model *model = w->model;
    int slab = model->chain.n_slabs;
    struct ot_slab_memory *memory = &model->slab_memory[slab];
    struct ot_slab_spec *spec = &model->slabs[slab];
    struct ot_block_spec *block = &model->blocks[w->block];
    snprintf(memory->name, sizeof memory->name, "%s%s", block->name, frozen ? ".frozen" : "");
    memory->first_tensor = model->n_tensors;
    *spec = (struct ot_slab_spec){
        .name = memory->name, .edge = w->edge, .frozen = frozen, .groups = memory->groups};
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
    if (w->rc == 0)
        w->rc = ot_slab_encode(model, slab);
    /* Backward of the embedding reads its adapter, but not its table. */
    bool read = w->block > 0 || (w->model->embedding_lora.n > 0 && !frozen);
    block->uses[block->n_uses++] = (struct ot_block_use){slab, read};
    model->chain.n_slabs++;
}

static void begin_block(struct walk *w, int block, const char *name) {
    struct ot_model *model = w->model;
    snprintf(model->block_names[block], sizeof model->block_names[block], "%s", name);
    model->blocks[block].name = model->block_names[block];
    w->block = block;
    w->edge = block == 0 || block == model->chain.n_blocks - 1;
    w->n = 0;
}

static void end_block(struct walk *w) {
    put_slab(w, true);
    put_slab(w, false);
}

int64_t ot_slab_matrix_params(const struct ot_slab_spec *slab) {
    int64_t n = 0;
    for (int g = 0; g < slab->n_groups && slab->groups[g].decay; g++)
        n += slab->groups[g].n;
    return n;
}

/* ---- the blocks ---- */

/* Adds the adapter of the embedding, which is w's only tensor. */
static void add_embedding_lora(struct walk *w) {
    const struct ot_tensor table = w->tensors[0];
    struct ot_lora_unit *unit = &w->model->embedding_lora;
    struct ot_lora_map *map = &unit->maps[0];
    find_lora_map(w, &table, 0, map);
    if (map->rank == 0)
        return;
    if (table.trained && w->rc == 0)
        w->rc = ot_fail(OT_E_INPUT, "adapter of model.embed_tokens: the embedding itself is trained");
    unit->n = 1;
    unit->rank = map->rank;
    map->out = table.cols;
    add_lora_tensor(w, &unit->a, &table, "lora_embedding_A", table.rows, map->rank, OT_INIT_ZERO)->file_form =
        OT_FORM_TRANSPOSED;
    add_lora_tensor(w, &map->b, &table, "lora_embedding_B", table.cols, map->rank, OT_INIT_LORA_NORMAL);
}

static void build_embed(struct walk *w) {
    const struct ot_model_config *c = &w->model->config;
    begin_block(w, 0, "embed");
    w->prefix = "model.";
    add_matrix(w, &w->model->embedding, "embed_tokens.weight", c->vocab, c->hidden, OT_INIT_NORMAL);
    add_embedding_lora(w);
    end_block(w);
}

static void add_layer_matrices(struct walk *w, const struct ot_model_config *c, struct ot_layer_layout *at) {
    const struct ot_model *model = w->model;
    int64_t q = model->q_elems, kv = model->kv_elems, h = c->hidden;
    add_matrix(w, &at->qkv, "self_attn.q_proj.weight", q, h, OT_INIT_NORMAL);
    add_matrix(w, NULL, "self_attn.k_proj.weight", kv, h, OT_INIT_NORMAL);
    add_matrix(w, NULL, "self_attn.v_proj.weight", kv, h, OT_INIT_NORMAL);
    add_lora_of_last(w, 3, &at->qkv_lora);
    add_matrix(w, &at->o, "self_attn.o_proj.weight", h, q, OT_INIT_NORMAL_RESIDUAL);
    add_lora_of_last(w, 1, &at->o_lora);
    add_matrix(w, &at->gate_up, "mlp.gate_proj.weight", c->ffn, h, OT_INIT_NORMAL);
    add_matrix(w, NULL, "mlp.up_proj.weight", c->ffn, h, OT_INIT_NORMAL);
    add_lora_of_last(w, 2, &at->gate_up_lora);
    add_matrix(w, &at->down, "mlp.down_proj.weight", h, c->ffn, OT_INIT_NORMAL_RESIDUAL);
    add_lora_of_last(w, 1, &at->down_lora);
}

static void add_layer_vectors(struct walk *w, const struct ot_model_config *c, struct ot_layer_layout *at) {
    const struct ot_model *model = w->model;
    if (c->qkv_bias) {
        add_vector(w, &at->qkv_bias, "self_attn.q_proj.bias", model->q_elems, OT_INIT_ZERO);
        add_vector(w, NULL, "self_attn.k_proj.bias", model->kv_elems, OT_INIT_ZERO);
        add_vector(w, NULL, "self_attn.v_proj.bias", model->kv_elems, OT_INIT_ZERO);
    }
    if (c->out_bias)
        add_vector(w, &at->o_bias, "self_attn.o_proj.bias", c->hidden, OT_INIT_ZERO);
    if (c->mlp_bias) {
        add_vector(w, &at->gate_up_bias, "mlp.gate_proj.bias", c->ffn, OT_INIT_ZERO);
        add_vector(w, NULL, "mlp.up_proj.bias", c->ffn, OT_INIT_ZERO);
        add_vector(w, &at->down_bias, "mlp.down_proj.bias", c->hidden, OT_INIT_ZERO);
    }
    if (c->qk_norm) {
        add_vector(w, &at->q_norm, "self_attn.q_norm.weight", c->head_dim, OT_INIT_ONE);
        add_vector(w, &at->k_norm, "self_attn.k_norm.weight", c->head_dim, OT_INIT_ONE);
    }
    add_vector(w, &at->norm1, "input_layernorm.weight", c->hidden, OT_INIT_ONE);
    add_vector(w, &at->norm2, "post_attention_layernorm.weight", c->hidden, OT_INIT_ONE);
}

static void build_layer(struct walk *w, int layer) {
    const struct ot_model_config *c = &w->model->config;
    struct ot_layer_layout *at = &w->model->layers[layer];
    const struct ot_place absent = {OT_ABSENT, 0};
    char prefix[48], name[24];
    snprintf(name, sizeof name, "layer.%d", layer);
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    begin_block(w, 1 + layer, name);
    w->prefix = prefix;
    *at = (struct ot_layer_layout){.qkv_bias = absent,
                                   .o_bias = absent,
                                   .gate_up_bias = absent,
                                   .down_bias = absent,
                                   .q_norm = absent,
                                   .k_norm = absent};
    add_layer_matrices(w, c, at);
    add_layer_vectors(w, c, at);
    end_block(w);
}

/* The output projection, or the adapter alone of one that is tied. */
static void add_projection(struct walk *w) {
    struct ot_model *model = w->model;
    const struct ot_model_config *c = &model->config;
    const struct ot_tensor tied = {
        .name = "lm_head.weight", .number = model->tensors[0].number, .rows = c->vocab, .cols = c->hidden};
    if (c->tied) {
        add_lora(w, &tied, 1, &model->head.lora);
        return;
    }
    add_matrix(w, &model->head.projection, tied.name, c->vocab, c->hidden, OT_INIT_NORMAL);
    add_lora_of_last(w, 1, &model->head.lora);
}

static void build_head(struct walk *w) {
    struct ot_model *model = w->model;
    const struct ot_model_config *c = &model->config;
    struct ot_block_spec *block = &model->blocks[model->chain.n_blocks - 1];
    begin_block(w, model->chain.n_blocks - 1, "head");
    w->prefix = "";
    add_projection(w);
    add_vector(w, &model->head.norm, "model.norm.weight", c->hidden, OT_INIT_ONE);
    end_block(w);
    if (c->tied) {
        model->head.projection = (struct ot_place){block->n_uses, model->embedding.at};
        block->uses[block->n_uses++] = (struct ot_block_use){model->blocks[0].uses[0].slab, true};
    }
}

int ot_model_build_params(struct ot_model *model, const struct ot_model_parts *parts) {
    size_t n_blocks = (size_t)model->chain.n_blocks, n_layers = (size_t)model->config.n_layers;
    struct walk w = {.model = model, .parts = parts};
    model->tensors = calloc(n_blocks * OT_MAX_BLOCK_TENSORS, sizeof *model->tensors);
    model->slab_memory = calloc(2 * n_blocks, sizeof *model->slab_memory);
    model->slabs = calloc(2 * n_blocks, sizeof *model->slabs);
    model->blocks = calloc(n_blocks, sizeof *model->blocks);
    model->block_names = calloc(n_blocks, sizeof *model->block_names);
    model->layers = calloc(n_layers, sizeof *model->layers);
    if (!model->tensors || !model->slab_memory || !model->slabs || !model->blocks || !model->block_names ||
        !model->layers)
        return ot_fail(OT_E_BUDGET, "no memory for the tensor table of %zu layers", n_layers);
    build_embed(&w);
    for (int l = 0; l < model->config.n_layers; l++)
        build_layer(&w, l);
    build_head(&w);
    if (w.rc == 0 && parts && parts->lora && w.adapted == 0)
        return ot_fail(OT_E_INPUT, "no module has an adapter");
    return w.rc;
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

static void init_part(const struct ot_model *model, uint64_t seed, int64_t tensor, int64_t first, int64_t n,
                      float *out) {
    const struct ot_tensor *t = &model->tensors[tensor];
    bool normal = t->init == OT_INIT_LORA_NORMAL; /* its words differ from those of a tied head's A */
    double std = normal ? 1 : model->config.init_std, bound = 1 / sqrt((double)t->cols);
    uint64_t stream = ot_random_stream(ot_lora_has_tensor(t->name) ? OT_RANDOM_LORA : OT_RANDOM_INIT,
                                       normal ? 1 : 0, (uint64_t)t->number);
    if (t->init == OT_INIT_NORMAL_RESIDUAL)
        std /= sqrt(2.0 * (double)model->config.n_layers);
    for (int64_t i = 0; i < n; i++) {
        if (t->init == OT_INIT_ZERO || t->init == OT_INIT_ONE)
            out[i] = t->init == OT_INIT_ONE ? 1.0f : 0.0f;
        else if (t->init == OT_INIT_LORA_A)
            out[i] = (float)(bound * (2 * ot_random_unit(seed, stream, (uint64_t)(first + i)) - 1));
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
