/* Topics about the plan: where things live, how that is chosen, and what it changes. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block tiers[] = {
    {NULL, "Training needs more memory than a GPU has: weights, gradients, two moments of AdamW for each "
           "parameter, and activations. The program keeps them on three tiers and moves them while the "
           "GPU computes. The result has the same bits wherever they live."},
    {"tier", "gpu: memory of the device (with --device cpu a part of RAM that plays its role). host: "
             "pinned RAM. nvme: files in the directories of --nvme."},
    {"budget", "How much of a tier the program may use: --gpu-mem, --host-mem, --nvme DIR:SIZE. Budgets "
               "are hard: the plan table's totals are what is allocated. Without an option: what is free "
               "on the GPU less a reserve (cpu device: half of the free RAM); nine tenths of the free "
               "RAM, within a container's limit; what is free in DIR less a twentieth, or less 1 GiB if "
               "that is more."},
    {"block", "What streams as one piece of a model: the embedding, one layer, or the head."},
    {"slab", "All parameters of one block, in one piece of memory. 'weights gpu 5, host 37 of 42 slabs': "
             "the weights of 5 blocks stay on the GPU, those of 37 live in RAM and come when they are "
             "used."},
    {"tile", "A part of a slab (about 2 million parameters) that the optimizer updates as one piece of "
             "work. 'state gpu 152, host 3952 of 4104 tiles' says where the optimizer state of the tiles "
             "lives."},
    {"home", "The tier on which something lives between uses. --home "
             "weights=host,state=nvme,activations=gpu forces homes of weights, optimizer state and of the "
             "activations between layers."},
    {"slot", "A buffer through which things pass whose home is another tier. '3 weight slots': one layer "
             "is in use while two more arrive. --slots forces the number."},
    {"engine", "Who updates a tile. gpu: its state lives on the GPU. stream: its state comes to the GPU "
               "just before the next use of its block, and goes back. cpu: the CPU's threads update it in "
               "RAM. --optimizer-engine forces one, or shares: cpu:0.6,gpu:0.4."},
    {NULL, "Rows of the plan table (--explain shows all; else five groups):"},
    {"weights", "In --dtype: 2 bytes a parameter in bf16 and fp16."},
    {"optimizer state", "Both moments in fp32, and what the weights lack of the fp32 masters: 10 bytes a "
                        "parameter in bf16, 12 in fp16, 8 in fp32."},
    {"gradients", "Those that wait for the global norm, 2 bytes a parameter (4 in fp32). They wait on the "
                  "GPU or in RAM, never on disk."},
    {"... slots", "Weights, gradients and optimizer state on their way. Gradients are summed in fp32 in "
                  "theirs."},
    {"activations", "The inputs of layers, kept for backward; with --recompute none also what is inside "
                    "the layers."},
    {"workspace, ...", "One layer's insides and logits; constants; batches and results; the rows; the "
                       "key/value cache of samples."},
    {"checkpoint", "Buffers through which a checkpoint is written."},
    {NULL, "--nvme DIR[:SIZE] adds the third tier; several directories are used side by side. What fits "
           "neither on the GPU nor in RAM goes there: optimizer state first, then activations, then "
           "weights. Space is reserved before step 1. Everything there has two places or more, so its "
           "last content stays readable while the next is written, and a CRC-32 that is compared when it "
           "is read (--no-io-verify leaves that out). --io-engine chooses io_uring or threads. The files "
           "go when the run ends, except what checkpoints refer to."},
    {NULL, "A disk wears: 7B with all its state on disk writes 67 GB a step. A warning says when a run "
           "will write a notable part of what the disks are rated for."},
};
const struct ot_topic ot_topic_tiers = OT_TOPIC("tiers", "Where weights, state and activations live", tiers);

static const struct ot_topic_block planning[] = {
    {NULL, "Before step 1, train chooses a plan, predicts its step and prints both. --dry-run stops "
           "there. plan does the same without data and weights, also for a machine that you do not have."},
    {"1. what fits", "First a plan is made from the budgets alone: all on the GPU if that fits with a "
                     "micro-batch of sound size; else, in this order, micro-batches that are large enough "
                     "(up to 4096 tokens), activations on the GPU, slots that let copies overlap, then as "
                     "much state and weights on the GPU as fit, the first blocks first. What RAM has no "
                     "room for goes to nvme."},
    {"2. what is fast", "Then the planner changes one thing at a time: the tiles' engines, homes of "
                        "state, weights and activations, slots, tile size, recomputation. It simulates "
                        "the schedule of each step in virtual time, up to some dozens of plans, and keeps "
                        "the fastest. Where everything is on the GPU there is nothing to choose."},
    {"micro-batch", "Sequences that are computed at once. It is part of what fixes the bits of a result, "
                    "so another one is taken only for a gain of 5 %. --micro-batch fixes it; run.json and "
                    "checkpoints record it."},
    {"recompute", "A layer's insides are kept for backward where they fit on the GPU, and computed again "
                  "where not. --recompute all or none forces it; the bits are the same."},
    {"order", "All micro-batches of a step go through a layer before the next layer is fetched, so "
              "weights cross the bus twice a step. --order micro does it the other way, for comparison."},
    {"rates", "The prediction starts from what this machine does: copies, products, memory, disks. The "
              "first run measures that in a few seconds and keeps it in ~/.cache/offload-train, under a "
              "fingerprint of machine, disks, device, dtype and threads; probe measures it anew and "
              "thoroughly. The model's own blocks are timed before each run. The summary compares the "
              "measured step with the predicted one."},
    {"what is forced", "--home, --optimizer-engine, --slots, --recompute, --micro-batch: the planner "
                       "keeps what you force, and chooses the rest."},
    {"--no-forecast", "Measures and predicts nothing: the plan of stage 1, which depends on the budgets "
                      "alone."},
    {"--explain", "Says what bounds the step (a lane: compute, h2d, d2h, cpu, nvme_read, nvme_write), how "
                  "long compute waits for each lane, and what 1 GiB more on each tier, twice a rate or "
                  "twice the tokens a step would gain. A gain below 2 % is 'no gain'."},
    {"--trace FILE", "Writes when each task ran, a row a lane, with the predicted steps below; from plan, "
                     "the predicted steps alone. Open it in Perfetto."},
    {NULL, "What does not fit is refused before step 1 with exit code 4: one sentence with the numbers "
           "and up to three cures. Each cure was tried: with it there is a plan."},
    {NULL, "plan for a machine that you do not have:"},
    {"--gpu CARD", "From data sheets and assumptions, which it prints with their sources; list shows all "
                   "cards and rented machines. Numbers are rounded and have a range. --ram, --host-bw, "
                   "--pcie, --nvme-read and --nvme-write replace assumptions; --nvme 500G adds a disk."},
    {"several", "--gpu A,B --model X,Y compares (--markdown for a page, --json for a script). --sweep "
                "tokens-per-step shows what a larger step buys. --minimum names the least card, RAM and "
                "disk."},
    {"--price/h", "With --tokens, --rows or --data and --epochs, or --steps: what the run costs."},
    {NULL, "A larger step (--tokens-per-step) costs the same transfers as a small one, so tokens a second "
           "rise with it."},
};
const struct ot_topic ot_topic_planning =
    OT_TOPIC("planning", "How the plan is chosen and its time predicted", planning);

static const struct ot_topic_block bits[] = {
    {NULL, "The same run gives the same losses and weights, to the last bit. This makes plans comparable "
           "by time alone, and makes a resumed run equal to one that never stopped."},
    {"what fixes them", "Seed, rows, model, the options of rows, batches and optimizer, --dtype, the "
                        "micro-batch, and the device: the GPU's model and cuBLASLt, or the CPU's "
                        "instruction set and its library of matrix products (oneDNN, OpenBLAS)."},
    {"what does not", "Where weights, state and activations live, the number of slots, who updates, "
                      "threads, the order of loops, recomputation, stops and checkpoints."},
    {"how", "Sums have a fixed order. No sum depends on timing or on the number of multiprocessors, and "
            "the GPU's kernels use no floating-point atomics. Random numbers are functions of (seed, "
            "step, tensor, index). All optimizer engines round alike. Nothing is updated before the "
            "step's norm is known to be finite."},
    {"matrix products", "On a GPU they are cuBLASLt's. The first algorithm that its heuristic names fixes "
                        "the bits of a shape; the clock chooses only among algorithms that were seen to "
                        "give the same bits. AdamW, sums of squares, activations and embeddings have the "
                        "bits of the cpu device."},
    {"the micro-batch", "Where a plan streams, the planner's micro-batch follows from measured rates, "
                        "which are kept. After they are measured anew the same command may choose another "
                        "one. To repeat a run exactly: --config OUT/run.json, or --micro-batch; or "
                        "--no-forecast from the beginning, which measures nothing."},
    {"--exact", "Refuses to go on from a checkpoint on a device whose bits may differ. Without it that is "
                "a warning."},
    {NULL, "Training is in fp32 with --dtype fp32, else mixed precision with exact fp32 masters: a bf16 "
           "weight and a 16-bit remainder are the master, without loss. Gradients are summed in fp32 over "
           "micro-batches, and the global norm is that of the whole step."},
};
const struct ot_topic ot_topic_bits = OT_TOPIC("bits", "What fixes the bits of a result", bits);

static const struct ot_topic_block gpu[] = {
    {"--device", "cuda[:N] chooses a GPU, cpu none. auto (default) is the first GPU, or the cpu device "
                 "where there is none that this build can use. If a GPU is there and cannot be used, a "
                 "line says why: driver too old, GPU busy, architecture unknown, library missing."},
    {"--dtype", "auto is bf16 where the GPU has it, else fp16, which scales the loss by what the "
                "gradients allow; fp32 on the cpu device. Masters are fp32 in each case."},
    {"what it needs", "The NVIDIA driver, and libcublasLt of CUDA toolkit 12 or 13, opened at run time: "
                      "the loader's, a CUDA toolkit's, a Python package's, or the file of --cublaslt or "
                      "$OFFLOAD_TRAIN_CUBLASLT. The program is one file. It needs glibc, and neither "
                      "Python nor a compiler."},
    {"what a build has", "The cuda device is built where nvcc is found, in PATH, $CUDA_HOME or "
                         "/usr/local/cuda (meson option cuda: auto, enabled, disabled). It compiles for "
                         "sm_80, 86, 89, 90, 100 and 120, and adds PTX for newer ones. meson option "
                         "gpu_arch, such as sm_90, builds much faster for one GPU; sm_75 can be named."},
    {"checks", "Each fast kernel (attention, matrix products) checks itself where it is first used on a "
               "GPU, driver and build: a small random problem, beside the plain kernel. If they disagree, "
               "the plain kernel is used for the whole run, with a warning."},
    {"memory", "More than the system says is free is tried, with a warning: memory is made resident "
               "before step 1, so what cannot be had is an error there. Memory errors of the GPU and a "
               "display on it are warnings."},
    {NULL, "A machine with a GPU needs no build. scripts/gpu-pack, on a machine with nvcc, makes a folder "
           "of less than 64 MiB with the program, the GPU's tests and two scripts. There the folder needs "
           "a driver, libcublasLt and a shell:"},
    {"", "scripts/gpu-pack             # here: builds for sm_90, packs into build-gpu/pack\n"
         "./gpu-check quick            # there: tests of kernels and engine\n"
         "./gpu-report --minutes 30    # there: rates, kernels, training of 7B and 1.1B, into report/"},
    {NULL, "gpu-check also takes full, or a tool: memcheck, racecheck, ... Both scripts print the facts "
           "of the machine first and write each result at once, so a run that is cut off leaves what it "
           "has. Where python3 has PyTorch, the report puts PyTorch's attention and training step beside "
           "ours."},
    {NULL, "State: no GPU was at hand while the cuda device was written. It is tested on an emulated GPU, "
           "kernel by kernel and run by run; no rate of a GPU is measured yet."},
};
const struct ot_topic ot_topic_gpu = OT_TOPIC("gpu", "GPUs: what is needed, what is checked", gpu);
