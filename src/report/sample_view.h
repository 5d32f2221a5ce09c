/* Prints one row as the model sees it (--show-sample), on stderr, in colour on a terminal. */
#ifndef OT_REPORT_SAMPLE_VIEW_H
#define OT_REPORT_SAMPLE_VIEW_H

#include "src/train/rows.h"

/* Errors: as ot_dataset_show_sample. */
int ot_sample_view_print(const struct ot_session *session, const struct ot_rows *rows);

#endif
