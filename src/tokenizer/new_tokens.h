/* New tokens of --add-tokens and --add-special-tokens: reads their texts, and adds them to a tokenizer.json.
 *
 * A value is the name of a file, texts with commas between them, or a JSON list of texts. A file has one
 * token a line, in UTF-8. A line that begins and ends with a quote is a JSON string, for a text with a line
 * feed, or with blanks at an end. No text is empty, has a NUL, or is given twice.
 *
 * As in transformers (tokenizer.add_tokens), the tokens are cut out of a text before all else. A text that is
 * an added token already stays as it is; one that the vocabulary has becomes an added token, and keeps its
 * id. Other texts get the next ids, in the given order. */
#ifndef OT_TOKENIZER_NEW_TOKENS_H
#define OT_TOKENIZER_NEW_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

struct ot_json;

struct ot_new_token {
    char *text; /* NUL-terminated */
    size_t bytes;
    bool special;
};

/* Zero it first; ot_new_tokens_free at the end. */
struct ot_new_tokens {
    struct ot_new_token *items;
    size_t n, capacity;
};

/* As the tokenizer reads added tokens (load.c, complete.c). */
enum { OT_MOST_NEW_TOKENS = 20000, OT_NEW_TOKEN_MOST_BYTES = 1024 };

/* Appends the tokens of an option's value. option: its name, for errors. Errors: OT_E_INPUT (a text cannot be
 * a token; the message names the place), OT_E_IO, OT_E_BUDGET. */
int ot_new_tokens_read(const char *option, const char *value, bool special, struct ot_new_tokens *tokens);
void ot_new_tokens_free(struct ot_new_tokens *tokens);

/* Makes the text of a tokenizer.json that has the tokens too; the caller frees it. *text is NULL if it has
 * them all. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_new_tokens_add(const struct ot_json *tokenizer, const struct ot_new_tokens *tokens, char **text,
                      size_t *bytes);

#endif
