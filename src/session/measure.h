/* Measures this machine: runs the probe (offload/probe/probe.h) in sizes that suit the session's device and
 * memory. The largest sizes are a layer of a 7B model and buffers of half a gigabyte, so that caches do not
 * matter. A small or slow machine is measured with smaller layers: the largest whose products take at most a
 * tenth of a second each. On a terminal the status line names the stage. */
#ifndef OT_SESSION_MEASURE_H
#define OT_SESSION_MEASURE_H

#include <stdbool.h>

#include "offload/predict/rates.h"
#include "offload/probe/probe.h"
#include "src/session/session.h"

/* The widest layer (hidden size) for which there is memory, among the sizes that the probe knows. */
int64_t ot_measure_widest(const struct ot_session *session);
/* The optimizer is measured with these masters: those of --master-weights, if the weights are bf16. */
enum ot_masters ot_measure_masters(const struct ot_session *session);

/* The rates that need no measurement (cores, threads, kind of device); the other rates are 0. */
struct ot_rates ot_measure_facts(const struct ot_session *session);

/* Needs a session with a device and without a model. quick: measures only what predictions need, in a few
 * seconds. reader: NULL, or gets every row. Errors: those of the probe and of the reader. */
int ot_measure_machine(const struct ot_session *session, bool quick, const struct ot_probe_reader *reader,
                       struct ot_rates *out);

/* ---- the cache of rates ---- */

/* Keeps a machine's rates from one run to the next, so that only the first run measures them.
 *
 * One small JSON file for each machine, device, dtype, number of threads and set of directories (its KEY), in
 * $XDG_CACHE_HOME/offload-train or ~/.cache/offload-train (src/base/cache_file.h). A file is ignored if it is
 * damaged, has another key, or lacks a rate that a run needs. Rates that were measured while the machine was
 * busy are measured again once it is idle: they may be wrong by a factor. A run continues without a cache
 * where none can be written.
 */

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
