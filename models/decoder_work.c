/* FLOPs and bytes of each block, for predictions (offload/predict/costs.h). They count the ops of the blocks
 * and of the pieces of layers (kinds.h, layer.h) one by one. A change there needs a change here:
 * tests/models/test_work.c compares both.
 *
 * Bytes are those of arrays that have a row for each token. Weights, tables, ids and single numbers of a row
 * are not counted: they are small or stay in the caches. What products and attention move is not counted
 * either, because their rates were measured with it: operands and results, the gradient that a product adds
 * to, and attention's q, k, v, lse and delta. The exceptions are a residual that a product adds, because the
 * measured products add none, and the products of adapters, which are thinner than those. */
#include "models/layer_memory.h"

/* True if backward computes the gradient of the tensor at `place`. */
static bool has_gradient(const struct ot_model *model, int64_t block, struct ot_place place) {
    return place.use != OT_ABSENT && !model->slabs[model->blocks[block].uses[place.use].slab].frozen;
}

/* ---- adapters ---- */

/* A product with one size as small as a rank takes as long as its arrays take to be read and written, so
 * their bytes are counted: of x, y and ax, and of their gradients. in: the unit's inputs. y_bytes: of an
 * element of y. train: with dropout. All results are those of a token, added to *out. */
static void lora_ax_work(const struct ot_lora_unit *lora, double in, double item, bool train,
                         struct ot_block_work *out) {
    double rank = (double)lora->rank, products = 0; /* as linear.c computes them: maps of one scale at once */
    for (int i = 0; i < lora->n; i++)
        products += i == 0 || lora->maps[i].scale != lora->maps[i - 1].scale;
    out->product_flops += 2 * rank * in;
    out->moved_bytes += item * (products * in + rank);
    if (lora->n > 0 && lora->drop > 0 && train) /* dropout(x) */
        out->moved_bytes += item * 2 * in;
}

static void lora_forward_work(const struct ot_lora_unit *lora, double in, double item, double y_bytes,
                              bool train, struct ot_block_work *out) {
    lora_ax_work(lora, in, item, train, out);
    for (int i = 0; i < lora->n; i++) {
        double rank = (double)lora->maps[i].rank, width = (double)lora->maps[i].out;
        out->product_flops += 2 * rank * width;
        out->moved_bytes += item * rank + y_bytes * 2 * width;
    }
}

static void lora_backward_work(const struct ot_lora_unit *lora, double in, double item,
                               struct ot_block_work *out) {
    double rank = (double)lora->rank;
    for (int i = 0; i < lora->n; i++) { /* dax, and the gradient of B */
        double width = (double)lora->maps[i].out;
        out->product_flops += 4 * (double)lora->maps[i].rank * width;
        out->moved_bytes += item * 2 * (width + (double)lora->maps[i].rank);
    }
    if (lora->n == 0)
        return;
    out->product_flops += 4 * rank * in; /* the gradient of A, and the part of dx */
    out->moved_bytes += item * (2 * rank + 3 * in);
    if (lora->drop > 0) /* dropout(x); the part of dx is written, not added, and goes through dropout */
        out->moved_bytes += item * (2 + 2) * in;
    if (ot_lora_doubles(lora)) /* the part of dx is added to the base's */
        out->moved_bytes += item * in;
}

/* A unit's outputs that have adapters. */
static double adapted_outputs(const struct ot_lora_unit *lora) {
    double adapted = 0;
    for (int i = 0; i < lora->n; i++)
        adapted += (double)lora->maps[i].out;
    return adapted;
}

/* Elements that DoRA's passes over u read and write: forward, and backward. The residual that forward adds is
 * counted with the layer. out: the unit's outputs. train: with dropout. */
static double dora_forward_elems(const struct ot_lora_unit *lora, double out, bool train) {
    if (train && ot_lora_doubles(lora)) /* u, and y before and after */
        return 3 * out;
    return lora->dora ? 2 * out : 0;
}

static double dora_backward_elems(const struct ot_lora_unit *lora, double out) {
    return lora->dora ? 2 * out + adapted_outputs(lora) : 0; /* of the others u is not read */
}

/* Each adapted weight is read twice: by its product with A, which is as thin as the adapters' products, and
 * for its norm. The results of the products are fp32. */
