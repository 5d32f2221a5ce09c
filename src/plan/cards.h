/* Machines that the user need not have: GPUs by name, and rented machines with such GPUs.
 * `offload-train plan --gpu NAME` predicts a run on them without touching a device.
 *
 * A card holds the figures of its data sheet: memory, dense tensor-core peak with fp32 accumulation, memory
 * bandwidth, PCIe generation and lanes. The share of these figures that programs reach, and the host around
 * the card, are assumptions. Each assumption is one rule in cards.c, with its source; ot_cards_vary has its
 * error. Options replace some of them. There are no prices (machines.h).
 */
#ifndef OT_PLAN_CARDS_H
#define OT_PLAN_CARDS_H

#include "kernels/ops.h"
#include "offload/plan/plan.h"
#include "offload/predict/rates.h"

/* ---- fabric ---- */

/* The links between the GPUs of a described machine: NVLink, PCIe or host memory on one host, and a network
 * between hosts. Like a card it consists of data sheets and assumptions. */

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

/* ---- cards ---- */

enum ot_card_family { OT_CARD_TURING, OT_CARD_AMPERE, OT_CARD_ADA, OT_CARD_HOPPER, OT_CARD_BLACKWELL };

/* The share of the peak that the matrix products of a decoder layer reach. */
struct ot_card_fraction {
    double share;       /* of the peak, 0 to 1 */
    double spread;      /* relative error in both directions: 0.1 is 10 % more or less */
    const char *source; /* the published measurement; "assumed: REASON" if there is none */
};

/* Attention beside the products of the same card, all in one unit. Either our own kernels, measured together
 * with the products of a layer; or the published rates of a kernel of the same kind as ours, without a mask,
 * and the best published product. */
struct ot_attention_fraction {
    struct ot_attention_rates rates[OT_HEAD_SIZES];
    double product;
    const char *source; /* as in struct ot_card_fraction; and whether our kernels have run on a GPU */
    bool is_own;        /* our own kernels */
};

struct ot_card {
    const char *name, *title; /* "rtx4090", "GeForce RTX 4090" */
    enum ot_card_family family;
    bool server;        /* true: the host is a server; false: a workstation */
    int memory_mib;     /* as the driver reports it */
    double peak_tflops; /* dense, bf16 (Turing: fp16), fp32 accumulation */
    const struct ot_card_fraction *achieved;
    const struct ot_attention_fraction *attention;
    double memory_gb; /* GB/s */
    int pcie_gen, pcie_lanes;
};

/* A machine for rent with such GPUs. */
struct ot_pod {
    const char *name, *title;
    const char *card;
    int gpus;
    int vcpus, host_gib, disk_gb; /* disk_gb: local NVMe; 0: none */
    int nic_gbit;                 /* network, Gbit/s; 0: none is promised */
};

const struct ot_card *ot_card_at(int index); /* NULL if index is past the last */
const struct ot_pod *ot_pod_at(int index);

/* True if both are names of the same machine, in any spelling. */
bool ot_cards_same(const char *a, const char *b);
/* The rented machine of this name; NULL: none, or the name is a card's. */
const struct ot_pod *ot_cards_pod(const char *name);
/* option: the source of the name, for the message. Errors: OT_E_USAGE: no card or rented machine has this
 * name. */
int ot_cards_check_name(const char *option, const char *name);

/* The user's options about the machine; 0: not given. With several GPUs, ram, nvme_bytes, cores, host_bw and
 * the disks' rates are for one host; gpu_mem, host_mem and pcie are for one GPU. */
struct ot_described_request {
    const char *name; /* of a card or of a rented machine */
    int64_t gpu_mem, host_mem, nvme_bytes;
    int64_t ram; /* installed; host_mem is the part that the program may pin */
    int cores;
    double host_bw, pcie, nvme_read, nvme_write; /* bytes/s; pcie: in each direction */
    int gpus, nodes;                             /* GPUs of each host; hosts */
    double nic;                                  /* bits/s of a host's network, in each direction */
    enum ot_p2p p2p;                             /* copies from GPU to GPU */
    enum ot_masters masters;                     /* of the optimizer whose rates are assumed */
};

/* Budgets and rates are for one rank. */
struct ot_described {
    int ranks, local_ranks;  /* local_ranks: of one host */
    struct ot_fabric fabric; /* zero for one rank */
    const struct ot_card *card;
    const struct ot_pod *pod; /* NULL: the name is a card's */
    enum ot_dtype dtype;
    size_t budget_bytes[OT_TIER_COUNT];
    size_t most_gpu_bytes;  /* the most that --gpu-mem can be */
    size_t workspace_bytes; /* scratch of the device's ops, part of the gpu budget */
    int64_t host_ram_bytes; /* installed RAM of a host; the host budget is a part of it */
    struct ot_rates rates;
    const char *memory_source; /* of the rate of device memory */
    const char *link_source;   /* of the rates of copies; NULL: the user gave them */
};

/* Finds the card or the rented machine, and fills in its budgets and rates. Errors: OT_E_USAGE (unknown name;
 * the error text names the nearest), OT_E_BUDGET (--gpu-mem is more than the card has). */
int ot_cards_describe(const struct ot_described_request *request, struct ot_described *out);
/* Sets the rates of disks that are not measured. read_bytes, write_bytes: bytes/s; 0: takes the assumed
 * rate. */
void ot_cards_set_disk(double read_bytes, double write_bytes, struct ot_rates *rates);
/* The rates at one end of the assumptions' errors. end -1: the slowest machine that the description allows;
 * 1: the fastest. Rates that the user gave do not vary. */
void ot_cards_vary(const struct ot_described_request *request, const struct ot_described *machine, int end,
                   struct ot_rates *out);
/* Lists the options that the user did not give, with their assumed values: "--ram 64G · --host-bw 60GB".
 * "" if all were given. Returns text. */
const char *ot_cards_assumed(const struct ot_described_request *request, const struct ot_described *machine,
                             char *text, size_t bytes);

#endif
