/* Patterns of a tokenizer.json, run by PCRE2.
 *
 * Hugging Face runs them with Oniguruma (Ruby-like syntax, Unicode tables). A pattern is translated to PCRE2
 * so that it matches the same: \s \w \d \h and \b are spelled out as the sets that Oniguruma uses (PCRE2's
 * own differ in a few characters), nested classes are flattened to a union, (?m) becomes (?s), {,n} becomes
 * {0,n}. What cannot be translated faithfully (class intersections, negated nested classes, POSIX brackets,
 * back references) is refused by name.
 */
#ifndef OT_TOKENIZER_REGEX_H
#define OT_TOKENIZER_REGEX_H

#include <stddef.h>
#include <stdbool.h>

struct ot_regex;
struct ot_regex_scratch;

/* Errors: OT_E_INPUT: "WHERE: pattern '...': why", OT_E_BUDGET. */
int ot_regex_open(const char *pattern, size_t bytes, const char *where, struct ot_regex **out);
void ot_regex_close(struct ot_regex *regex); /* NULL is fine */

/* Working memory of matching: one per thread at a time, good for every regex. */
int ot_regex_scratch_open(struct ot_regex_scratch **out);
void ot_regex_scratch_close(struct ot_regex_scratch *scratch);

/* The first match at or after `from` in valid UTF-8; may be empty. Returns 1, or 0 without one. Errors:
 * OT_E_INPUT when the pattern needs more backtracking than is sane, OT_E_BUDGET. */
int ot_regex_match(const struct ot_regex *regex, struct ot_regex_scratch *scratch, const char *text, size_t n,
                   size_t from, size_t *begin, size_t *end);

/* The translation alone, NUL-terminated and freed by the caller. */
int ot_regex_translate(const char *pattern, size_t bytes, const char *where, char **out);

#endif