static void dora_factors_work(const struct ot_lora_unit *lora, double in, double item,
                              struct ot_block_work *out) {
    for (int i = 0; lora->dora && i < lora->n; i++) {
        double rank = (double)lora->maps[i].rank, width = (double)lora->maps[i].out;
        out->product_flops += 2 * rank * in * (width + rank);
        out->moved_bytes += item * 2 * in * width + sizeof(float) * rank * (2 * width + rank);
    }
}

/* ---- adapters of a layer ---- */

/* The sizes of a layer's MLP, or of the experts of a token. */
struct mlp_sizes {
    double experts, rows; /* experts 0: one MLP; rows of the inner activation for each token */
    double ffn, elems;    /* elems: outputs of gate and up in a row */
};

static struct mlp_sizes mlp_sizes(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    if (!ot_model_layer_has_experts(c, layer))
        return (struct mlp_sizes){0, 1, (double)c->ffn, (double)model->inner_elems};
    return (struct mlp_sizes){(double)c->n_experts, (double)c->top_experts, (double)c->expert_ffn,
                              2 * (double)c->expert_ffn};
}

/* A unit of linear maps. */
struct unit {
    const struct ot_lora_unit *lora;
    double in, out, rows; /* rows: for each token */
};
enum { UNITS = 7, QKV = 0, O, CROSS_Q, CROSS_KV, CROSS_O, GATE_UP, DOWN };

static void layer_units(const struct ot_model *model, int64_t layer, struct unit units[UNITS]) {
    const struct ot_layer_layout *at = &model->layers[layer];
    const struct mlp_sizes mlp = mlp_sizes(model, layer);
    double h = (double)model->config.hidden, q = (double)model->q_elems;
    units[QKV] = (struct unit){&at->qkv_lora, h, (double)model->qkv_elems, 1};
    units[O] = (struct unit){&at->o_lora, q, h, 1};
    units[CROSS_Q] = (struct unit){&at->cross_q_lora, h, q, 1};
    units[CROSS_KV] = (struct unit){&at->cross_kv_lora, h, 2 * q, 1}; /* of inputs: as many as targets */
    units[CROSS_O] = (struct unit){&at->cross_o_lora, q, h, 1};
    units[GATE_UP] = (struct unit){&at->gate_up_lora, h, mlp.elems, mlp.rows};
    units[DOWN] = (struct unit){&at->down_lora, mlp.ffn, h, mlp.rows};
}

/* Recomputation needs the last projection's result only for the norm behind it, or for the gradient of a
 * router, and the attention projection's only if the MLP reads it. */
static bool is_result_needed(const struct ot_model *model, int64_t layer, int unit) {
    const struct ot_model_config *c = &model->config;
    return unit == DOWN ? ot_model_has_norms_after(c) || ot_model_layer_has_experts(c, layer)
           : unit == O  ? c->residual == OT_SEQUENTIAL
                        : true;
}

/* The computations that a kind of work (enum ot_work_kind) makes with a unit. */
struct unit_steps {
    bool product; /* computes its product, ax, and with DoRA u and the factors */
    bool result;  /* computes its result y */
};

/* from_u: the result is made of u. */
static struct unit_steps unit_steps(bool is_needed, int unit, bool from_u, enum ot_work_kind kind,
                                    enum ot_keep_level level, bool qkv_kept) {
    if (kind == OT_WORK_FORWARD || (kind == OT_WORK_KEYS && unit == QKV))
        return (struct unit_steps){true, true};
    if (kind != OT_WORK_RECOMPUTE || level == OT_KEEP_ALL)
        return (struct unit_steps){false, false};
    bool kept = unit == QKV ? qkv_kept : level >= OT_KEEP_PRODUCTS;
    return (struct unit_steps){!kept, is_needed && (!kept || from_u)};
}

/* Adds the memory of a unit's adapters for a row. item: bytes of an element. */
static void unit_lora_work(const struct unit *unit, struct unit_steps does, enum ot_work_kind kind,
                           double item, struct ot_block_work *out) {
    bool doubles = ot_lora_doubles(unit->lora);
    if (kind == OT_WORK_BACKWARD) {
        lora_backward_work(unit->lora, unit->in, item, out);
        out->moved_bytes += item * dora_backward_elems(unit->lora, unit->out);
        out->product_flops += doubles ? 2 * unit->in * unit->out : 0;
    }
    if (does.product && (does.result || unit->lora->dora))
        lora_forward_work(unit->lora, unit->in, item, item, true, out);
    else if (does.product)
        lora_ax_work(unit->lora, unit->in, item, true, out);
    if (does.result)
        out->moved_bytes += item * dora_forward_elems(unit->lora, unit->out, true);
    if (does.product && doubles) /* W dropout(x) */
        out->product_flops += 2 * unit->in * unit->out;
    else if (does.product && !does.result && unit->lora->dora) /* without DoRA, backward does not need it */
        out->product_flops += 2 * unit->in * unit->out;
}

