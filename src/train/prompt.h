/* Turns prompts into token ids, framed as in training. */
#ifndef OT_TRAIN_PROMPT_H
#define OT_TRAIN_PROMPT_H

#include <stdint.h>

#include "src/session/session.h"

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
