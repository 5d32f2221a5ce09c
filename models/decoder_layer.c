/* A transformer layer. config.h has the forms of a layer:
 *
 *     before       mid = x + attention(n1(x)),       y = mid + mlp(n2(mid))
 *     after        mid = x + p1(attention(x)),       y = mid + p2(mlp(mid))
 *     around       mid = x + p1(attention(n1(x))),   y = mid + p2(mlp(n2(mid)))
 *     parallel     y = (x + attention(n1(x))) + mlp(n2(x))
 *
 * Without norms behind attention and MLP, the product that ends the right side of a sum also adds the left
 * side, in fp32, and rounds once. For a token and element of `hidden` in bf16, mid and norm2 then move 8
 * bytes (with the sum in the norm: 10), and y moves 4 (with a sum of its own: 8).
 *
 * A layer works through the micro-batch in chunks of its tokens, in order (layer_memory.h, CHUNKS). Forward
 * computes q, k and v of each chunk, then attention of all tokens, then the rest of each chunk. Backward
 * computes the gradients of each chunk down to attention's output, then those of attention for all tokens,
 * then the rest of each chunk. A micro-batch of one chunk takes the same ops in the same order as if there
 * were no chunks. The cut is the same on every machine, so it changes no bits from plan to plan.
 *
 * The phases of a section in key groups (offload/block.h) are these steps, each in a call of its own;
 * attention then is of the heads of one group.
 *
 * layer_memory.h says what forward keeps for backward. */
#include "models/layer.h"

/* ---- forward ---- */

/* The buffer of mid. With parallel branches it is y, where the MLP adds to it; but DoRA with dropout, and
 * dropout of the branch, write y before they read the residual. Between the halves of a forward
 * (offload/block.h) mid lies in `saved` if the level keeps it, else in y. */
static void *mid_of(const struct ot_layer_call *call) {
    const struct ot_layer_layout *at = call->at;
    enum ot_keep_level keeps_mid = ot_lora_from_u(&at->o_lora) ? OT_KEEP_ALL : OT_KEEP_PRODUCTS;
    if (ot_layer_is_parallel(call))
        return ot_lora_doubles(&at->down_lora) || ot_layer_drops(call, OT_DROP_MLP) ? call->memory.beside
                                                                                    : call->y;
    return call->run->half != OT_HALF_BOTH && call->kept < keeps_mid ? call->y : call->memory.mid;
}

/* Computes q, k and v of all tokens from x, as far as `have` does not keep them. */
static void qkv(const struct ot_layer_call *all, enum ot_keep_level have) {
    for (int64_t at = 0; at < all->n; at += all->model->chunk_tokens) {
        const struct ot_layer_call chunk = ot_layer_chunk(all, at);
        ot_layer_compute_qkv(&chunk, have);
    }
}

/* memory.attn of the call's heads, after their keys are handed on. */
static void attend(const struct ot_layer_call *all, enum ot_keep_level have) {
    ot_layer_hand_on_keys(all);
    ot_layer_attend(all, have);
}

/* The forward of a chunk behind attention. */
static void finish_chunk(const struct ot_layer_call *all, int64_t first) {
    struct ot_layer_call call = ot_layer_chunk(all, first);
    enum ot_half half = call.run->half;
    call.memory.mid = mid_of(&call);
    if (half != OT_HALF_REST)
        ot_layer_finish_attention(&call, OT_KEEP_NONE, true);
    if (half == OT_HALF_CHOOSE)
        call.until = OT_INPUT_GATE_UP;
    ot_layer_mlp_branch(&call, OT_KEEP_NONE);
    if (half == OT_HALF_CHOOSE) {
        ot_layer_route(&call);
        return;
    }
    ot_layer_finish(&call);
    ot_layer_hand_on_load(&call);
}

/* Runs the forward of a layer, or one half of it. The second half routes again, which costs less than keeping
 * the choice. */
static void forward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct ot_layer_call all = ot_layer_call_make(model, block, run, 0, run->batch.n_tokens);
    if (ot_layer_does(run, OT_PHASE_BEGIN) && run->half != OT_HALF_REST)
        qkv(&all, OT_KEEP_NONE);
    if (ot_layer_does(run, OT_PHASE_ATTEND) && run->half != OT_HALF_REST)
        attend(&all, OT_KEEP_NONE);
    for (int64_t at = 0; at < all.n && ot_layer_does(run, OT_PHASE_END); at += model->chunk_tokens)
        finish_chunk(&all, at);
}

static void keys(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct ot_layer_call all = ot_layer_call_make(model, block, run, 0, run->batch.n_tokens);
    if (ot_layer_does(run, OT_PHASE_BEGIN))
        qkv(&all, OT_KEEP_NONE);
    if (ot_layer_does(run, OT_PHASE_ATTEND))
        ot_layer_hand_on_keys(&all);
}

struct ot_layer_rows ot_model_layer_input(const struct ot_model *model, int block, enum ot_layer_input input,
                                          const struct ot_block_run *run) {
    struct ot_layer_call call = ot_layer_call_make(model, block, run, 0, run->batch.n_tokens);
    const struct ot_layer_memory *memory = &call.memory;
    bool of_experts = ot_model_input_is_of_experts(model, block, input);
    call.until = input;
    if (ot_layer_attention_branch(&call, OT_KEEP_NONE, false))
        ot_layer_mlp_branch(&call, OT_KEEP_NONE);
    if (of_experts && input == OT_INPUT_GATE_UP) {
        ot_layer_route(&call);
        ot_layer_gather(&call);
    }
    const void *const inputs[OT_LAYER_INPUTS] = {
        [OT_INPUT_QKV] = ot_layer_qkv_input(&call),
        [OT_INPUT_O] = memory->attn,
        [OT_INPUT_GATE_UP] = of_experts ? memory->packed : ot_layer_gate_up_input(&call),
        [OT_INPUT_DOWN] = memory->inner};
    return (struct ot_layer_rows){.x = inputs[input],
                                  .offsets = of_experts ? memory->offsets : NULL,
                                  .assignments = of_experts ? memory->assignments : NULL};
}

