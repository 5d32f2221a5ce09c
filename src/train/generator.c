#include "src/train/generator.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/train/sampler.h"

void ot_generated_free(struct ot_generated *generated) {
    free(generated->ids);
    free(generated->text);
    *generated = (struct ot_generated){0};
}

struct writer { /* a generation in progress */
    const struct ot_generation *generation;
    struct ot_generated *out;
    struct ot_decode_stream *stream;
};

static int add_text(struct writer *w, const char *text, size_t bytes) {
    char *grown = realloc(w->out->text, w->out->bytes + bytes + 1);
    if (!grown)
        return ot_fail(OT_E_BUDGET, "no memory for the generated text");
    memcpy(grown + w->out->bytes, text, bytes);
    w->out->text = grown;
    w->out->bytes += bytes;
    grown[w->out->bytes] = '\0';
    return w->generation->emit && bytes ? w->generation->emit(w->generation->context, text, bytes) : 0;
}

static int finish_text(struct writer *w) {
    const char *text;
    size_t bytes;
    OT_TRY(ot_decode_stream_finish(w->stream, &text, &bytes));
    return add_text(w, text, bytes);
}

/* Passes the prompt through the decoder too, so that the first new word keeps the space before it. */
static int read_prompt(struct ot_session *s, struct writer *w, float *logits) {
    const struct ot_generation *g = w->generation;
    const int32_t start = OT_PAIR_START_ID;
    if (ot_model_has_pairs(&s->config)) { /* the decoder writes the answer as a new text */
        OT_TRY(ot_engine_decode(s->engine, g->prompt, g->n_prompt, logits));
        return ot_engine_decode(s->engine, &start, 1, logits);
    }
    for (int64_t i = 0; i < g->n_prompt; i++) {
        const char *text;
        size_t bytes;
        OT_TRY(ot_decode_stream_push(w->stream, g->prompt[i], &text, &bytes));
    }
    return ot_engine_decode(s->engine, g->prompt, g->n_prompt, logits);
}

static bool is_end(const struct ot_session *s, int32_t id) {
    for (int i = 0; i < s->ids.n_eos; i++)
        if (s->ids.eos[i] == id)
            return true;
    return false;
}

static int write_tokens(struct ot_session *s, struct writer *w, struct ot_sampler *sampler, int64_t capacity,
                        float *logits) {
    const struct ot_generation *g = w->generation;
    uint64_t stream = ot_random_stream(OT_RANDOM_SAMPLE, g->number, 0);
    while (w->out->n < capacity - g->n_prompt && !(g->stopped && g->stopped())) {
        int32_t id;
        double unit = ot_random_unit(g->seed, stream, (uint64_t)w->out->n);
        OT_TRY(ot_sampler_pick(sampler, logits, g->temperature, g->top_p, unit, &id));
        w->out->ended = is_end(s, id);
        if (w->out->ended)
            break;
        w->out->ids[w->out->n++] = id;
        const char *text;
        size_t bytes;
        OT_TRY(ot_decode_stream_push(w->stream, id, &text, &bytes));
        OT_TRY(add_text(w, text, bytes));
        if (w->out->n < capacity - g->n_prompt)
            OT_TRY(ot_engine_decode(s->engine, &id, 1, logits));
    }
    return finish_text(w);
}

/* The prompt of an encoder-decoder is the input; the start token follows it. */
static int begin(struct ot_session *s, int64_t n_prompt, int64_t capacity) {
    return ot_model_has_pairs(&s->config) ? ot_engine_decode_begin_pair(s->engine, n_prompt, capacity + 1)
                                          : ot_engine_decode_begin(s->engine, capacity);
}

int ot_generate(struct ot_session *s, const struct ot_generation *g, struct ot_generated *out) {
    if (g->n_prompt < 1)
        return ot_fail(OT_E_INPUT,
                       "the prompt has no token; this tokenizer has no start token, so give some text");
    if (g->n_prompt >= ot_model_longest_row(&s->config))
        return ot_fail(OT_E_INPUT, "the prompt's %lld tokens leave no room in the model's %lld positions",
                       (long long)g->n_prompt, (long long)ot_model_longest_row(&s->config));
    int64_t room = ot_model_longest_row(&s->config) - g->n_prompt, vocab = ot_model_chain(s->model)->vocab;
    int64_t capacity = g->n_prompt + ot_min(g->max_new, room);
    struct writer w = {g, out, NULL};
    struct ot_sampler *sampler = NULL;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    double started = ot_clock_seconds();
    bool begun = false;
    int rc;
    ot_generated_free(out);
    out->ids = malloc((size_t)(capacity - g->n_prompt) * sizeof *out->ids);
    if (!logits || !out->ids) {
        rc = ot_fail(OT_E_BUDGET, "no memory to generate %lld tokens", (long long)(capacity - g->n_prompt));
        goto out;
    }
    OT_TRY_GOTO(ot_sampler_open(vocab, &sampler), rc, out);
    OT_TRY_GOTO(ot_decode_stream_open(s->tokenizer, true, &w.stream), rc, out);
    OT_TRY_GOTO(begin(s, g->n_prompt, capacity), rc, out);
    begun = true;
    OT_TRY_GOTO(read_prompt(s, &w, logits), rc, out);
    OT_TRY_GOTO(write_tokens(s, &w, sampler, capacity, logits), rc, out);
    out->seconds = ot_clock_seconds() - started;
out:
    if (begun)
        ot_engine_decode_end(s->engine);
    ot_decode_stream_close(w.stream);
    ot_sampler_close(sampler);
    free(logits);
    return rc;
}
