/* The precompiled table of replacements of a SentencePiece model (precompiled_charsmap), the normaliser
 * that applies it, and base64, in which tokenizer.json has the table.
 *
 * The table is a 32-bit size, a double array of that many bytes (units of 32 bits, of the library Darts), and
 * texts that end with NUL. The array is a trie over the keys; the value of a key is the place of its
 * replacement among the texts. All numbers are little-endian.
 *
 * A text is normalised as Hugging Face does it, which is not quite what SentencePiece does: for each grapheme
 * of at most 5 bytes, the shortest key that begins it decides, and its replacement takes the place of the
 * whole grapheme. If no key begins the grapheme, or if it is longer, each of its characters is looked up in
 * the same way.
 *
 * A table is checked while it is read: no place outside it is used, and a replacement that is no UTF-8, or
 * lies outside, counts as absent.
 */
#ifndef OT_TOKENIZER_CHARSMAP_H
#define OT_TOKENIZER_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_arena;
struct ot_piece;
struct ot_text;

struct ot_charsmap {
    const uint32_t *units;
    size_t n_units;
    const char *texts;
    size_t n_texts;  /* bytes */
    bool plain[128]; /* ASCII characters that stay if an ASCII character, or the end, follows */
};

/* Reads a table; the arena owns the copy. `where` names it in messages. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_charsmap_open(const char *bytes, size_t n, const char *where, struct ot_arena *arena,
                     struct ot_charsmap *out);
/* Errors: as ot_text_reserve. */
int ot_charsmap_apply(const struct ot_charsmap *map, const struct ot_piece *in, struct ot_text *out);

/* ---- base64 ---- */

/* RFC 4648, section 4: with padding and without line breaks. The caller frees *bytes, which end with a NUL.
 * Errors: OT_E_INPUT (`where` names the text), OT_E_BUDGET. */
int ot_base64_decode(const char *text, size_t n, const char *where, char **bytes, size_t *n_bytes);
/* The caller frees *text, which ends with a NUL. Errors: OT_E_BUDGET. */
int ot_base64_encode(const void *bytes, size_t n, char **text, size_t *n_text);

#endif
