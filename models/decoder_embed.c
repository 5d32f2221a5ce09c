/* The first block of the chain: the embedding.
 *
 *     y = scale (E[token] + adapter) (+ noise) + P[position],   or the norm or dropout of that
 *
 * Rows of new tokens (lora.h) take the place of those of E.
 * The table P of learned positions, the scale and the norm are there if the model has them (config.h).
 * Backward of a norm reads its input, which it computes again. */
#include "models/dropout.h"
#include "models/kinds.h"
#include "models/linear.h"
#include "models/norm.h"
#include "src/base/random.h"

/* Buffers in scratch, for n tokens; those that a model does not need have no bytes. */
struct embed_memory {
    struct ot_lora_unit lora; /* the adapter; its scale includes the embedding's */
    void *ax, *dax;           /* of the adapter: [n, rank] */
    void *positions;          /* [n, hidden] */
    void *sum;                /* with a norm, [n, hidden]: its input */
    void *grad;               /* [n, hidden]: the gradient of the sum; before, the norm's output */
    struct ot_norm_memory stats;
};

/* transformers rounds the scale to the dtype of the weights. */
static float embed_scale(const struct ot_model *model) {
    uint32_t rounded;
    if (model->config.embed_scale == 0)
        return 1;
    ot_dtype_write(model->chain.dtype, &rounded, 0, (float)model->config.embed_scale);
    return ot_dtype_read(model->chain.dtype, &rounded, 0);
}

static size_t find_memory(const struct ot_model *model, int64_t n_tokens, void *scratch,
                          struct embed_memory *memory) {
    const struct ot_model_config *c = &model->config;
    size_t item = ot_dtype_bytes(model->chain.dtype), n = (size_t)n_tokens;
    size_t width = n * (size_t)c->hidden * item, rank = n * (size_t)model->embed.lora.rank * item;
    bool mean = c->embed_norm && c->norm == OT_NORM_LAYER;
    struct ot_pieces pieces = {.base = scratch};
    memory->lora = model->embed.lora;
    memory->lora.maps[0].scale *= embed_scale(model);
    memory->ax = ot_pieces_take(&pieces, rank);
    memory->dax = ot_pieces_take(&pieces, rank);
    memory->positions = ot_pieces_take(&pieces, c->positions == OT_POSITIONS_LEARNED ? width : 0);
    memory->sum = ot_pieces_take(&pieces, c->embed_norm ? width : 0);
    bool grad = c->embed_norm || ot_drop_share_of(model, OT_DROP_EMBED) > 0;
    memory->grad = ot_pieces_take(&pieces, grad ? width : 0);
    memory->stats.mean = ot_pieces_take(&pieces, mean ? n * sizeof(float) : 0);
    memory->stats.rstd = ot_pieces_take(&pieces, c->embed_norm ? n * sizeof(float) : 0);
    return pieces.bytes;
}

/* At every level: the embedding has no inner activations. */
static struct ot_block_bytes bytes(const struct ot_model *model, int block, enum ot_keep_level level,
                                   int64_t n_tokens) {
    struct embed_memory memory;
    (void)block;
    (void)level;
    return (struct ot_block_bytes){.scratch = find_memory(model, n_tokens, NULL, &memory)};
}

/* ---- tables ---- */

/* A table whose rows are looked up by a number of each token. */
struct table {
    struct ot_place place;
    const int32_t *rows;
    int64_t n_rows, cols;
    float scale;
    bool partial; /* it has rows of the numbers [first, first + n_rows) alone */
    int64_t first;
};

static struct table token_table(const struct ot_model *model, const struct ot_block_run *run) {
    return (struct table){model->embed.table, run->batch.tokens, model->config.vocab, model->config.hidden,
                          .scale = embed_scale(model)};
}

static struct table new_table(const struct ot_model *model, const struct ot_block_run *run) {
    struct table table = token_table(model, run);
    table.place = model->embed.new_rows;
    table.n_rows = model->config.n_new;
    table.partial = true;
    table.first = model->config.first_new;
    return table;
}

static struct table position_table(const struct ot_model *model, const struct ot_block_run *run) {
    return (struct table){model->embed.positions, run->batch.position, model->config.max_position,
                          model->config.hidden, .scale = 1};
}

/* The adapter's A. */
static struct table adapter_table(const struct ot_model *model, const struct ot_block_run *run,
                                  const struct embed_memory *memory) {
    const struct ot_lora_unit *lora = &memory->lora;
    return (struct table){lora->a, run->batch.tokens, model->config.vocab, lora->rank,
                          .scale = lora->maps[0].scale};
}

static void look_up(const struct ot_block_run *run, const struct table *table, void *out) {
    const struct ot_embed op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = table->cols,
        .vocab = table->n_rows,
        .tokens = table->rows,                     /* [n] */
        .table = ot_run_weight(run, table->place), /* [n_rows, cols] */
        .out = out,                                /* [n, cols] */
        .scale = table->scale,
        .partial = table->partial,
        .first = table->first,
    };
    ot_run_ops(run)->embed(run->lane, &op);
}

/* Adds the gradients of the tokens to the rows of a table, if it is trained. */
static void look_up_backward(const struct ot_block_run *run, const struct table *table, float scale,
                             const void *dout) {
    const struct ot_embed_backward op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = table->cols,
        .vocab = table->n_rows,
        .tokens = table->rows,
        .dout = dout,                             /* [n, cols] */
        .dtable = ot_run_grad(run, table->place), /* [n_rows, cols] */
        .scale = scale,
        .partial = table->partial,
        .first = table->first,
    };
    if (op.dtable)
        ot_run_ops(run)->embed_backward(run->lane, &op);
}