/* Adds the adapters' work for n tokens to the layer's work. */
static void layer_lora_work(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                            enum ot_keep_level level, bool qkv_kept, double n, struct ot_block_work *out) {
    double item = (double)ot_dtype_bytes(model->chain.dtype);
    bool experts = ot_model_layer_has_experts(&model->config, layer);
    struct unit units[UNITS];
    layer_units(model, layer, units);
    for (int i = 0; i < UNITS; i++) {
        struct ot_block_work row = {0};
        bool is_needed = is_result_needed(model, layer, i);
        bool from_u = ot_layer_makes_from_u(model, units[i].lora);
        const struct unit_steps does = unit_steps(is_needed, i, from_u, kind, level, qkv_kept);
        unit_lora_work(&units[i], does, kind, item, &row);
        out->product_flops += n * units[i].rows * row.product_flops;
        out->group_flops += i >= GATE_UP && experts ? n * units[i].rows * row.product_flops : 0;
        out->moved_bytes += n * units[i].rows * row.moved_bytes;
        if (does.product)
            dora_factors_work(units[i].lora, units[i].in, item, out);
    }
}

/* ---- layers ---- */

/* The product of a router of few experts takes as long as its arrays take to be moved. */
enum { THIN = 16 };

/* Elements that the ops of experts move for a token, besides the activation. */
static double expert_elems(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                           enum ot_keep_level level) {
    const struct mlp_sizes m = mlp_sizes(model, layer);
    double h = (double)model->config.hidden, gather = 2 * m.rows * h;
    double product = m.experts <= THIN ? h + m.experts : 0, route = product + m.experts;
    if (m.experts == 0 || kind == OT_WORK_KEYS || (kind == OT_WORK_RECOMPUTE && level == OT_KEEP_ALL))
        return 0;
    if (kind == OT_WORK_FORWARD) /* combine adds mid */
        return route + gather + m.rows * h + 2 * h + (model->regular.balance > 0 ? m.experts : 0);
    if (kind == OT_WORK_RECOMPUTE)
        return gather + (level < OT_KEEP_PRODUCTS ? route : 0);
    const struct ot_layer_layout *at = &model->layers[layer];
    /* The ones, and the rows that they add. */
    double bias = (has_gradient(model, 1 + layer, at->router_bias) ? m.experts : 0) +
                  (has_gradient(model, 1 + layer, at->expert_gate_up_bias) ? m.rows * (3 + m.elems) : 0) +
                  (has_gradient(model, 1 + layer, at->expert_down_bias) ? m.rows * (3 + h) : 0);
    /* combine_backward; router_backward; the products of the router's gradients; the sum over packed rows */
    return 3 * m.rows * h + 2 * m.experts + product + bias +
           (has_gradient(model, 1 + layer, at->router) ? product : 0) + m.rows * h + 2 * h;
}

/* Elements of the compute dtype per token that each of a layer's elementwise ops and norms reads and writes.
 * */
struct layer_elems {
    double norm1, norm2; /* before attention and before the MLP; 0: there is none, or it is the other */
    double norm_again;   /* norm1 once more in backward */
    double after;        /* a norm behind attention or MLP, and the sum behind that; 0: there is none */
    double heads;        /* norms of q and k */
    double rope, act;
};

static struct layer_elems layer_elems(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    double h = (double)c->hidden, norm = ot_model_has_norms_before(c) ? 2 * h : 0;
    double turned = (double)((c->n_heads + c->n_kv_heads) * c->rotary_dim);
    const struct mlp_sizes mlp = mlp_sizes(model, layer);
    bool one = c->residual == OT_PARALLEL, head_norms = c->qk_norm != OT_QK_NORM_NONE;
    return (struct layer_elems){
        .norm1 = norm,
        .norm2 = one ? 0 : norm,
        .norm_again = ot_layer_keeps_normed(c) ? 0 : norm,
        .after = ot_model_has_norms_after(c) ? 2 * h + 3 * h : 0,
        .heads = head_norms ? 2 * (double)(model->q_elems + model->kv_elems) : 0,
        .rope = ot_model_layer_rotates(c, layer) ? 2 * turned : 0,
        .act = (c->plain_mlp ? 2 : 3) * mlp.rows * mlp.ffn,
    };
}

