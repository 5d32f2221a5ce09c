/* Shared by the files that make a tokenizer.json of a SentencePiece model. Private to src/tokenizer. */
#ifndef OT_TOKENIZER_SENTENCEPIECE_MAKE_H
#define OT_TOKENIZER_SENTENCEPIECE_MAKE_H

#include "src/base/json.h"
#include "src/tokenizer/sentencepiece.h"

/* Which class of transformers makes the tokenizer. */
enum ot_sentencepiece_class { OT_CLASS_OTHER, OT_CLASS_LLAMA, OT_CLASS_T5, OT_CLASS_GEMMA };

/* Reads a token of a file: a text, or an object with the text and settings. special: its default. False:
 * neither, or an empty text, as the files of Llama 1 have it. */
bool ot_added_token_read(const struct ot_json *value, bool special, struct ot_sentencepiece_added *out);

/* The special tokens by their names, in the order in which transformers gives ids to new ones. */
enum { OT_N_SPECIAL_NAMES = 7 };
extern const char *const OT_SPECIAL_NAMES[OT_N_SPECIAL_NAMES];

struct ot_sentencepiece_maker {
    const struct ot_sentencepiece *model;
    const struct ot_sentencepiece_files *files;
    const char *where;
    enum ot_sentencepiece_class class;
    bool legacy, prefix, add_bos, add_eos;
    int64_t extra_ids;                    /* T5: tokens <extra_id_N> after the pieces */
    struct ot_arena *arena;               /* texts of <extra_id_N> */
    struct ot_sentencepiece_added *added; /* sorted by id before they are written */
    size_t n_added, added_capacity;
    int64_t next_id;
    const struct ot_sentencepiece_added *bos, *eos; /* NULL: none. Set once the list is complete */
    struct ot_json_writer w;
};

/* Lists the added tokens, and finds bos and eos. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_sentencepiece_find_added(struct ot_sentencepiece_maker *m);
#endif
