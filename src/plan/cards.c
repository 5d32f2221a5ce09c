#include "src/plan/cards.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device.h"
#include "offload/comm/world.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/options/options.h"

#define GIB ((int64_t)1 << 30)
#define MIB ((int64_t)1 << 20)

/* ---- cards ---- */

/* PRODUCTS: the share of the peak that the matrix products of a decoder layer reach. Published tables show
 * the best of many shapes. Their figures are lowered by a tenth, because a layer's shapes are not the best
 * ones. Published runs count whole steps, and products are faster than the rest of a step. The best shape of
 * a table can run too briefly to heat a card, but cards of 70 to 350 W lower their clock under a long load:
 * for them the tables are upper bounds. So it is at 700 W: MAMF has 80 % for an H200, but 64 % is what makes
 * `plan` meet our own steps there (2026-11-27): llama-7b with 16 k tokens 1.25 s, measured 1.23; with 64 k
 * 4.75 s, measured 4.96, and with --gpu-mem 24G 6.05 s, measured 6.31; tinyllama-1.1b 0.234 s, measured
 * 0.241. Another check: with these shares `plan` says 2,780 tokens/s for llmq's
 * Qwen2.5-7B on an RTX 4090, which did 2,777, and 3,640 for FlexTrain's Llama-3.1-8B on a 5090 with 16-bit
 * state and no masters, which did 3,723. The tables and runs:
 *
 *   MAMF           S. Bekman, "Machine Learning Engineering", maximum achievable matmul FLOPS, 2024 to 2026
 *   gpu_benchmark  mag-/gpu_benchmark, the same search on more cards, 2024
 *   llmq           IST-DASLab/llmq, its benchmarks, 2025
 *   FlexTrain      als244/flextrain, its verified runs, 2026 */
static const struct ot_card_fraction
    SXM_A = {0.78, 0.10, "MAMF: A100 SXM 87 %, less a tenth"},
    PCIE_A = {0.73, 0.10, "MAMF: A100 PCIe 81 %, less a tenth"},
    SXM_H = {0.64, 0.10,
             "ours on an H200 (2026-11-27): 64 % over whole steps, 63 to 70 % until the clock falls"},
    PCIE_H = {0.59, 0.15, "gpu_benchmark: H100 PCIe 66 %, less a tenth"},
    NVL_H = {0.53, 0.15, "gpu_benchmark: H100 NVL 59 %, less a tenth"},
    SXM_B = {0.70, 0.12, "MAMF: B200 SXM 78 %, less a tenth"},
    BLACKWELL_90 =
        {0.90, 0.10,
         "FlexTrain on an RTX 5090: 83 % over a whole step, 90 % without attention and moved bytes"},
    GEFORCE = {0.83, 0.15,
               "whole steps: RTX 4090 72 %, 5060 Ti 81 % (llmq); products alone: 4090 108 % (gpu_benchmark)"},
    PRO_6000 = {0.75, 0.15, "llmq on an RTX PRO 6000: 69 % over a whole step"},
    L40 = {0.55, 0.15, "L40S: 47 % over a whole step (llmq), products alone 70 % (gpu_benchmark)"},
    WORK = {0.75, 0.20, "gpu_benchmark: RTX A5000 85 %, less a tenth"},
    ADA_6000 = {0.65, 0.20, "gpu_benchmark: RTX 6000 Ada 76 %, less a tenth, and less for a long load"},
    SMALL = {0.50, 0.25, "gpu_benchmark: L4 76 % at a short shape; assumed: a third less at 70 to 150 W"};

/* ATTENTION: its rate is one beside the products of the same card, because a card that lowers its clock slows
 * both down. Our kernels for Hopper are measured. Our tiled kernels (mma.sync) have not run on a GPU yet:
 * FlashAttention-2 stands for them, beside the best published product of the card, and attention_rates adds
 * the differences. Figures without a mask, at 2048 tokens, from the second paper
 * (Shah et al., "FlashAttention-3", 2024) in TFLOP/s on an H100, forward and backward by size of the heads:
 *
 *                         64          128         256
 *     FlashAttention-2    318, 264    362, 291    321, -
 *
 * The other cards have published figures for heads of 128 alone. The ratios between the sizes are those of
 * FlashAttention-2 above; backward with heads of 256 has no figure and counts as with heads of 128. */
