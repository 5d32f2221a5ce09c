/* The manual: a man page and the completions of two shells. A program makes them at build time from the
 * option table and the topics, so they always match the program. It is not installed:
 *
 *     manual man|bash|zsh FILE
 *
 * To add another shell: declare a function here that writes its file; add a row in manual.c, a line in
 * meson.build, and a case in tests/options.
 */
#ifndef OT_OPTIONS_MANUAL_H
#define OT_OPTIONS_MANUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "src/options/options.h"

/* Each function writes its whole file. The caller checks for write errors with ferror. */
void ot_manual_write_man(FILE *out);
void ot_manual_write_bash(FILE *out);
void ot_manual_write_zsh(FILE *out);

/* ---- values in completions ---- */

enum { OT_MANUAL_WORDS_BYTES = 256 };
/* The fixed words of an option's value, separated by spaces: "auto bf16 fp32 fp16"; "" if there are none. */
const char *ot_manual_words(const struct ot_option *option, char words[OT_MANUAL_WORDS_BYTES]);
/* Tells if the value may be a file or a directory. */
enum ot_manual_path { OT_MANUAL_NO_PATH, OT_MANUAL_FILE, OT_MANUAL_DIR };
enum ot_manual_path ot_manual_path(const struct ot_option *option);
/* The possible words after a command: directories for DIR|NAME, or none. */
bool ot_manual_takes_dir(enum ot_command command);

#endif
