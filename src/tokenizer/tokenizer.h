/* Tokenizer: text to token ids and back, as a Hugging Face tokenizer.json says (BPE models).
 *
 * A tokenizer is a pipeline read from the file once: added tokens are cut out of the text, each remaining
 * piece is normalised, split into words by the pre-tokenizers, merged by BPE, and framed by the
 * post-processor. Ids equal those of Hugging Face `tokenizers`; what this program does not know is refused by
 * name when the file is opened.
 *
 * NFC, NFKC and their like follow utf8proc's version of Unicode, which may be another than that of
 * `tokenizers`: code points that the newer one added are normalised differently (108 of 800,000 probed texts,
 * all with such code points).
 *
 * Text is UTF-8; what is not is read as Python's errors="replace" reads it: one U+FFFD for each maximal
 * invalid part. NUL is a character like any other.
 *
 * Threads: an open tokenizer never changes, and any number of threads may encode and decode with one at a
 * time. Working memory and word caches are lent to one call at a time and stay with the tokenizer for the
 * next; no lock is held.
 */
#ifndef OT_TOKENIZER_TOKENIZER_H
#define OT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_tokenizer;

/* Errors: OT_E_IO (cannot read), OT_E_INPUT (not a tokenizer.json, inconsistent, or asks for something
 * unsupported: the sentence names the file, the component and what is supported), OT_E_BUDGET (no memory). */
int ot_tokenizer_open(const char *path, struct ot_tokenizer **out);
void ot_tokenizer_close(struct ot_tokenizer *tokenizer); /* NULL is fine */

enum ot_tokenizer_flags {
    OT_TOKENIZER_ADD_SPECIAL = 1,     /* apply the post-processor: BOS and the like */
    OT_TOKENIZER_SPECIALS_AS_TEXT = 2 /* special tokens written in the text stay plain text */
};

/* The result of an encode. Zero it before the first use; later calls reuse its memory; free it with
 * ot_token_list_free. start[i] is the byte offset in the original text of the first byte that token i covers:
 * a part that a normaliser put in counts as the character that it precedes, BOS counts as 0 and EOS as the
 * length of the text. */
struct ot_token_list {
    int32_t *ids;
    uint32_t *start;
    size_t n, capacity;
    size_t specials; /* special tokens found in the text itself; those of the post-processor do not count */
};

void ot_token_list_free(struct ot_token_list *list);
void ot_token_list_clear(struct ot_token_list *list); /* empty, memory kept */
/* Appends one token. Errors: OT_E_BUDGET. */
int ot_token_list_add(struct ot_token_list *list, int32_t id, uint32_t start);

/* Replaces the contents of *out. Errors: OT_E_INPUT (the text is longer than OT_TOKENIZER_MAX_BYTES, or a
 * pattern of the tokenizer needs absurd work on it), OT_E_BUDGET; *out is then empty but still to be
 * freed. */
enum { OT_TOKENIZER_MAX_BYTES = 1 << 30 };
int ot_tokenizer_encode(const struct ot_tokenizer *tokenizer, const char *text, size_t bytes, unsigned flags,
                        struct ot_token_list *out);
/* Appends the tokens of text[begin, end), a part of a longer text, to *out, with offsets in the whole text.
 * The part is encoded as Hugging Face encodes the text between two special tokens. Errors: as
 * ot_tokenizer_encode. */
int ot_tokenizer_encode_part(const struct ot_tokenizer *tokenizer, const char *text, size_t begin, size_t end,
                             struct ot_token_list *out);

/* Text of n ids, NUL-terminated and freed by the caller; bytes may be NULL. Ids without a token give nothing,
 * bytes that make no character give U+FFFD, as in Hugging Face. Errors: OT_E_BUDGET. */
int ot_tokenizer_decode(const struct ot_tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                        char **text, size_t *bytes);

/* Decoding while ids still come: each push gives the text that has become certain, in whole characters (often
 * ""). The pieces joined equal ot_tokenizer_decode of all ids, but where a run of byte tokens stops being
 * UTF-8 after a part that was: the part already given stays. The tokenizer must outlive the stream. One
 * thread at a time. */
struct ot_decode_stream;
int ot_decode_stream_open(const struct ot_tokenizer *tokenizer, bool skip_special,
                          struct ot_decode_stream **out);
void ot_decode_stream_close(struct ot_decode_stream *stream);
/* *text is NUL-terminated, borrowed, and valid until the next call. */
int ot_decode_stream_push(struct ot_decode_stream *stream, int32_t id, const char **text, size_t *bytes);
/* What was held back. */
int ot_decode_stream_finish(struct ot_decode_stream *stream, const char **text, size_t *bytes);

/* One more than the largest id, added tokens included: what an embedding must have at least. */
int32_t ot_tokenizer_vocab_size(const struct ot_tokenizer *tokenizer);
/* The id of a token by its text as the file spells it ("</s>", "<|im_end|>"), or -1. */
int32_t ot_tokenizer_find(const struct ot_tokenizer *tokenizer, const char *token, size_t bytes);
/* The spelling of an id in the file, borrowed (it may hold NUL: see bytes); NULL where the id has no
 * token. */
const char *ot_tokenizer_token(const struct ot_tokenizer *tokenizer, int32_t id, size_t *bytes);
bool ot_tokenizer_is_special(const struct ot_tokenizer *tokenizer, int32_t id);

/* Writes the smallest tokenizer.json of a byte-level BPE: ids 0..255 are the bytes, then <|bos|>, <|eos|>,
 * <|pad|>; no merges; encoding with OT_TOKENIZER_ADD_SPECIAL puts <|bos|> in front. For presets that are
 * trained from scratch. Errors: OT_E_IO. */
enum { OT_BYTE_LEVEL_BOS = 256, OT_BYTE_LEVEL_EOS, OT_BYTE_LEVEL_PAD, OT_BYTE_LEVEL_VOCAB };
int ot_tokenizer_write_byte_level(const char *path);

#endif
