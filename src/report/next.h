/* The command that asks a trained model for an answer. */
#ifndef OT_REPORT_NEXT_H
#define OT_REPORT_NEXT_H

#include "src/data/format.h"

/* What follows `generate OUT` for a model that was trained on such rows: -p TEXT, or --row -p and a row
 * without its answer, quoted for a shell. prompt_format: of rows of kind custom. The caller frees *words.
 * Errors: OT_E_BUDGET. */
int ot_report_next_words(enum ot_row_kind kind, const char *prompt_format, char **words);

#endif
