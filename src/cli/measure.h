/* What this machine does, measured: the probe (offload/probe.h) in sizes that suit the session's device and
 * memory. On a terminal the status line says what is being measured.
 */
#ifndef OT_CLI_MEASURE_H
#define OT_CLI_MEASURE_H

#include "offload/probe.h"
#include "src/cli/session.h"

/* A GPU is measured on the layers of a 7B model and half a gigabyte at a time, so that its caches do not
 * show; what is smaller or slower on smaller ones, in the same proportions. */
struct ot_measure_size {
    int64_t hidden, tokens;
    size_t buffer_bytes; /* of each of five buffers, four of them on the device */
    double seconds;      /* of a row */
};
const struct ot_measure_size *ot_measure_size_for(const struct ot_session *session);

/* What needs no measuring; the other rates are 0. */
struct ot_rates ot_measure_facts(const struct ot_session *session);

/* The session has its device and no model. quick: what predictions need alone, in a few seconds. reader:
 * NULL, or gets every row. Errors: as the probe's; as the reader's. */
int ot_measure_machine(const struct ot_session *session, bool quick, const struct ot_probe_reader *reader,
                       struct ot_rates *out);

#endif