/* ---- backward ---- */

/* The backward of a chunk down to attention's output. */
static void begin_chunk(const struct ot_layer_call *all, int64_t first) {
    const struct ot_layer_call call = ot_layer_chunk(all, first);
    if (call.kept < OT_KEEP_ALL) {
        ot_layer_finish_attention(&call, call.kept, false);
        ot_layer_mlp_branch(&call, call.kept);
        ot_layer_recompute_down(&call, call.kept);
    }
    ot_layer_mlp_backward(&call);
    ot_layer_o_backward(&call);
}

static void backward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct ot_layer_call all = ot_layer_call_make(model, block, run, 0, run->batch.n_tokens);
    if (ot_layer_does(run, OT_PHASE_BEGIN) && all.kept < OT_KEEP_ALL)
        qkv(&all, all.kept);
    if (ot_layer_does(run, OT_PHASE_ATTEND))
        attend(&all, all.kept);
    for (int64_t at = 0; at < all.n && ot_layer_does(run, OT_PHASE_MIDDLE); at += model->chunk_tokens)
        begin_chunk(&all, at);
    if (ot_layer_does(run, OT_PHASE_ATTEND_BACK)) {
        if (run->phase == OT_PHASE_ATTEND_BACK) /* attention may have left the keys of other groups there */
            ot_layer_hand_on_keys(&all);
        ot_layer_heads_backward(&all);
    }
    if (!ot_layer_does(run, OT_PHASE_END))
        return;
    ot_layer_qk_backward(&all);
    for (int64_t at = 0; at < all.n; at += model->chunk_tokens) {
        const struct ot_layer_call chunk = ot_layer_chunk(&all, at);
        ot_layer_qkv_backward(&chunk);
    }
}

/* ---- a whole decoder, for MFU ---- */

/* FLOPs of a block's parameters for a token. A matrix or a vector takes 2 for each parameter forward, 2 for
 * the gradient of its input, and 2 for its own. */
static double params_flops(const struct ot_model *model, int block, bool backward) {
    const struct ot_model_config *c = &model->config;
    double flops = 0, share = c->n_experts > 0 ? (double)c->top_experts / (double)c->n_experts : 1;
    for (int u = 0; u < model->blocks[block].n_uses; u++) {
        const struct ot_slab_memory *slab = &model->slab_memory[model->blocks[block].uses[u].slab];
        for (int64_t i = slab->first_tensor; i < slab->first_tensor + slab->n_tensors; i++) {
            const struct ot_tensor *t = &model->tensors[i];
            /* A tied head uses only the token table; the embedding slab also holds position tables. */
            if (t->module == OT_MODULE_POSITIONS || t->module == OT_MODULE_EMBED_NORM)
                continue;
            flops += (double)(t->rows * t->cols) *
                     (2 + (backward ? 2 : 0) + (backward && t->trained ? 2 : 0)) *
                     (ot_module_is_expert(t->module) ? share : 1);
        }
    }
    return flops;
}

static bool trains(const struct ot_model *model, int block) {
    for (int u = 0; u < model->blocks[block].n_uses; u++)
        if (!model->slabs[model->blocks[block].uses[u].slab].frozen)
            return true;
    return false;
}

/* Block 0 looks its parameters up, so it computes none but B of an adapter. q.k and p.v take 2 FLOPs an
 * element each; backward takes twice as much. */
static double flops_per_token(const struct ot_model *model, double mean_row_tokens) {
    const struct ot_model_config *c = &model->config;
    double flops = 6 * (double)model->embed.lora.rank * (double)c->hidden;
    int first = 0; /* backward ends there */
    while (first < model->chain.n_blocks && !trains(model, first))
        first++;
    for (int b = 1; b < model->chain.n_blocks; b++)
        flops += params_flops(model, b, b >= first);
    for (int64_t l = 0; l < c->n_layers; l++)
        flops += (1 + l >= first ? 12 : 4) * (double)model->q_elems *
                 ot_model_mean_keys(mean_row_tokens, (double)ot_model_layer_window(c, l));
    return flops;
}

/* ---- the kind ---- */

static size_t softmax_bytes(int64_t n_tokens, int64_t heads) {
    return (size_t)(n_tokens * heads) * sizeof(float);
}

static size_t attention_bytes(const struct ot_model *model, int64_t n_tokens) {
    return ot_attention_backward_scratch_bytes(n_tokens, model->config.n_heads);
}

const struct ot_layer_kind OT_DECODER_LAYERS = {
    .block = {ot_layer_bytes, forward, backward, keys, ot_layer_work},
    .share = 1,
    .most_kept = OT_KEEP_ALL,
    .softmax_bytes = softmax_bytes,
    .attention_bytes = attention_bytes,
    .attend = ot_decoder_attend,
    .attend_backward = ot_decoder_attend_backward,
    .flops_per_token = flops_per_token,
};
