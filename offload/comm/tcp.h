/* tcp: the built-in communicator for ranks with the CPU as their device, for tests, and for machines with
 * neither NCCL nor MPI. It moves host memory. tcp_state.h explains how. */
#ifndef OT_OFFLOAD_COMM_TCP_H
#define OT_OFFLOAD_COMM_TCP_H

#include "offload/comm/plugin.h"

extern const struct ot_comm_v1 ot_comm_tcp;
extern const struct ot_comm_transfers_v1 ot_comm_tcp_transfers; /* also of the two below */

/* For tests and measurements: ot_comm_tcp with only one of its three ways between ranks of one host. */
extern const struct ot_comm_v1 ot_comm_tcp_ring;    /* shared memory, each byte copied twice */
extern const struct ot_comm_v1 ot_comm_tcp_sockets; /* as between hosts */

#endif
