#include "tests/offload/tiny_parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "offload/plan/used_parts.h"
#include "src/base/dtype.h"
#include "tests/offload/tiny_encode.h"
#include "tests/support/check.h"

/* Factors that keep activations near 1 over a few layers. */
static const float DENSE_SCALE = 0.02f, PART_SCALE = 0.05f;

/* The decoder's functions, for the embedding and the head. They are the same for all models, so the first one
 * says them: ranks are threads. */
static struct ot_chain decoder;
static pthread_mutex_t decoder_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_layer(const struct ot_chain *chain, int block) {
    return block > 0 && block < chain->n_blocks - 1;
}

/* A call of a layer, for the lane's thread. */
struct call {
    const struct ot_chain *chain;
    const struct ot_block_spec *block;
    struct ot_block_run run;
    int64_t hidden;
};

/* What a layer computes with: sums of its weights by hidden element, and the activations of its tokens. */
struct layer {
    float *dense;          /* [hidden] */
    float *first, *second; /* [TINY_CHOSEN][hidden]: of the two pieces of the chosen parts */
    float *mid, *h;        /* [n_tokens][hidden], [n_tokens] */
    int chosen[TINY_CHOSEN];
};

/* ---- sums of weights ---- */

static const struct ot_slab_spec *slab_of(const struct call *c, int use) {
    return &c->chain->slabs[c->block->uses[use].slab];
}

static int64_t row_begin(const struct ot_slab_spec *slab, int array, int part) {
    return slab->pieces[array].first + part * slab->pieces[array].each;
}

static void add_weights(const struct call *c, int use, int64_t first, int64_t n, float *sums) {
    for (int64_t i = first; i < first + n; i++)
        sums[i % c->hidden] += ot_dtype_read(c->run.dtype, c->run.weights[use], i);
}

static void add_grads(const struct call *c, int use, int64_t first, int64_t n, const float *values) {
    for (int64_t i = first; c->run.grads[use] && i < first + n; i++)
        c->run.grads[use][i] += values[i % c->hidden];
}

/* Calls fn for the dense runs of all slabs, or for an array's pieces of a part. */
#define FOR_DENSE(c, fn, values)                                                                             \
    for (int u_ = 0; u_ < (c)->block->n_uses; u_++) {                                                        \
        const struct ot_slab_spec plain_ = tiny_decoded_slab(slab_of(c, u_));                                \
        struct ot_run_walk walk_ = ot_run_walk(&plain_, OT_FETCH_DENSE, NULL);                               \
        for (int64_t first_, n_; ot_run_next(&walk_, &first_, &n_);)                                         \
            fn(c, u_, first_, n_, values);                                                                   \
    }
#define FOR_PART(c, fn, array, part, values)                                                                 \
    for (int u_ = 0; u_ < (c)->block->n_uses; u_++)                                                          \
    fn(c, u_, row_begin(slab_of(c, u_), array, part), slab_of(c, u_)->pieces[array].each, values)

/* ---- a layer ---- */

static float *floats(int64_t n) {
    float *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    return values;
}

static void open_layer(const struct call *c, struct layer *l) {
    int64_t n = c->run.batch.n_tokens;
    *l = (struct layer){.dense = floats(c->hidden),
                        .first = floats(TINY_CHOSEN * c->hidden),
                        .second = floats(TINY_CHOSEN * c->hidden),
                        .mid = floats(n * c->hidden),
                        .h = floats(n)};
    FOR_DENSE(c, add_weights, l->dense);
}

static void close_layer(struct layer *l) {
    free(l->dense);
    free(l->first);
    free(l->second);
    free(l->mid);
    free(l->h);
}

static void find_mid(const struct call *c, struct layer *l) {
    for (int64_t i = 0; i < c->run.batch.n_tokens * c->hidden; i++) {
        float x = ot_dtype_read(c->run.dtype, c->run.x, i), mid;
        ot_dtype_write(c->run.dtype, &mid, 0, x * (1 + DENSE_SCALE * l->dense[i % c->hidden]));
        l->mid[i] = ot_dtype_read(c->run.dtype, &mid, 0);
    }
}

static int part_of(float value) {
    return (int)((ot_f32_bits(value) >> 16) % TINY_PARTS);
}

