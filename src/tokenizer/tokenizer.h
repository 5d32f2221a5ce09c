/* The tokenizer turns text into token ids and back, as a Hugging Face tokenizer.json with a BPE or a Unigram
 * model says.
 *
 * A tokenizer is a pipeline that is read from the file once. It cuts added tokens out of the text, normalises
 * each remaining piece, splits it into words (pre-tokenizers), lets the model turn each word into tokens, and
 * puts tokens such as BOS around the result (post-processor). Ids equal those of Hugging Face `tokenizers`. A
 * component that this program does not support is refused by its name when the file is opened:
 *
 *                    supported                                            refused
 *   model            BPE, Unigram                                         WordPiece, WordLevel
 *   normalizer       Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD,    BertNormalizer
 *                    Lowercase, Strip, StripAccents, Nmt, ByteLevel,
 *                    Precompiled
 *   pre_tokenizer    Sequence, ByteLevel, Split, Metaspace, Digits,       BertPreTokenizer, UnicodeScripts,
 *                    Punctuation, Whitespace, WhitespaceSplit,            FixedLength
 *                    CharDelimiterSplit
 *   post_processor   Sequence, TemplateProcessing, RobertaProcessing,
 *                    BertProcessing, ByteLevel
 *   decoder          Sequence, Replace, ByteFallback, Fuse, Strip,        WordPiece, BPEDecoder, CTC
 *                    ByteLevel, Metaspace
 *
 * If a normaliser replaces several characters, or a Unigram model writes unknown characters as bytes, the
 * offsets here are those of the characters themselves; Hugging Face's are coarser.
 *
 * NFC, NFD, NFKC and NFKD follow utf8proc's version of Unicode. `tokenizers` may use another version: code
 * points that only the newer version has are normalised differently (108 of 800,000 compared texts, all with
 * such code points).
 *
 * Text is UTF-8. Invalid bytes are read as Python's errors="replace" reads them: one U+FFFD for each maximal
 * invalid part. NUL is an ordinary character.
 *
 * Threads: an open tokenizer never changes, so any number of threads may encode and decode with it at the
 * same time. Each call takes working memory and a word cache from the tokenizer and gives them back for the
 * next call. No locks are used.
 */
#ifndef OT_TOKENIZER_TOKENIZER_H
#define OT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_tokenizer;

/* The largest real files have 40 MB. Parsing needs up to sixty times a file's bytes. */
enum { OT_TOKENIZER_MAX_FILE_BYTES = 128 << 20 };

/* Reads a tokenizer.json. Errors: OT_E_IO (cannot read), OT_E_INPUT (not a tokenizer.json, inconsistent, or
 * an unsupported component: the message names the file, the component and what is supported), OT_E_BUDGET (no
 * memory). */
int ot_tokenizer_open(const char *path, struct ot_tokenizer **out);
void ot_tokenizer_close(struct ot_tokenizer *tokenizer); /* NULL is fine */

enum ot_tokenizer_flags {
    OT_TOKENIZER_ADD_SPECIAL = 1,     /* apply the post-processor, which adds BOS and EOS */
    OT_TOKENIZER_SPECIALS_AS_TEXT = 2 /* a special token in the text is plain text */
};

/* The result of an encode. Zero it before the first use; later calls reuse its memory; free it with
 * ot_token_list_free. start[i] is the byte offset, in the original text, of the first byte that token i
 * covers. Text that a normaliser inserts has the offset of the character that it precedes. BOS has offset 0,
 * EOS the length of the text. */
struct ot_token_list {
    int32_t *ids;
    uint32_t *start;
    size_t n, capacity;
    size_t specials; /* special tokens in the text itself, without the post-processor's */
};

void ot_token_list_free(struct ot_token_list *list);
void ot_token_list_clear(struct ot_token_list *list); /* empties the list and keeps its memory */
/* Appends one token. Errors: OT_E_BUDGET (no memory). */
int ot_token_list_add(struct ot_token_list *list, int32_t id, uint32_t start);

