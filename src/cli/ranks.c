#include "src/cli/ranks.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/cli/ranks_state.h"

/* ---- the environment ---- */

/* NULL if it is not set or empty. */
static const char *ranks_env(const struct ot_launch_request *q, const char *name) {
    const char *value = !*name ? NULL : q->get_env ? q->get_env(q->context, name) : getenv(name);
    return value && *value ? value : NULL;
}

/* A whole number without anything around it. */
static bool read_number(const char *text, long min, long max, int *out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return false;
    *out = (int)value;
    return true;
}

/* Reads a whole number. Returns 1 if the variable is set, 0 if not. Errors: OT_E_USAGE. */
static int ranks_read_int(const struct ot_launch_request *q, const char *name, int min, int max, int *out) {
    const char *text = ranks_env(q, name);
    if (!text)
        return 0;
    if (!read_number(text, min, max, out))
        return ot_fail(OT_E_USAGE,
                       "the environment variable %s is '%.60s', which is no number from %d to %d; unset or "
                       "correct it",
                       name, text, min, max);
    return 1;
}

/* The error for a variable that is missing from a launcher's set. */
static int ranks_fail_missing(const char *launcher, const char *name) {
    return ot_fail(
        OT_E_USAGE,
        "the environment variables of %s are incomplete: %s is missing; set it, or unset the others",
        launcher, name);
}

static int read_process(const struct ot_launch_request *q, const char *name, int *out) {
    return ranks_read_int(q, name, 0, OT_LAUNCH_MOST_PROCESSES, out);
}
static int read_processes(const struct ot_launch_request *q, const char *name, int *out) {
    return ranks_read_int(q, name, 1, OT_LAUNCH_MOST_PROCESSES, out);
}
static int read_port(const struct ot_launch_request *q, const char *name, int *out) {
    return ranks_read_int(q, name, 1, 65535, out);
}

/* A port that depends on the run, for launchers that give none. */
static int port_of(const char *run_id) {
    return 20000 + (int)(ot_fnv32(OT_FNV32, run_id, strlen(run_id)) % 10000);
}

/* ---- launchers ---- */

/* The agent of torchrun listens on MASTER_PORT, so rank 0 takes another port. */
static int port_beside(int master_port) {
    enum { DISTANCE = 1000 };
    return master_port + DISTANCE <= 65535 ? master_port + DISTANCE : master_port - DISTANCE;
}

static int find_torchrun(const struct ot_launch_request *q, struct ot_found *out) {
    const char *run = ranks_env(q, "TORCHELASTIC_RUN_ID"),
               *restarts = ranks_env(q, "TORCHELASTIC_RESTART_COUNT");
    int has_process, has_processes, has_local, has_port, rc;
    out->names[0] = "RANK";
    out->names[1] = "WORLD_SIZE";
    OT_TRY(has_process = read_process(q, "RANK", &out->process));
    OT_TRY(has_processes = read_processes(q, "WORLD_SIZE", &out->processes));
    OT_TRY(has_local = read_process(q, "LOCAL_RANK", &out->local));
    OT_TRY(has_port = read_port(q, "MASTER_PORT", &out->port));
    out->address = ranks_env(q, "MASTER_ADDR");
    if (!has_process || !has_processes || !has_local || !has_port || !out->address)
        return 0;
    out->port = port_beside(out->port);
    OT_TRY(rc = read_processes(q, "LOCAL_WORLD_SIZE", &out->locals));
    if (rc == 0) /* DeepSpeed's launcher */
        OT_TRY(read_processes(q, "LOCAL_SIZE", &out->locals));
    if (run)
        snprintf(out->run_id, sizeof out->run_id, "torchrun-%.80s.%.20s", run, restarts ? restarts : "0");
    return 1;
}

/* mpirun does not say where rank 0 is, unless all ranks are on one host. MASTER_ADDR is the usual way to
 * tell, also for other programs. */
static int find_mpi_root(const struct ot_launch_request *q, struct ot_found *out) {
    out->address = ranks_env(q, "MASTER_ADDR");
    if (!out->address && out->locals == out->processes)
        out->address = "127.0.0.1";
    out->port = out->run_id[0] ? port_of(out->run_id) : OT_LAUNCH_DEFAULT_PORT;
    return 1;
}

