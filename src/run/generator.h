/* Continues a prompt token by token, giving text as soon as it is certain. */
#ifndef OT_RUN_GENERATOR_H
#define OT_RUN_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/session/session.h"

struct ot_generation {
    const int32_t *prompt;
    int64_t n_prompt, max_new;
    double temperature, top_p;
    uint64_t seed, number; /* of the prompt: each draws from a stream of its own */
    /* Called with each piece of text; may be NULL. A negative result stops and is returned. */
    int (*emit)(void *context, const char *text, size_t bytes);
    void *context;
    bool (*stopped)(void); /* asked before each token whether to end here; NULL: never */
};

struct ot_generated { /* zero before the first use; free with ot_generated_free */
    int32_t *ids;     /* without the end token */
    int64_t n;
    char *text; /* the pieces joined */
    size_t bytes;
    bool ended; /* by the model's end token, not by max_new */
    double seconds;
};
void ot_generated_free(struct ot_generated *generated);

/* The engine is drained. Errors: OT_E_INPUT (no prompt, or it leaves no position for a new token),
 * OT_E_BUDGET, OT_E_NUMERIC, or what emit returned. */
int ot_generate(struct ot_session *session, const struct ot_generation *generation, struct ot_generated *out);

#endif
