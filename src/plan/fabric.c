#include "src/plan/fabric.h"

#include <string.h>

#include "src/base/minmax.h"

/* NVLink of the cards that have it: GB/s into a GPU, half of the data sheet's figure, which counts both
 * directions ("A100 Tensor Core GPU", "H100 Tensor Core GPU", "H200 Tensor Core GPU", "HGX B200" data sheets:
 * 600, 900, 900 and 1,800 GB/s). The other cards use PCIe. */
static const struct {
    const char *card;
    double gb;
} NVLINKS[] = {{"a100-40g-sxm", 300}, {"a100-80g-sxm", 300}, {"h100", 450}, {"h200", 450}, {"b200", 900}};

/* assumed: the share of NVLink's and of the network's rate that a long operation reaches, as copies reach
 * four fifths of PCIe. */
static const double REACHED = 0.8;
/* assumed: the network of a host, bits/s, without --nic. */
static const double NIC_BITS = 25e9;
/* assumed: the time of an operation without bytes, on one host and between hosts. */
static const double LOCAL_SECONDS = 20e-6, REMOTE_SECONDS = 50e-6;
/* assumed: the relative error of the communicator's rate. */
static const double SPREAD = 0.2;

static double nvlink_of(const char *card) {
    for (size_t i = 0; i < sizeof NVLINKS / sizeof *NVLINKS; i++)
        if (strcmp(NVLINKS[i].card, card) == 0)
            return NVLINKS[i].gb * 1e9;
    return 0;
}

/* The driver of GeForce cards allows no copies from GPU to GPU. */
static bool has_p2p(const char *title) {
    return strncmp(title, "GeForce", strlen("GeForce")) != 0;
}

/* On one host. A byte that crosses PCIe leaves one GPU and enters another, so a rank's link carries two bytes
 * for each byte that it receives. Host memory holds it between the two: one write, one read. */
static void connect_locally(double nvlink, struct ot_rates *r, struct ot_fabric *f) {
    double memory = r->triad_bytes / 2;
    f->way = !f->p2p ? OT_WAY_HOST : nvlink > 0 ? OT_WAY_NVLINK : OT_WAY_PCIE;
    r->comm_seconds = LOCAL_SECONDS;
    r->comm_bytes = r->both_bytes / 2;
    r->comm_link = 2;
    if (f->way == OT_WAY_NVLINK) {
        r->comm_bytes = nvlink * REACHED;
        r->comm_link = 0;
    } else if (f->way == OT_WAY_HOST) {
        r->comm_bytes = ot_min(r->comm_bytes, memory);
        r->comm_memory = 2;
    }
}

/* Between hosts. A rank gets a part from every other rank; those of other hosts come over the network, whose
 * rate the ranks of a host divide. Both ways work at the same time. */
static void connect_hosts(int local_ranks, struct ot_rates *r, const struct ot_fabric *f) {
    double remote = f->remote_share, local = 1 - remote;
    double by_network = f->nic_bytes * REACHED / local_ranks / remote;
    double by_host = local > 0 ? r->comm_bytes / local : by_network;
    r->comm_seconds = REMOTE_SECONDS;
    r->comm_bytes = ot_min(by_network, by_host);
    r->comm_link = local * r->comm_link + 2 * remote;
    r->comm_memory = f->p2p ? 0 : 2;
}

void ot_fabric_describe(const struct ot_fabric_request *rq, struct ot_rates *rates, struct ot_fabric *out) {
    *out = (struct ot_fabric){0};
    if (rq->ranks == 1)
        return;
    out->p2p = rq->p2p == OT_P2P_AUTO ? has_p2p(rq->title) : rq->p2p == OT_P2P_YES;
    out->nic_bytes = (rq->nic > 0 ? rq->nic : NIC_BITS) / 8;
    out->remote_share = (double)(rq->ranks - rq->local_ranks) / (rq->ranks - 1);
    connect_locally(nvlink_of(rq->card), rates, out);
    if (rq->ranks > rq->local_ranks)
        connect_hosts(rq->local_ranks, rates, out);
}

void ot_fabric_vary(int end, struct ot_rates *rates) {
    rates->comm_bytes *= 1 + end * SPREAD;
}
