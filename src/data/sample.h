/* A sample: turns a rendered text into token ids with a trained mark.
 *
 * A token trains if its first byte is in a trained span. The code does not search for ids, because a token
 * may cross the border of a span. Where a template's {% generation %} marks say what trains, a token that a
 * trained span begins in trains as well.
 *
 * BOS is added if the tokenizer's post-processor would add it and the text does not begin with one. EOS is
 * added if the text does not end with one, and it trains. The text of a model's own template gets no BOS, and
 * an EOS only if no special token ends it. A row of text that is too long is split into pieces. Any other row
 * that is too long loses the oldest part of its prompt. Only if the answer alone is too long, it loses its
 * end with the EOS, so that the model does not learn to stop there.
 *
 * PAIRS. Of an encoder-decoder, the tokens are those of the input, then those of the target, which trains.
 * The two texts are encoded apart, and EOS is added to each. A row that is too long loses the end of its
 * input, but keeps the input's EOS. Only if the target and that EOS are too long, the target loses its end
 * with its EOS.
 *
 * Threads: a scratch belongs to one thread; everything else is read only.
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
    bool add_bos;   /* the tokenizer's post-processor adds BOS in front */
    int n_eos;      /* ids that end a text; the first is appended */
    int32_t eos_ids[OT_SAMPLE_MAX_EOS];
};

/* Tokens are stored with the trained mark in the top bit; ids are far below 2^31. */
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
    bool pairs;      /* of an encoder-decoder */
    int64_t seq_len; /* most tokens of a piece, >= 2 */
    int64_t cut;     /* a prompt loses at least so many tokens, if it has them; not with `split` or pairs */
    int32_t vocab_size; /* rows of the model's embedding; larger ids are refused */
};

/* Set to zero before the first use; free with ot_sample_free. */
struct ot_sample {
    struct ot_token_list encoded; /* scratch for the tokenizer */
    uint32_t *tokens; /* the pieces, one after the other; the first token of a piece never trains */
    uint32_t *start;  /* first byte of each token in the rendered text */
    size_t n_tokens, capacity;
    size_t piece_tokens;   /* of each piece but the last, which may be shorter; 0: nothing trains, no piece */
    int64_t trained;       /* number of tokens that train */
    bool truncated;        /* tokens were cut off */
    size_t whole_tokens;   /* number of tokens before that, also if none were */
    bool straddles;        /* an answer begins inside the prompt's last token, which does not train */
    int32_t first_special; /* id of the first special token in the user's own text; -1: none */
};

void ot_sample_free(struct ot_sample *sample);

/* Appends the tokens of another sample. Both have one piece, and so has the result. Its whole_tokens are
 * twice those of the longer one. Errors: OT_E_BUDGET. */
int ot_sample_append(struct ot_sample *sample, const struct ot_sample *other, const char *where);

/* Replaces *sample. split: a text that is too long becomes several pieces. Each piece begins with the last
 * token of the piece before it, so that every token but the first is a target once. Without split there is
 * one piece. Errors: OT_E_INPUT with `where` ("FILE:LINE") in front: an id beyond vocab_size, or an error of
 * the tokenizer; OT_E_BUDGET. */
int ot_sample_make(const struct ot_sample_config *config, const struct ot_rendered *rendered, bool split,
                   const char *where, struct ot_sample *sample);

#endif
