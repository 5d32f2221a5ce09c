#include "src/report/wear.h"

#include "src/base/log.h"
#include "src/base/minmax.h"

/* The share of the rating from which a run is worth a warning. */
static const double WARN_SHARE = 0.05;

double ot_wear_share(double written_bytes, int drives) {
    return written_bytes / OT_WEAR_RATED_BYTES / ot_max(drives, 1);
}

void ot_wear_warn(double written_bytes_a_step, int64_t steps, int drives) {
    double written = written_bytes_a_step * (double)steps, share = ot_wear_share(written, drives);
    if (share <= WARN_SHARE)
        return;
    ot_log(OT_LOG_WARN,
           "the run writes %.1f TB to --nvme: %.0f %% of the %.0f TB that %s rated for. A larger --host-mem "
           "or --tokens-per-step writes less",
           written * 1e-12, 100 * share, OT_WEAR_RATED_BYTES * 1e-12 * ot_max(drives, 1),
           drives > 1 ? "1 TB drives are" : "a 1 TB drive is");
}
