/* Topics about the plan: where data lives, how the program chooses that, and what depends on it. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block tiers[] = {
    {NULL, "Training needs more memory than a GPU has: for weights, gradients, the two moments of AdamW for "
           "each parameter, and activations. The program keeps them on three tiers and moves them while the "
           "GPU computes. The result has the same bits wherever they live."},
    {"tier", "gpu: memory of the device (with --device cpu: a part of RAM in its role). host: pinned RAM. "
             "nvme: files in the directories of --nvme."},
    {"budget",
     "How much of a tier the program may use: --gpu-mem, --host-mem, --nvme DIR:SIZE. Budgets are hard "
     "limits: the program allocates exactly the totals of the plan table. Without these options: the free "
     "GPU memory less a reserve (cpu device: half of the free RAM); nine tenths of the free RAM, within a "
     "container's limit; the free space in DIR less 5 % or 1 GiB, whichever is more."},
    {"block", "What streams as one piece of a model: the embedding, one layer, or the head."},
    {"slab",
     "All parameters of one block, in one piece of memory. 'weights: 5 of 42 slabs on gpu, 37 on host': "
     "the weights of 5 blocks stay on the GPU, those of 37 live in RAM and come when they are "
     "used."},
    {"tile", "A part of a slab (about 2 million parameters) that the optimizer updates as one piece of "
             "work. 'optimizer state: 152 of 4104 tiles on gpu, 3952 on host' says where their state "
             "lives."},
    {"home", "The tier on which something lives between uses. --home weights=host,state=nvme forces homes "
             "of weights and optimizer state; activations=, of those between layers; kept=, of those inside "
             "layers; grads=, of gradients that wait for their update; sums=, of gradient sums between "
             "rounds."},
    {"slot", "A GPU buffer for data that has its home on another tier, for the time of its use. '3 weight "
             "slots': one layer is in use while two more arrive. --slots forces the number."},
    {"engine", "Where a tile is updated. gpu: on the GPU, where its state lives. stream: on the GPU; its "
               "state is copied there just before the next use of its block, and back afterwards. cpu: in "
               "RAM, by CPU threads. --optimizer-engine forces one engine, or shares: cpu:0.6,gpu:0.4."},
    {NULL, "Rows of the plan table (--explain shows all rows; without it, you see five groups):"},
    {"weights", "2 bytes a parameter, 4 in fp32 (--dtype); frozen ones by --base-type."},
    {"optimizer state", "Both moments (--state), and the part of the fp32 masters that the weights do not "
                        "hold: 10 bytes per parameter in bf16, 12 in fp16, 8 in fp32."},
    {"gradients", "Gradients that wait for the global norm: 2 bytes per parameter (4 in fp32)."},
    {"gradient sums", "Sums in fp32 that wait for the next round: 4 bytes per parameter."},
    {"... slots", "Buffers for streamed weights, gradients and optimizer state. Gradients are summed in fp32 "
                  "in their slots."},
    {"activations", "The inputs of the layers, kept for backward."},
    {"kept activations", "Activations inside layers that backward does not compute again (--recompute)."},
    {"workspace, ...", "The activations inside one layer, and logits; constants; batches and results; the "
                       "rows; the key/value cache of samples."},
    {"checkpoint", "Buffers for writing a checkpoint."},
    {"shadow updates", "Old values of tiles that are updated before the norm is known (help bits)."},
    {NULL, "--nvme DIR[:SIZE] adds the third tier. Several directories are used in parallel. Data that fits "
           "neither on the GPU nor in RAM goes there: optimizer state first, then activations, gradients and "
           "weights. The program reserves the space before step 1. Each piece of data but gradients has at "
           "least two places on disk, so its last content stays readable while the next is written. Each "
           "read checks a CRC-32 (--no-io-verify turns the check off). --io-engine chooses io_uring or "
           "threads. The files are deleted when the run ends, except those that checkpoints use."},
    {NULL, "Writing wears out a disk: 7B with all its state on disk writes 67 GB per step. The program warns "
           "if a run will use a large part of the disk's rated endurance."},
};
const struct ot_topic ot_topic_tiers = OT_TOPIC("tiers", "Where weights, state and activations live", tiers);

static const struct ot_topic_block planning[] = {
    {NULL, "Before step 1, train chooses a plan, predicts the time of a step and prints both. --dry-run "
           "stops there. The command plan does the same without data and weights, also for a machine that "
           "you do not have."},
    {"1. what fits",
     "First the program makes a plan from the budgets alone. It keeps everything on the GPU if that fits "
     "with a large enough micro-batch. If not, GPU memory goes, in this order, to micro-batches of up to "
     "4096 tokens, to activations, to slots that let copies overlap with computing, and then to as much "
     "state and weights as fit, first blocks first. Data that does not fit in RAM goes to nvme."},
    {"2. what is fast",
     "Then the planner changes one thing at a time: the engines of tiles, homes of state, "
     "weights and activations, slots, tile size, recomputation, rounds, shadow updates. It simulates a step "
     "of up to some dozens of plans in virtual time, and keeps the fastest. If everything is on the GPU, "
     "there is nothing to choose."},
    {"micro-batch",
     "Number of sequences computed at once. The bits of the result depend on it, so the planner changes it "
     "only for a gain of at least 5 %. --micro-batch sets it; run.json and checkpoints record it."},
    {"tokens per step",
     "More tokens need no more transfers, so tokens per second rise with them. --tokens-per-step "
     "auto:8k..64k takes the fewest within these bounds whose predicted rate is within 2 % of the best: "
     "fewer tokens make more steps. The number changes the result; run.json and checkpoints record it."},
    {"recompute",
     "What backward computes again inside a layer: all; products (everything but attention); elementwise "
     "(norms and activation functions); none. The rest is kept, on the GPU if it fits. The bits are "
     "the same."},
    {"rounds",
     "A round takes a part of the step's micro-batches forward and backward through all layers. More "
     "rounds keep fewer activations and fetch weights more often. The bits are the same."},
    {"rates",
     "The first run measures this machine (copies, products, memory, disks) and keeps its rates in "
     "~/.cache/offload-train; probe measures again, thoroughly; with --gpus, copies between GPUs too. The "
     "model's blocks are timed before each run, on a GPU under load. Usually after step 4, the step is "
     "predicted again from the times of steps 3 and 4; a line says if that differs by more than 10 %. The "
     "summary compares the measured step with both predictions."},
    {"forced choices",
     "--home, --optimizer-engine, --slots, --recompute, --micro-batch, --shadow, --fetch-experts: the "
     "planner keeps these, and chooses the rest."},
    {"--no-forecast", "Nothing is measured or predicted: the run uses the plan of stage 1."},
    {"--explain",
     "Says which lane limits the speed of a step (compute, h2d, d2h, cpu, nvme_read or nvme_write) and how "
     "long compute waits for each lane. Also says what you would gain with 1 GiB more on each tier, with "
     "twice a rate, or with twice the tokens per step. A gain below 2 % is shown as 'no gain'."},
    {"--trace FILE", "Writes a timeline of all tasks, one row per lane, with the predicted steps below (from "
                     "the command plan, only these). Open the file in Perfetto."},
    {NULL, "A run that does not fit ends before step 1 with exit code 4. One sentence gives the numbers and "
           "up to three cures. Each cure was tried: with it there is a plan."},
    {NULL, "For a machine that you do not have, see help renting."},
};
const struct ot_topic ot_topic_planning =
    OT_TOPIC("planning", "How the plan is chosen and its time predicted", planning);

static const struct ot_topic_block renting[] = {
    {NULL, "The command plan also predicts for machines that you do not have. Which GPU trains a model of 13 "
           "billion parameters for the least money? (--within 24h: in a day.)"},
    {"", "offload-train plan llama-13b --gpu all --methods --tokens 20M --price/h 4090=.4,h100=2"},
    {"--gpu CARD",
     "Predicts from data sheets and assumptions, and prints them with their sources. --gpu list shows all "
     "GPUs and rented machines. Numbers are rounded, with a range. --ram, --host-bw, --pcie, --nvme-read and "
     "--nvme-write replace assumptions; --nvme 500G adds a disk."},
    {"several",
     "--gpu A,B --model X,Y compares GPUs and models, --methods full training, LoRA and QLoRA (--markdown, "
     "--json). --gpu all, 24g (every GPU that is sold with so much memory) and rented compare classes; what "
     "does not fit is one line at the end. --sweep tokens-per-step shows larger steps. --minimum prints the "
     "smallest GPU, RAM and disk."},
    {"--price/h",
     "The price of a million tokens; and of the run, if you also give its length: --steps, or "
     "--tokens, --rows or --data with --epochs. One number is the price of the machine; "
     "rtx4090=0.4,h100=2.5 gives a price for each GPU or rented machine, and so does a file with "
     "a line 'rtx4090 0.4' for each. A class then has only the machines with a price. The price "
     "of a GPU counts for each of --gpus, that of a rented machine for each of --nodes."},
    {"--within 24h", "Runs that take longer come last, and are no answer."},
    {"--sort", "By price where prices are known, else by time; --sort price|time|none forces the order."},
    {"models", "Any spelling of a preset's name or hub id will do (Qwen/Qwen3-8B, llama13b), also of a model "
               "that was trained further (-Instruct). For other models config.json is enough. Without the "
               "model's tokenizer, --data estimates tokens from bytes, and says so."},
};
const struct ot_topic ot_topic_renting =
    OT_TOPIC("renting", "Which machine to rent, and what a run costs there", renting);

static const struct ot_topic_block bits[] = {
    {NULL, "The same run gives the same losses and weights, to the last bit. So plans differ only in time, "
           "and a resumed run equals a run that never stopped."},
    {"what changes bits", "Seed, rows, model, the options of rows, batches and optimizer, --dtype, the "
                          "micro-batch, and the device: the GPU model and cuBLASLt, or the CPU's instruction "
                          "set and its library of matrix products (oneDNN, OpenBLAS)."},
    {"what never does",
     "Where weights, state and activations live, the number of slots, the optimizer engine, "
     "threads, the order of loops, recomputation, stops and checkpoints."},
    {"how", "Sums have a fixed order. No sum depends on timing or on the number of multiprocessors, and the "
            "GPU kernels use no floating-point atomics. Random numbers are functions of (seed, step, tensor, "
            "index). All optimizer engines round in the same way. With clipping, no step begins with "
            "weights of a step whose norm was not finite."},
    {"shadow updates",
     "With clipping, updates wait for the norm of the whole step. If the norm will probably stay below "
     "--clip, the CPU updates tiles already during backward, and keeps their old values. If the step is "
     "then clipped or skipped, it takes the updates back (dropped); otherwise they stand (committed). The "
     "prediction assumes that all stand. --shadow sets the memory for old values; 0 turns this off. The "
     "bits are the same."},
    {"matrix products",
     "On a GPU, cuBLASLt computes them. The first algorithm of its heuristic fixes the bits of a shape; the "
     "program times only algorithms that gave the same bits in a test, and uses the fastest. AdamW, sums of "
     "squares, activations and embeddings have the same bits as on the cpu device."},
    {"the micro-batch",
     "If a plan streams data, the planner chooses the micro-batch from measured rates, "
     "which are kept for later runs. When they are measured again, the same command may "
     "choose another micro-batch. To repeat a run exactly, use --config OUT/run.json, or "
     "its --micro-batch (and, after auto, its --tokens-per-step); or use --no-forecast from "
     "the first run on, which measures nothing."},
    {"--exact", "Refuses to resume from a checkpoint on a device whose bits may differ. Without it, the "
                "program only warns."},
    {NULL,
     "Training is in fp32 with --dtype fp32, else in mixed precision with exact fp32 masters. In bf16, "
     "a weight and a 16-bit remainder together are the master, without loss (--master-weights none gives "
     "this up). Gradients are summed in fp32 over micro-batches. The global norm is the norm of the whole "
     "step."},
};
const struct ot_topic ot_topic_bits = OT_TOPIC("bits", "What the bits of a result depend on", bits);

static const struct ot_topic_block gpu[] = {
    {"--device", "cuda[:N] chooses a GPU; cpu uses no GPU. auto (default) is the first GPU, or the cpu "
                 "device if this build can use no GPU. If the machine has a GPU that cannot be used, a line "
                 "says why: driver too old, GPU busy, architecture unknown, library missing."},
    {"--dtype", "auto is bf16 if the GPU supports it, else fp16, with a dynamic loss scale; on the cpu "
                "device, auto is fp32. Masters are fp32, unless --master-weights is none."},
    {"what it needs",
     "The NVIDIA driver, and libcublasLt of CUDA toolkit 12 or 13. The program opens the file of --cublaslt "
     "or $OFFLOAD_TRAIN_CUBLASLT, or else searches the loader's paths, CUDA toolkits and Python packages. "
     "The program is one file. It needs glibc, but neither Python nor a compiler."},
    {"what a build has",
     "The build includes the cuda device if it finds nvcc in PATH, $CUDA_HOME or /usr/local/cuda (meson "
     "option cuda: auto, enabled, disabled). It compiles for sm_80, 86, 89, 90, 100 and 120, and adds PTX "
     "for newer GPUs. The meson option gpu_arch, such as sm_90, builds for one GPU only, which is much "
     "faster; sm_75 is possible too."},
    {"checks",
     "Before its first use with a GPU, driver and build, each fast kernel (attention, matrix "
     "products) is checked: it computes a small random problem, and so does a plain kernel. If the "
     "results disagree, the run uses a slower kernel, with a warning. So does every later run "
     "if the check hangs, or the GPU fails in it, or the run is killed in it; the warning names the "
     "file to delete for a new check. OFFLOAD_TRAIN_KERNELS (help environment) forces slower "
     "kernels."},
    {"memory", "If a budget is more than the system reports as free, the program warns and tries. It makes "
               "all memory resident before step 1, so missing memory is an error before step 1. Memory "
               "errors of the GPU, and a display on it, cause a warning."},
    {NULL, "You need not build on the machine with the GPU. On a machine with nvcc, scripts/gpu-pack makes "
           "an archive of some 30 MiB with the program, the GPU tests and three scripts. The machine with "
           "the GPU needs a driver, libcublasLt and a shell:"},
    {"", "scripts/gpu-pack             # here: builds for sm_90, packs build-gpu/pack.tar.gz\n"
         "tar xzf pack.tar.gz          # there, and then one of these\n"
         "./first-lease                # checks, figures and a real run, about 6 minutes\n"
         "./gpu-check quick            # tests of kernels and engine\n"
         "./gpu-report --minutes 30    # rates, kernels, training of 7B and 1.1B, into report/"},
    {NULL,
     "gpu-check also takes full, or a tool: memcheck, racecheck, ... Both scripts first print the facts of "
     "the machine. They write each result at once, so an interrupted script keeps its results. If python3 "
     "has PyTorch, the report also has PyTorch's attention and training step, for comparison."},
    {NULL, "State: the cuda device is tested on an emulated GPU, kernel by kernel and run by run, and ran on "
           "an H100 and an H200 in November 2026. Other cards have not run it yet."},
};
const struct ot_topic ot_topic_gpu = OT_TOPIC("gpu", "GPUs: requirements and checks", gpu);