static void choose(const struct call *c, struct layer *l) {
    l->chosen[0] = part_of(l->mid[0]);
    l->chosen[1] = c->run.batch.n_tokens > 1 ? part_of(l->mid[c->hidden]) : l->chosen[0];
}

static int way_of(int64_t token) {
    return (int)(token % TINY_CHOSEN);
}

static void find_h(const struct call *c, struct layer *l) {
    for (int way = 0; way < TINY_CHOSEN; way++) {
        FOR_PART(c, add_weights, 0, l->chosen[way], l->first + way * c->hidden);
        FOR_PART(c, add_weights, 1, l->chosen[way], l->second + way * c->hidden);
    }
    for (int64_t t = 0; t < c->run.batch.n_tokens; t++)
        for (int64_t j = 0; j < c->hidden; j++)
            l->h[t] += PART_SCALE * l->first[way_of(t) * c->hidden + j] * l->mid[t * c->hidden + j];
}

/* ---- forward ---- */

static void write_values(const struct call *c, void *to, const float *values) {
    for (int64_t i = 0; to && i < c->run.batch.n_tokens * c->hidden; i++)
        ot_dtype_write(c->run.dtype, to, i, values[i]);
}

static void read_values(const struct call *c, const void *from, float *values) {
    for (int64_t i = 0; i < c->run.batch.n_tokens * c->hidden; i++)
        values[i] = ot_dtype_read(c->run.dtype, from, i);
}

static float *saved_h(const struct call *c) {
    size_t mid = (size_t)(c->run.batch.n_tokens * c->hidden) * ot_dtype_bytes(c->run.dtype);
    return c->run.saved_level >= OT_KEEP_PRODUCTS ? (float *)((char *)c->run.saved + mid) : NULL;
}

static void write_rest(const struct call *c, struct layer *l) {
    size_t bytes = (size_t)c->run.batch.n_tokens * sizeof *l->h;
    find_h(c, l);
    for (int64_t i = 0; i < c->run.batch.n_tokens * c->hidden; i++) {
        int64_t t = i / c->hidden, j = i % c->hidden;
        ot_dtype_write(c->run.dtype, c->run.y, i, l->mid[i] + l->h[t] * l->second[way_of(t) * c->hidden + j]);
    }
    if (saved_h(c))
        memcpy(saved_h(c), l->h, bytes);
}

static void run_forward(void *arg) {
    struct call *c = arg;
    struct layer l;
    open_layer(c, &l);
    if (c->run.half == OT_HALF_REST) {
        read_values(c, c->run.y, l.mid);
    } else {
        find_mid(c, &l);
        write_values(c, c->run.y, l.mid);
        write_values(c, c->run.saved, l.mid);
    }
    choose(c, &l);
    for (int way = 0; c->run.half == OT_HALF_CHOOSE && way < TINY_CHOSEN; way++)
        c->run.used[l.chosen[way]] = 1;
    if (c->run.half != OT_HALF_CHOOSE)
        write_rest(c, &l);
    close_layer(&l);
    free(c);
}

/* ---- backward ---- */

static void clear(const struct call *c) {
    for (int u = 0; u < c->block->n_uses; u++)
        if (c->run.grads[u])
            memset(c->run.grads[u], 0, (size_t)slab_of(c, u)->n_params * sizeof(float));
}

/* The gradients of both pieces of the chosen parts, and of mid in dy. */
static void part_backward(const struct call *c, const struct layer *l, int way, float *dy) {
    float *dfirst = floats(c->hidden), *dsecond = floats(c->hidden);
    const float *first = l->first + way * c->hidden, *second = l->second + way * c->hidden;
    for (int64_t t = way; t < c->run.batch.n_tokens; t += TINY_CHOSEN) {
        float *d = dy + t * c->hidden, dh = 0;
        for (int64_t j = 0; j < c->hidden; j++) {
            dh += d[j] * second[j];
            dsecond[j] += d[j] * l->h[t];
        }
        for (int64_t j = 0; j < c->hidden; j++) {
            dfirst[j] += PART_SCALE * dh * l->mid[t * c->hidden + j];
            d[j] += PART_SCALE * dh * first[j];
        }
    }
    FOR_PART(c, add_grads, 0, l->chosen[way], dfirst);
    FOR_PART(c, add_grads, 1, l->chosen[way], dsecond);
    free(dfirst);
    free(dsecond);
}

