/* The metrics of a run in the text format of Prometheus (version 0.0.4), for the textfile collector of its
 * node exporter, which reads *.prom files of a directory.
 *
 * Each metric has a name with its base unit, one line of help and its type, and the label `out`, the output
 * of the run, so that several runs can have a file each in one directory. The file is written under the name
 * FILE.partial and renamed, so a reader never sees a half of it. A value that the run does not have is left
 * out.
 */
#ifndef OT_DASHBOARD_METRICS_H
#define OT_DASHBOARD_METRICS_H

#include "src/base/json.h"

struct ot_metrics;

/* Writes nothing. Errors: OT_E_BUDGET. */
int ot_metrics_open(const char *path, struct ot_metrics **out);
void ot_metrics_close(struct ot_metrics *metrics); /* NULL is fine */
/* Takes an event of the log (src/train/run_log.h). */
void ot_metrics_take(struct ot_metrics *metrics, const struct ot_json *event);
/* Writes the file, if the last time was at least a second ago, or `now`. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_metrics_write(struct ot_metrics *metrics, bool now);

#endif
