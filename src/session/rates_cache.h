/* A machine's rates, kept from one run to the next, so that only the first has to measure them.
 *
 * One small JSON file each for every machine, device, dtype, number of threads and set of directories (its
 * KEY), in $XDG_CACHE_HOME/offload-train or ~/.cache/offload-train (src/base/cache_file.h). A file that is
 * damaged, of another key or without a rate that a run needs counts as none. Where none can be written, runs
 * go on without.
 */
#ifndef OT_SESSION_RATES_CACHE_H
#define OT_SESSION_RATES_CACHE_H

#include <stdbool.h>

#include "offload/predict/rates.h"
#include "src/session/parts.h"

/* Kept rates, or else measured ones, which are then kept; one line says that they are measured. quick: in a
 * few seconds; otherwise as thoroughly as `offload-train probe` does. The session has its device and no
 * model. Errors: as ot_measure_machine. */
int ot_rates_obtain(struct ot_session *session, bool quick, struct ot_rates *out);

/* As an object of what is known. */
void ot_rates_put_json(const struct ot_rates *rates, const char *key, struct ot_json_writer *w);

/* Says in one line that the machine was busy, where rates that were just measured are noisy (repeats.h). */
void ot_rates_warn(const struct ot_rates *rates);

/* Keeps rates that were measured otherwise. Returns 1, or 0 where the environment names no place. Errors:
 * OT_E_IO, OT_E_BUDGET; a run can go on without. */
int ot_rates_keep(const struct ot_session *session, const struct ot_rates *rates);

/* ---- for tests ---- */

/* folder NULL: nowhere. Reading changes the measured rates of *out where they are found. Errors: OT_E_BUDGET;
 * writing also OT_E_IO. */
int ot_rates_read(const char *folder, const char *key, struct ot_rates *out, bool *found);
int ot_rates_write(const char *folder, const char *key, const struct ot_rates *rates);
/* *out is freed by the caller. Errors: OT_E_BUDGET. */
int ot_rates_key(const struct ot_session *session, char **out);

#endif