static int find_open_mpi(const struct ot_launch_request *q, struct ot_found *out) {
    const char *run = ranks_env(q, "PMIX_NAMESPACE");
    int has_process, has_processes;
    out->names[0] = "OMPI_COMM_WORLD_RANK";
    out->names[1] = "OMPI_COMM_WORLD_SIZE";
    OT_TRY(has_process = read_process(q, out->names[0], &out->process));
    OT_TRY(has_processes = read_processes(q, out->names[1], &out->processes));
    if (!has_process || !has_processes)
        return 0;
    OT_TRY(read_process(q, "OMPI_COMM_WORLD_LOCAL_RANK", &out->local));
    OT_TRY(read_processes(q, "OMPI_COMM_WORLD_LOCAL_SIZE", &out->locals));
    run = run ? run : ranks_env(q, "OMPI_MCA_ess_base_jobid");
    if (run)
        snprintf(out->run_id, sizeof out->run_id, "mpi-%.100s", run);
    return find_mpi_root(q, out);
}

/* srun sets PMI_RANK and PMI_SIZE too, but not the local rank of hydra or PALS. */
static int find_pmi(const struct ot_launch_request *q, struct ot_found *out) {
    const char *run = ranks_env(q, "PMI_JOBID");
    int has_process, has_processes, has_local;
    run = run ? run : ranks_env(q, "PALS_APID");
    out->names[0] = "PMI_RANK";
    out->names[1] = "PMI_SIZE";
    OT_TRY(has_process = read_process(q, "PMI_RANK", &out->process));
    OT_TRY(has_processes = read_processes(q, "PMI_SIZE", &out->processes));
    OT_TRY(has_local = read_process(q, "MPI_LOCALRANKID", &out->local));
    if (!has_local)
        OT_TRY(has_local = read_process(q, "PALS_LOCAL_RANKID", &out->local));
    if (!has_process || !has_processes || (!has_local && ranks_env(q, "SLURM_PROCID")))
        return 0;
    OT_TRY(read_processes(q, "MPI_LOCALNRANKS", &out->locals));
    if (out->locals == 0)
        OT_TRY(read_processes(q, "PALS_LOCAL_SIZE", &out->locals));
    if (run)
        snprintf(out->run_id, sizeof out->run_id, "mpi-%.100s", run);
    return find_mpi_root(q, out);
}

/* PET_NPROC_PER_NODE is a number, or a word of torchrun: auto, gpu, cpu. */
static int read_per_node(const struct ot_launch_request *q, int *out) {
    const char *text = ranks_env(q, "PET_NPROC_PER_NODE");
    *out = 1;
    if (text && (strcmp(text, "auto") == 0 || strcmp(text, "gpu") == 0)) {
        *out = ot_max(q->visible_gpus, 1);
        return 0;
    }
    int rc =
        text && strcmp(text, "cpu") == 0 ? 0 : ranks_read_int(q, "PET_NPROC_PER_NODE", 1, OT_MAX_RANKS, out);
    return rc < 0 ? rc : 0;
}

/* PyTorchJob v1: RANK counts pods, WORLD_SIZE counts processes. There is no LOCAL_RANK. */
static int find_pytorch_job(const struct ot_launch_request *q, struct ot_found *out) {
    int has_process, has_processes, has_port;
    out->names[0] = "RANK";
    out->names[1] = "WORLD_SIZE";
    if (ranks_env(q, "LOCAL_RANK"))
        return 0;
    OT_TRY(has_process = read_process(q, "RANK", &out->process));
    OT_TRY(has_processes = read_processes(q, "WORLD_SIZE", &out->processes));
    OT_TRY(has_port = read_port(q, "MASTER_PORT", &out->port));
    out->address = ranks_env(q, "MASTER_ADDR");
    if (!has_process || !has_processes || !has_port || !out->address)
        return 0;
    OT_TRY(read_per_node(q, &out->per_process));
    if (out->processes % out->per_process)
        return ot_fail(
            OT_E_USAGE,
            "WORLD_SIZE is %d, which is no multiple of PET_NPROC_PER_NODE, %d; correct one of them",
            out->processes, out->per_process);
    out->processes /= out->per_process;
    out->local = 0;
    out->locals = 1;
    return 1;
}

