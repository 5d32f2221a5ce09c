/* Words the next command after training: the command that asks the model for an answer. */
#ifndef OT_REPORT_NEXT_H
#define OT_REPORT_NEXT_H

#include "src/data/format.h"

/* The words that follow `generate OUT` for a model trained on rows of this kind: -p TEXT, or --row -p with a
 * row without its answer, quoted for a shell. prompt_format: for rows of kind custom. The caller frees
 * *words. Errors: OT_E_BUDGET. */
int ot_report_next_words(enum ot_row_kind kind, const char *prompt_format, char **words);

#endif
