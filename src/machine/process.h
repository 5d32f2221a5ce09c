/* This process: the peak of its memory since a chosen time, and its command. */
#ifndef OT_MACHINE_PROCESS_H
#define OT_MACHINE_PROCESS_H

#include <stdint.h>

/* Returns freed memory to the system and resets the peak. If Linux does not allow the reset, the peak covers
 * the whole run. */
void ot_process_forget_peak(void);
int64_t ot_process_peak(void); /* bytes; 0: unknown */

/* ---- commands for a shell ---- */

/* Text that a user can paste into a shell: one word, or the command that started this process. */

/* Quotes the word if a shell would change it. The caller frees *text. Errors: OT_E_BUDGET. */
int ot_process_quote(const char *word, char **text);
/* The command of this process, with quotes where a shell needs them. without: an option ("--resume") to leave
 * out, together with its value; NULL: none. The caller frees *text. Errors: OT_E_IO (no /proc),
 * OT_E_BUDGET. */
int ot_process_command(const char *without, char **text);

#endif
