/* The first and the last block of the chain: the embedding, and the head (final norm, output projection,
 * loss).
 *
 * The head works on chunks of tokens, so that the logits of a whole micro-batch never exist at once. In
 * backward, cross-entropy overwrites a chunk's logits with their gradient; both backward products then use it
 * before the next chunk begins. */
#include "models/decoder.h"
#include "models/linear.h"

void ot_embed_forward(const struct ot_model *model, const struct ot_block_run *run) {
    const struct ot_embed op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = model->config.hidden,
        .vocab = model->config.vocab,
        .tokens = run->batch.tokens,
        .table = run->weights[0],
        .out = run->y,
    };
    ot_run_ops(run)->embed(run->lane, &op);
}

void ot_embed_backward(const struct ot_model *model, const struct ot_block_run *run) {
    const struct ot_embed_backward op = {
        .dtype = run->dtype,
        .n = run->batch.n_tokens,
        .cols = model->config.hidden,
        .vocab = model->config.vocab,
        .tokens = run->batch.tokens,
        .dout = run->dxy,
        .dtable = run->grads[0],
    };
    ot_run_ops(run)->embed_backward(run->lane, &op);
}

/* Tokens of a chunk: the most that keep the logits within 64 MiB, but from 256 to 1024. Every chunk reads and
 * writes the projection's fp32 gradient (8 bytes for 6 x tokens FLOPs): below 256 tokens that traffic costs
 * time, above 1024 it no longer shows. The size depends on the vocabulary alone, so that sums are split in
 * the same places on every machine. */
static int64_t chunk_tokens(int64_t vocab) {
    const int64_t logits_bytes = (int64_t)64 << 20, least = 256, most = 1024;
    int64_t tokens = most;
    while (tokens > least && tokens * vocab * (int64_t)sizeof(float) > logits_bytes)
        tokens /= 2;
    return tokens;
}

/* One chunk: its tokens, and its buffers in scratch. */
struct chunk {
    int64_t first, n; /* tokens of the micro-batch */
    void *normed, *dnormed;
    float *rstd, *logits;
    struct ot_linear projection;
};

static size_t head_memory(const struct ot_model *model, enum ot_dtype dtype, int64_t n_tokens, void *scratch,
                          struct chunk *chunk) {
    int64_t most = chunk_tokens(model->config.vocab), n = n_tokens < most ? n_tokens : most;
    size_t width = (size_t)model->config.hidden * ot_dtype_bytes(dtype);
    struct ot_pieces pieces = {.base = scratch};
    chunk->normed = ot_pieces_take(&pieces, (size_t)n * width);
    chunk->dnormed = ot_pieces_take(&pieces, (size_t)n * width);
    chunk->rstd = ot_pieces_take(&pieces, (size_t)n * sizeof(float));
    chunk->logits = ot_pieces_take(&pieces, (size_t)n * (size_t)model->config.vocab * sizeof(float));
    return pieces.bytes;
}

size_t ot_head_scratch_bytes(const struct ot_model *model, int64_t n_tokens) {
    struct chunk chunk;
    return head_memory(model, model->chain.dtype, n_tokens, NULL, &chunk);
}

static struct chunk make_chunk(const struct ot_model *model, const struct ot_block_run *run, int64_t first,
                               int64_t n, bool want_grad) {
    struct chunk chunk = {.first = first, .n = n};
    int use = model->head.projection_use;
    head_memory(model, run->dtype, run->batch.n_tokens, run->scratch, &chunk);
    chunk.projection = (struct ot_linear){
        .rows = n,
        .in = model->config.hidden,
        .out = model->config.vocab,
        .weight = ot_run_weight(run, use, model->head.projection),
        .dweight = want_grad ? ot_run_grad(run, use, model->head.projection) : NULL,
    };
    return chunk;
}

/* logits = norm(x) projection^T */
static void chunk_logits(const struct ot_model *model, const struct ot_block_run *run,
                         const struct chunk *chunk, float *logits) {
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
        .weight = ot_run_weight(run, 0, model->head.norm),
        .y = chunk->normed,
        .rstd = chunk->rstd,
    };
    ot_run_ops(run)->norm(run->lane, &norm);
    ot_linear_forward(run, &chunk->projection, chunk->normed, OT_F32, logits);
}

static void chunk_loss(const struct ot_model *model, const struct ot_block_run *run,
                       const struct chunk *chunk, bool want_grad) {
    const struct ot_cross_entropy op = {
        .rows = chunk->n,
        .vocab = model->config.vocab,
        .ld = model->config.vocab,
        .targets = run->batch.targets + chunk->first,
        .logits = chunk->logits,
        .loss = run->token_loss + chunk->first,
        .want_grad = want_grad,
        .grad_dtype = run->dtype,
        .grad_scale = run->batch.grad_scale,
        .loss_scale = run->batch.loss_scale,
    };
    ot_run_ops(run)->cross_entropy(run->lane, &op);
}

static void chunk_backward(const struct ot_model *model, const struct ot_block_run *run,
                           const struct chunk *chunk) {
    const struct ot_model_config *c = &model->config;
    /* The gradient is in the compute dtype and begins at the start of each row of fp32 logits. */
    int64_t ld = c->vocab * (int64_t)(sizeof(float) / ot_dtype_bytes(run->dtype));
    ot_linear_backward_params(run, &chunk->projection, chunk->normed, chunk->logits, ld);
    ot_linear_backward_input(run, &chunk->projection, chunk->logits, ld, chunk->dnormed);
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
        .weight = ot_run_weight(run, 0, model->head.norm),
        .rstd = chunk->rstd,
        .dx = ot_run_at(run, run->dxy, chunk->first * c->hidden),
        .dweight = ot_run_grad(run, 0, model->head.norm),
    };
    ot_run_ops(run)->norm_backward(run->lane, &norm);
}

static void run_chunks(const struct ot_model *model, const struct ot_block_run *run, bool want_grad) {
    int64_t n = run->batch.n_tokens, step = chunk_tokens(model->config.vocab);
    for (int64_t first = 0; first < n; first += step) {
        struct chunk chunk = make_chunk(model, run, first, n - first < step ? n - first : step, want_grad);
        chunk_logits(model, run, &chunk, chunk.logits);
        chunk_loss(model, run, &chunk, want_grad);
        if (want_grad)
            chunk_backward(model, run, &chunk);
    }
}

void ot_head_forward(const struct ot_model *model, const struct ot_block_run *run) {
    if (run->pass == OT_PASS_EVAL) {
        run_chunks(model, run, false);
    } else if (run->pass == OT_PASS_DECODE) {
        struct chunk last = make_chunk(model, run, run->batch.n_tokens - 1, 1, false);
        chunk_logits(model, run, &last, run->logits);
    }
    /* In training forward does nothing here: backward computes the loss together with its gradient. */
}

void ot_head_backward(const struct ot_model *model, const struct ot_block_run *run) {
    run_chunks(model, run, true);
}
