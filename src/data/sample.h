/* Sample: from a rendered text to token ids, each trained or not.
 *
 * A token trains if its first byte lies in a trained span. Ids are never searched for, because a token may
 * span the border. BOS is added where the tokenizer's post-processor would add it and the text does not begin
 * with one already. EOS is added where the text does not end with one already, and trains. A row of text that
 * does not fit is split into pieces; any other row that does not fit loses the oldest part of its prompt, and
 * only if the answer alone is too long, the answer's end (with its EOS, so that nobody learns to stop there).
 *
 * Threads: the scratch belongs to one thread; everything else is read only.
 */
#ifndef OT_DATA_SAMPLE_H
#define OT_DATA_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/template.h"
#include "src/tokenizer/tokenizer.h"

enum { OT_SAMPLE_MAX_EOS = 8 };

struct ot_special_tokens {
    int32_t bos_id; /* -1: the model has none */
    bool add_bos;   /* the tokenizer's post-processor puts BOS in front */
    int n_eos;      /* ids that end a text; the first is the one that is appended */
    int32_t eos_ids[OT_SAMPLE_MAX_EOS];
};

/* Tokens are stored with the trained mark in the top bit: ids are far below 2^31. */
#define OT_TOKEN_TRAINED 0x80000000u
static inline int32_t ot_token_id(uint32_t token) {
    return (int32_t)(token & ~OT_TOKEN_TRAINED);
}
static inline bool ot_token_trained(uint32_t token) {
    return (token & OT_TOKEN_TRAINED) != 0;
}

struct ot_sample_config {
    const struct ot_tokenizer *tokenizer;
    struct ot_special_tokens specials;
    bool append_eos;
    int64_t seq_len;    /* tokens that a piece may have, >= 2 */
    int32_t vocab_size; /* rows of the model's embedding: larger ids are refused */
};

/* Zero before the first use; free with ot_sample_free. */
struct ot_sample {
    struct ot_token_list encoded; /* scratch of the tokenizer */
    uint32_t *tokens; /* the pieces, laid end to end; the first token of a piece never has the mark */
    uint32_t *start;  /* byte of the rendered text at which each token starts */
    size_t n_tokens, capacity;
    size_t piece_tokens;   /* of each piece but the last, which has the rest; 0: nothing trains, no piece */
    int64_t trained;       /* tokens with the mark */
    bool truncated;        /* something was cut away */
    size_t whole_tokens;   /* before that */
    bool straddles;        /* an answer begins inside the prompt's last token, which does not train */
    int32_t first_special; /* id of the first special token that came out of the user's own text; -1: none */
};

void ot_sample_free(struct ot_sample *sample);
/* Gives the tokens to the caller, who frees them: the same memory, cut to what they need. */
uint32_t *ot_sample_take_tokens(struct ot_sample *sample);

/* Replaces *sample. `split`: a text that does not fit becomes several pieces, each of which begins with the
 * last token of the one before it, so that every token but the first is a target once; otherwise there is one
 * piece. Errors: OT_E_INPUT with `where` ("FILE:LINE") in front: an id beyond vocab_size, or what the
 * tokenizer refuses; OT_E_BUDGET. */
int ot_sample_make(const struct ot_sample_config *config, const struct ot_rendered *rendered, bool split,
                   const char *where, struct ot_sample *sample);

#endif
