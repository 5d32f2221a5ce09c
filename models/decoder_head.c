/* The last block of the chain: the head (final norm, output projection, loss).
 *
 * The head works on chunks of tokens, so that the logits of a whole micro-batch never exist at once. In
 * backward, cross-entropy overwrites a chunk's logits with their gradient; both backward products then use it
 * before the next chunk begins. With DoRA (lora.h) a piece of u, in fp32, lies beside the piece of logits
 * that is made of it. Backward turns the gradient of the logits into the gradient of u, in place. With
 * dropout too, it first multiplies the gradient of the logits with the projection.
 *
 * In an encoder-decoder, the first n_inputs tokens are inputs: they have no logits, no loss, and no gradient
 * yet. The chunks begin behind them. */
#include "models/dropout.h"
#include "models/kinds.h"
#include "models/linear.h"
#include "models/norm.h"
#include "src/base/minmax.h"

/* ---- chunks ---- */

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

/* One chunk: its tokens, and its buffers in scratch. In fp32 the gradient overwrites the logits: there a
 * piece of the logits is a piece of dlogits. */
struct chunk {
    int64_t first, n;       /* tokens of the micro-batch */
    void *normed, *dnormed; /* [n, hidden] */
    void *dlogits;          /* [n, vocab] */
    void *ax, *dax;         /* [n, rank]; of the projection's adapter */
    void *dropped;          /* [n, hidden] */
    struct ot_norm_memory stats;
    float *logits, *u;         /* [piece, vocab]; u: of DoRA */
    float *factors, *products; /* of DoRA: [2, vocab]; scratch */
    struct ot_linear projection;
};

