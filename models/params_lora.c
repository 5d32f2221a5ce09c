/* Adds the tensors of adapters next to the tensors of the maps that they adapt. */
#include <stdio.h>
#include <string.h>

#include "models/params.h"
#include "src/base/error.h"

bool ot_model_can_adapt(const struct ot_model_config *config, enum ot_module module) {
    bool is_map = ot_module_is_map(module) && (config->n_experts == 0 || module <= OT_MODULE_O);
    return is_map || module == OT_MODULE_HEAD ||
           (module == OT_MODULE_EMBEDDING && !ot_model_has_pairs(config));
}

/* The name of a tensor's module: its own name without ".weight". */
static void module_of(const struct ot_tensor *t, char module[sizeof t->name]) {
    snprintf(module, sizeof t->name, "%s", t->name);
    *strrchr(module, '.') = '\0';
}

/* rows 0: a vector. */
static struct ot_tensor *add_tensor_of(struct ot_params_walk *w, struct ot_place *place,
                                       const struct ot_tensor *target, const char *module, const char *name,
                                       int64_t rows, int64_t cols) {
    struct ot_tensor *t = ot_params_append(w, place, rows, cols, OT_INIT_ZERO);
    t->number = target->number;
    t->module = target->module;
    t->layer = target->layer;
    t->trained = true;
    snprintf(t->name, sizeof t->name, OT_LORA_PREFIX "%.56s.%s", module, name);
    return t;
}

static struct ot_tensor *add_lora_tensor(struct ot_params_walk *w, struct ot_place *place,
                                         const struct ot_tensor *target, const char *name, int64_t rows,
                                         int64_t cols, enum ot_init init) {
    char module[sizeof target->name];
    module_of(target, module);
    struct ot_tensor *t = add_tensor_of(w, place, target, module, name, rows, cols);
    t->init = init;
    return t;
}

/* Finds the adapter of a module. */
static void find_rank(struct ot_params_walk *w, const char *module, struct ot_lora_map *out) {
    struct ot_lora_rank rank = {0};
    if (!w->setup || !w->setup->lora || w->rc < 0)
        return;
    w->rc = ot_lora_find(w->setup->lora, module, &rank);
    if (w->rc < 0 || rank.rank == 0)
        return;
    out->rank = rank.rank;
    out->scale = ot_lora_scale(w->setup->lora, rank);
    w->adapted++;
}

/* Finds the adapter of a target, whose outputs begin at `first` of its unit's. */
static void find_lora_map(struct ot_params_walk *w, const struct ot_tensor *target, int64_t first,
                          struct ot_lora_map *out) {
    char module[sizeof target->name];
    module_of(target, module);
    *out = (struct ot_lora_map){.first = first, .out = target->rows};
    if (ot_model_can_adapt(&w->model->config, target->module))
        find_rank(w, module, out);
}

void ot_params_add_lora(struct ot_params_walk *w, const struct ot_tensor *targets, int n,
                        struct ot_lora_unit *unit) {
    const struct ot_tensor *adapted[OT_MAX_UNIT_MAPS];
    int64_t first = 0;
    *unit = (struct ot_lora_unit){.number = targets[0].number};
    if (w->setup && w->setup->lora)
        unit->drop = w->setup->lora->dropout;
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
    for (int i = 0; i < unit->n; i++) {
        struct ot_tensor *t = add_lora_tensor(w, &unit->maps[i].b, adapted[i], "lora_B.weight",
                                              unit->maps[i].out, unit->maps[i].rank, OT_INIT_ZERO);
        t->rate = w->setup->lora->lr_ratio;
        t->is_fused = adapted[i]->is_fused;
    }
    unit->dora = unit->n > 0 && w->setup->lora->dora;
    for (int i = 0; unit->dora && i < unit->n; i++) {
        struct ot_tensor *t = add_lora_tensor(w, &unit->maps[i].change, adapted[i], "lora_magnitude_vector",
                                              0, unit->maps[i].out, OT_INIT_ZERO);
        t->file_form = OT_FORM_ABOVE_NORM;
        t->is_fused = adapted[i]->is_fused;
    }
}

struct ot_lora_unit ot_lora_unit_part(const struct ot_lora_unit *unit, int64_t first, int64_t out,
                                      int64_t in) {
    struct ot_lora_unit part = {.a = unit->a, .drop = unit->drop, .dora = unit->dora, .number = unit->number};
    for (int i = 0; i < unit->n; i++) {
        const struct ot_lora_map *map = &unit->maps[i];
        if (map->first <= first && first + out <= map->first + map->out) {
            part.n = 1;
            part.rank = map->rank;
            part.maps[0] = *map;
            part.maps[0].first = 0;
            part.maps[0].out = out;
            part.maps[0].b = ot_place_behind(map->b, (first - map->first) * map->rank);
            part.maps[0].change = ot_place_behind(map->change, first - map->first);
            break;
        }
        part.a = ot_place_behind(part.a, map->rank * in);
    }
    return part;
}

