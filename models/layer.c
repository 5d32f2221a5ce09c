/* Functions that the pieces of a layer share: the call, linear maps, norms and sums. */
#include "models/layer.h"

#include "src/base/minmax.h"

/* Row `at` of a boundary, which may be NULL. */
static void *boundary_row(const struct ot_model *model, const struct ot_block_run *run, const void *boundary,
                          int64_t at) {
    return boundary ? ot_run_at(run, boundary, at * model->config.hidden) : NULL;
}

struct ot_layer_call ot_layer_call_make(const struct ot_model *model, int block,
                                        const struct ot_block_run *run, int64_t first, int64_t n) {
    int64_t layer = block - 1;
    struct ot_layer_call call = {
        .model = model,
        .config = &model->config,
        .at = &model->layers[layer],
        .run = run,
        .ops = ot_run_ops(run),
        .layer = layer,
        .first = first,
        .n = n,
        .x = boundary_row(model, run, run->x, first),
        .y = boundary_row(model, run, run->y, first),
        .dxy = boundary_row(model, run, run->dxy, first),
        .alone = true,
        .adds = !run->first,
        .cached = run->pass == OT_PASS_DECODE,
        .kept = ot_layer_kept(model, run->saved_level),
        .until = OT_LAYER_INPUTS,
    };
    call.has_experts = ot_model_layer_has_experts(call.config, layer);
    call.inner_rows = n * (call.has_experts ? call.config->top_experts : 1);
    call.ffn = call.has_experts ? call.config->expert_ffn : call.config->ffn;
    ot_layer_memory_find(model, layer, run, 0, &call.memory);
    return call;
}

struct ot_layer_call ot_layer_chunk(const struct ot_layer_call *all, int64_t first) {
    const struct ot_model *model = all->model;
    struct ot_layer_call chunk = *all;
    chunk.first = first;
    chunk.n = ot_min(all->n - first, model->chunk_tokens);
    chunk.x = boundary_row(model, all->run, all->run->x, first);
    chunk.y = boundary_row(model, all->run, all->run->y, first);
    chunk.dxy = boundary_row(model, all->run, all->run->dxy, first);
    chunk.alone = chunk.n == all->n;
    chunk.adds = all->adds || first > 0;
    chunk.inner_rows = chunk.n * (all->has_experts ? all->config->top_experts : 1);
    ot_layer_memory_find(model, all->layer, all->run, first, &chunk.memory);
    return chunk;
}

/* ---- linear maps ---- */

struct ot_linear ot_layer_linear(const struct ot_layer_call *call, int64_t in, int64_t out,
                                 struct ot_place weight, struct ot_place bias,
                                 const struct ot_lora_unit *lora, const struct ot_unit_memory *memory,
                                 bool want_grad) {
    const struct ot_block_run *run = call->run;
    return (struct ot_linear){
        .rows = call->n,
        .in = in,
        .out = out,
        .weight = ot_run_weight(run, weight),
        .bias = ot_run_weight(run, bias),
        .dweight = want_grad ? ot_run_grad(run, weight) : NULL,
        .dbias = want_grad ? ot_run_grad(run, bias) : NULL,
        .adds = call->adds,
        .lora = lora,
        .ax = memory->ax,
        .dax = call->memory.dax,
        .dropped = call->memory.dropped,
        .first_row = call->first,
        .u = memory->u,
        .factors = memory->factors,
        .products = call->memory.products,
    };
}

void ot_layer_linear_backward(const struct ot_layer_call *call, const struct ot_linear *map, const void *x,
                              const void *dy, void *dx) {
    ot_linear_backward_params(call->run, map, x, dy, map->out);
    ot_linear_backward_input(call->run, map, dy, map->out, dx);
}

void ot_layer_from_u(const struct ot_layer_call *call, const struct ot_linear *unit, void *y) {
    if (ot_layer_makes_from_u(call->model, unit->lora))
        ot_linear_forward_from_u(call->run, unit, call->run->dtype, y);
}

void ot_layer_project_part(const struct ot_layer_call *call, struct ot_linear map, const void *x,
                           int64_t first, int64_t out, void *y) {
    const struct ot_lora_unit lora = ot_lora_unit_part(map.lora, first, out, map.in);
    map.out = out;
    map.weight = ot_run_at(call->run, map.weight, first * map.in);
    map.bias = map.bias ? ot_run_at(call->run, map.bias, first) : NULL;
    map.lora = &lora;
    ot_linear_forward(call->run, &map, x, call->run->dtype, y);
}

/* ---- norms and sums ---- */

void ot_layer_norm(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x, void *y,
                   struct ot_norm_memory memory) {
    ot_model_norm(call->model, call->run, at, call->n, x, y, memory);
}

void ot_layer_norm_backward(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x,
                            struct ot_norm_memory memory, const void *dy, const void *addend, void *dx) {
    ot_model_norm_backward(call->model, call->run, at, call->n, x, memory, dy, addend, dx);
}

void ot_layer_add(const struct ot_layer_call *call, const void *a, const void *b, void *out) {
    const struct ot_add op = {
        .dtype = call->run->dtype, .n = call->n * call->config->hidden, .a = a, .b = b, .out = out};
    call->ops->add(call->run->lane, &op);
}

/* ---- dropout ---- */

static struct ot_drop_rows drop_rows(const struct ot_layer_call *call, enum ot_drop_site site) {
    return (struct ot_drop_rows){site, call->layer, call->first, call->n, call->config->hidden};
}

void ot_layer_drop_add(const struct ot_layer_call *call, enum ot_drop_site site, const void *addend,
                       void *y) {
    const struct ot_drop_rows rows = drop_rows(call, site);
    ot_drop(call->model, call->run, &rows, y, addend, y);
}

const void *ot_layer_drop_backward(const struct ot_layer_call *call, enum ot_drop_site site, const void *dy,
                                   void *room) {
    const struct ot_drop_rows rows = drop_rows(call, site);
    return ot_drop(call->model, call->run, &rows, dy, NULL, room) ? room : dy;
}