/* Encodes a text and replaces the contents of *out. flags: enum ot_tokenizer_flags. Errors: OT_E_INPUT (the
 * text is longer than OT_TOKENIZER_MAX_BYTES, or a regular expression of the tokenizer takes too much work on
 * it), OT_E_BUDGET (no memory). After an error *out is empty; free it as usual. */
enum { OT_TOKENIZER_MAX_BYTES = 1 << 30 };
int ot_tokenizer_encode(const struct ot_tokenizer *tokenizer, const char *text, size_t bytes, unsigned flags,
                        struct ot_token_list *out);
/* Appends the tokens of text[begin, end), a part of a longer text, to *out, with offsets in the whole text.
 * The part is encoded as Hugging Face encodes the text between two special tokens. Errors: as
 * ot_tokenizer_encode. */
int ot_tokenizer_encode_part(const struct ot_tokenizer *tokenizer, const char *text, size_t begin, size_t end,
                             struct ot_token_list *out);

/* Decodes n ids. The caller frees *text, which ends with a NUL; bytes may be NULL. As in Hugging Face, ids
 * without a token give no text, and bytes that form no character give U+FFFD. Errors: OT_E_BUDGET (no
 * memory). */
int ot_tokenizer_decode(const struct ot_tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                        char **text, size_t *bytes);

/* A stream decodes ids one by one. Each push returns the text that later ids cannot change any more, in whole
 * characters (often ""). All pieces together equal ot_tokenizer_decode of all ids, with one exception: if a
 * run of byte tokens is valid UTF-8 at first and becomes invalid later, the text that was already returned
 * stays. The tokenizer must outlive the stream. One thread at a time may use a stream. */
struct ot_decode_stream;
int ot_decode_stream_open(const struct ot_tokenizer *tokenizer, bool skip_special,
                          struct ot_decode_stream **out);
void ot_decode_stream_close(struct ot_decode_stream *stream);
/* *text ends with a NUL, belongs to the stream, and is valid until the next call. Errors: OT_E_BUDGET (no
 * memory). */
int ot_decode_stream_push(struct ot_decode_stream *stream, int32_t id, const char **text, size_t *bytes);
/* Returns the rest of the text. *text: as for push. */
int ot_decode_stream_finish(struct ot_decode_stream *stream, const char **text, size_t *bytes);

/* One more than the largest id, including added tokens. The embedding needs at least as many rows. */
/* The checksum of its tokenizer.json. */
uint32_t ot_tokenizer_crc(const struct ot_tokenizer *tokenizer);
int32_t ot_tokenizer_vocab_size(const struct ot_tokenizer *tokenizer);
/* The id of a token, by its text in the file ("</s>", "<|im_end|>"), or -1. */
int32_t ot_tokenizer_find(const struct ot_tokenizer *tokenizer, const char *token, size_t bytes);
/* The text of an id in the file, which belongs to the tokenizer. The text may contain NULs: use *bytes. NULL
 * if the id has no token. */
const char *ot_tokenizer_token(const struct ot_tokenizer *tokenizer, int32_t id, size_t *bytes);
bool ot_tokenizer_is_special(const struct ot_tokenizer *tokenizer, int32_t id);

/* Writes the tokenizer.json of a byte-level BPE without merges, for models that are trained from scratch. Ids
 * 0..255 are the bytes, then come <|bos|>, <|eos|> and <|pad|>. Encoding with OT_TOKENIZER_ADD_SPECIAL puts
 * <|bos|> in front. Errors: OT_E_IO, OT_E_BUDGET (no memory). */
enum { OT_BYTE_LEVEL_BOS = 256, OT_BYTE_LEVEL_EOS, OT_BYTE_LEVEL_PAD, OT_BYTE_LEVEL_VOCAB };
int ot_tokenizer_write_byte_level(const char *path);

#endif
