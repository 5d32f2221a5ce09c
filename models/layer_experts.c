/* A mixture of experts in place of an MLP, in the ops of kernels/ops_experts.h, which defines groups and
 * packed rows. No group is padded, so packed arrays have exactly a row for each assignment. */
#include "models/layer.h"

/* ---- the router ---- */

static struct ot_router router_op(const struct ot_layer_call *call) {
    const struct ot_model_config *c = call->config;
    return (struct ot_router){
        .dtype = call->run->dtype,
        .over_all = c->router_over_all,
        .n = call->n,
        .experts = c->n_experts,
        .top = c->top_experts,
        .ld = c->n_experts,
        .logits = call->memory.router_logits, /* [n, experts] */
        .ids = call->memory.ids,              /* [n, top] */
        .weights = call->memory.weights,      /* [n, top] */
    };
}

/* The router as a linear map. It has no adapters. */
static struct ot_linear router_map(const struct ot_layer_call *call, bool want_grad) {
    static const struct ot_lora_unit no_lora;
    static const struct ot_unit_memory no_memory;
    return ot_layer_linear(call, call->config->hidden, call->config->n_experts, call->at->router,
                           call->at->router_bias, &no_lora, &no_memory, want_grad);
}

void ot_layer_route(const struct ot_layer_call *call) {
    const struct ot_model_config *c = call->config;
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear map = router_map(call, false);
    const struct ot_router router = router_op(call);
    const struct ot_group group = {
        .n = call->n,
        .top = c->top_experts,
        .experts = c->n_experts,
        .multiple = 1,
        .ids = memory->ids,
        .offsets = memory->offsets,
        .counts = memory->counts,
        .rows = memory->rows,
        .assignments = memory->assignments,
        .used = call->run->half == OT_HALF_CHOOSE ? call->run->used : NULL,
        .scratch = memory->grouping,
    };
    ot_linear_forward(call->run, &map, memory->normed2, call->run->dtype, memory->router_logits);
    call->ops->router(call->run->lane, &router);
    call->ops->group(call->run->lane, &group);
}

void ot_layer_hand_on_load(const struct ot_layer_call *call) {
    const struct ot_block_run *run = call->run;
    bool later = call->first > 0; /* adds to what earlier chunks have written */
    const struct ot_tail in = ot_run_tail(call->model, run, later ? run->y : run->x),
                         out = ot_run_tail(call->model, run, run->y);
    const struct ot_load op = {router_op(call), in.counts, in.sums, out.counts, out.sums};
    if (ot_run_regular(call->model, run).balance == 0)
        return;
    if (call->has_experts)
        call->ops->load(run->lane, &op);
    else if (!later)
        ot_lane_copy(run->lane, OT_COPY_D2D, out.counts, in.counts, call->model->chain.boundary_tail_bytes);
}

void ot_layer_gather(const struct ot_layer_call *call) {
    const struct ot_gather op = {
        .dtype = call->run->dtype,
        .rows = call->inner_rows,
        .cols = call->config->hidden,
        .top = call->config->top_experts,
        .ld_x = call->config->hidden,
        .ld_packed = call->config->hidden,
        .assignments = call->memory.assignments,
        .x = call->memory.normed2,     /* [n, hidden] */
        .packed = call->memory.packed, /* [assignments, hidden] */
    };
    call->ops->gather(call->run->lane, &op);
}

/* ---- products ---- */

/* The weights of one map of all experts. Expert e has [out, in] at e * out * in, and its bias at e * out. */
struct expert_map {
    int64_t in, out;
    struct ot_place weight, bias;
    const struct ot_lora_unit *lora; /* of A and B: NULL */
    void *ax;                        /* of the adapters: [rows, rank] */
    float scale;                     /* of rows_product; 0: 1 */
    bool adds;                       /* rows_product adds to what is there */
};

static struct expert_map gate_up_map(const struct ot_layer_call *call) {
    const struct ot_layer_layout *at = call->at;
    return (struct expert_map){.in = call->config->hidden,
                               .out = 2 * call->ffn,
                               .weight = at->expert_gate_up,
                               .bias = at->expert_gate_up_bias,
                               .lora = &at->gate_up_lora,
                               .ax = call->memory.gate_up_lora.ax};
}

static struct expert_map down_map(const struct ot_layer_call *call) {
    const struct ot_layer_layout *at = call->at;
    return (struct expert_map){.in = call->ffn,
                               .out = call->config->hidden,
                               .weight = at->expert_down,
                               .bias = at->expert_down_bias,
                               .lora = &at->down_lora,
                               .ax = call->memory.down_lora.ax};
}

