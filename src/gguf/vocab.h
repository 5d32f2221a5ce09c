/* The tokenizer of a GGUF file: from a tokenizer.json to keys, and from keys to a tokenizer.json.
 *
 * GGUF knows these kinds (tokenizer.ggml.model):
 *   "llama"  SentencePiece's BPE: spaces become U+2581, unknown characters become byte tokens <0xNN>. Tokens
 *            have scores; the pair whose token has the highest score is merged first.
 *   "gpt2"   byte-level BPE: tokenizer.ggml.pre names the regex that cuts a text into words; merges have
 *            ranks.
 *   "t5"     SentencePiece's Unigram: scores, and the table of replacements (precompiled_charsmap). The keys
 *            add_space_prefix and remove_extra_whitespaces say what happens to spaces.
 * All are written with tokens, token_type, bos_token_id, eos_token_id, add_bos_token, add_eos_token. Ids of
 * the embedding that have no token get the name [PADn] and the type "unused".
 *
 * SCORES. A Unigram model has its scores in tokenizer.json. That of a BPE model has none: if the
 * SentencePiece model is at hand and has the same tokens, its scores are written; otherwise the score of a
 * token is minus the rank of the first merge that makes it.
 *
 * A tokenizer.json that llama.cpp would encode otherwise is refused by name: another model, a normaliser or
 * a regex that llama.cpp does not know, a Unigram model with byte fallback. What GGUF cannot say is lost:
 * whether an added token takes the spaces beside it (lstrip, rstrip), or counts only as a whole word
 * (single_word); that a text which begins with a space gets no second one (Metaspace); that blanks other
 * than spaces are dropped (WhitespaceSplit), which matters only to a Unigram model whose table leaves such
 * blanks. llama.cpp does not normalise to NFC, as Qwen's tokenizers do, so decomposed characters get other
 * ids there; and where a table of replacements has several keys that begin a text, it takes the longest,
 * Hugging Face the shortest. Reading a file of ours gives what was written.
 *
 * Sources: gguf-py's vocab.py and constants.py; llama.cpp's llama-vocab.cpp (kinds, regexes, defaults).
 */
#ifndef OT_GGUF_VOCAB_H
#define OT_GGUF_VOCAB_H

#include "src/gguf/writer.h"

struct ot_json;
struct ot_sentencepiece;

/* ---- writing ---- */

struct ot_gguf_vocab {
    const struct ot_json *tokenizer; /* the tree of tokenizer.json */
    const char *where;               /* its path, for messages */
    int64_t size;                    /* rows of the embedding */
    int64_t bos, eos;                /* -1: none */
    bool add_bos, add_eos;           /* a text begins with bos, ends with eos */
    /* The SentencePiece model of the tokenizer, for its scores; NULL: not at hand. */
    const struct ot_sentencepiece *sentencepiece;
    const char *chat_template; /* Jinja; NULL: none */
    size_t chat_template_bytes;
};

/* Errors: OT_E_INPUT (the tokenizer cannot be expressed), OT_E_BUDGET. */
int ot_gguf_put_vocab(struct ot_gguf_keys *keys, const struct ot_gguf_vocab *vocab);

/* ---- reading ---- */

struct ot_gguf_token_ids {
    int64_t bos, eos; /* -1: none */
};

/* Errors: OT_E_INPUT: an id is not below the number of tokens. */
int ot_gguf_read_token_ids(const struct ot_gguf *file, struct ot_gguf_token_ids *ids);
/* Makes the text of tokenizer.json; the caller frees it. *text NULL: the file has no tokenizer. Errors:
 * OT_E_INPUT (its kind is not supported, or its keys contradict each other), OT_E_BUDGET. */
int ot_gguf_make_tokenizer(const struct ot_gguf *file, char **text, size_t *bytes);

/* ---- reading and writing ---- */

/* Values of tokenizer.ggml.token_type. */
enum ot_gguf_token_type {
    OT_GGUF_TOKEN_NORMAL = 1,
    OT_GGUF_TOKEN_UNKNOWN = 2,
    OT_GGUF_TOKEN_CONTROL = 3,
    OT_GGUF_TOKEN_USER = 4,
    OT_GGUF_TOKEN_UNUSED = 5,
    OT_GGUF_TOKEN_BYTE = 6,
};

/* The way in which a byte-level tokenizer splits texts into words. */
struct ot_gguf_words {
    const char *name;  /* tokenizer.ggml.pre */
    const char *regex; /* of a Split before ByteLevel; NULL: ByteLevel's own */
    bool digits;       /* each digit is a word */
    bool nfc;          /* the text is normalised first */
    bool whole_first;  /* a word that is a token is not merged (ignore_merges) */
    bool add_bos;      /* the default of add_bos_token */
};
const struct ot_gguf_words *ot_gguf_words_at(int index); /* NULL past the last */

/* The normalisation of a text before the Unigram model, as the kind "t5" can store it. */
struct ot_gguf_unigram {
    const char *charsmap; /* base64; NULL: no table of replacements */
    bool prefix;          /* a text gets a space in front */
    bool merge_spaces;    /* spaces at the ends go, and runs of spaces become one */
};
/* False: llama.cpp does not know the normalizer or the pre_tokenizer of this tokenizer.json. */
bool ot_gguf_find_unigram(const struct ot_json *tokenizer, struct ot_gguf_unigram *out);

#endif