static size_t head_memory(const struct ot_model *model, enum ot_dtype dtype, int64_t n_tokens, void *scratch,
                          struct chunk *chunk) {
    size_t vocab = (size_t)model->config.vocab, width = (size_t)model->config.hidden * ot_dtype_bytes(dtype);
    size_t n = (size_t)ot_min(n_tokens, CHUNK_TOKENS);
    size_t piece = (size_t)ot_min(n_tokens, piece_tokens(model->config.vocab));
    struct ot_pieces pieces = {.base = scratch};
    chunk->normed = ot_pieces_take(&pieces, n * width);
    chunk->dnormed = ot_pieces_take(&pieces, n * width);
    chunk->stats.mean = ot_pieces_take(&pieces, model->config.norm == OT_NORM_LAYER ? n * sizeof(float) : 0);
    chunk->stats.rstd = ot_pieces_take(&pieces, n * sizeof(float));
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

/* At every level: the head has no inner activations. */
static struct ot_block_bytes bytes(const struct ot_model *model, int block, enum ot_keep_level level,
                                   int64_t n_tokens) {
    struct chunk chunk;
    (void)block;
    (void)level;
    return (struct ot_block_bytes){.scratch = head_memory(model, model->chain.dtype, n_tokens, NULL, &chunk)};
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
        .bias = ot_run_weight(run, model->head.bias),
        .dweight = want_grad ? ot_run_grad(run, model->head.projection) : NULL,
        .dbias = want_grad ? ot_run_grad(run, model->head.bias) : NULL,
        .scale = model->config.logit_divisor != 0 ? (float)(1 / model->config.logit_divisor) : 0,
        .adds = !run->first || first > run->batch.n_inputs,
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

/* ---- a chunk: norm, logits, loss, gradients ---- */

static struct ot_drop_rows chunk_rows(const struct ot_model *model, const struct chunk *chunk) {
    return (struct ot_drop_rows){OT_DROP_HEAD, 0, chunk->first, chunk->n, model->config.hidden};
}

static void chunk_norm(const struct ot_model *model, const struct ot_block_run *run,
                       const struct chunk *chunk) {
    const void *x = ot_run_at(run, run->x, chunk->first * model->config.hidden);
    const struct ot_drop_rows rows = chunk_rows(model, chunk);
    ot_model_norm(model, run, &model->head.norm, chunk->n, x, chunk->normed, chunk->stats);
    ot_drop(model, run, &rows, chunk->normed, NULL, chunk->normed);
}

/* ---- rows of new tokens (lora.h) ---- */

/* The logits of new tokens: rows [n, vocab], whose other columns the table made. */
static void new_logits(const struct ot_model *model, const struct ot_block_run *run,
                       const struct ot_linear *projection, const void *x, float *logits) {
    const struct ot_model_config *c = &model->config;
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = OT_F32,
        .trans_b = true,
        .by_rows = ot_run_by_rows(run),
        .m = projection->rows,
        .n = c->n_new,
        .k = c->hidden,
        .a = x, /* [rows, hidden] */
        .lda = c->hidden,
        .b = ot_run_weight(run, model->head.new_rows), /* [n_new, hidden] */
        .ldb = c->hidden,
        .c = logits + c->first_new, /* [rows, n_new] */
        .ldc = c->vocab,
        .scale = projection->scale,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

/* The gradient of the rows, and the part of dx that comes through them: the table has zeros there. */
static void new_backward(const struct ot_model *model, const struct ot_block_run *run,
                         const struct ot_linear *projection, const void *x, const void *dlogits, void *dx) {
    const struct ot_model_config *c = &model->config;
    const void *dy = ot_run_at(run, dlogits, c->first_new);
    float *grad = ot_run_grad(run, model->head.new_rows);
    const struct ot_gemm rows = {
        .dtype = run->dtype,
        .c_dtype = OT_F32,
        .trans_a = true,
        .m = c->n_new,
        .n = c->hidden,
        .k = projection->rows,
        .a = dy, /* [rows, n_new] */
        .lda = c->vocab,
        .b = x, /* [rows, hidden] */
        .ldb = c->hidden,
        .addend = projection->adds ? grad : NULL,
        .c = grad, /* [n_new, hidden] */
        .ldc = c->hidden,
        .scale = projection->scale,
    };
    const struct ot_gemm input = {
        .dtype = run->dtype,
        .c_dtype = run->dtype,
        .m = projection->rows,
        .n = c->hidden,
        .k = c->n_new,
        .a = dy,
        .lda = c->vocab,
        .b = ot_run_weight(run, model->head.new_rows), /* [n_new, hidden] */
        .ldb = c->hidden,
        .addend = dx,
        .c = dx, /* [rows, hidden] */
        .ldc = c->hidden,
        .scale = projection->scale,
    };
    ot_run_ops(run)->gemm(run->lane, &rows);
    ot_run_ops(run)->gemm(run->lane, &input);
}

/* The logits of n tokens of the chunk, from token `first` of the chunk on. */
static void piece_logits(const struct ot_model *model, const struct ot_block_run *run,
                         const struct chunk *chunk, int64_t first, int64_t n, float *logits) {
    struct ot_linear projection = chunk->projection;
    projection.rows = n;
    projection.ax = ot_run_at(run, chunk->ax, first * projection.lora->rank);
    projection.first_row += first;
    const void *x = ot_run_at(run, chunk->normed, first * projection.in);
    ot_linear_forward(run, &projection, x, OT_F32, logits);
    if (model->head.new_rows.use != OT_ABSENT)
        new_logits(model, run, &projection, x, logits);
}

/* The losses of a piece, and the gradient of its logits. Scores are log-probabilities, without label
 * smoothing and z-loss. */
static void piece_loss(const struct ot_model *model, const struct ot_block_run *run,
                       const struct chunk *chunk, int64_t first, int64_t n, bool want_grad) {
    const struct ot_regular regular = want_grad ? ot_run_regular(model, run) : (struct ot_regular){0};
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
        .softcap = model->config.logit_softcap,
        .smoothing = regular.label_smoothing,
        .z_weight = regular.z_loss,
        .marks_hits = run->marks_hits,
        .grad_scale = run->batch.grad_scale,
        .loss_scale = run->batch.loss_scale,
        .weights = want_grad && run->batch.weights ? run->batch.weights + chunk->first + first : NULL,
    };
    piece_logits(model, run, chunk, first, n, logits);
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
    int64_t vocab = model->config.vocab, at = chunk->first * model->config.hidden;
    const struct ot_drop_rows rows = chunk_rows(model, chunk);
    struct ot_linear projection = chunk->projection;
    projection.rows = chunk->n;
    projection.u = NULL; /* dlogits is, or becomes, the gradient of u */
    if (ot_linear_doubles(run, &projection)) {
        ot_linear_backward_base(run, &projection, chunk->dlogits, vocab, chunk->dnormed);
        ot_linear_backward_u(run, &projection, run->dtype, chunk->dlogits, vocab, chunk->dlogits);
    }
    ot_linear_backward_params(run, &projection, chunk->normed, chunk->dlogits, vocab);
    ot_linear_backward_input(run, &projection, chunk->dlogits, vocab, chunk->dnormed);
    if (model->head.new_rows.use != OT_ABSENT)
        new_backward(model, run, &projection, chunk->normed, chunk->dlogits, chunk->dnormed);
    ot_drop(model, run, &rows, chunk->dnormed, NULL, chunk->dnormed);
    ot_model_norm_backward(model, run, &model->head.norm, chunk->n, ot_run_at(run, run->x, at), chunk->stats,
                           chunk->dnormed, NULL, ot_run_at(run, run->dxy, at));
}

/* ---- the block ---- */

static void skip_inputs(const struct ot_model *model, const struct ot_block_run *run, bool want_grad) {
    size_t n = (size_t)run->batch.n_inputs;
    if (n == 0)
        return;
    ot_lane_fill(run->lane, run->token_loss, 0, n * sizeof(float));
    if (want_grad)
        ot_lane_fill(run->lane, run->dxy, 0, n * (size_t)model->config.hidden * ot_dtype_bytes(run->dtype));
}

static void run_chunks(const struct ot_model *model, const struct ot_block_run *run, bool want_grad) {
    int64_t n = run->batch.n_tokens, step = piece_tokens(model->config.vocab), begin = run->batch.n_inputs;
    skip_inputs(model, run, want_grad);
    for (int64_t first = begin; first < n; first += CHUNK_TOKENS) {
        struct chunk chunk =
            make_chunk(model, run, first, ot_min(n - first, CHUNK_TOKENS), want_grad, first == begin);
        chunk_norm(model, run, &chunk);
        for (int64_t at = 0; at < chunk.n; at += step)
            piece_loss(model, run, &chunk, at, ot_min(chunk.n - at, step), want_grad);
        if (want_grad)
            chunk_backward(model, run, &chunk);
    }
}

/* The logits of each text's last token: of all tokens if each continues a text of its own. */
static void last_logits(const struct ot_model *model, const struct ot_block_run *run) {
    int64_t vocab = model->config.vocab, end = run->batch.n_tokens, begin = run->kv.texts ? 0 : end - 1;
    for (int64_t first = begin; first < end; first += CHUNK_TOKENS) {
        struct chunk chunk =
            make_chunk(model, run, first, ot_min(end - first, CHUNK_TOKENS), false, first == begin);
        chunk_norm(model, run, &chunk);
        for (int64_t at = 0, step = piece_tokens(vocab); at < chunk.n; at += step)
            piece_logits(model, run, &chunk, at, ot_min(chunk.n - at, step),
                         run->logits + (first - begin + at) * vocab);
    }
    const struct ot_softcap op = {
        .n = (end - begin) * vocab, .cap = model->config.logit_softcap, .x = run->logits};
    if (op.cap != 0)
        ot_run_ops(run)->softcap(run->lane, &op);
}

static void forward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    (void)block;
    if (run->pass == OT_PASS_EVAL || run->scores) {
        run_chunks(model, run, false);
    } else if (run->pass == OT_PASS_DECODE) {
        last_logits(model, run);
    }
    /* Else forward does nothing in training: backward computes the loss together with its gradient. */
}

/* Adds the balancing loss, and writes its slopes to the tail of the gradient. */
static void balance(const struct ot_model *model, const struct ot_block_run *run) {
    const struct ot_tail tail = ot_run_tail(model, run, run->x);
    int64_t layers = 0;
    for (int64_t l = 0; l < model->config.n_layers; l++)
        layers += ot_model_layer_has_experts(&model->config, l);
    const struct ot_balance op = {
        .n = run->batch.n_tokens,
        .experts = model->config.n_experts,
        .rows = run->batch.n_tokens * layers,
        .targets = run->batch.targets,
        .counts = tail.counts,
        .sums = tail.sums,
        .coefficient = ot_run_regular(model, run).balance,
        .grad_scale = run->batch.grad_scale,
        .loss_scale = run->batch.loss_scale,
        .loss = run->token_loss,
        .slopes = ot_run_tail(model, run, run->dxy).slopes,
    };
    if (op.coefficient > 0)
        ot_run_ops(run)->balance(run->lane, &op);
}

static void backward(const struct ot_model *model, int block, const struct ot_block_run *run) {
    (void)block;
    run_chunks(model, run, true);
    balance(model, run);
}

const struct ot_block_kind OT_HEAD_BLOCK = {bytes, forward, backward, NULL, ot_head_work};
