/* Keeps a machine's rates from one run to the next, so that only the first run measures them.
 *
 * One small JSON file for each machine, device, dtype, number of threads and set of directories (its KEY), in
 * $XDG_CACHE_HOME/offload-train or ~/.cache/offload-train (src/base/cache_file.h). A file is ignored if it is
 * damaged, has another key, or lacks a rate that a run needs. Rates that were measured while the machine was
 * busy are measured again once it is idle: they may be wrong by a factor. A run continues without a cache
 * where none can be written.
 */
#ifndef OT_SESSION_RATES_CACHE_H
#define OT_SESSION_RATES_CACHE_H

#include <stdbool.h>

#include "offload/predict/rates.h"
#include "src/session/parts.h"

/* Reads the kept rates, or else measures and keeps them; a log line says that rates were measured. quick:
 * measures for a few seconds; otherwise as thoroughly as `offload-train probe`. Needs a session with a device
 * and without a model. Errors: as ot_measure_machine. */
int ot_rates_obtain(struct ot_session *session, bool quick, struct ot_rates *out);

/* Writes an object of the known rates. */
void ot_rates_put_json(const struct ot_rates *rates, const char *key, struct ot_json_writer *w);

/* Logs one line if rates that were just measured are noisy because the machine was busy (repeats.h). */
void ot_rates_warn(const struct ot_rates *rates);

/* Keeps rates that the caller has measured. Returns 1, or 0 if the environment names no place for the cache.
 * Errors: OT_E_IO, OT_E_BUDGET; a run can continue without the cache. */
int ot_rates_keep(const struct ot_session *session, const struct ot_rates *rates);

/* ---- for tests ---- */

/* folder NULL: there is no cache. Reading replaces the measured rates of *out if the file is found. Errors:
 * OT_E_BUDGET; writing also OT_E_IO. */
int ot_rates_read(const char *folder, const char *key, struct ot_rates *out, bool *found);
int ot_rates_write(const char *folder, const char *key, const struct ot_rates *rates);
/* The caller frees *out. Errors: OT_E_BUDGET. */
int ot_rates_key(const struct ot_session *session, char **out);

#endif
