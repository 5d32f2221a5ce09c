/* Checks that a communicator moves the right bytes to the right place. `offload-train comm-test` runs them on
 * any communicator, and the tests run them on those that are built in. All ranks call the same functions. */
#ifndef OT_PLAN_COMM_TEST_H
#define OT_PLAN_COMM_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/comm/comm.h"

struct ot_comm_checks {
    struct ot_comm *comm;
    struct ot_device *device; /* of the communicator */
    const size_t *sizes;      /* [n_sizes] bytes of a part; any number, 0 too */
    int n_sizes;
    /* Ranks begin each operation at random moments, up to 2 ms apart, which the seed decides. 0: at once. */
    uint64_t delay_seed;
    bool crosses; /* checks transfers also through memory that the ranks share, if that helps (crossing.h) */
    int done;     /* result: how many checks have passed */
};

/* Checks all operations with all sizes (transfers if the communicator has them), and the functions that
 * wait. It reserves the staging memory by itself, for this time. If a rank finds something wrong, all ranks
 * fail with its sentence, and the communicator is aborted. Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE. */
int ot_comm_checks_run(struct ot_comm_checks *checks);

#endif
