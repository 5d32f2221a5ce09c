/* Dashboards: a run, as other programs show it while it runs.
 *
 * A dashboard gets the lines of the run's log (src/train/run_log.h), each once it is in log.jsonl, and
 * translates them. So it shows the numbers of the log, and costs the run one parse of a short line per step.
 *
 * TENSORBOARD (--tensorboard DIR). One event file per start of the run (event_file.h):
 *
 *   scalars    loss, learning rate and the other numbers of a step, by the names that the Trainer of
 *              transformers uses (train/loss, train/learning_rate, train/grad_norm, eval/loss, and TRL's
 *              train/rewards/...); then tokens a second, bytes in use, and what answers are judged by
 *   text       the sample at the end: sample/answer
 *   hparams    the run's effective options, and that the run has ended
 *
 * Each file begins with the mark of a session that starts at the next step. TensorBoard then forgets later
 * steps of older files in DIR: those that a resumed run makes again, or all, if a new run writes there.
 *
 * METRICS (--metrics FILE). The present values in the text format of Prometheus, for the textfile collector
 * of its node exporter (metrics.h). FILE is replaced as a whole, at most once a second and at the end.
 *
 * FAILURES. A dashboard never ends a run that has begun: its first failure is a warning, and it gets no more
 * lines. What can be seen before step 1 (no such directory, no permission) is an error.
 *
 * One thread, the driver of the run.
 */
#ifndef OT_DASHBOARD_DASHBOARDS_H
#define OT_DASHBOARD_DASHBOARDS_H

#include <stddef.h>

struct ot_dashboards;

/* tensorboard: the directory, which is made if it does not exist; metrics: the file. NULL: not wanted. Both
 * are read only during the call. Nothing is written yet. Errors: OT_E_IO (a path cannot be written),
 * OT_E_USAGE (the file's name does not end with .prom), OT_E_BUDGET. */
int ot_dashboards_open(const char *tensorboard, const char *metrics, struct ot_dashboards **out);
/* Takes a line of the log, without its newline. me: the dashboards. */
void ot_dashboards_take(void *me, const char *line, size_t bytes);
void ot_dashboards_close(struct ot_dashboards *dashboards); /* NULL is fine */

#endif
