/* The texts that scripts/golden/tokenizer.py gave to Hugging Face's tokenizers, and comparisons with their
 * results. */
#ifndef OT_TESTS_TOKENIZER_CORPUS_H
#define OT_TESTS_TOKENIZER_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/json.h"
#include "src/tokenizer/tokenizer.h"

struct text {
    char *bytes;
    size_t n;
    bool is_utf8;
};

struct corpus {
    struct text *texts, *random;
    size_t n_texts, n_random;
};

struct ot_json *golden_json(const char *name); /* reads tests/golden/tokenizers/NAME */
void golden_tokenizer_path(const char *name, char path[512]);
struct ot_tokenizer *golden_tokenizer(const char *name); /* NAME without .json */

void corpus_open(struct corpus *corpus);
void corpus_close(struct corpus *corpus);

/* CRC-32 of the numbers as little-endian 32-bit integers. */
uint32_t crc_numbers(uint32_t crc, const void *numbers, size_t n);
/* Changes offsets of bytes to offsets of the characters that hold them, because Hugging Face counts
 * characters. */
void round_starts(struct ot_token_list *list, const struct text *text);
/* Compares everything that `expected` states: ids, starts, decoding, frames, special tokens as text. */
void check_vectors(const struct ot_tokenizer *tokenizer, const char *name, const struct corpus *corpus);
/* Opens a tokenizer.json with this text. */
struct ot_tokenizer *open_tokenizer_json(const char *json);
/* `wanted`: the tokens as "id@start ". */
void check_encoded(const struct ot_tokenizer *tokenizer, const char *text, const char *wanted);

#endif
