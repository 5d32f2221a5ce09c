/* The option table: several GPUs and hosts. */
#include "offload/comm/world.h"
#include "src/options/table.h"

static const struct ot_option table[] = {
    {.name = "gpus",
     .type = OT_OPTION_TEXT,
     .argument = "N|all",
     .takes_number = true,
     .chosen = "1, or what the launcher says",
     .commands = TRAIN | COMM_TEST | PROBE | PLAN,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(gpus),
     .help = "Number of GPUs of this host that train together. The program starts one process (a rank) for "
             "each. With --device cpu, the number of ranks. plan: GPUs of each described host.",
     .elsewhere = "num-gpus nproc-per-node devices num-devices n-gpus"},
    {.name = "nodes",
     .type = OT_OPTION_COUNT,
     .argument = "N",
     .min = 1,
     .max = OT_MAX_RANKS,
     .chosen = "1, or what the launcher says",
     .commands = TRAIN | COMM_TEST | PROBE | PLAN,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(nodes),
     .help = "Number of hosts that train together, without a launcher. Start the same command on each, with "
             "its own --node-rank, and with --master.",
     .elsewhere = "nnodes num-nodes"},
    {.name = "node-rank",
     .type = OT_OPTION_COUNT,
     .argument = "N",
     .min = 0,
     .max = OT_MAX_RANKS - 1,
     .commands = TRAIN | COMM_TEST | PROBE,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(node_rank),
     .help = "Number of this host among --nodes, from 0. Host 0 writes the result.",
     .elsewhere = "machine-rank"},
    {.name = "master",
     .type = OT_OPTION_TEXT,
     .argument = "HOST[:PORT]",
     .chosen = "what the launcher says; port 29600",
     .commands = TRAIN | COMM_TEST | PROBE,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(master),
     .help = "Where rank 0 listens for the other ranks. :PORT replaces only the port that a launcher "
             "suggests. If HOST is an IP address or localhost, rank 0 listens there alone.",
     .elsewhere = "master-addr master-port main-process-ip main-process-port rdzv-endpoint"},
    {.name = "comm",
     .type = OT_OPTION_TEXT,
     .argument = "auto|self|tcp|NAME|FILE",
     .fallback = "auto",
     .commands = TRAIN | COMM_TEST | PROBE,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(comm),
     .help = "How ranks exchange data. self is for one rank, and tcp for ranks on CPUs; both are built in. "
             "NAME is a plugin: libot-comm-NAME.so beside the program or in a folder of "
             "$OFFLOAD_TRAIN_PLUGINS. FILE is the path of a plugin. auto is self for one rank, nccl if each "
             "rank has a GPU of its own, and else tcp.",
     .elsewhere = "backend communicator dist-backend"},
    {.name = "comm-timeout",
     .type = OT_OPTION_TIME,
     .argument = "TIME",
     .min = 1,
     .max = MANY,
     .fallback = "10m",
     .commands = TRAIN | COMM_TEST | PROBE,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(comm_timeout),
     .help = "The longest wait for another rank. Then the run ends and says which rank did not come.",
     .elsewhere = "ddp-timeout timeout"},
    {.name = "shard",
     .type = OT_OPTION_CHOICE,
     .choices = "auto|none|state|full",
     .fallback = "auto",
     .commands = TRAIN | PLAN,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(shard),
     .help =
         "What each of W ranks holds. none: everything (as DDP). state: 1/W of optimizer state and "
         "gradients, and all weights in GPU memory (as ZeRO-2). full: 1/W of everything (as ZeRO-3, FSDP). "
         "auto is what the planner predicts to be fastest, or full with --no-forecast. The bits are the "
         "same.",
     .elsewhere = "zero-stage fsdp sharding-strategy zero"},
    {.name = "share-weights",
     .type = OT_OPTION_CHOICE,
     .choices = "auto|yes|no",
     .fallback = "auto",
     .commands = TRAIN | PLAN,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(share_weights),
     .help =
         "Whether the ranks of a host keep one copy of all weights in RAM together, which each GPU reads "
         "whole. Otherwise each GPU reads its part, and gathers the others from the other GPUs. It needs "
         "--shard full, and all ranks on one host, not in containers of their own. auto is what the planner "
         "predicts to be faster (usually yes if the GPUs cannot copy to each other), or no with "
         "--no-forecast. The bits are the same.",
     .elsewhere = "shared-weights share-memory"},
    {.name = "exchange",
     .type = OT_OPTION_CHOICE,
     .choices = "fp32|dtype",
     .fallback = "fp32",
     .commands = TRAIN | PLAN,
     .on_resume = OT_RESUME_SAME,
     .section = OT_SECTION_RANKS,
     .field = FIELD(exchange),
     .help =
         "Format in which gradient sums cross between ranks. dtype is that of --dtype: half of the bytes, "
         "but each rank's sum is rounded before the sums are added in fp32.",
     .elsewhere = "grad-reduce-dtype communication-data-type"},
    {.name = "deterministic",
     .type = OT_OPTION_CHOICE,
     .choices = "run|world",
     .fallback = "run",
     .commands = TRAIN | PLAN,
     .on_resume = OT_RESUME_SAME,
     .section = OT_SECTION_RANKS,
     .field = FIELD(deterministic),
     .help =
         "run: the same bits in every run with the same number of ranks. world: the same bits with 1, 2, 4 "
         "and 8 ranks, so that a run may go on with another number. It needs up to four gradient sums of a "
         "layer on the device instead of one."},
    {.name = "save-local",
     .type = OT_OPTION_FLAG,
     .commands = TRAIN,
     .on_resume = OT_RESUME_FREE,
     .section = OT_SECTION_RANKS,
     .field = FIELD(save_local),
     .help =
         "For hosts without a shared directory: each host keeps the checkpoint parts of its own ranks in "
         "its --out, and the run continues only with the same ranks on the same hosts (help checkpoints). "
         "The model is written on the host of rank 0.",
     .elsewhere = "save-on-each-node use-node-local-storage"},
    {.name = "sizes",
     .type = OT_OPTION_SIZES,
     .argument = "BYTES,..",
     .min = 1,
     .max = K * K * K * K,
     .fallback = "64K,1M,16M",
     .commands = COMM_TEST,
     .section = OT_SECTION_RANKS,
     .field = FIELD(sizes),
     .help = "The sizes that are measured: bytes of the part that one rank sends to another.",
     .elsewhere = "size bytes"},
};

const struct ot_option_list ot_options_of_ranks = OT_OPTION_LIST(table);