/* ---- the block ---- */

/* The adapter as a linear map from ax, which is looked up. */
static struct ot_linear adapter(const struct ot_model *model, const struct ot_block_run *run,
                                const struct embed_memory *memory) {
    const struct table a = adapter_table(model, run, memory);
    look_up(run, &a, memory->ax);
    return (struct ot_linear){.rows = run->batch.n_tokens,
                              .out = model->config.hidden,
                              .adds = true,
                              .lora = &memory->lora,
                              .ax = memory->ax,
                              .dax = memory->dax};
}

/* Adds the noise of NEFTune. transformers scales Granite's embedding, and the noise with it. */
static void add_noise(const struct ot_model *model, const struct ot_block_run *run, void *out) {
    const struct ot_model_config *c = &model->config;
    float alpha = ot_run_regular(model, run).neftune;
    const struct ot_neftune op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = c->hidden,
        .alpha = c->family == OT_FAMILY_GRANITE ? alpha * embed_scale(model) : alpha,
        .noise = ot_state_noise(run->random.seed, ot_random_stream(OT_RANDOM_REGULAR, run->random.stream, 0)),
        .row_start = run->batch.row_start, /* [n] */
        .x = out,                          /* [n, hidden] */
    };
    if (alpha > 0)
        ot_run_ops(run)->neftune(run->lane, &op);
}

static struct ot_drop_rows drop_rows(const struct ot_model *model, const struct ot_block_run *run) {
    return (struct ot_drop_rows){OT_DROP_EMBED, 0, 0, run->batch.n_tokens, model->config.hidden};
}

/* out = everything before the norm. */
static void sum_up(const struct ot_model *model, const struct ot_block_run *run,
                   const struct embed_memory *memory, void *out) {
    const struct table tokens = token_table(model, run), positions = position_table(model, run);
    const struct ot_drop_rows drops = drop_rows(model, run);
    look_up(run, &tokens, out);
    if (model->embed.new_rows.use != OT_ABSENT) {
        const struct table new = new_table(model, run);
        look_up(run, &new, out);
    }
    if (model->embed.lora.n > 0) {
        const struct ot_linear map = adapter(model, run, memory);
        ot_linear_add_adapters(run, &map, run->dtype, out);
    }
    add_noise(model, run, out);
    if (model->config.positions == OT_POSITIONS_LEARNED)
        look_up(run, &positions, memory->positions);
    const struct ot_add op = {.dtype = run->dtype,
                              .n = run->batch.n_tokens * model->config.hidden,
                              .a = out,               /* [n, hidden] */
                              .b = memory->positions, /* [n, hidden] */
                              .out = out};
    if (model->config.positions == OT_POSITIONS_LEARNED)
        ot_run_ops(run)->add(run->lane, &op);
    ot_drop(model, run, &drops, out, NULL, out);
}

static void norm(const struct ot_model *model, const struct ot_block_run *run,
                 const struct embed_memory *memory, void *y) {
    ot_model_norm(model, run, &model->embed.norm, run->batch.n_tokens, memory->sum, y, memory->stats);
}

/* memory.grad = the gradient of the norm's input. */
static void norm_backward(const struct ot_model *model, const struct ot_block_run *run,
                          const struct embed_memory *memory) {
    sum_up(model, run, memory, memory->sum);
    norm(model, run, memory, memory->grad);
    ot_model_norm_backward(model, run, &model->embed.norm, run->batch.n_tokens, memory->sum, memory->stats,
                           run->dxy, NULL, memory->grad);
}

static void forward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    struct embed_memory memory;
    (void)block;
    find_memory(model, run->batch.n_tokens, run->scratch, &memory);
    sum_up(model, run, &memory, model->config.embed_norm ? memory.sum : run->y);
    if (model->config.embed_norm)
        norm(model, run, &memory, run->y);
    if (model->chain.boundary_tail_bytes > 0)
        ot_lane_fill(run->lane, ot_run_tail(model, run, run->y).counts, 0, model->chain.boundary_tail_bytes);
}

/* The run trains the table or its adapter, never both. */
static void backward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    const struct table tokens = token_table(model, run), positions = position_table(model, run);
    const struct ot_drop_rows drops = drop_rows(model, run);
    const void *grad = run->dxy;
    struct embed_memory memory;
    (void)block;
    find_memory(model, run->batch.n_tokens, run->scratch, &memory);
    if (model->config.embed_norm) {
        norm_backward(model, run, &memory);
        grad = memory.grad;
    }
    if (ot_drop(model, run, &drops, grad, NULL, memory.grad))
        grad = memory.grad;
    if (model->config.positions == OT_POSITIONS_LEARNED)
        look_up_backward(run, &positions, 1, grad);
    if (model->embed.new_rows.use != OT_ABSENT) {
        const struct table new = new_table(model, run);
        look_up_backward(run, &new, new.scale, grad);
    }
    if (model->embed.lora.n == 0) {
        look_up_backward(run, &tokens, tokens.scale, grad);
        return;
    }
    const struct table a = adapter_table(model, run, &memory);
    const struct ot_linear map = adapter(model, run, &memory);
    ot_linear_backward_b(run, &map, grad, map.out);
    look_up_backward(run, &a, 1, memory.dax);
}

const struct ot_block_kind OT_EMBED_BLOCK = {bytes, forward, backward, NULL, ot_embed_work};
