/* The links between the GPUs of a described machine: NVLink, PCIe or host memory on one host, and a network
 * between hosts. Like cards.h it consists of data sheets and assumptions. */
#ifndef OT_PLAN_FABRIC_H
#define OT_PLAN_FABRIC_H

#include "offload/predict/rates.h"

enum ot_p2p { OT_P2P_AUTO, OT_P2P_YES, OT_P2P_NO };
enum ot_way { OT_WAY_NVLINK, OT_WAY_PCIE, OT_WAY_HOST };

struct ot_fabric_request {
    const char *card, *title; /* "rtx4090", "GeForce RTX 4090" */
    int ranks, local_ranks;   /* local_ranks: of one host */
    enum ot_p2p p2p;          /* copies from GPU to GPU */
    double nic;               /* bits/s of a host's network, in each direction; 0: assumed */
};

struct ot_fabric {
    enum ot_way way; /* between the ranks of a host */
    bool p2p;
    double nic_bytes;    /* bytes/s of a host's network */
    double remote_share; /* of the bytes that a rank receives, those from other hosts */
};

/* Describes the way between ranks, and sets the communicator's rates. On entry `rates` has the link and the
 * host memory of one rank. For one rank `out` is zero and the rates stay. */
void ot_fabric_describe(const struct ot_fabric_request *request, struct ot_rates *rates,
                        struct ot_fabric *out);
/* Moves the communicator's rate to one end of its error: -1 or 1 (ot_cards_vary). */
void ot_fabric_vary(int end, struct ot_rates *rates);

#endif