static const struct ot_attention_fraction
    /* Dao, "FlashAttention-2", 2023: up to 73 % of the peak forward, 63 % backward. Product: MAMF. */
    TILED_A100 = {{{0.64, 0.57}, {0.73, 0.63}, {0.65, 0.63}},
                  0.87,
                  "FlashAttention-2 on an A100 (Dao, 2023), with our mask and passes; not run",
                  false},
    /* gau-nernst, "Writing Speed-of-Light Flash Attention for 5090", 2025: FlashAttention-2 forward 190.6
     * TFLOP/s; cuDNN reaches 203.6 and stands for the best product. Backward: in proportion to an A100's.
     * GeForce cards halve the rate of products with fp32 sums, so the rest of a kernel hides behind them. */
    TILED_GEFORCE = {{{167, 149}, {190.6, 164}, {169, 164}},
                     203.6,
                     "FlashAttention-2 on an RTX 5090 (gau-nernst, 2025), with our mask and passes; not run",
                     false},
    /* Tiles are smaller: 64 KiB of shared memory and no asynchronous copies. */
    TILED_TURING = {{{0.48, 0.43}, {0.55, 0.47}, {0.49, 0.47}},
                    0.87,
                    "assumed: three quarters of an A100's attention beside its products; not run",
                    false},
    /* This chip's rate needs other instructions than mma.sync. The product's rate counts 132 of its 148
     * multiprocessors, as many as an H100 has. */
    TILED_B200 = {{{318, 264}, {362, 291}, {321, 291}},
                  1745.0 * 132 / 148,
                  "assumed: a multiprocessor does what FlashAttention-2 does on one of an H100; not run",
                  false},
    /* Ours, measured by `probe` on an H200 on 2026-11-27 with 4096 tokens (an H100: 480 and 362 with heads of
     * 128), in TFLOP/s after a pause, and the mean of a layer's products there. No kernel for heads of 256
     * has run: those are FlashAttention-2's, with our mask and passes and NOT_RUN. */
    HOPPER = {{{307, 296}, {474, 360}, {197, 127}},
              660,
              "our kernels beside a layer's products, measured on an H200 (2026-11-27); heads of 256 not run",
              true};

/* Peaks and bandwidths are from NVIDIA's architecture papers and data sheets, without sparsity. If a sheet
 * has only the figure with sparsity, the peak is half of it. Some GeForce sheets have no figure with fp32
 * accumulation: there the peak is multiprocessors x 512 FLOP x boost clock, a rule that gives the papers'
 * figures for the other cards. Memory is the total that nvidia-smi reports; ECC on GDDR lowers it by a
 * sixteenth. */
