/* Machines that one does not own: GPUs by name, and rented machines around one of them, with what is known of
 * each from its data sheet. `offload-train plan --gpu NAME` predicts on them without touching any device.
 *
 * A card says what the maker does: memory, dense tensor-core peak with fp32 accumulation, bandwidth, PCIe
 * generation and width. What a program reaches of that, and the host around a card, are assumptions: one
 * rule each, in cards.c, with its source and how far it may be off (ot_cards_vary). Whoever knows better says
 * so by an option, and a GPU that is there is measured instead. There are no prices: they change by the week.
 */
#ifndef OT_PLAN_CARDS_H
#define OT_PLAN_CARDS_H

#include "kernels/ops.h"
#include "offload/plan/plan.h"
#include "offload/predict/rates.h"

enum ot_card_family { OT_CARD_TURING, OT_CARD_AMPERE, OT_CARD_ADA, OT_CARD_HOPPER, OT_CARD_BLACKWELL };

/* What products of a decoder layer reach of the peak. */
struct ot_card_share {
    double share;       /* of the peak */
    double spread;      /* relative, each way: 0.1 is 10 % more or less */
    const char *source; /* who measured it; "assumed" and why, where nobody published a measurement */
};

struct ot_card {
    const char *name, *title; /* "rtx4090", "GeForce RTX 4090" */
    enum ot_card_family family;
    bool server;        /* sits in a server, not in a workstation */
    int memory_mib;     /* as the driver reports it */
    double peak_tflops; /* dense, bf16 (Turing: fp16), fp32 accumulation */
    const struct ot_card_share *achieved;
    double memory_gb; /* GB/s */
    int pcie_gen, pcie_lanes;
};

/* A machine that is rented with one such GPU. */
struct ot_pod {
    const char *name, *title;
    const char *card;
    int vcpus, host_gib, disk_gb; /* disk: local NVMe; 0: none */
};

const struct ot_card *ot_card_at(int index); /* NULL past the last */
const struct ot_pod *ot_pod_at(int index);

/* What the user said of the machine; 0: not said. */
struct ot_described_request {
    const char *name; /* of a card or a pod */
    int64_t gpu_mem, host_mem, nvme_bytes;
    int64_t ram; /* installed; host_mem is the part of it that the program may pin */
    int cores;
    double host_bw, pcie, nvme_read, nvme_write; /* bytes/s; pcie: each way */
};

struct ot_described {
    const struct ot_card *card;
    const struct ot_pod *pod; /* NULL: a card alone */
    enum ot_dtype dtype;
    size_t budget_bytes[OT_TIER_COUNT];
    size_t most_gpu_bytes;  /* that a program can have */
    size_t workspace_bytes; /* of the gpu budget, for the device's ops */
    int64_t host_ram_bytes; /* of which the budget is a part */
    struct ot_rates rates;
};

/* Errors: OT_E_USAGE: no such name (the nearest is said); OT_E_BUDGET: more memory than the card has. */
int ot_cards_describe(const struct ot_described_request *request, struct ot_described *out);
/* The rates of disks that nobody has measured: what was said, else assumed (0). */
void ot_cards_set_disk(double read_bytes, double write_bytes, struct ot_rates *rates);
/* The rates at one end of what the assumptions leave open: -1 the slowest machine that fits the description,
 * 1 the fastest. What was said does not vary. */
void ot_cards_vary(const struct ot_described_request *request, const struct ot_described *machine, int end,
                   struct ot_rates *out);
/* The options that nobody gave, with the values that are assumed: "--ram 64G · --host-bw 60GB"; "": none. */
const char *ot_cards_assumed(const struct ot_described_request *request, const struct ot_described *machine,
                             char *text, size_t bytes);

#endif
