/* Regular expressions of a tokenizer.json, matched by PCRE2.
 *
 * Hugging Face matches them with Oniguruma (Ruby's syntax, Unicode tables). This code translates a pattern to
 * PCRE2's syntax so that it matches the same text. \s \w \d \h and \b become the sets of Oniguruma, since
 * PCRE2's sets differ in a few characters. Nested classes become one union, (?m) becomes (?s), {,n} becomes
 * {0,n}, and x(?i)b|c becomes x(?i:b|c). Syntax without an exact translation (class intersections, negated
 * nested classes, POSIX brackets, back references) is refused by its name.
 */
#ifndef OT_TOKENIZER_REGEX_MATCH_H
#define OT_TOKENIZER_REGEX_MATCH_H

#include <stddef.h>
#include <stdbool.h>

struct ot_regex;
struct ot_regex_scratch;

/* Translates and compiles a pattern. `where` names the place in the file, for messages. Errors: OT_E_INPUT
 * ("WHERE: pattern '...': why"), OT_E_BUDGET (no memory). */
int ot_regex_open(const char *pattern, size_t bytes, const char *where, struct ot_regex **out);
void ot_regex_close(struct ot_regex *regex); /* NULL is fine */

/* Working memory for matching. One thread at a time may use it, with any regex. */
int ot_regex_scratch_open(struct ot_regex_scratch **out);
void ot_regex_scratch_close(struct ot_regex_scratch *scratch);

/* Finds the first match at or after `from` in valid UTF-8; the match may be empty. Returns 1 and the match,
 * or 0 if there is none. Errors: OT_E_INPUT (the pattern needs more backtracking than the limit), OT_E_BUDGET
 * (no memory). */
int ot_regex_match(const struct ot_regex *regex, struct ot_regex_scratch *scratch, const char *text, size_t n,
                   size_t from, size_t *begin, size_t *end);

/* Translates a pattern without compiling it. The caller frees *out, which ends with a NUL. Errors: as
 * ot_regex_open. */
int ot_regex_translate(const char *pattern, size_t bytes, const char *where, char **out);

#endif