static const struct ot_card CARDS[] = {
    /* Turing: "NVIDIA T4" data sheet (65 TFLOPS fp16, 320 GB/s); "Turing GPU Architecture", appendix A (2080
     * Ti: 53.8 fp32 accumulation at the reference clock, 616 GB/s). No bf16: they train in fp16. */
    {"t4", "T4", OT_CARD_TURING, true, 15360, 65, &SMALL, &TILED_TURING, 320, 3, 16},
    {"rtx2080ti", "GeForce RTX 2080 Ti", OT_CARD_TURING, false, 11264, 53.8, &GEFORCE, &TILED_TURING, 616, 3,
     16},
    /* Ampere: "Ampere GA102 GPU Architecture", appendix (3080: 59.5, 3090: 71, A6000: 154.8); GeForce RTX
     * 3060 family page (28 multiprocessors, 1.78 GHz, 192 bits at 15 Gb/s). */
    {"rtx3060", "GeForce RTX 3060 12GB", OT_CARD_AMPERE, false, 12288, 25.5, &GEFORCE, &TILED_GEFORCE, 360, 4,
     16},
    {"rtx3080", "GeForce RTX 3080", OT_CARD_AMPERE, false, 10240, 59.5, &GEFORCE, &TILED_GEFORCE, 760, 4, 16},
    {"rtx3090", "GeForce RTX 3090", OT_CARD_AMPERE, false, 24576, 71, &GEFORCE, &TILED_GEFORCE, 936, 4, 16},
    /* "RTX A4000", "RTX A5000" data sheets (153.4 and 222.2 with sparsity); "A10", "A40" data sheets. */
    {"a4000", "RTX A4000", OT_CARD_AMPERE, false, 16376, 76.7, &WORK, &TILED_A100, 448, 4, 16},
    {"a5000", "RTX A5000", OT_CARD_AMPERE, false, 24564, 111.1, &WORK, &TILED_A100, 768, 4, 16},
    {"a6000", "RTX A6000", OT_CARD_AMPERE, false, 49140, 154.8, &WORK, &TILED_A100, 768, 4, 16},
    {"a10", "A10", OT_CARD_AMPERE, true, 23028, 125, &SMALL, &TILED_A100, 600, 4, 16},
    {"a40", "A40", OT_CARD_AMPERE, true, 46068, 149.7, &WORK, &TILED_A100, 696, 4, 16},
    /* "A100 Tensor Core GPU" data sheet. */
    {"a100-40g", "A100 40GB PCIe", OT_CARD_AMPERE, true, 40960, 312, &PCIE_A, &TILED_A100, 1555, 4, 16},
    {"a100-80g", "A100 80GB PCIe", OT_CARD_AMPERE, true, 81920, 312, &PCIE_A, &TILED_A100, 1935, 4, 16},
    {"a100-40g-sxm", "A100 40GB SXM", OT_CARD_AMPERE, true, 40960, 312, &SXM_A, &TILED_A100, 1555, 4, 16},
    {"a100-80g-sxm", "A100 80GB SXM", OT_CARD_AMPERE, true, 81920, 312, &SXM_A, &TILED_A100, 2039, 4, 16},
    /* Ada: "Ada GPU Architecture", appendix (4080: 97.5, 4090: 165.2); GeForce RTX 40 family pages (4060 Ti:
     * 34 multiprocessors at 2.54 GHz, eight lanes; 4070: 46 at 2.48; 4070 Ti SUPER: 66 at 2.61). */
    {"rtx4060ti", "GeForce RTX 4060 Ti 16GB", OT_CARD_ADA, false, 16380, 44.1, &GEFORCE, &TILED_GEFORCE, 288,
     4, 8},
    {"rtx4070", "GeForce RTX 4070", OT_CARD_ADA, false, 12282, 58.3, &GEFORCE, &TILED_GEFORCE, 504, 4, 16},
    {"rtx4070tis", "GeForce RTX 4070 Ti SUPER", OT_CARD_ADA, false, 16376, 88.2, &GEFORCE, &TILED_GEFORCE,
     672, 4, 16},
    {"rtx4080", "GeForce RTX 4080", OT_CARD_ADA, false, 16376, 97.5, &GEFORCE, &TILED_GEFORCE, 717, 4, 16},
    {"rtx4090", "GeForce RTX 4090", OT_CARD_ADA, false, 24564, 165.2, &GEFORCE, &TILED_GEFORCE, 1008, 4, 16},
    /* "L4", "L40S" and "RTX 6000 Ada" data sheets (242, 733 and 1457 fp8, with sparsity). */
    {"rtx6000ada", "RTX 6000 Ada", OT_CARD_ADA, false, 49140, 364.2, &ADA_6000, &TILED_A100, 960, 4, 16},
    {"l4", "L4", OT_CARD_ADA, true, 23034, 121, &SMALL, &TILED_A100, 300, 4, 16},
    {"l40s", "L40S", OT_CARD_ADA, true, 46068, 362, &L40, &TILED_A100, 864, 4, 16},
    /* Hopper: "H100 Tensor Core GPU" and "H200 Tensor Core GPU" data sheets (1513, 1671, 1979 with
     * sparsity). */
    {"h100", "H100 80GB SXM", OT_CARD_HOPPER, true, 81559, 989.4, &SXM_H, &HOPPER, 3350, 5, 16},
    {"h100-pcie", "H100 80GB PCIe", OT_CARD_HOPPER, true, 81559, 756, &PCIE_H, &HOPPER, 2000, 5, 16},
    {"h100-nvl", "H100 94GB NVL", OT_CARD_HOPPER, true, 95830, 835, &NVL_H, &HOPPER, 3900, 5, 16},
    {"h200", "H200 141GB SXM", OT_CARD_HOPPER, true, 143771, 989.4, &SXM_H, &HOPPER, 4800, 5, 16},
    /* Blackwell: "RTX Blackwell GPU Architecture", appendix (5080: 112.6, 5090: 209.5), GeForce RTX 50
     * family page (5070 Ti: 70 multiprocessors at 2.45 GHz); "RTX PRO Blackwell GPU Architecture" (503.8);
     * "HGX B200" data sheet (36 PFLOPS with sparsity and 62 TB/s for eight). */
    {"rtx5070ti", "GeForce RTX 5070 Ti", OT_CARD_BLACKWELL, false, 16303, 87.9, &GEFORCE, &TILED_GEFORCE, 896,
     5, 16},
    {"rtx5080", "GeForce RTX 5080", OT_CARD_BLACKWELL, false, 16303, 112.6, &GEFORCE, &TILED_GEFORCE, 960, 5,
     16},
    {"rtx5090", "GeForce RTX 5090", OT_CARD_BLACKWELL, false, 32607, 209.5, &BLACKWELL_90, &TILED_GEFORCE,
     1792, 5, 16},
    {"rtxpro6000", "RTX PRO 6000 Blackwell", OT_CARD_BLACKWELL, false, 97887, 503.8, &PRO_6000, &TILED_A100,
     1792, 5, 16},
    {"b200", "B200 180GB SXM", OT_CARD_BLACKWELL, true, 183359, 2250, &SXM_B, &TILED_B200, 7700, 5, 16},
};
enum { N_CARDS = sizeof CARDS / sizeof *CARDS };