/* TrainJob: only the PET variables, for a torchrun that does not run here. Nothing listens on the port. */
static int find_train_job(const struct ot_launch_request *q, struct ot_found *out) {
    int has_process, has_processes, has_port;
    out->names[0] = "PET_NODE_RANK";
    out->names[1] = "PET_NNODES";
    if (!ranks_env(q, "PET_NNODES"))
        return 0;
    if (strchr(ranks_env(q, "PET_NNODES"), ':'))
        return ot_fail(OT_E_USAGE,
                       "PET_NNODES is '%.60s', a range of nodes; set one number, or start with torchrun",
                       ranks_env(q, "PET_NNODES"));
    OT_TRY(has_processes = read_processes(q, "PET_NNODES", &out->processes));
    OT_TRY(has_process = read_process(q, "PET_NODE_RANK", &out->process));
    OT_TRY(has_port = read_port(q, "PET_MASTER_PORT", &out->port));
    OT_TRY(read_per_node(q, &out->per_process));
    out->address = ranks_env(q, "PET_MASTER_ADDR");
    out->local = 0;
    out->locals = 1;
    if (out->processes == 1 && !has_process)
        out->process = 0;
    else if (!has_process)
        return ranks_fail_missing("TrainJob", "PET_NODE_RANK");
    if (out->processes > 1 && !out->address)
        return ranks_fail_missing("TrainJob", "PET_MASTER_ADDR");
    if (!has_port)
        out->port = OT_LAUNCH_DEFAULT_PORT;
    return 1;
}

/* The first launcher that is found counts. */
static const struct launcher {
    const char *name;
    int (*find)(const struct ot_launch_request *, struct ot_found *);
} launchers[] = {
    {"torchrun", find_torchrun},    {"Open MPI", find_open_mpi},      {"the MPI launcher", find_pmi},
    {"Slurm", ot_ranks_find_slurm}, {"PyTorchJob", find_pytorch_job}, {"TrainJob", find_train_job},
};
enum { N_LAUNCHERS = sizeof launchers / sizeof *launchers };

/* ---- options ---- */

static int read_master(const char *master, struct ot_found *out) {
    const char *colon = strrchr(master, ':'), *end = master + strlen(master);
    if (colon && (strchr(master, ':') == colon || (colon > master && colon[-1] == ']'))) {
        if (!read_number(colon + 1, 1, 65535, &out->port))
            return ot_fail(OT_E_USAGE, "--master '%.200s' does not end in a port from 1 to 65535", master);
        end = colon;
    }
    if (*master == '[' && end > master + 1 && end[-1] == ']') { /* IPv6 */
        master++;
        end--;
    }
    if (end - master >= (ptrdiff_t)sizeof out->host)
        return ot_fail(OT_E_USAGE, "--master has a host name of %td bytes; at most %zu are possible",
                       end - master, sizeof out->host - 1);
    if (end > master) {
        snprintf(out->host, sizeof out->host, "%.*s", (int)(end - master), master);
        out->address = out->host;
    }
    return 0;
}

/* --gpus: how many ranks each process starts. 0: not given. */
static int read_gpus(const struct ot_launch_request *q, int *out) {
    *out = 0;
    if (!q->gpus)
        return 0;
    bool is_all = strcmp(q->gpus, "all") == 0;
    if (!is_all && !read_number(q->gpus, 1, OT_MAX_RANKS, out))
        return ot_fail(OT_E_USAGE, "--gpus '%.60s' is neither all nor a number from 1 to %d", q->gpus,
                       OT_MAX_RANKS);
    if (is_all && q->visible_gpus == OT_CPU_RANKS)
        return ot_fail(OT_E_USAGE, "--gpus all needs GPUs; with --device cpu, give the number of ranks");
    if (q->visible_gpus == 0 && (is_all || *out > 1))
        return ot_fail(OT_E_USAGE, "--gpus %s finds no GPU; see CUDA_VISIBLE_DEVICES, or use --device cpu",
                       q->gpus);
    if (is_all)
        *out = q->visible_gpus;
    else if (q->visible_gpus != OT_CPU_RANKS && *out > 1 && *out > q->visible_gpus)
        return ot_fail(OT_E_USAGE, "--gpus %d is more than the %d that this process sees; use --gpus all",
                       *out, q->visible_gpus);
    return 0;
}

