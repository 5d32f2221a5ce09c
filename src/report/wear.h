/* Reports the share of a drive's rated life that a run uses: the bytes that it writes to --nvme against the
 * drive's rating. */
#ifndef OT_REPORT_WEAR_H
#define OT_REPORT_WEAR_H

#include "src/base/units.h"

/* The bytes that a consumer drive of 1 TB is rated to have written to it: 600 TB in the data sheets of
 * Samsung's 990 PRO and WD's Black SN850X. The sizes and ratings of the drives behind --nvme are unknown, so
 * each counts as such a drive. */
#define OT_WEAR_RATED_BYTES 600e12

/* The share of the rating of `drives` drives (counted as at least 1). */
double ot_wear_share(double written_bytes, int drives);
/* Warns once, through the log, if `steps` steps use more than a twentieth of the rating. */
void ot_wear_warn(double written_bytes_a_step, int64_t steps, int drives);

#endif
