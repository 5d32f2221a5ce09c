/* Measures this machine: runs the probe (offload/probe/probe.h) in sizes that suit the session's device and
 * memory. The largest sizes are a layer of a 7B model and buffers of half a gigabyte, so that caches do not
 * matter. A small or slow machine is measured with smaller layers: the largest whose products take at most a
 * tenth of a second each. On a terminal the status line names the stage. */
#ifndef OT_SESSION_MEASURE_H
#define OT_SESSION_MEASURE_H

#include "offload/probe/probe.h"
#include "src/session/parts.h"

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

#endif
