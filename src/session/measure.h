/* What this machine does, measured: the probe (offload/probe/probe.h) in sizes that suit the session's device
 * and memory. A layer of a 7B model and half a gigabyte at a time are the largest, so that no cache shows.
 * What is smaller or slower is measured on smaller ones: those of which no product takes more than a tenth of
 * a second. On a terminal the status line says what is being measured.
 */
#ifndef OT_SESSION_MEASURE_H
#define OT_SESSION_MEASURE_H

#include "offload/probe/probe.h"
#include "src/session/parts.h"

/* How wide a layer there is memory to measure, of the sizes that the probe knows. */
int64_t ot_measure_widest(const struct ot_session *session);

/* What needs no measuring; the other rates are 0. */
struct ot_rates ot_measure_facts(const struct ot_session *session);

/* The session has its device and no model. quick: what predictions need alone, in a few seconds. reader:
 * NULL, or gets every row. Errors: as the probe's; as the reader's. */
int ot_measure_machine(const struct ot_session *session, bool quick, const struct ot_probe_reader *reader,
                       struct ot_rates *out);

#endif
