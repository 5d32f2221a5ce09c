/* Shared by the files that make a tokenizer.json from the keys of a GGUF file. Private to src/gguf. */
#ifndef OT_GGUF_VOCAB_MAKER_H
#define OT_GGUF_VOCAB_MAKER_H

#include "src/base/json.h"
#include "src/gguf/vocab.h"

struct ot_gguf_maker {
    const struct ot_gguf *file;
    bool is_unigram;                       /* the kind "t5" */
    const struct ot_gguf_words *words;     /* of the kind "gpt2"; else NULL */
    const struct ot_gguf_value *tokens;    /* strings */
    const struct ot_gguf_value *types;     /* i32; NULL: all are normal */
    const struct ot_gguf_value *merges;    /* strings; NULL: absent */
    const struct ot_gguf_value *scores;    /* f32; NULL: absent */
    const struct ot_gguf_value *charsmap;  /* u8 or i8; NULL: absent */
    const struct ot_gguf_string **by_text; /* [tokens->n]: the tokens, sorted */
    struct ot_json_writer w;
    struct ot_string_builder key;
    bool add_bos, add_eos, prefix, merge_spaces;
    int64_t bos, eos, unknown; /* -1: none */
};

int ot_gguf_maker_type(const struct ot_gguf_maker *m, int64_t id);
/* True for ids that stand for rows of the embedding without a token. */
bool ot_gguf_maker_is_filler(const struct ot_gguf_maker *m, int64_t id);
float ot_gguf_maker_score(const struct ot_gguf_maker *m, int64_t id);
/* Begins an object with a "type". */
void ot_gguf_maker_begin(struct ot_gguf_maker *m, const char *key, const char *type);
/* A Replace of a pattern of this kind ("String", "Regex"). */
void ot_gguf_maker_replace(struct ot_gguf_maker *m, const char *kind, const char *from, const char *to);

/* Writes normalizer, pre_tokenizer and decoder of the kind "t5". Errors: OT_E_BUDGET. */
int ot_gguf_maker_unigram_stages(struct ot_gguf_maker *m);
/* Writes its model. Errors: OT_E_INPUT (a score is no number). */
int ot_gguf_maker_unigram_model(struct ot_gguf_maker *m);

#endif
