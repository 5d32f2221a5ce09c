/* SentencePiece models (tokenizer.model, spiece.model): reads such a file, and makes the tokenizer.json that
 * Hugging Face would make of it.
 *
 * READ. The file is a protocol buffer: pieces with scores and kinds, and settings of the trainer and of the
 * normaliser. The reader is our own and knows the fields that matter here. It checks all lengths, so any file
 * is read or refused. Models of type BPE and Unigram are supported. A vocabulary of tiktoken, which has the
 * name tokenizer.model in Meta's own directories of Llama 3, is refused by name.
 *
 * MAKE. A model directory with a SentencePiece model, but without tokenizer.json, says in
 * tokenizer_config.json which class of transformers reads it. Each class makes another tokenizer:
 *
 *   Llama    (LlamaTokenizer, CodeLlamaTokenizer: Llama 1 and 2, Mistral, Mixtral, Vicuna, Yi, Phi-3) spaces
 *            become U+2581, a text gets one in front; byte fallback; <s> begins a text. With "legacy": false
 *            only the begin of the text gets a U+2581, not each part between special tokens.
 *   T5       (T5Tokenizer, MT5Tokenizer) the model's table of replacements, then words; <extra_id_N> follow
 *            the pieces; </s> ends a text.
 *   Gemma    (GemmaTokenizer) spaces become U+2581; <bos> begins a text.
 *   others   as the model's own settings say, and as SentencePiece encodes: table of replacements, extra
 *            spaces, U+2581 in front, user-defined pieces as wholes.
 *
 * Without a class, the config's model_type decides between them. The classes Llama, T5 and Gemma follow
 * convert_slow_tokenizer.py of transformers 4.57; the others follow version 5. add_bos_token, add_eos_token,
 * add_prefix_space, legacy and extra_ids of tokenizer_config.json are applied. One thing differs: a
 * setting or a token that is null counts as absent.
 *
 * ADDED TOKENS are the control and user-defined pieces, then those of added_tokens_decoder in
 * tokenizer_config.json, or else those of added_tokens.json and special_tokens_map.json, then bos_token,
 * eos_token, unk_token and the other special tokens. A token that is no piece and has no id in these files
 * gets the next one.
 *
 * MERGES. A SentencePiece model of type BPE has no merges: of all adjacent pieces, the pair that makes the
 * piece with the best score is merged first. The merges are all pairs of pieces that make a piece, ordered by
 * its score, then by the length of the left piece.
 *
 * Threads: an open model never changes.
 */
#ifndef OT_TOKENIZER_SENTENCEPIECE_H
#define OT_TOKENIZER_SENTENCEPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tokenizer/vocab.h"

struct ot_arena;
struct ot_json;
struct ot_json_writer;

/* U+2581, which SentencePiece writes for a space. */
#define OT_SENTENCEPIECE_SPACE "\xe2\x96\x81"

/* The kinds have the numbers of the file. */
enum ot_sentencepiece_type { OT_SENTENCEPIECE_UNIGRAM = 1, OT_SENTENCEPIECE_BPE = 2 };
enum ot_sentencepiece_kind {
    OT_PIECE_NORMAL = 1,
    OT_PIECE_UNKNOWN,
    OT_PIECE_CONTROL,
    OT_PIECE_USER_DEFINED,
    OT_PIECE_UNUSED,
    OT_PIECE_BYTE
};

struct ot_sentencepiece_piece {
    float score;
    enum ot_sentencepiece_kind kind;
};

struct ot_sentencepiece {
    struct ot_arena *arena;
    struct ot_vocab vocab; /* texts of the pieces, by id */
    struct ot_sentencepiece_piece *pieces;
    enum ot_sentencepiece_type type;
    int32_t unk; /* id of the piece of kind "unknown" */
    bool byte_fallback;
    const char *bos, *eos; /* texts of these pieces; NULL: none */
    const char *charsmap;  /* the table of replacements (charsmap.h); NULL: none */
    size_t charsmap_bytes;
    bool dummy_prefix, remove_extra_spaces, escape_spaces;
};

/* Reads a file. Errors: OT_E_IO, OT_E_INPUT (not a SentencePiece model, inconsistent, or of a type that is
 * not supported: the message says which), OT_E_BUDGET. */
int ot_sentencepiece_open(const char *path, struct ot_sentencepiece **out);
void ot_sentencepiece_close(struct ot_sentencepiece *model); /* NULL is fine */

/* The other files of the model's directory; NULL: absent. */
struct ot_sentencepiece_files {
    const struct ot_json *tokenizer_config, *special_tokens_map, *added_tokens;
    const char *model_type; /* of config.json; NULL: unknown */
};

/* Makes the text of tokenizer.json; the caller frees it. `where` names the directory in messages. Errors:
 * OT_E_INPUT (the files contradict each other), OT_E_BUDGET. */
int ot_sentencepiece_make(const struct ot_sentencepiece *model, const struct ot_sentencepiece_files *files,
                          const char *where, char **text, size_t *bytes);
/* Makes the text of a tokenizer.json that has the added tokens of the other files too (complete.c); the
 * caller frees it. *text is NULL if it has them all. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_tokenizer_complete_text(const struct ot_json *tokenizer, const struct ot_sentencepiece_files *files,
                               char **text, size_t *bytes);

/* An added token of a tokenizer.json. */
struct ot_sentencepiece_added {
    const char *text; /* of the model, or of the files */
    size_t bytes;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* Writes the token as an item of the list "added_tokens". */
void ot_added_token_put(struct ot_json_writer *w, const struct ot_sentencepiece_added *token);

#endif