static double forward_elems(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    const struct layer_elems e = layer_elems(model, layer);
    /* The products read the residuals, to add them: x and mid. With parallel branches, the second one adds to
     * its own result; DoRA's pass reads that too. */
    bool parallel = c->residual != OT_SEQUENTIAL, again = !parallel || model->layers[layer].down_lora.dora;
    again = again && !ot_model_layer_has_experts(c, layer); /* expert_elems counts it */
    double residuals = e.after > 0 ? 2 * e.after : (again ? 2 : 1) * (double)c->hidden;
    return e.norm1 + e.heads + e.rope + residuals + e.norm2 + e.act;
}

static double backward_elems(const struct ot_model *model, int64_t layer) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    const struct layer_elems e = layer_elems(model, layer);
    int64_t block = 1 + layer;
    double h = (double)c->hidden;
    double branches = e.norm1 == 0 ? 2 * 3 * h : c->residual == OT_PARALLEL ? (3 + 4) * h : 2 * 4 * h;
    const struct mlp_sizes mlp = mlp_sizes(model, layer);
    double act = (c->plain_mlp ? 3 : 5) * mlp.rows * mlp.ffn;
    double bias = (has_gradient(model, block, at->down_bias) ? h : 0) +
                  (has_gradient(model, block, at->gate_up_bias) ? (double)model->inner_elems : 0) +
                  (has_gradient(model, block, at->o_bias) ? h : 0) +
                  (has_gradient(model, block, at->qkv_bias) ? (double)model->qkv_elems : 0);
    return branches + (e.after > 0 ? 2 * 3 * h : 0) + act + e.rope + 1.5 * e.heads + bias;
}

static double recompute_elems(const struct ot_model *model, int64_t layer, enum ot_keep_level level,
                              bool qkv_kept) {
    const struct ot_model_config *c = &model->config;
    const struct ot_layer_layout *at = &model->layers[layer];
    const struct layer_elems e = layer_elems(model, layer);
    if (level == OT_KEEP_ALL)
        return 0;
    /* A result that is made again of u: norms of q and k and rope; the residual. */
    double qkv = !qkv_kept || ot_layer_makes_from_u(model, &at->qkv_lora) ? e.heads + e.rope : 0;
    qkv += !qkv_kept || c->residual == OT_PARALLEL ? e.norm1 : 0;
    bool reads_residual = c->residual == OT_SEQUENTIAL &&
                          (level < OT_KEEP_PRODUCTS || ot_layer_makes_from_u(model, &at->o_lora));
    double mid = e.after > 0 ? e.after : reads_residual ? (double)c->hidden : 0;
    double down = e.after > 0 && level < OT_KEEP_PRODUCTS ? 2 * (double)c->hidden : 0;
    return qkv + mid + e.norm2 + e.act + down + e.norm_again;
}

/* The keys and values of a section are copied to those of the sequence. */
static double keys_elems(const struct ot_model *model, int64_t layer) {
    const struct layer_elems e = layer_elems(model, layer);
    return e.norm1 + e.heads + e.rope + 4 * (double)model->kv_elems;
}

static double moved_elems(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                          enum ot_keep_level level, bool qkv_kept) {
    double experts = expert_elems(model, layer, kind, level);
    return experts + (kind == OT_WORK_FORWARD    ? forward_elems(model, layer)
                      : kind == OT_WORK_BACKWARD ? backward_elems(model, layer)
                      : kind == OT_WORK_KEYS     ? keys_elems(model, layer)
                                                 : recompute_elems(model, layer, level, qkv_kept));
}

