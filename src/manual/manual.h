/* The manual: a man page and the completions of two shells, made at build time from the option table and the
 * topics, so that they say what the program does. The program that makes them is not installed:
 *
 *     manual man|bash|zsh FILE
 *
 * How to add another shell: a function that writes its file, declared here; a row in manual.c; a line in
 * meson.build; a case in tests/manual.
 */
#ifndef OT_MANUAL_MANUAL_H
#define OT_MANUAL_MANUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "src/options/options.h"

/* Each writes its whole file; what could not be written the stream remembers (ferror). */
void ot_manual_write_man(FILE *out);
void ot_manual_write_bash(FILE *out);
void ot_manual_write_zsh(FILE *out);

/* ---- what completions say about a value ---- */

enum { OT_MANUAL_WORDS_BYTES = 256 };
/* The fixed words that an option's value may be, apart by spaces: "auto bf16 fp32 fp16"; "" where there is
 * none. */
const char *ot_manual_words(const struct ot_option *option, char words[OT_MANUAL_WORDS_BYTES]);
/* What of the file system it may be. */
enum ot_manual_path { OT_MANUAL_NO_PATH, OT_MANUAL_FILE, OT_MANUAL_DIR };
enum ot_manual_path ot_manual_path(const struct ot_option *option);
/* What the word behind a command may be: the directory of DIR|NAME, or nothing. */
bool ot_manual_takes_dir(enum ot_command command);

#endif
