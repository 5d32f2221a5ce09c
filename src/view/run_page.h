/* The page of `report`: one run or several, as an HTML file (src/page/page.h). Curves laid over each other,
 * options that differ, and for each run its facts, the prediction beside the measurement, evaluations and
 * samples. The size is bounded: at most OT_CURVE_POINTS points a curve, and OT_RUN_PAGE_EVALS evaluations. */
#ifndef OT_VIEW_RUN_PAGE_H
#define OT_VIEW_RUN_PAGE_H

#include "src/base/text.h"
#include "src/view/history.h"

enum { OT_RUN_PAGE_EVALS = 20, OT_RUN_PAGE_SAMPLE_BYTES = 4000 };

/* n >= 1 */
void ot_run_page_put(struct ot_history *const *runs, int n, struct ot_string_builder *out);

#endif