static void dense_backward(const struct call *c, const struct layer *l, float *dy) {
    float *ddense = floats(c->hidden);
    for (int64_t i = 0; i < c->run.batch.n_tokens * c->hidden; i++) {
        int64_t j = i % c->hidden;
        ddense[j] += DENSE_SCALE * dy[i] * ot_dtype_read(c->run.dtype, c->run.x, i);
        dy[i] *= 1 + DENSE_SCALE * l->dense[j];
    }
    FOR_DENSE(c, add_grads, ddense);
    free(ddense);
}

static void run_backward(void *arg) {
    struct call *c = arg;
    struct layer l;
    float *dy = floats(c->run.batch.n_tokens * c->hidden);
    open_layer(c, &l);
    read_values(c, c->run.dxy, dy);
    if (c->run.first)
        clear(c);
    if (c->run.saved_level >= OT_KEEP_ATTENTION)
        read_values(c, c->run.saved, l.mid);
    else
        find_mid(c, &l);
    choose(c, &l);
    find_h(c, &l);
    if (saved_h(c)) /* the same bits */
        memcpy(l.h, saved_h(c), (size_t)c->run.batch.n_tokens * sizeof *l.h);
    for (int way = 0; way < TINY_CHOSEN; way++)
        part_backward(c, &l, way, dy);
    dense_backward(c, &l, dy);
    write_values(c, c->run.dxy, dy);
    close_layer(&l);
    free(dy);
    free(c);
}

/* ---- the chain ---- */

static void enqueue(const void *context, int block, const struct ot_block_run *run, void (*fn)(void *)) {
    const struct ot_chain *chain = ot_model_chain(context);
    struct call *c = malloc(sizeof *c);
    assert_non_null(c);
    *c = (struct call){chain, &chain->blocks[block], *run, chain->boundary_elems};
    ot_lane_call(run->lane, fn, c);
}

static void forward(const void *context, int block, const struct ot_block_run *run) {
    assert_true((run->half == OT_HALF_CHOOSE) == (run->used != NULL));
    if (is_layer(ot_model_chain(context), block)) {
        enqueue(context, block, run, run_forward);
        return;
    }
    assert_int_equal(run->half, OT_HALF_BOTH);
    decoder.forward(context, block, run);
}

static void backward(const void *context, int block, const struct ot_block_run *run) {
    if (is_layer(ot_model_chain(context), block))
        enqueue(context, block, run, run_backward);
    else
        decoder.backward(context, block, run);
}

static size_t saved_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    const struct ot_chain *chain = ot_model_chain(context);
    size_t mid = (size_t)(n_tokens * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    if (!is_layer(chain, block))
        return decoder.saved_bytes(context, block, level, n_tokens);
    return level == OT_KEEP_NONE      ? 0
           : level < OT_KEEP_PRODUCTS ? mid
                                      : mid + (size_t)n_tokens * sizeof(float);
}

static double used_parts(const void *context, int block, int64_t n_tokens) {
    (void)context, (void)block;
    return n_tokens > 1 ? TINY_CHOSEN : 1;
}

/* Odd sizes, so that the borders of parts are no multiples of anything. */
static void add_parts(struct ot_slab_spec *slab) {
    int64_t first = slab->n_params / 8 + 1, each = slab->n_params / (3 * TINY_PARTS);
    slab->n_parts = TINY_PARTS;
    slab->n_pieces = 2;
    slab->pieces[0] = (struct ot_piece_array){first, each};
    slab->pieces[1] = (struct ot_piece_array){first + TINY_PARTS * each + each / 2 + 1, each * 3 / 4};
}

void tiny_part_slabs(struct ot_model *model) {
    struct ot_chain *chain = (struct ot_chain *)ot_model_chain(model);
    assert_int_equal(pthread_mutex_lock(&decoder_lock), 0);
    if (!decoder.forward)
        decoder = *chain;
    assert_int_equal(pthread_mutex_unlock(&decoder_lock), 0);
    for (int b = 0; b < chain->n_blocks; b++)
        for (int u = 0; is_layer(chain, b) && u < chain->blocks[b].n_uses; u++)
            add_parts((struct ot_slab_spec *)&chain->slabs[chain->blocks[b].uses[u].slab]);
    chain->forward = forward;
    chain->backward = backward;
    chain->saved_bytes = saved_bytes;
    chain->used_parts = used_parts;
}
