/* Text that a user can paste into a shell: one word, or the command that started this process. */
#ifndef OT_TRAIN_PROCESS_COMMAND_H
#define OT_TRAIN_PROCESS_COMMAND_H

/* Quotes the word if a shell would change it. The caller frees *text. Errors: OT_E_BUDGET. */
int ot_process_quote(const char *word, char **text);
/* The command of this process, with quotes where a shell needs them. without: an option ("--resume") to leave
 * out, together with its value; NULL: none. The caller frees *text. Errors: OT_E_IO (no /proc),
 * OT_E_BUDGET. */
int ot_process_command(const char *without, char **text);

#endif