/* From the providers' lists of machine types: Google Cloud ("Accelerator-optimized machine family", whose GB
 * of memory are 2^30), Microsoft Azure ("GPU accelerated virtual machine sizes"), AWS ("Amazon EC2 G4", "G6",
 * "G6e", "P4" and "P5 instances"). */
static const struct ot_pod PODS[] = {
    {"a2-highgpu-1g", "Google Cloud a2-highgpu-1g", "a100-40g-sxm", 1, 12, 85, 0, 0},
    {"a2-ultragpu-1g", "Google Cloud a2-ultragpu-1g", "a100-80g-sxm", 1, 12, 170, 375, 0},
    {"a2-ultragpu-8g", "Google Cloud a2-ultragpu-8g", "a100-80g-sxm", 8, 96, 1360, 3000, 100},
    {"a3-highgpu-1g", "Google Cloud a3-highgpu-1g", "h100", 1, 26, 234, 750, 0},
    {"a3-highgpu-8g", "Google Cloud a3-highgpu-8g", "h100", 8, 208, 1872, 6000, 1000},
    {"nc24ads-a100-v4", "Azure NC24ads A100 v4", "a100-80g", 1, 24, 220, 960, 0},
    {"nc40ads-h100-v5", "Azure NC40ads H100 v5", "h100-nvl", 1, 40, 320, 3576, 0},
    {"g4dn.xlarge", "AWS g4dn.xlarge", "t4", 1, 4, 16, 125, 0},
    {"g6.xlarge", "AWS g6.xlarge", "l4", 1, 4, 16, 250, 0},
    {"g6.12xlarge", "AWS g6.12xlarge", "l4", 4, 48, 192, 3760, 40},
    {"g6e.xlarge", "AWS g6e.xlarge", "l40s", 1, 4, 32, 250, 0},
    {"g6e.4xlarge", "AWS g6e.4xlarge", "l40s", 1, 16, 128, 600, 20},
    {"g6e.12xlarge", "AWS g6e.12xlarge", "l40s", 4, 48, 384, 3800, 100},
    {"g6e.48xlarge", "AWS g6e.48xlarge", "l40s", 8, 192, 1536, 7600, 400},
    {"p4de.24xlarge", "AWS p4de.24xlarge", "a100-80g-sxm", 8, 96, 1152, 8000, 400},
    {"p5.48xlarge", "AWS p5.48xlarge", "h100", 8, 192, 2048, 30720, 3200},
};
enum { N_PODS = sizeof PODS / sizeof *PODS };

const struct ot_card *ot_card_at(int index) {
    return index >= 0 && index < N_CARDS ? &CARDS[index] : NULL;
}

const struct ot_pod *ot_pod_at(int index) {
    return index >= 0 && index < N_PODS ? &PODS[index] : NULL;
}

/* ---- assumptions about the machine around a card ---- */

/* A workstation has 64 GiB of two-channel DDR5 that moves 60 GB/s. A server has twice the GPU's memory, as is
 * usual for training, and a socket of eight channels that moves 200 GB/s. A rented machine is a part of a
 * server, so its cores (12 GB/s each) limit the rate before the socket does. A host with more than two GPUs
 * is a server with a socket for every four of them. A workstation's processor has 16 lanes for cards, so two
 * cards get a half of them each; a server's GPU has all its lanes. */
enum { DESKTOP_GIB = 64, DESKTOP_CORES = 8, SERVER_CORES = 32, DESKTOP_GPUS = 2, SOCKET_GPUS = 4 };
static const double DESKTOP_BYTES = 60e9, SERVER_BYTES = 200e9, CORE_BYTES = 12e9;
/* The optimizer reaches this share of the memory rate, which is the project's target. A core runs AdamW at
 * this many bytes/s if memory does not limit it, by masters and by format of the state (measured: two cores
 * with AVX-512 did 50 GB/s with fp32; from its cache, a virtual core of Zen 3 did 20 with 16 bits and 13 with
 * 8 bits; without masters, a core with AVX2 updates 0.85 to 0.89 times as many parameters). */