/* A and B of the adapters of a map are maps too. */
static struct expert_map a_of(struct expert_map map) {
    return (struct expert_map){.in = map.in,
                               .out = map.lora->rank,
                               .weight = map.lora->a,
                               .bias = {OT_ABSENT, 0},
                               .scale = map.lora->maps[0].scale};
}

static struct expert_map b_of(struct expert_map map) {
    return (struct expert_map){.in = map.lora->rank,
                               .out = map.out,
                               .weight = map.lora->maps[0].b,
                               .bias = {OT_ABSENT, 0},
                               .scale = map.lora->maps[0].scale};
}

/* The same map, whose products are added, and not scaled. */
static struct expert_map added(struct expert_map map) {
    map.scale = 0;
    map.adds = true;
    return map;
}

/* y = x W^T + bias; or, backward, the gradient of x: dx = dy W. The products are scaled, or added to what is
 * there. */
static void rows_product(const struct ot_layer_call *call, struct expert_map map, bool backward,
                         const void *from, void *to) {
    int64_t k = backward ? map.out : map.in, n = backward ? map.in : map.out;
    const struct ot_gemm_groups op = {
        .dtype = call->run->dtype,
        .c_dtype = call->run->dtype,
        .form = OT_GROUPS_ROWS,
        .trans_b = !backward,
        .by_rows = !backward && ot_run_by_rows(call->run),
        .experts = call->config->n_experts,
        .rows = call->inner_rows,
        .n = n,
        .k = k,
        .offsets = call->memory.offsets,
        .a = from,                                 /* [rows, k] */
        .b = ot_run_weight(call->run, map.weight), /* [experts, map.out, map.in] */
        .bias = backward ? NULL : ot_run_weight(call->run, map.bias),
        .addend = map.adds ? to : NULL,
        .c = to, /* [rows, n] */
        .lda = k,
        .ldb = map.in,
        .ldc = n,
        .stride = map.in * map.out,
        .scale = map.scale,
    };
    call->ops->gemm_groups(call->run->lane, &op);
}

/* The gradient of W: dW += dy^T x, or = if it is the first. */
static void weights_product(const struct ot_layer_call *call, struct expert_map map, const void *dy,
                            const void *x) {
    float *dweight = ot_run_grad(call->run, map.weight);
    const struct ot_gemm_groups op = {
        .dtype = call->run->dtype,
        .c_dtype = OT_F32,
        .form = OT_GROUPS_SUMS,
        .experts = call->config->n_experts,
        .rows = call->inner_rows,
        .m = map.out,
        .n = map.in,
        .offsets = call->memory.offsets,
        .a = dy, /* [rows, map.out] */
        .b = x,  /* [rows, map.in] */
        .addend = call->adds ? dweight : NULL,
        .c = dweight, /* [experts, map.out, map.in] */
        .lda = map.out,
        .ldb = map.in,
        .ldc = map.in,
        .stride = map.in * map.out,
    };
    if (dweight)
        call->ops->gemm_groups(call->run->lane, &op);
}

/* Adds the sums of each expert's rows of dy to the gradient of its bias: the product of dy and a column of
 * ones. Gather makes the column: every row is row 0 of a table that has one row, the number 1. */
static void bias_product(const struct ot_layer_call *call, struct expert_map map, const void *dy) {
    const struct ot_layer_memory *memory = &call->memory;
    float *dbias = ot_run_grad(call->run, map.bias);
    const struct ot_gather column = {
        .dtype = call->run->dtype,
        .rows = call->inner_rows,
        .cols = 1,
        .top = call->inner_rows, /* more than any assignment's number, so that each is one of row 0 */
        .ld_x = 1,
        .ld_packed = 1,
        .assignments = memory->assignments,
        .x = ot_model_one(call->model, call->run->constants),
        .packed = memory->ones,
    };
    const struct ot_gemm_groups op = {
        .dtype = call->run->dtype,
        .c_dtype = OT_F32,
        .form = OT_GROUPS_SUMS,
        .experts = call->config->n_experts,
        .rows = call->inner_rows,
        .m = 1,
        .n = map.out,
        .offsets = memory->offsets,
        .a = memory->ones, /* [rows] */
        .b = dy,           /* [rows, map.out] */
        .addend = dbias,
        .c = dbias, /* [experts, map.out] */
        .lda = 1,
        .ldb = map.out,
        .ldc = map.out,
        .stride = map.out,
    };
    if (!dbias)
        return;
    call->ops->gather(call->run->lane, &column);
    call->ops->gemm_groups(call->run->lane, &op);
}

