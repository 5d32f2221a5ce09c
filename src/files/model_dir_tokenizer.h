/* The tokenizer.json that a model directory does not have as it is needed. If the directory has a
 * SentencePiece model instead, tokenizer.json is made of it, in a file in memory. If tokenizer.json lacks
 * added tokens that the files beside it have, a complete one is made. Otherwise the reason is found why there
 * is no tokenizer. */
#ifndef OT_FILES_MODEL_DIR_TOKENIZER_H
#define OT_FILES_MODEL_DIR_TOKENIZER_H

#include <stdbool.h>

/* True if the name is one of a SentencePiece model: tokenizer.model, spiece.model, *.model.v3. */
bool ot_tokenizer_is_model(const char *path);
/* Makes tokenizer.json from the SentencePiece model `path` and the files beside it (config.json,
 * tokenizer_config.json, special_tokens_map.json, added_tokens.json). *fd is the file in memory, which the
 * caller closes; "/proc/self/fd/N" is its path. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_tokenizer_make(const char *path, int *fd);
/* Makes a tokenizer.json in memory that has the added tokens of the files beside `path` too. *fd is -1 if
 * none is missing; else as for ot_tokenizer_make. Errors: the same. */
int ot_tokenizer_complete(const char *path, int *fd);

struct ot_new_tokens;
/* Makes a copy of the tokenizer.json `path` in memory that has the new tokens too (new_tokens.h). *fd is -1
 * if it has them all; else as for ot_tokenizer_make. Errors: the same. */
int ot_tokenizer_extend(const char *path, const struct ot_new_tokens *tokens, int *fd);

#endif