static const double OPTIMIZER_SHARE = 0.9;
static const double OPTIMIZER_CORE_BYTES[][OT_STATE_FORMATS] = {
    [OT_MASTERS_F32] = {20e9, 20e9, 13e9},
    [OT_MASTERS_NONE] = {20e9, 13e9, 8.5e9},
};
/* Bytes/s of pinned copies over a PCIe lane, by generation. Generation 4: an A100 copies 24.8 GB/s over 16
 * lanes (NVIDIA developer forum, thread 352186, 2025: four fifths of the link). Generation 3: the same share.
 * Generation 5: 55.6 GB/s (NVIDIA, "NVbandwidth", 2025; ours on an H100 53.3, on an H200 54.9). PCIE_BOTH:
 * copies in both directions at once, beside the rate of one direction. Generation 5: ours reached 1.67 on the
 * H100 and 1.82 on the H200 (2026-11-27). Older ones: 1.6, assumed, between 1.4 (that A100, across sockets)
 * and 2 (the link's promise). */
static const double PCIE_LANE_BYTES[] = {0, 0, 0, 12.6e9 / 16, 24.8e9 / 16, 55.6e9 / 16};
static const char *const PCIE_SOURCE[] = {NULL,
                                          NULL,
                                          NULL,
                                          "the share of PCIe 4.0",
                                          "an A100, NVIDIA developer forum 352186, 2025",
                                          "NVIDIA, NVbandwidth, 2025"};
static const double PCIE_BOTH[] = {0, 0, 0, 1.6, 1.6, 1.75};
/* One PCIe 4 drive. The write rate is the rate after its cache is full. */
static const double DISK_READ_BYTES = 6e9, DISK_WRITE_BYTES = 2.5e9;
/* CRC-32 with PCLMULQDQ on one thread, of data in memory (hash.h); the host's time to start a task. */
static const double CRC_BYTES = 10e9, TASK_SECONDS = 10e-6;
/* Half of the time of a single read and a single write of 4 KiB, since two are under way. */
static const double DISK_READ_SECONDS = 40e-6, DISK_WRITE_SECONDS = 20e-6;
/* The part of the GPU's memory that the context and the kernels take, and scratch of the device's ops.
 * Without --gpu-mem a reserve of a thirty-second, from 256 MiB to 1 GiB, stays free, as in kernels/cuda. */
enum { CONTEXT_MIB = 512, WORKSPACE_MIB = 64 };
/* The share of the data sheet's memory bandwidth that kernels reach which only move bytes. Copies reach 90 %:
 * measured, 3.0 of 3.35 TB/s on an H100 and 4.3 of 4.8 on an H200. Our kernels reach four fifths of a copy on
 * average: measured on the H200, from 42 % (norm backward) over 69 % (norm) and 86 % (cross-entropy) to 96 %
 * and more (AdamW, casts, sums). */
static const double MEMORY_SHARE = 0.9 * 0.8;
static const char MEMORY_SOURCE[] =
    "copies 90 % (measured on an H100 and an H200), our kernels four fifths of a copy (measured on an H200)";
/* Factors of our attention's rate against the published kernels that stand for it. MASK: a causal mask leaves
 * parts of tiles idle; FlashAttention-2 does 298 TFLOP/s with it and 362 without, FlashAttention-3 521 and
 * 625 (heads of 128, 2048 tokens, as above). PASSES: so that its sums have a fixed order, our backward has 7
 * products where the published one has 5 (kernels/cuda/attention_backward.cuh). NOT_RUN: a tenth less, until
 * these kernels are measured on a GPU. */
static const double MASK = 0.82, PASSES = 5.0 / 7, NOT_RUN = 0.9;

/* Relative errors of the assumptions, in both directions: attention beside products; the card's memory
 * bandwidth; the link; the host's memory, which depends on the number and speed of its modules; a drive's
 * rates. */
static const double ATTENTION_SPREAD = 0.20, DEVICE_SPREAD = 0.10, LINK_SPREAD = 0.10, HOST_SPREAD = 0.25,
                    DISK_SPREAD = 0.30;

/* ---- describing ---- */

static double either(double said, double assumed) {
    return said > 0 ? said : assumed;
}

enum { NAME_BYTES = 48 };

