/* Machines that one does not own: GPUs by name, and rented machines around one of them, with what is known of
 * each from its data sheet. `offload-train plan --gpu NAME` predicts on them without touching any device.
 *
 * A card says what the maker does: memory, dense tensor-core peak with fp32 accumulation, bandwidth, PCIe
 * generation and width. What a program reaches of that, and the host around a card, are assumptions: one
 * rule each, in cards.c, with its reason. Whoever knows better says so by an option, and a GPU that is there
 * is measured instead. There are no prices: they change by the week.
 */
#ifndef OT_CLI_CARDS_H
#define OT_CLI_CARDS_H

#include "kernels/ops.h"
#include "offload/plan.h"
#include "offload/rates.h"

enum ot_card_family { OT_CARD_TURING, OT_CARD_AMPERE, OT_CARD_ADA, OT_CARD_HOPPER, OT_CARD_BLACKWELL };

struct ot_card {
    const char *name, *title; /* "rtx4090", "GeForce RTX 4090" */
    enum ot_card_family family;
    bool server;        /* sits in a server, not in a workstation */
    int memory_mib;     /* as the driver reports it */
    double peak_tflops; /* dense, bf16 (Turing: fp16), fp32 accumulation */
    double achieved;    /* share of the peak that a layer's products reach; assumed */
    double memory_gb;   /* GB/s */
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
    int cores;
    double host_bw, pcie, nvme_read, nvme_write; /* bytes/s; pcie: each way */
};

struct ot_described {
    const struct ot_card *card;
    const struct ot_pod *pod; /* NULL: a card alone */
    enum ot_dtype dtype;
    size_t budget_bytes[OT_TIER_COUNT];
    size_t workspace_bytes; /* of the gpu budget, for the device's ops */
    int64_t host_ram_bytes; /* of which the budget is a part */
    struct ot_rates rates;
};

/* Errors: OT_E_USAGE: no such name (the nearest is said); OT_E_BUDGET: more memory than the card has. */
int ot_cards_describe(const struct ot_described_request *request, struct ot_described *out);
/* The rates of disks that nobody has measured: what was said, else assumed (0). */
void ot_cards_set_disk(double read_bytes, double write_bytes, struct ot_rates *rates);
/* What was assumed and not said: "RAM of 64 GiB, 60 GB/s of memory"; "" where nothing was. */
const char *ot_cards_assumed(const struct ot_described_request *request, const struct ot_described *machine,
                             char *text, size_t bytes);

#endif