/* --nodes: this process is one of them. */
static int find_options(const struct ot_launch_request *q, struct ot_found *out) {
    if (!q->nodes)
        return q->node_rank < 0 ? 0 : ot_fail(OT_E_USAGE, "--node-rank has no effect without --nodes");
    if (q->nodes > 1 && q->node_rank < 0)
        return ot_fail(OT_E_USAGE, "--nodes %d needs --node-rank, from 0 to %d, on each node", q->nodes,
                       q->nodes - 1);
    if (q->nodes > 1 && !q->master)
        return ot_fail(OT_E_USAGE, "--nodes %d needs --master HOST, the host of node 0", q->nodes);
    if (q->node_rank >= q->nodes)
        return ot_fail(OT_E_USAGE, "--node-rank %d is not below --nodes %d", q->node_rank, q->nodes);
    out->process = ot_max(q->node_rank, 0);
    out->processes = q->nodes;
    out->local = 0;
    out->locals = 1;
    out->port = OT_LAUNCH_DEFAULT_PORT;
    return 1;
}

/* ---- choosing ---- */

static const struct ot_found nothing = {.process = -1, .local = -1, .per_process = 1};

/* True if --master names a host. MASTER_ADDR does not count: some launchers set it to localhost for rank 0,
 * which other hosts must reach. */
static bool names_host(const struct ot_launch_request *q) {
    return q->master && *q->master && *q->master != ':';
}

/* A rank whose parent is this program. Returns 1 if it is one. */
static int find_parent(const struct ot_launch_request *q, struct ot_launch *out) {
    const char *text = ranks_env(q, OT_RANKS_VARIABLE);
    struct ot_ranks *r = &out->ranks;
    if (!text)
        return 0;
    if (sscanf(text, "%d %d %d %d %d %d %255s %127[^\n]", &r->rank, &r->ranks, &r->local_rank,
               &r->local_ranks, &out->listener, &r->port, r->address, r->run_id) != 8)
        return ot_fail(OT_E_USAGE, "the environment variable " OT_RANKS_VARIABLE
                                   " is for the program's own use; unset it");
    if (strcmp(r->address, "-") == 0)
        r->address[0] = '\0';
    if (strcmp(r->run_id, "-") == 0)
        r->run_id[0] = '\0';
    r->is_bound = names_host(q);
    snprintf(out->found_by, sizeof out->found_by, "--gpus");
    return 1;
}

static int find_process(const struct ot_launch_request *q, struct ot_found *out, struct ot_launch *launch) {
    int used = -1, rc;
    *out = nothing;
    OT_TRY(rc = find_options(q, out));
    snprintf(launch->found_by, sizeof launch->found_by, "%s", rc ? "--nodes" : "");
    for (int i = 0; i < N_LAUNCHERS; i++) {
        struct ot_found found = nothing;
        int is_there = launchers[i].find(q, &found);
        if (is_there < 0 && !*launch->found_by)
            return is_there;
        if (is_there <= 0)
            continue;
        if (!*launch->found_by) {
            used = i;
            *out = found;
            out->address = found.address == found.host ? out->host : found.address;
            snprintf(launch->found_by, sizeof launch->found_by, "%s", launchers[i].name);
        } else if (!(used == 0 && i == N_LAUNCHERS - 1) && found.processes * found.per_process > 1) {
            /* torchrun in a TrainJob reads the PET variables, so they are no second launcher */
            snprintf(launch->note, sizeof launch->note,
                     "%s is there too (%d processes), but is not used: %s comes first", launchers[i].name,
                     found.processes, launch->found_by);
        }
    }
    return *launch->found_by != '\0';
}

/* No launcher was found. Variables that look like an incomplete set are an error: else each of the processes
 * would train alone. */