/* Keeps only letters and digits, in lower case, and removes the words "nvidia" and "geforce" at the front. */
static const char *normalise(const char *name, char out[NAME_BYTES]) {
    static const char *const makers[] = {"nvidia", "geforce"};
    size_t n = 0;
    for (; *name && n + 1 < NAME_BYTES; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
    out[n] = '\0';
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (strncmp(out, makers[i], strlen(makers[i])) == 0)
            memmove(out, out + strlen(makers[i]), strlen(out + strlen(makers[i])) + 1);
    return out;
}

static bool same_name(const char *wanted, const char *name) {
    char a[NAME_BYTES], b[NAME_BYTES];
    normalise(wanted, a);
    normalise(name, b);
    return strcmp(a, b) == 0 || (strncmp(b, "rtx", 3) == 0 && strcmp(a, b + 3) == 0);
}

/* Lists the cards whose names begin with `wanted`: "a100-40g, a100-80g". Returns their number. */
static int list_beginning(const char *wanted, char *text, size_t bytes) {
    char a[NAME_BYTES], b[NAME_BYTES];
    int n = 0;
    size_t used = 0;
    normalise(wanted, a);
    for (int i = 0; *a && i < N_CARDS; i++)
        if (strncmp(normalise(CARDS[i].name, b), a, strlen(a)) == 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", n++ ? ", " : "", CARDS[i].name);
    return n;
}

static int refuse_name(const char *option, const char *name) {
    const char *names[N_CARDS + N_PODS];
    char list[256];
    if (list_beginning(name, list, sizeof list) > 1)
        return ot_fail(OT_E_USAGE, "%s %.60s is the beginning of several names; give one of: %s", option,
                       name, list);
    for (int i = 0; i < N_CARDS; i++)
        names[i] = CARDS[i].name;
    for (int i = 0; i < N_PODS; i++)
        names[N_CARDS + i] = PODS[i].name;
    const char *nearest = ot_nearest_name(name, names, N_CARDS + N_PODS);
    return ot_fail(OT_E_USAGE, "%s %.60s: unknown card%s%s%s (--gpu list shows all)", option, name,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

const struct ot_pod *ot_cards_pod(const char *name) {
    for (int i = 0; i < N_PODS; i++)
        if (same_name(name, PODS[i].name) || same_name(name, PODS[i].title))
            return &PODS[i];
    return NULL;
}

static const struct ot_card *find_card(const char *name) {
    for (int i = 0; i < N_CARDS; i++)
        if (same_name(name, CARDS[i].name) || same_name(name, CARDS[i].title))
            return &CARDS[i];
    return NULL;
}

static int find(const char *name, struct ot_described *out) {
    out->pod = ot_cards_pod(name);
    out->card = find_card(out->pod ? out->pod->card : name);
    return out->card ? 0 : refuse_name("--gpu", name);
}

bool ot_cards_same(const char *a, const char *b) {
    const struct ot_pod *pod = ot_cards_pod(a);
    return pod ? pod == ot_cards_pod(b) : !ot_cards_pod(b) && find_card(a) && find_card(a) == find_card(b);
}

int ot_cards_check_name(const char *option, const char *name) {
    return ot_cards_pod(name) || find_card(name) ? 0 : refuse_name(option, name);
}

static int set_budgets(const struct ot_described_request *rq, struct ot_described *out) {
    int64_t total = out->card->memory_mib * MIB, spare = total / 32;
    spare = ot_max(ot_min(spare, GIB), 256 * MIB);
    int64_t most = total - CONTEXT_MIB * MIB;
    int64_t given = ot_device_is_whole((size_t)rq->gpu_mem, (size_t)most) ? 0 : rq->gpu_mem;
    if (given > most)
        return ot_fail(OT_E_BUDGET, "--gpu-mem %lld MiB is more than the %lld MiB that %s has for a program",
                       (long long)(rq->gpu_mem / MIB), (long long)(most / MIB), out->card->title);
    int64_t ram = rq->ram             ? rq->ram
                  : out->pod          ? out->pod->host_gib * GIB
                  : out->card->server ? 2 * total * out->local_ranks
                                      : DESKTOP_GIB * GIB * out->local_ranks;
    out->most_gpu_bytes = (size_t)most;
    out->host_ram_bytes = rq->host_mem > ram / out->local_ranks ? rq->host_mem * out->local_ranks : ram;
    out->budget_bytes[OT_TIER_GPU] = (size_t)(given ? given : most - spare);
    out->budget_bytes[OT_TIER_HOST] =
        (size_t)(rq->host_mem ? rq->host_mem : (ram - ram / 10) / out->local_ranks);
    out->budget_bytes[OT_TIER_NVME] = (size_t)(rq->nvme_bytes / out->local_ranks);
    out->workspace_bytes = WORKSPACE_MIB * MIB;
    return 0;
}

void ot_cards_set_disk(double read_bytes, double write_bytes, struct ot_rates *rates) {
    rates->nvme_read_bytes = either(read_bytes, DISK_READ_BYTES);
    rates->nvme_write_bytes = either(write_bytes, DISK_WRITE_BYTES);
    /* Half reads and half writes, one after the other: this drive gains nothing by doing both at once. */
    rates->nvme_mixed_bytes = 2 / (1 / rates->nvme_read_bytes + 1 / rates->nvme_write_bytes);
    rates->nvme_read_seconds = DISK_READ_SECONDS;
    rates->nvme_write_seconds = DISK_WRITE_SECONDS;
    if (rates->crc_bytes == 0)
        rates->crc_bytes = CRC_BYTES;
}

static struct ot_attention_rates attention_rates(const struct ot_card *card, enum ot_head_size size,
                                                 double product_flops) {
    const struct ot_attention_fraction *share = card->attention;
    double same = product_flops / share->product * (share->is_own ? 1 : MASK * NOT_RUN);
    return (struct ot_attention_rates){.forward = same * share->rates[size].forward,
                                       .backward =
                                           same * share->rates[size].backward * (share->is_own ? 1 : PASSES)};
}

static void set_rates(const struct ot_described_request *rq, struct ot_described *out) {
    const struct ot_card *card = out->card;
    struct ot_rates *r = &out->rates;
    bool server = card->server || out->local_ranks > DESKTOP_GPUS;
    int sockets = (out->local_ranks + SOCKET_GPUS - 1) / SOCKET_GPUS;
    int cores = rq->cores  ? rq->cores
                : out->pod ? (out->pod->vcpus + 1) / 2 /* a vCPU is half a core */
                : server   ? SERVER_CORES * sockets
                           : DESKTOP_CORES;
    double socket = server ? SERVER_BYTES * sockets : DESKTOP_BYTES, by_cores = cores * CORE_BYTES;
    double lanes = server ? card->pcie_lanes : (double)card->pcie_lanes / out->local_ranks;
    double link = PCIE_LANE_BYTES[card->pcie_gen] * lanes;
    r->product_flops = card->peak_tflops * 1e12 * card->achieved->share;
    for (int size = 0; size < OT_HEAD_SIZES; size++)
        r->attention[size] = attention_rates(card, (enum ot_head_size)size, r->product_flops);
    r->device_bytes = card->memory_gb * 1e9 * MEMORY_SHARE;
    out->memory_source = MEMORY_SOURCE;
    out->link_source = rq->pcie > 0 ? NULL : PCIE_SOURCE[card->pcie_gen];
    r->h2d_bytes = r->d2h_bytes = either(rq->pcie, link);
    r->both_bytes = r->h2d_bytes * PCIE_BOTH[card->pcie_gen];
    r->triad_bytes = either(rq->host_bw, ot_min(socket, by_cores));
    for (int format = 0; format < OT_STATE_FORMATS; format++)
        r->adamw_bytes[format] =
            fmin(r->triad_bytes * OPTIMIZER_SHARE, cores * OPTIMIZER_CORE_BYTES[rq->masters][format]);
    r->cores = cores;
    r->crc_bytes = CRC_BYTES;
    r->task_seconds = TASK_SECONDS;
    if (out->budget_bytes[OT_TIER_NVME] > 0)
        ot_cards_set_disk(rq->nvme_read, rq->nvme_write, r);
    ot_rates_divide(r, out->local_ranks);
    double nic = out->pod ? out->pod->nic_gbit * 1e9 : 0;
    struct ot_fabric_request between = {card->name,       card->title, out->ranks,
                                        out->local_ranks, rq->p2p,     either(rq->nic, nic)};
    ot_fabric_describe(&between, r, &out->fabric);
}

static int count_ranks(const struct ot_described_request *rq, struct ot_described *out) {
    out->local_ranks = rq->gpus ? rq->gpus : out->pod ? out->pod->gpus : 1;
    out->ranks = out->local_ranks * (rq->nodes ? rq->nodes : 1);
    if (out->pod && out->local_ranks != out->pod->gpus)
        return ot_fail(OT_E_USAGE, "--gpus %d: %s has %d; use --nodes, or --gpu %s", out->local_ranks,
                       out->pod->title, out->pod->gpus, out->card->name);
    if (out->ranks > OT_MAX_RANKS)
        return ot_fail(OT_E_USAGE, "--gpus %d and --nodes %d are %d ranks; the most is %d", out->local_ranks,
                       rq->nodes, out->ranks, OT_MAX_RANKS);
    return 0;
}

int ot_cards_describe(const struct ot_described_request *request, struct ot_described *out) {
    *out = (struct ot_described){0};
    OT_TRY(find(request->name, out));
    OT_TRY(count_ranks(request, out));
    out->dtype = out->card->family == OT_CARD_TURING ? OT_F16 : OT_BF16;
    OT_TRY(set_budgets(request, out));
    set_rates(request, out);
    return 0;
}

void ot_cards_vary(const struct ot_described_request *rq, const struct ot_described *machine, int end,
                   struct ot_rates *r) {
    double products = 1 + end * machine->card->achieved->spread, device = 1 + end * DEVICE_SPREAD;
    double attention = products * (1 + end * ATTENTION_SPREAD);
    double link = rq->pcie > 0 ? 1 : 1 + end * LINK_SPREAD,
           host = rq->host_bw > 0 ? 1 : 1 + end * HOST_SPREAD;
    double reads = rq->nvme_read > 0 ? 1 : 1 + end * DISK_SPREAD;
    double writes = rq->nvme_write > 0 ? 1 : 1 + end * DISK_SPREAD;
    *r = machine->rates;
    r->product_flops *= products, r->device_bytes *= device;
    for (int size = 0; size < OT_HEAD_SIZES; size++)
        r->attention[size].forward *= attention, r->attention[size].backward *= attention;
    r->h2d_bytes *= link, r->d2h_bytes *= link, r->both_bytes *= link;
    ot_rates_scale_memory(r, host);
    if (machine->budget_bytes[OT_TIER_NVME] > 0)
        ot_cards_set_disk(r->nvme_read_bytes * reads, r->nvme_write_bytes * writes, r);
    ot_fabric_vary(end, r);
}

const char *ot_cards_assumed(const struct ot_described_request *rq, const struct ot_described *machine,
                             char *text, size_t bytes) {
    size_t used = 0;
    const struct ot_rates *r = &machine->rates;
    double local = ot_max(machine->local_ranks, 1); /* the options describe a host */
    const struct {
        bool assumed;
        const char *format;
        double value;
    } parts[] = {
        {!rq->host_mem && !rq->ram && !machine->pod, "--ram %.0fG", (double)machine->host_ram_bytes / GIB},
        {!rq->cores && !machine->pod, "--threads %.0f", r->cores * local},
        {!rq->host_bw, "--host-bw %.3gGB", r->triad_bytes * local * 1e-9},
        {!rq->pcie, "--pcie %.3gGB", r->h2d_bytes * 1e-9},
        {!rq->nvme_read && r->nvme_read_bytes > 0, "--nvme-read %.3gGB", r->nvme_read_bytes * local * 1e-9},
        {!rq->nvme_write && r->nvme_write_bytes > 0, "--nvme-write %.3gGB",
         r->nvme_write_bytes * local * 1e-9},
        {!rq->nic && !(machine->pod && machine->pod->nic_gbit) && machine->fabric.remote_share > 0,
         "--nic %.3gG", machine->fabric.nic_bytes * 8e-9},
    };
    *text = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].assumed && used < bytes) {
            int n = snprintf(text + used, bytes - used, "%s", used ? " · " : "");
            used += (size_t)n;
            if (used < bytes)
                used += (size_t)snprintf(text + used, bytes - used, parts[i].format, parts[i].value);
        }
    return text;
}

/* ---- fabric ---- */

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
    r->inside = (struct ot_transfer_rate){r->comm_bytes, LOCAL_SECONDS};
}

/* Between hosts. A rank gets a part from every other rank; those of other hosts come over the network, whose
 * rate the ranks of a host divide. Both ways work at the same time. */
static void connect_hosts(int local_ranks, struct ot_rates *r, const struct ot_fabric *f) {
    double remote = f->remote_share, local = 1 - remote;
    double by_network = f->nic_bytes * REACHED / local_ranks / remote;
    double by_host = local > 0 ? r->comm_bytes / local : by_network;
    r->host_ranks = local_ranks;
    r->host_comm_bytes = r->comm_bytes;
    r->host_comm_seconds = r->comm_seconds;
    r->between = (struct ot_transfer_rate){f->nic_bytes * REACHED, REMOTE_SECONDS};
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
    rates->host_comm_bytes *= 1 + end * SPREAD;
    rates->inside.bytes *= 1 + end * SPREAD;
    rates->between.bytes *= 1 + end * SPREAD;
}