/* FLOPs for a token: of the MLP's products, or of experts'. */
static double mlp_flops(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                        enum ot_keep_level level) {
    const struct ot_layer_layout *at = &model->layers[layer];
    const struct ot_model_config *c = &model->config;
    const struct mlp_sizes mlp = mlp_sizes(model, layer);
    bool experts = mlp.experts > 0;
    double down = (double)c->hidden * mlp.rows * mlp.ffn, gate_up = (double)c->hidden * mlp.rows * mlp.elems;
    bool gate_up_grad = has_gradient(model, 1 + layer, experts ? at->expert_gate_up : at->gate_up);
    bool down_grad = has_gradient(model, 1 + layer, experts ? at->expert_down : at->down);
    switch (kind) {
    case OT_WORK_FORWARD:
        return 2 * (gate_up + down);
    case OT_WORK_BACKWARD:
        return 2 * (gate_up + down) + (gate_up_grad ? 2 * gate_up : 0) + (down_grad ? 2 * down : 0);
    case OT_WORK_RECOMPUTE: /* everything whose result is needed */
        return level < OT_KEEP_PRODUCTS ? 2 * (gate_up + (is_result_needed(model, layer, DOWN) ? down : 0))
                                        : 0;
    case OT_WORK_KEYS:
    case OT_WORK_CLEAR: /* chain.c */
        break;
    }
    return 0;
}

/* FLOPs for a token. attention: of one of attention's products. */
static void layer_flops(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                        enum ot_keep_level level, bool qkv_kept, double attention,
                        struct ot_block_work *out) {
    const struct ot_layer_layout *at = &model->layers[layer];
    int64_t block = 1 + layer;
    const struct ot_model_config *c = &model->config;
    const struct mlp_sizes sizes = mlp_sizes(model, layer);
    double h = (double)c->hidden, router = h * sizes.experts, mlp = mlp_flops(model, layer, kind, level);
    double qkv = h * (double)model->qkv_elems, o = h * (double)model->q_elems;
    out->group_flops = sizes.experts > 0 ? mlp : 0;
    switch (kind) {
    case OT_WORK_FORWARD: /* q.k and p.v */
        out->product_flops = 2 * (qkv + o + router) + mlp;
        out->attention_flops = 2 * attention;
        break;
    case OT_WORK_BACKWARD: /* the scores once more, and the gradients of p, v, q, k */
        out->product_flops = 2 * (qkv + o + router) + mlp;
        out->product_flops += has_gradient(model, block, at->router) ? 2 * router : 0;
        out->product_flops += has_gradient(model, block, at->qkv) ? 2 * qkv : 0;
        out->product_flops += has_gradient(model, block, at->o) ? 2 * o : 0;
        out->attention_flops = 5 * attention;
        break;
    case OT_WORK_RECOMPUTE: /* everything whose result is needed */
        if (level < OT_KEEP_PRODUCTS)
            out->product_flops =
                2 * ((qkv_kept ? 0 : qkv) + router + (is_result_needed(model, layer, O) ? o : 0)) + mlp;
        out->attention_flops = level < OT_KEEP_ATTENTION ? 2 * attention : 0;
        break;
    case OT_WORK_KEYS:
        out->product_flops = 2 * qkv;
        break;
    case OT_WORK_CLEAR: /* chain.c */
        break;
    }
}

/* The work of a layer without cross attention. keys: that a query sees. */
static void layer_work(const struct ot_model *model, int64_t layer, enum ot_work_kind kind,
                       enum ot_keep_level level, double n, double keys, struct ot_block_work *out) {
    bool qkv_kept = level >= ot_layer_qkv_level(model, layer);
    /* One product of attention takes 2 FLOPs for each query, each key that it attends to, and each
     * element. */
    double attention = 2 * (double)model->q_elems * keys;
    layer_flops(model, layer, kind, level, qkv_kept, attention, out);
    out->moved_bytes =
        (double)ot_dtype_bytes(model->chain.dtype) * moved_elems(model, layer, kind, level, qkv_kept);
    out->product_flops *= n;
    out->group_flops *= n;
    out->attention_flops *= n;
    out->moved_bytes *= n;
    layer_lora_work(model, layer, kind, level, qkv_kept, n, out);
}

void ot_layer_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                   int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    double window = (double)ot_model_layer_window(&model->config, block - 1);
    double keys = ot_model_mean_keys((double)row_tokens, window);
    layer_work(model, block - 1, kind, level, (double)n_tokens, keys, out);
}

/* ---- layers of an encoder-decoder ---- */

/* Keys that a query of the layer sees, in rows of row_tokens tokens. An encoder sees all inputs; a decoder
 * the targets before, and all inputs. */
static double pair_keys(const struct ot_model *model, int64_t layer, double row_tokens) {
    double part = row_tokens * model->layer_kind->share;
    return ot_layer_has_cross(&model->layers[layer]) ? ot_model_mean_keys(part, 0) + part : part;
}

