/* What one may give to a shell: a word, and the command that started the process. */
#ifndef OT_RUN_PROCESS_COMMAND_H
#define OT_RUN_PROCESS_COMMAND_H

/* The word, quoted if need be; the caller frees it. Errors: OT_E_BUDGET. */
int ot_process_quote(const char *word, char **text);
/* Words with anything in them that a shell would read otherwise are quoted. without: an option ("--resume")
 * that is left out with its value; NULL: none is. The caller frees it. Errors: OT_E_IO (where there is no
 * /proc), OT_E_BUDGET. */
int ot_process_command(const char *without, char **text);

#endif
