/* Strings: a builder that grows, and formatting into a new allocation. Not thread-safe. */
#ifndef OT_BASE_TEXT_H
#define OT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* A text that grows. Zero it first; free(text) at the end. If an allocation fails, `failed` is set and later
 * calls do nothing, so the caller checks once at the end. */
struct ot_string_builder {
    char *text; /* NUL-terminated from the first append on */
    size_t bytes, capacity;
    bool failed;
};
/* bytes 0: text may be NULL. */
void ot_string_append(struct ot_string_builder *b, const char *text, size_t bytes);
void ot_string_append_text(struct ot_string_builder *b, const char *text); /* NUL-terminated */
void ot_string_append_format(struct ot_string_builder *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A copy of n bytes, with a NUL behind it; unlike strndup it does not end at a NUL in the text. The caller
 * frees it. NULL: no memory. */
char *ot_string_copy(const char *text, size_t bytes);

/* Formats into *out, which the caller frees; NULL after an error. Errors: OT_E_BUDGET. */
int ot_string_format(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- lists of words, separated by one space: "bos_token eos_token" ---- */

/* The index of the word text[0..bytes); -1: it is not in the list. */
int ot_words_find(const char *words, const char *text, size_t bytes);
bool ot_words_have(const char *words, const char *text); /* NUL-terminated */
/* The word at an index, which has *bytes bytes; NULL past the last. */
const char *ot_words_at(const char *words, int index, size_t *bytes);

#endif
