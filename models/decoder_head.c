/* The first and the last block of the chain: the embedding, and the head (final norm, output projection,
 * loss).
 *
 * The head works on chunks of tokens, so that the logits of a whole micro-batch never exist at once. In
 * backward, cross-entropy overwrites a chunk's logits with their gradient; both backward products then use it
 * before the next chunk begins. With DoRA (lora.h) a piece of u, in fp32, lies beside the piece of logits
 * that is made of it. Backward turns the gradient of the logits into the gradient of u, in place. With
 * dropout too, it first multiplies the gradient of the logits with the projection. */
#include "models/decoder.h"
#include "models/linear.h"

/* ---- the embedding ---- */

static void look_up(const struct ot_model *model, const struct ot_block_run *run, struct ot_place table,
                    int64_t cols, float scale, void *out) {
    const struct ot_embed op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = cols,
        .vocab = model->config.vocab,
        .tokens = run->batch.tokens,
        .table = ot_run_weight(run, table),
        .out = out,
        .scale = scale,
    };
    ot_run_ops(run)->embed(run->lane, &op);
}

/* Adds the gradients of n tokens to the rows of a table. */
static void look_up_backward(const struct ot_model *model, const struct ot_block_run *run,
                             struct ot_place table, int64_t cols, const void *dout) {
    const struct ot_embed_backward op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = cols,
        .vocab = model->config.vocab,
        .tokens = run->batch.tokens,
        .dout = dout,
        .dtable = ot_run_grad(run, table),
    };
    ot_run_ops(run)->embed_backward(run->lane, &op);
}

/* Bytes of ax, and of dax. */
static size_t embed_ax_bytes(const struct ot_model *model, int64_t n_tokens) {
    return (size_t)(n_tokens * model->embedding_lora.rank) * ot_dtype_bytes(model->chain.dtype);
}

size_t ot_embed_scratch_bytes(const struct ot_model *model, int64_t n_tokens) {
    struct ot_pieces pieces = {0};
    ot_pieces_take(&pieces, embed_ax_bytes(model, n_tokens));
    ot_pieces_take(&pieces, embed_ax_bytes(model, n_tokens));
    return pieces.bytes;
}

/* The embedding's adapter as a linear map from ax, which is looked up. */
static struct ot_linear embed_adapter(const struct ot_model *model, const struct ot_block_run *run) {
    const struct ot_lora_unit *lora = &model->embedding_lora;
    struct ot_pieces pieces = {.base = run->scratch};
    struct ot_linear linear = {
        .rows = run->batch.n_tokens, .out = model->config.hidden, .adds = true, .lora = lora};
    linear.ax = ot_pieces_take(&pieces, embed_ax_bytes(model, linear.rows));
    linear.dax = ot_pieces_take(&pieces, embed_ax_bytes(model, linear.rows));
    look_up(model, run, lora->a, lora->rank, lora->maps[0].scale, linear.ax);
    return linear;
}

void ot_embed_forward(const struct ot_model *model, const struct ot_block_run *run) {
    look_up(model, run, model->embedding, model->config.hidden, 1, run->y);
    if (model->embedding_lora.n == 0)
        return;
    const struct ot_linear adapter = embed_adapter(model, run);
    ot_linear_add_adapters(run, &adapter, run->dtype, run->y);
}

/* The run trains the table or its adapter, never both. */
void ot_embed_backward(const struct ot_model *model, const struct ot_block_run *run) {
    if (model->embedding_lora.n == 0) {
        look_up_backward(model, run, model->embedding, model->config.hidden, run->dxy);
        return;
    }
    const struct ot_linear adapter = embed_adapter(model, run);
    ot_linear_backward_b(run, &adapter, run->dxy, adapter.out);
    look_up_backward(model, run, adapter.lora->a, adapter.lora->rank, adapter.dax);
}

/* ---- the head ---- */

/* Tokens are computed in chunks. A chunk is the unit of the gradients: each rewrites the projection's fp32
 * gradient, 8 bytes a parameter for 2 x CHUNK_TOKENS FLOPs. At the rates of an H100 (3.0 TB/s, 700 TFLOP/s)
 * these bytes take as long as 1050 tokens, so with 1024 they hide behind the arithmetic; with 256 they took
 * four times as long. A chunk's gradient of the logits is kept in the compute dtype.
 *
 * The fp32 logits exist for a piece of a chunk only: for the most tokens that keep them within 32 MiB, where
 * a GPU's L2 cache still has some of them when their loss is computed, but for 256 at least, so that the
 * product stays large. Both sizes depend on the vocabulary alone, so that sums are split in the same places
 * on every machine. */
