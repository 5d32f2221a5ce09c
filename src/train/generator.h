/* Continues a prompt token by token. Text is given out as soon as later tokens cannot change it. */
#ifndef OT_TRAIN_GENERATOR_H
#define OT_TRAIN_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/session/session.h"

struct ot_generation {
    const int32_t *prompt;
    int64_t n_prompt, max_new;
    double temperature, top_p;
    uint64_t seed, number; /* number of the prompt: each prompt has its own stream of random numbers */
    /* Called with each piece of text; may be NULL. A negative result ends the generation and is returned. */
    int (*emit)(void *context, const char *text, size_t bytes);
    void *context;
    bool (*stopped)(void); /* called before each token: true ends the generation; NULL: never ends early */
};

struct ot_generated { /* zero before the first use; free with ot_generated_free */
    int32_t *ids;     /* without the end token */
    int64_t n;
    char *text; /* all pieces, joined */
    size_t bytes;
    bool ended; /* true: by the model's end token; false: by max_new or `stopped` */
    double seconds;
};
void ot_generated_free(struct ot_generated *generated);

/* The engine must be drained. Errors: OT_E_INPUT (an empty prompt, or a prompt that leaves no position for a
 * new token), OT_E_BUDGET, OT_E_NUMERIC, or the result of emit. */
int ot_generate(struct ot_session *session, const struct ot_generation *generation, struct ot_generated *out);

#endif