/* These three compute as lora.h says. */

static void forward(const struct ot_layer_call *call, struct expert_map map, const void *x, void *y) {
    rows_product(call, map, false, x, y);
    if (map.lora->n == 0)
        return;
    rows_product(call, a_of(map), false, x, map.ax);
    rows_product(call, added(b_of(map)), false, map.ax, y);
}

/* The gradients of weights, biases and adapters, and dax. */
static void backward_params(const struct ot_layer_call *call, struct expert_map map, const void *x,
                            const void *dy) {
    weights_product(call, map, dy, x);
    bias_product(call, map, dy);
    if (map.lora->n == 0)
        return;
    rows_product(call, b_of(map), true, dy, call->memory.dax);
    weights_product(call, b_of(map), dy, map.ax);
    weights_product(call, a_of(map), call->memory.dax, x);
}

/* After backward_params, which has read x: dx may have its place. */
static void backward_input(const struct ot_layer_call *call, struct expert_map map, const void *dy,
                           void *dx) {
    rows_product(call, map, true, dy, dx);
    if (map.lora->n > 0)
        rows_product(call, added(a_of(map)), true, call->memory.dax, dx);
}

void ot_layer_experts_gate_up(const struct ot_layer_call *call) {
    forward(call, gate_up_map(call), call->memory.packed, call->memory.gate_up);
}

void ot_layer_experts_down(const struct ot_layer_call *call) {
    forward(call, down_map(call), call->memory.inner, call->memory.down_out);
}

/* ---- from and to the rows of tokens ---- */

/* y = addend + the sum of each token's rows of packed. weights NULL: 1. */
static void combine(const struct ot_layer_call *call, const float *weights, const void *packed,
                    const void *addend, void *y) {
    const struct ot_combine op = {
        .dtype = call->run->dtype,
        .n = call->n,
        .cols = call->config->hidden,
        .top = call->config->top_experts,
        .ld_packed = call->config->hidden,
        .ld_y = call->config->hidden,
        .rows = call->memory.rows,
        .weights = weights, /* [n, top] */
        .packed = packed,   /* [assignments, hidden] */
        .addend = addend,
        .y = y, /* [n, hidden] */
    };
    call->ops->combine(call->run->lane, &op);
}

void ot_layer_combine(const struct ot_layer_call *call, void *y) {
    combine(call, call->memory.weights, call->memory.down_out, call->memory.mid, y);
}

void ot_layer_experts_down_backward(const struct ot_layer_call *call, const void *dy) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_combine_backward op = {
        .dtype = call->run->dtype,
        .rows = call->inner_rows,
        .cols = call->config->hidden,
        .top = call->config->top_experts,
        .ld_packed = call->config->hidden,
        .ld_dy = call->config->hidden,
        .assignments = memory->assignments,
        .weights = memory->weights,
        .dy = dy,                   /* [n, hidden] */
        .packed = memory->down_out, /* [assignments, hidden], and dpacked */
        .dpacked = memory->down_out,
        .dweights = memory->dweights, /* [n, top] */
    };
    call->ops->combine_backward(call->run->lane, &op);
    backward_params(call, down_map(call), memory->inner, memory->down_out);
    backward_input(call, down_map(call), memory->down_out, memory->wide);
}

void ot_layer_experts_gate_up_backward(const struct ot_layer_call *call, void *dinput) {
    const struct ot_layer_memory *memory = &call->memory;
    const struct ot_linear map = router_map(call, true);
    bool balances = ot_run_regular(call->model, call->run).balance > 0;
    const struct ot_router_backward router = {
        .forward = router_op(call),
        .dweights = memory->dweights,
        .slopes = balances ? ot_run_tail(call->model, call->run, call->run->dxy).slopes : NULL,
        .dlogits = memory->router_logits,
    };
    backward_params(call, gate_up_map(call), memory->packed, memory->gate_up);
    backward_input(call, gate_up_map(call), memory->gate_up, memory->down_out);
    call->ops->router_backward(call->run->lane, &router);
    ot_linear_backward_params(call->run, &map, memory->normed2, memory->router_logits, map.out);
    ot_linear_backward_input(call->run, &map, memory->router_logits, map.out, dinput);
    combine(call, NULL, memory->down_out, dinput, dinput);
}