/* Adds the products of cross attention's maps: q and o of a target, k and v of an input. */
static void cross_flops(const struct ot_model *model, int64_t layer, enum ot_work_kind kind, double n,
                        struct ot_block_work *out) {
    const struct ot_layer_layout *at = &model->layers[layer];
    const struct ot_place maps[] = {at->cross_q, at->cross_kv, at->cross_kv, at->cross_o};
    double each = 2 * (double)model->config.hidden * (double)model->q_elems;
    for (int i = 0; i < 4; i++) {
        bool grad = kind == OT_WORK_BACKWARD && has_gradient(model, 1 + layer, maps[i]);
        out->product_flops += n * each * (grad ? 2 : 1);
    }
}

/* A layer keeps no more at level `all` than at `products`, so backward computes the rest again at each.
 * Tokens that are not the layer's own are copied. Cross attention has two norms, of its queries and of the
 * encoder's result, and a residual. */
void ot_encdec_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                    int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    int64_t layer = block - 1;
    double n = (double)n_tokens * model->layer_kind->share,
           keys = pair_keys(model, layer, (double)row_tokens);
    double cross = ot_layer_has_cross(&model->layers[layer]) ? 1 : 0, elems = 0;
    struct ot_block_work always;
    level = ot_layer_kept(model, level);
    layer_work(model, layer, kind, level, n, keys, out);
    layer_work(model, layer, OT_WORK_RECOMPUTE, OT_KEEP_PRODUCTS, n, keys, &always);
    if (kind == OT_WORK_FORWARD) {
        elems = 2 + cross * (2 * 2 + 1);
    } else if (kind == OT_WORK_BACKWARD) {
        elems = cross * 2 * (2 + 4);
        out->moved_bytes += always.moved_bytes;
    } else {
        elems = level < OT_KEEP_PRODUCTS ? cross * (2 * 2 + 1) : 0;
        out->moved_bytes -= always.moved_bytes;
    }
    out->moved_bytes += n * (double)ot_dtype_bytes(model->chain.dtype) * elems * (double)model->config.hidden;
    if (cross > 0 && (kind != OT_WORK_RECOMPUTE || level < OT_KEEP_PRODUCTS))
        cross_flops(model, layer, kind, n, out);
}

/* ---- embedding and head ---- */

/* For a token: the look-up of ax, and its product with B. */
static void embed_lora_work(const struct ot_lora_unit *lora, double h, double item, bool backward,
                            struct ot_block_work *out) {
    double rank = (double)lora->rank;
    if (lora->n == 0)
        return;
    out->moved_bytes += item * 2 * rank;
    if (!backward) {
        out->product_flops += 2 * rank * h;
        out->moved_bytes += item * (rank + 2 * h);
        return;
    }
    out->product_flops += 4 * rank * h; /* dax, and the gradient of B */
    out->moved_bytes += item * 2 * (h + rank);
    out->moved_bytes += rank * (item + 2 * sizeof(float)); /* dax is added to rows of A */
}

/* The work for a token before the norm. */
static void embed_sum_work(const struct ot_model *model, double item, struct ot_block_work *out) {
    double h = (double)model->config.hidden;
    out->moved_bytes += h * (model->regular.neftune > 0 ? 4 : 2) * item;
    if (model->config.positions == OT_POSITIONS_LEARNED)
        out->moved_bytes += h * (2 + 3) * item;
    embed_lora_work(&model->embed.lora, h, item, false, out);
}

/* Forward reads and writes rows of tables. Backward reads one row and adds it to an fp32 row of the table's
 * gradient. */
void ot_embed_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                   int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    double h = (double)model->config.hidden, item = (double)ot_dtype_bytes(model->chain.dtype);
    double added = h * (item + 2 * sizeof(float));
    bool norm = model->config.embed_norm, backward = kind == OT_WORK_BACKWARD;
    (void)block;
    (void)level;
    (void)row_tokens;
    if (kind == OT_WORK_FORWARD || (backward && norm))
        embed_sum_work(model, item, out);
    if (norm && (kind == OT_WORK_FORWARD || backward))
        out->moved_bytes += h * (backward ? 2 + 3 : 2) * item;
    if (backward) {
        out->moved_bytes +=
            model->embed.lora.n == 0 && has_gradient(model, 0, model->embed.table) ? added : 0;
        out->moved_bytes += has_gradient(model, 0, model->embed.positions) ? added : 0;
        embed_lora_work(&model->embed.lora, h, item, true, out);
    }
    out->product_flops *= (double)n_tokens;
    out->moved_bytes *= (double)n_tokens;
}

