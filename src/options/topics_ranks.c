/* The topics about runs on several GPUs and hosts. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block ranks[] = {
    {NULL,
     "A run can use several GPUs, of one host or of several. Each GPU has a process of its own, a rank. "
     "Rank 0 alone prints, and writes the log."},
    {"one host", "--gpus 4 or --gpus all: the program starts the ranks by itself, passes signals on to them, "
                 "and ends all when one fails. If another rank than the first fails, its last output is in "
                 "OUT/rank-N.log."},
    {"several hosts", "Start the same command on each, with --nodes, its own --node-rank (from 0) and the "
                      "address of host 0 as --master. Or use a launcher (help launchers)."},
    {"failures", "If a rank fails, is killed, or is silent for 30 seconds, all ranks end. Each names the "
                 "reason. The exit code is 11, or that of the rank that failed (help exit-codes). The same "
                 "command continues from the newest checkpoint."},
    {"ranks that differ",
     "Before step 1 the ranks compare versions, options, rows and the weights of --model: a sample of all "
     "tensors, and once they are read, a checksum of all values. If the ranks differ, or one has wrong "
     "options, all end with exit code 2, and each names the reason. A rank that ends before the others "
     "have come waits up to 10 seconds to tell them."},
    {"checkpoints",
     "Each rank writes what it holds into --out, which all hosts must share, or use --save-local (help "
     "checkpoints). Another number of ranks, or another --shard, can continue: bit for bit with "
     "--deterministic world."},
    {"listening",
     "Rank 0 listens on one TCP port, --master HOST:PORT, on all addresses of its host. If HOST is an IP "
     "address of the host, or localhost, it listens there alone."},
    {"strangers",
     "Connections of other programs to the port are dropped. A rank of another run is refused. But whoever "
     "reaches the port, and speaks the protocol of this program, can join a run or end it."},
    {"a secret",
     "To prevent that, give all ranks the same long random OFFLOAD_TRAIN_SECRET in their environment "
     "(openssl rand -hex 16). Each end of a connection then proves to the other that it knows the secret "
     "(HMAC-SHA-256 of fresh random numbers). Who does not know it is refused, with exit code 2, and "
     "cannot end the run: the others wait on. The secret is never sent, logged or saved."},
    {"not protected",
     "Nothing is encrypted or signed after that. Whoever can read the network reads weights and gradients, "
     "and whoever can change packets can change them. The connections of --comm nccl and of mpi are their "
     "own. Between hosts, use a network that strangers cannot reach."},
    {NULL, "Examples:"},
    {"", "offload-train --model llama-7b --data sql.jsonl --gpus all\n"
         "offload-train --model llama-7b --data sql.jsonl --nodes 2 --node-rank 0 --master a\n"
         "torchrun --nproc-per-node 8 --no-python offload-train --model llama-7b --data sql.jsonl\n"
         "srun --ntasks-per-node 8 offload-train --model llama-7b --data sql.jsonl"},
};
const struct ot_topic ot_topic_ranks = OT_TOPIC("ranks", "Several GPUs and hosts", ranks);

static const struct ot_topic_block launchers[] = {
    {NULL,
     "Programs that start the ranks of a run on several hosts (help ranks). Each tells a rank by environment "
     "variables which rank it is, and where rank 0 is."},
    {"launchers", "These are found by their environment variables, in this order: torchrun (and DeepSpeed's "
                  "launcher), mpirun (Open MPI, MPICH, PALS), srun (Slurm), PyTorchJob and TrainJob of "
                  "Kubeflow. A line of the log says what was found. With one process on each host, --gpus "
                  "starts the ranks there."},
    {"port",
     "Rank 0 listens on one TCP port: --master HOST:PORT. Without it: 29600 with --nodes; MASTER_PORT "
     "+ 1000 with torchrun, whose own agent uses MASTER_PORT; 15000 + the last four digits of the job "
     "id with Slurm; the given port with PyTorchJob and TrainJob; with mpirun, a port from 20000 to "
     "29999 that depends on the job, if its id is known."},
    {"mpirun", "It does not say where rank 0 is. With several hosts, set MASTER_ADDR or give --master."},
    {NULL, "The variables:"},
    {"RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, LOCAL_SIZE, MASTER_ADDR, MASTER_PORT",
     "Set by torchrun, DeepSpeed's launcher and PyTorchJob."},
    {"TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT", "Set by torchrun; they tell runs apart."},
    {"OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, PMIX_NAMESPACE", "Set by Open MPI."},
    {"OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE", "The same."},
    {"PMI_RANK, PMI_SIZE, PMI_JOBID, MPI_LOCALRANKID, MPI_LOCALNRANKS", "Set by MPICH."},
    {"PALS_LOCAL_RANKID, PALS_LOCAL_SIZE, PALS_APID", "Set by PALS."},
    {"SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_NTASKS, SLURM_STEP_NUM_TASKS", "Set by Slurm."},
    {"SLURM_STEP_ID, SLURM_STEP_NODELIST, SLURM_JOB_NODELIST, SLURM_NODELIST", "The same."},
    {"SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE, SLURM_JOB_ID, SLURM_JOBID", "The same."},
    {"PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT", "Set by TrainJob."},
    {NULL, "Examples:"},
    {"", "torchrun --nproc-per-node 8 --no-python offload-train --model llama-7b --data sql.jsonl\n"
         "srun --ntasks-per-node 8 offload-train --model llama-7b --data sql.jsonl"},
};
const struct ot_topic ot_topic_launchers =
    OT_TOPIC("launchers", "Programs that start ranks, and their variables", launchers);
