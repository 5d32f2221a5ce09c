/* Repairs damaged copies of Llama-2's tokenizer.json in which a tool has turned no-break spaces into plain
 * spaces: tokens of "\u00a0" became tokens of " ". Hugging Face cannot open such a file, because its merges
 * cannot be split. This program can. The normaliser replaces every plain space, so no text can give these
 * tokens. Therefore they are read as no-break spaces again: ids and decoded text are those of the undamaged
 * file.
 */
#include "src/tokenizer/tokenizer_state.h"

#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"

enum { NO_BREAK_SPACE = 0xa0 };

static bool replaces_spaces(const struct ot_tokenizer *t) {
    for (int i = 0; i < t->n_normalizers; i++) {
        const struct ot_normalizer *n = &t->normalizers[i];
        if (n->kind == OT_NORMALIZE_REPLACE && n->pattern.kind == OT_PATTERN_LITERAL &&
            n->pattern.literal.bytes == 1 && n->pattern.literal.text[0] == ' ' &&
            !memchr(n->content.text, ' ', n->content.bytes))
            return true;
    }
    return false;
}

/* The token's text with no-break spaces, of two bytes each, in place of spaces. */
static int restore(struct ot_tokenizer *t, const struct ot_token *token, struct ot_string *out) {
    char *text = ot_arena_alloc(t->arena, 2 * (size_t)token->bytes + 4, 1);
    if (!text)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    *out = (struct ot_string){text, 0};
    for (uint32_t i = 0; i < token->bytes; i++) {
        if (token->text[i] == ' ')
            out->bytes += ot_utf8_encode(NO_BREAK_SPACE, text + out->bytes);
        else
            text[out->bytes++] = token->text[i];
    }
    return 0;
}

int ot_load_repair(struct ot_tokenizer *t) {
    struct ot_bpe *bpe = &t->bpe;
    if (!bpe->spaced_merges) /* always so with Unigram */
        return 0;
    int32_t plain = ot_bpe_symbol(bpe, ' ');
    if (plain < 0 || ot_bpe_symbol(bpe, NO_BREAK_SPACE) >= 0 || !replaces_spaces(t))
        return 0;
    bpe->pages[0][NO_BREAK_SPACE] = plain;
    t->decoded = ot_arena_alloc(t->arena, (size_t)t->vocab.n, sizeof *t->decoded);
    if (!t->decoded)
        return ot_fail(OT_E_BUDGET, "no memory to read a tokenizer");
    for (int32_t id = 0; id < t->vocab.n; id++) {
        const struct ot_token *token = ot_vocab_token(&t->vocab, id);
        if (token && memchr(token->text, ' ', token->bytes))
            OT_TRY(restore(t, token, &t->decoded[id]));
    }
    return 0;
}
