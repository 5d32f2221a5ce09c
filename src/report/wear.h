/* How much of a drive's life a run takes: what it writes to --nvme against what drives are rated for. */
#ifndef OT_REPORT_WEAR_H
#define OT_REPORT_WEAR_H

#include "src/base/units.h"

/* Bytes that a consumer drive of 1 TB is rated to be written with. The sizes and ratings of the drives behind
 * --nvme are not known, so each counts as one of these. */
#define OT_WEAR_RATED_BYTES 600e12

/* Of the rating of so many drives (at least one). */
double ot_wear_share(double written_bytes, int drives);
/* Warns once, through the log, if a run of so many steps takes more than a twentieth of the rating. */
void ot_wear_warn(double written_bytes_a_step, int64_t steps, int drives);

#endif