/* Adds the adapter of one parameter of experts. around: PEFT's name for the enclosing module. */
static void add_experts_unit(struct ot_params_walk *w, const struct ot_tensor *target, const char *around,
                             int64_t in, struct ot_lora_unit *unit) {
    int64_t experts = w->model->config.n_experts;
    char module[OT_MODEL_NAME_BYTES];
    struct ot_lora_map *map = &unit->maps[0];
    if (map->rank == 0)
        return;
    unit->n = 1;
    unit->rank = map->rank;
    unit->number = target->number;
    snprintf(module, sizeof module, "%s%lld.mlp.%s", ot_model_names(&w->model->config)->layers,
             (long long)w->layer, around);
    add_tensor_of(w, &unit->a, target, module, "lora_A.weight", experts * map->rank, in)->init =
        OT_INIT_LORA_A;
    struct ot_tensor *b =
        add_tensor_of(w, &map->b, target, module, "lora_B.weight", experts * map->out, map->rank);
    b->parts = experts;
    b->file_form = OT_FORM_EXPERT_COLUMNS;
    b->rate = w->setup->lora->lr_ratio;
}

void ot_params_add_experts_lora(struct ot_params_walk *w, const struct ot_tensor *gate_up,
                                const struct ot_tensor *down, struct ot_layer_layout *at) {
    const struct ot_model_config *c = &w->model->config;
    char name[OT_MODEL_NAME_BYTES];
    at->gate_up_lora = (struct ot_lora_unit){.maps = {{.out = 2 * c->expert_ffn}}};
    at->down_lora = (struct ot_lora_unit){.maps = {{.out = c->hidden}}};
    ot_model_experts_parameter(c, OT_MODULE_EXPERTS_GATE_UP, w->layer, name, sizeof name);
    find_rank(w, name, &at->gate_up_lora.maps[0]);
    ot_model_experts_parameter(c, OT_MODULE_EXPERTS_DOWN, w->layer, name, sizeof name);
    find_rank(w, name, &at->down_lora.maps[0]);
    const char *inner = at->down_lora.maps[0].rank > 0 ? "experts.base_layer" : "experts";
    add_experts_unit(w, gate_up, inner, c->hidden, &at->gate_up_lora);
    add_experts_unit(w, down, "experts", c->expert_ffn, &at->down_lora);
}

void ot_params_add_embedding_lora(struct ot_params_walk *w) {
    const struct ot_tensor table = w->tensors[0];
    struct ot_lora_unit *unit = &w->model->embed.lora;
    struct ot_lora_map *map = &unit->maps[0];
    find_lora_map(w, &table, 0, map);
    if (map->rank == 0)
        return;
    if ((table.trained || w->setup->lora->dora) && w->rc == 0)
        w->rc = ot_fail(OT_E_INPUT, "adapter of %.*s: %s", (int)(strlen(table.name) - strlen(".weight")),
                        table.name,
                        table.trained ? "the embedding itself is trained" : "an embedding cannot have DoRA");
    unit->n = 1;
    unit->rank = map->rank;
    map->out = table.cols;
    add_lora_tensor(w, &unit->a, &table, "lora_embedding_A", table.rows, map->rank, OT_INIT_ZERO)->file_form =
        OT_FORM_TRANSPOSED;
    add_lora_tensor(w, &map->b, &table, "lora_embedding_B", table.cols, map->rank, OT_INIT_LORA_NORMAL);
}

void ot_params_add_token_rows(struct ot_params_walk *w, struct ot_tensor table,
                              const struct ot_lora_unit *unit, struct ot_place *place) {
    const struct ot_model_config *c = &w->model->config;
    char module[sizeof table.name];
    if (c->n_new == 0 || !w->setup || !w->setup->lora || table.trained)
        return;
    module_of(&table, module);
    if (unit->n > 0 && w->rc == 0)
        w->rc = ot_fail(OT_E_INPUT,
                        "adapter of %s: its new tokens are trained by themselves, and PEFT has no form for "
                        "both; leave the module out of the targets",
                        module);
    struct ot_tensor *t = add_tensor_of(w, place, &table, module, "", c->n_new, table.cols);
    snprintf(t->name, sizeof t->name, OT_LORA_PREFIX "%.40s." OT_LORA_TOKENS, module); /* short names */
}

bool ot_model_has_token_rows(const struct ot_model *model, const struct ot_tensor *table) {
    bool is_table = table->dims == 2 && !ot_lora_has_tensor(table->name);
    return is_table && ((table->module == OT_MODULE_EMBEDDING && model->embed.new_rows.use != OT_ABSENT) ||
                        (table->module == OT_MODULE_HEAD && model->head.new_rows.use != OT_ABSENT));
}