/* The head's backward includes its forward. Cross-entropy reads the fp32 logits once for the loss, twice
 * where it also computes the gradient, and writes that in the compute dtype. */
void ot_head_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                  int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    const struct ot_model_config *c = &model->config;
    double share = model->layer_kind->share, n = (double)n_tokens * share;
    double h = (double)c->hidden, vocab = (double)c->vocab;
    double item = (double)ot_dtype_bytes(model->chain.dtype), norm = 2 * h * item;
    const struct ot_lora_unit *lora = &model->head.lora;
    bool train = kind == OT_WORK_BACKWARD, doubles = train && ot_lora_doubles(lora);
    (void)level;
    (void)row_tokens;
    if (kind == OT_WORK_FORWARD || kind == OT_WORK_BACKWARD) {
        out->product_flops = 2 * h * vocab * (doubles ? 2 : 1);
        out->moved_bytes = norm + vocab * sizeof(float);
        lora_forward_work(lora, h, item, sizeof(float), train, out);
        out->moved_bytes += sizeof(float) * dora_forward_elems(lora, vocab, train);
    }
    if (model->head.new_rows.use != OT_ABSENT && (kind == OT_WORK_FORWARD || train))
        out->product_flops += (train ? 6 : 2) * h * (double)c->n_new;
    if (kind == OT_WORK_BACKWARD) {
        bool trained = has_gradient(model, block, model->head.projection);
        out->product_flops += ((trained ? 4 : 2) + (doubles ? 2 : 0)) * h * vocab;
        out->moved_bytes += 3 * h * item + vocab * (sizeof(float) + item);
        if (has_gradient(model, block, model->head.bias))
            out->moved_bytes += vocab * item;
        lora_backward_work(lora, h, item, out);
        /* dlogits twice, and u; to double, dlogits once more */
        out->moved_bytes += lora->dora ? vocab * ((doubles ? 3 : 2) * item + sizeof(float)) : 0;
    }
    out->product_flops *= n;
    out->moved_bytes *= n;
    if (kind == OT_WORK_RECOMPUTE)
        return;
    dora_factors_work(lora, h, item, out);
    /* Zeros for the tokens without logits: losses, and gradients. */
    out->moved_bytes += (double)n_tokens * (1 - share) * (sizeof(float) + (train ? h * item : 0));
}

/* ---- a whole encoder-decoder, for MFU ---- */

/* FLOPs of the adapters of a unit: 6 for each parameter of A, B and DoRA's magnitudes. */
static double adapter_flops(const struct ot_lora_unit *lora, double in) {
    double params = (double)lora->rank * in;
    for (int i = 0; i < lora->n; i++)
        params += (double)((lora->maps[i].rank + lora->dora) * lora->maps[i].out);
    return 6 * params;
}

/* FLOPs of an average token. */
double ot_encdec_flops_per_token(const struct ot_model *model, double mean_row_tokens) {
    const struct ot_model_config *c = &model->config;
    int head = model->chain.n_blocks - 1;
    double h = (double)c->hidden, vocab = (double)c->vocab;
    double flops = (has_gradient(model, head, model->head.projection) ? 6 : 4) * vocab * h;
    flops += adapter_flops(&model->head.lora, h);
    for (int64_t l = 0; l < c->n_layers; l++) {
        struct unit units[UNITS];
        struct ot_block_work work = {0};
        layer_units(model, l, units);
        for (int i = 0; i < UNITS; i++)
            flops += adapter_flops(units[i].lora, units[i].in);
        for (int part = OT_WORK_FORWARD; part <= OT_WORK_BACKWARD; part++) {
            layer_flops(model, l, (enum ot_work_kind)part, OT_KEEP_ALL, true, 0, &work);
            if (ot_layer_has_cross(&model->layers[l]))
                cross_flops(model, l, (enum ot_work_kind)part, 1, &work);
            flops += work.product_flops;
        }
        flops += 12 * (double)model->q_elems * pair_keys(model, l, mean_row_tokens);
    }
    return model->layer_kind->share * flops;
}