enum { CHUNK_TOKENS = 1024 };
static int64_t piece_tokens(int64_t vocab) {
    const int64_t logits_bytes = (int64_t)32 << 20, least = 256;
    int64_t tokens = CHUNK_TOKENS;
    while (tokens > least && tokens * vocab * (int64_t)sizeof(float) > logits_bytes)
        tokens /= 2;
    return tokens;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* One chunk: its tokens, and its buffers in scratch. In fp32 the gradient overwrites the logits: there a
 * piece of the logits is a piece of dlogits. */
struct chunk {
    int64_t first, n; /* tokens of the micro-batch */
    void *normed, *dnormed, *dlogits;
    void *ax, *dax, *dropped; /* of the projection's adapter */
    float *rstd, *logits;
    float *u, *factors, *products; /* of DoRA; u: of a piece */
    struct ot_linear projection;
};

static size_t head_memory(const struct ot_model *model, enum ot_dtype dtype, int64_t n_tokens, void *scratch,
                          struct chunk *chunk) {
    size_t vocab = (size_t)model->config.vocab, width = (size_t)model->config.hidden * ot_dtype_bytes(dtype);
    size_t n = (size_t)smaller(n_tokens, CHUNK_TOKENS);
    size_t piece = (size_t)smaller(n_tokens, piece_tokens(model->config.vocab));
    struct ot_pieces pieces = {.base = scratch};
    chunk->normed = ot_pieces_take(&pieces, n * width);
    chunk->dnormed = ot_pieces_take(&pieces, n * width);
    chunk->rstd = ot_pieces_take(&pieces, n * sizeof(float));
    chunk->ax = ot_pieces_take(&pieces, n * (size_t)model->head.lora.rank * ot_dtype_bytes(dtype));
    chunk->dax = ot_pieces_take(&pieces, n * (size_t)model->head.lora.rank * ot_dtype_bytes(dtype));
    bool drops = model->head.lora.n > 0 && model->head.lora.drop > 0;
    chunk->dropped = ot_pieces_take(&pieces, drops ? n * width : 0);
    chunk->dlogits = ot_pieces_take(&pieces, n * vocab * ot_dtype_bytes(dtype));
    bool dora = model->head.lora.dora;
    chunk->u = ot_pieces_take(&pieces, dora ? piece * vocab * sizeof(float) : 0);
    chunk->factors = ot_pieces_take(&pieces, dora ? 2 * vocab * sizeof(float) : 0);
    chunk->products = ot_pieces_take(&pieces, ot_linear_products_bytes(&model->head.lora));
    chunk->logits = dtype == OT_F32 ? NULL : ot_pieces_take(&pieces, piece * vocab * sizeof(float));
    return pieces.bytes;
}

size_t ot_head_scratch_bytes(const struct ot_model *model, int64_t n_tokens) {
    struct chunk chunk;
    return head_memory(model, model->chain.dtype, n_tokens, NULL, &chunk);
}

/* first_of_call: computes the factors of DoRA, which the later chunks of the call use too. */
static struct chunk make_chunk(const struct ot_model *model, const struct ot_block_run *run, int64_t first,
                               int64_t n, bool want_grad, bool first_of_call) {
    struct chunk chunk = {.first = first, .n = n};
    head_memory(model, run->dtype, run->batch.n_tokens, run->scratch, &chunk);
    chunk.projection = (struct ot_linear){
        .in = model->config.hidden,
        .out = model->config.vocab,
        .weight = ot_run_weight(run, model->head.projection),
        .dweight = want_grad ? ot_run_grad(run, model->head.projection) : NULL,
        .adds = !run->first || first > 0,
        .lora = &model->head.lora,
        .ax = chunk.ax,
        .dax = chunk.dax,
        .dropped = chunk.dropped,
        .first_row = first,
        .u = chunk.u,
        .factors = chunk.factors,
        .products = chunk.products,
        .has_factors = true,
    };
    if (first_of_call)
        ot_linear_factors(run, &chunk.projection);
    return chunk;
}

static void chunk_norm(const struct ot_model *model, const struct ot_block_run *run,
                       const struct chunk *chunk) {
    const struct ot_model_config *c = &model->config;
    const struct ot_norm norm = {
        .dtype = run->dtype,
        .kind = c->norm,
        .rows = chunk->n,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .eps = c->norm_eps,
        .x = ot_run_at(run, run->x, chunk->first * c->hidden),
        .weight = ot_run_weight(run, model->head.norm),
        .y = chunk->normed,
        .rstd = chunk->rstd,
    };
    ot_run_ops(run)->norm(run->lane, &norm);
}

/* The logits of n tokens of the chunk, from token `first` of the chunk on. */
static void piece_logits(const struct ot_block_run *run, const struct chunk *chunk, int64_t first, int64_t n,
                         float *logits) {
    struct ot_linear projection = chunk->projection;
    projection.rows = n;
    projection.ax = ot_run_at(run, chunk->ax, first * projection.lora->rank);
    projection.first_row += first;
    ot_linear_forward(run, &projection, ot_run_at(run, chunk->normed, first * projection.in), OT_F32, logits);
}

/* The losses of a piece, and the gradient of its logits. */
static void piece_loss(const struct ot_model *model, const struct ot_block_run *run,
                       const struct chunk *chunk, int64_t first, int64_t n, bool want_grad) {
    int64_t vocab = model->config.vocab;
    void *dlogits = ot_run_at(run, chunk->dlogits, first * vocab);
    float *logits = chunk->logits ? chunk->logits : dlogits;
    const struct ot_cross_entropy op = {
        .rows = n,
        .vocab = vocab,
        .ld = vocab,
        .ld_grad = vocab,
        .targets = run->batch.targets + chunk->first + first,
        .logits = logits,
        .loss = run->token_loss + chunk->first + first,
        .grad = want_grad ? dlogits : NULL,
        .grad_dtype = run->dtype,
        .grad_scale = run->batch.grad_scale,
        .loss_scale = run->batch.loss_scale,
    };
    piece_logits(run, chunk, first, n, logits);
    ot_run_ops(run)->cross_entropy(run->lane, &op);
    if (want_grad && chunk->projection.lora->dora) {
        struct ot_linear projection = chunk->projection;
        projection.rows = n;
        bool later = ot_linear_doubles(run, &projection);
        ot_linear_backward_u(run, &projection, OT_F32, dlogits, vocab, later ? NULL : dlogits);
    }
}

static void chunk_backward(const struct ot_model *model, const struct ot_block_run *run,
                           const struct chunk *chunk) {
    const struct ot_model_config *c = &model->config;
    struct ot_linear projection = chunk->projection;
    projection.rows = chunk->n;
    projection.u = NULL; /* dlogits is, or becomes, the gradient of u */
    if (ot_linear_doubles(run, &projection)) {
        ot_linear_backward_base(run, &projection, chunk->dlogits, c->vocab, chunk->dnormed);
        ot_linear_backward_u(run, &projection, run->dtype, chunk->dlogits, c->vocab, chunk->dlogits);
    }
    ot_linear_backward_params(run, &projection, chunk->normed, chunk->dlogits, c->vocab);
    ot_linear_backward_input(run, &projection, chunk->dlogits, c->vocab, chunk->dnormed);
    const struct ot_norm_backward norm = {
        .dtype = run->dtype,
        .kind = c->norm,
        .rows = chunk->n,
        .cols = c->hidden,
        .group = 1,
        .ldx = c->hidden,
        .ldy = c->hidden,
        .x = ot_run_at(run, run->x, chunk->first * c->hidden),
        .dy = chunk->dnormed,
        .weight = ot_run_weight(run, model->head.norm),
        .rstd = chunk->rstd,
        .dx = ot_run_at(run, run->dxy, chunk->first * c->hidden),
        .dweight = ot_run_grad(run, model->head.norm),
    };
    ot_run_ops(run)->norm_backward(run->lane, &norm);
}

static void run_chunks(const struct ot_model *model, const struct ot_block_run *run, bool want_grad) {
    int64_t n = run->batch.n_tokens, step = piece_tokens(model->config.vocab);
    for (int64_t first = 0; first < n; first += CHUNK_TOKENS) {
        struct chunk chunk =
            make_chunk(model, run, first, smaller(n - first, CHUNK_TOKENS), want_grad, first == 0);
        chunk_norm(model, run, &chunk);
        for (int64_t at = 0; at < chunk.n; at += step)
            piece_loss(model, run, &chunk, at, smaller(chunk.n - at, step), want_grad);
        if (want_grad)
            chunk_backward(model, run, &chunk);
    }
}

void ot_head_forward(const struct ot_model *model, const struct ot_block_run *run) {
    if (run->pass == OT_PASS_EVAL) {
        run_chunks(model, run, false);
    } else if (run->pass == OT_PASS_DECODE) {
        struct chunk last = make_chunk(model, run, run->batch.n_tokens - 1, 1, false, true);
        chunk_norm(model, run, &last);
        piece_logits(run, &last, 0, 1, run->logits);
    }
    /* In training forward does nothing here: backward computes the loss together with its gradient. */
}

void ot_head_backward(const struct ot_model *model, const struct ot_block_run *run) {
    run_chunks(model, run, true);
}
