/* Continues a prompt token by token. Text is given out as soon as later tokens cannot change it. */
#ifndef OT_TRAIN_GENERATOR_H
#define OT_TRAIN_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/session/open.h"

struct ot_generated;

struct ot_generation {
    const int32_t *prompt;
    int64_t n_prompt, max_new;
    double temperature, top_p;
    uint64_t seed, number; /* number of the prompt: each prompt has its own stream of random numbers */
    /* emit: called with each piece of text; finished: once, after the last piece. Either may be NULL. A
     * negative result ends the generation and is returned. */
    int (*emit)(void *context, const char *text, size_t bytes);
    int (*finished)(void *context, const struct ot_generated *text);
    void *context;
    bool (*stopped)(void); /* called before each token: true ends the generation; NULL: never ends early */
};

/* Tokens of the key/value cache that a generation needs. */
int64_t ot_generation_room(const struct ot_session *session, const struct ot_generation *generation);

struct ot_generated { /* zero before the first use; free with ot_generated_free */
    int32_t *ids;     /* without the end token */
    int64_t n;
    char *text; /* all pieces, joined */
    size_t bytes;
    bool ended;     /* true: by the model's end token; false: by max_new or `stopped` */
    double seconds; /* from the start of the text's group to its last token */
};
void ot_generated_free(struct ot_generated *generated);

/* Continues n prompts side by side, in groups as large as the session's plan allows (session->plan.texts and
 * cache_tokens). Each text is the one that its prompt gets alone, bit for bit (engine.h). The engine must be
 * drained.
 *
 * All ranks call this together, and all get all texts. If each rank can make passes of its own, each
 * continues some of the prompts. Else all ranks make the same passes, and rank 0 chooses each token.
 * `stopped` counts on the rank that chooses a text's tokens. A rank calls `emit` for the texts whose passes
 * it makes, and `finished` for all texts. Errors: as ot_generate. */
int ot_generate_all(struct ot_session *session, const struct ot_generation *generations, int n,
                    struct ot_generated *out);
/* The same for one prompt. The engine must be drained. Errors: OT_E_INPUT (an empty prompt, or a prompt that
 * leaves no position for a new token), OT_E_BUDGET, OT_E_NUMERIC, or the result of emit. */
int ot_generate(struct ot_session *session, const struct ot_generation *generation, struct ot_generated *out);

/* ---- the choice of a token ---- */

/* Chooses the next token from logits. A pure function of its arguments: equal logits go to the lowest id. */

struct ot_sampler; /* scratch for one vocabulary; one thread */

/* Errors: OT_E_BUDGET. */
int ot_sampler_open(int64_t vocab, struct ot_sampler **out);
void ot_sampler_close(struct ot_sampler *sampler); /* NULL is fine */

/* temperature 0: the largest logit. Otherwise draws with `unit`, uniform in [0, 1), from the softmax of
 * logits / temperature, limited to the most likely tokens that together reach top_p (at least one). Errors:
 * OT_E_NUMERIC (a logit is not a number). */
int ot_sampler_pick(struct ot_sampler *sampler, const float *logits, double temperature, double top_p,
                    double unit, int32_t *id);

/* ---- prompts ---- */

/* Turns prompts into token ids, framed as in training. */

struct ot_prompt { /* zero before the first use */
    int32_t *ids;
    int64_t n;
};
void ot_prompt_free(struct ot_prompt *prompt);

/* A text that the model continues. The tokenizer's start token comes first, unless --no-special is given or
 * the text begins with that token. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_prompt_from_text(const struct ot_session *session, const char *text, size_t bytes,
                        struct ot_prompt *out);
/* A data row as JSON: gives all tokens of the row before its answer, cut as training would cut them. The
 * answer may be absent or empty. where: the place that errors name. Errors: OT_E_INPUT, OT_E_USAGE,
 * OT_E_BUDGET. */
int ot_prompt_from_row(const struct ot_session *session, const char *text, size_t bytes, const char *where,
                       struct ot_prompt *out);

#endif