static int check_incomplete(const struct ot_launch_request *q) {
    static const char *const names[] = {"RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    int ranks = 1, has_rank, rank;
    OT_TRY(read_processes(q, "WORLD_SIZE", &ranks));
    for (size_t i = 0; ranks > 1 && i < sizeof names / sizeof *names; i++)
        if (!ranks_env(q, names[i]))
            return ot_fail(OT_E_USAGE,
                           "WORLD_SIZE is %d, but %s is not set; start all ranks with torchrun, or unset "
                           "WORLD_SIZE",
                           ranks, names[i]);
    OT_TRY(has_rank = read_process(q, "RANK", &rank));
    if (has_rank && rank > 0)
        return ot_fail(
            OT_E_USAGE,
            "RANK is %d, but WORLD_SIZE is not above it; start all ranks with torchrun, or unset RANK", rank);
    return 0;
}

/* The numbers of a launcher must fit together. */
static int check_found(const struct ot_found *f, const char *by) {
    if (f->process >= f->processes)
        return ot_fail(OT_E_USAGE, "%s is %d, which is not below %s, %d; correct or unset them", f->names[0],
                       f->process, f->names[1],
                       f->processes * (strcmp(by, "PyTorchJob") ? 1 : f->per_process));
    if (f->locals > f->processes || (f->locals && f->local >= f->locals))
        return ot_fail(OT_E_USAGE,
                       "the environment variables of %s contradict each other: local rank %d of %d, %d "
                       "processes in all",
                       by, f->local, f->locals, f->processes);
    return 0;
}

/* From processes to ranks. */
static int set_ranks(const struct ot_launch_request *q, const struct ot_found *f, int gpus,
                     struct ot_launch *out) {
    int per = gpus ? gpus : f->per_process;
    struct ot_ranks *r = &out->ranks;
    if (per > 1 && f->processes > 1 && f->locals != 1)
        return ot_fail(OT_E_USAGE,
                       "--gpus %d starts ranks, but %s has started %d processes, several on a host; remove "
                       "--gpus, or start one process on each host",
                       per, out->found_by, f->processes);
    if ((int64_t)f->processes * per > OT_MAX_RANKS)
        return ot_fail(OT_E_USAGE, "%lld ranks are more than the %d that a run can have",
                       (long long)f->processes * per, OT_MAX_RANKS);
    r->rank = f->process * per;
    r->ranks = f->processes * per;
    r->local_rank = per > 1 ? 0 : f->local;
    r->local_ranks = per > 1 ? per : f->locals;
    out->n_start = per > 1 ? per : 0;
    r->port = f->port;
    r->is_bound = names_host(q) || (r->ranks > 1 && r->local_ranks == r->ranks);
    snprintf(r->address, sizeof r->address, "%s", f->address ? f->address : "");
    snprintf(r->run_id, sizeof r->run_id, "%s", f->run_id);
    if (!gpus && r->ranks == 1 && q->visible_gpus > 1)
        snprintf(out->note, sizeof out->note,
                 "%d GPUs are visible, and this run uses one; --gpus all uses all", q->visible_gpus);
    return 0;
}

int ot_ranks_find(const struct ot_launch_request *q, struct ot_launch *out) {
    struct ot_found found;
    int gpus, rc;
    *out = (struct ot_launch){.listener = -1};
    OT_TRY(rc = find_parent(q, out));
    if (rc)
        return 0;
    OT_TRY(read_gpus(q, &gpus));
    OT_TRY(rc = find_process(q, &found, out));
    if (rc == 0) {
        OT_TRY(check_incomplete(q));
        found = nothing;
        found.process = found.local = 0;
        found.processes = found.locals = 1;
        snprintf(out->found_by, sizeof out->found_by, "%s", gpus > 1 ? "--gpus" : "");
    }
    OT_TRY(check_found(&found, out->found_by));
    if (q->master)
        OT_TRY(read_master(q->master, &found));
    return set_ranks(q, &found, gpus, out);
}

const char *ot_ranks_describe(const struct ot_launch *launch, char text[OT_LAUNCH_TEXT_BYTES]) {
    const struct ot_ranks *r = &launch->ranks;
    char which[128], place[300], local[64] = "";
    if (r->local_rank >= 0 && r->local_ranks > 0)
        snprintf(local, sizeof local, " (local %d of %d)", r->local_rank, r->local_ranks);
    if (launch->n_start)
        snprintf(which, sizeof which, "ranks %d to %d of %d", r->rank, r->rank + launch->n_start - 1,
                 r->ranks);
    else
        snprintf(which, sizeof which, "rank %d of %d%s", r->rank, r->ranks, local);
    if (!r->address[0])
        snprintf(place, sizeof place, "%s",
                 r->ranks == 1 || launch->n_start == r->ranks ? "this host" : "a host that is not known");
    else
        snprintf(place, sizeof place, strchr(r->address, ':') ? "[%s]:%d" : "%s:%d", r->address, r->port);
    snprintf(text, OT_LAUNCH_TEXT_BYTES, "%s, found by %s; rank 0 is at %s", which,
             launch->found_by[0] ? launch->found_by : "default", place);
    return text;
}

/* ---- Slurm ---- */

/* Ranks that srun started. A shell of salloc and a batch script have Slurm's variables too, but are one
 * process; only a step of srun has a step id and more than one task. */

/* The port is 15000 + the last four digits of the job id, so that two jobs on one host rarely meet. */
enum { SLURM_PORT = 15000, SLURM_PORTS = 10000 };

bool ot_slurm_first_host(const char *list, char *host, size_t bytes) {
    size_t n = 0;
    while (*list && *list != ',') {
        if (*list == '[') {
            size_t digits = strcspn(++list, "-,]"), whole = strcspn(list, "]");
            if (digits == 0 || list[whole] != ']' || n + digits >= bytes)
                return false;
            memcpy(host + n, list, digits);
            n += digits;
            list += whole + 1;
        } else {
            if (!(isalnum((unsigned char)*list) || strchr("-._", *list)) || n + 1 >= bytes)
                return false;
            host[n++] = *list++;
        }
    }
    host[n] = '\0';
    return n > 0;
}

int ot_slurm_tasks_of(const char *list, int node) {
    while (*list) {
        char *end;
        long tasks = strtol(list, &end, 10), nodes = 1;
        if (end == list || tasks < 1 || tasks > OT_LAUNCH_MOST_PROCESSES)
            return 0;
        if (strncmp(end, "(x", 2) == 0) {
            const char *count = end + 2;
            nodes = strtol(count, &end, 10);
            if (end == count || nodes < 1 || *end++ != ')')
                return 0;
        }
        if (node < nodes)
            return (int)tasks;
        node -= (int)nodes;
        if (*end != ',')
            return 0;
        list = end + 1;
    }
    return 0;
}

static const char *first_of(const struct ot_launch_request *q, const char *a, const char *b, const char *c) {
    const char *value = ranks_env(q, a);
    value = value ? value : ranks_env(q, b);
    return value ? value : ranks_env(q, c);
}

/* Reads where rank 0 is, and the job's port and id. */
static int read_job(const struct ot_launch_request *q, struct ot_found *out) {
    const char *nodes = first_of(q, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST");
    const char *job = first_of(q, "SLURM_JOB_ID", "SLURM_JOBID", ""), *step = ranks_env(q, "SLURM_STEP_ID");
    if (!nodes)
        return ranks_fail_missing("Slurm", "SLURM_STEP_NODELIST");
    if (!ot_slurm_first_host(nodes, out->host, sizeof out->host))
        return ot_fail(
            OT_E_USAGE,
            "SLURM_STEP_NODELIST or SLURM_JOB_NODELIST is '%.200s', which is no list of hosts; name "
            "the host of rank 0 with --master",
            nodes);
    if (!job)
        return ranks_fail_missing("Slurm", "SLURM_JOB_ID");
    size_t digits = strspn(job, "0123456789");
    if (digits == 0 || job[digits])
        return ot_fail(OT_E_USAGE, "SLURM_JOB_ID is '%.60s', which is no number; unset or correct it", job);
    out->address = out->host;
    out->port = SLURM_PORT + atoi(digits > 4 ? job + digits - 4 : job) % SLURM_PORTS;
    snprintf(out->run_id, sizeof out->run_id, "slurm-%.40s.%.40s", job, step ? step : "0");
    return 1;
}

int ot_ranks_find_slurm(const struct ot_launch_request *q, struct ot_found *out) {
    int node = -1, rc;
    const char *tasks = first_of(q, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "");
    out->names[0] = "SLURM_PROCID";
    out->names[1] = ranks_env(q, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    if (!ranks_env(q, "SLURM_STEP_ID") && !ranks_env(q, "SLURM_STEP_NODELIST"))
        return 0;
    OT_TRY(rc = ranks_read_int(q, out->names[1], 1, OT_LAUNCH_MOST_PROCESSES, &out->processes));
    if (rc == 0 || out->processes == 1)
        return 0;
    OT_TRY(rc = ranks_read_int(q, "SLURM_PROCID", 0, OT_LAUNCH_MOST_PROCESSES, &out->process));
    if (rc == 0)
        return ranks_fail_missing("Slurm", "SLURM_PROCID");
    OT_TRY(ranks_read_int(q, "SLURM_LOCALID", 0, OT_LAUNCH_MOST_PROCESSES, &out->local));
    OT_TRY(rc = ranks_read_int(q, "SLURM_NODEID", 0, OT_LAUNCH_MOST_PROCESSES, &node));
    out->locals = rc && tasks ? ot_slurm_tasks_of(tasks, node) : 0;
    return read_job(q, out);
}
