/* Ranks that srun started. A shell of salloc and a batch script have Slurm's variables too, but are one
 * process; only a step of srun has a step id and more than one task. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/cli/ranks_state.h"

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
    const char *value = ot_ranks_env(q, a);
    value = value ? value : ot_ranks_env(q, b);
    return value ? value : ot_ranks_env(q, c);
}

/* Reads where rank 0 is, and the job's port and id. */
static int read_job(const struct ot_launch_request *q, struct ot_found *out) {
    const char *nodes = first_of(q, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST");
    const char *job = first_of(q, "SLURM_JOB_ID", "SLURM_JOBID", ""),
               *step = ot_ranks_env(q, "SLURM_STEP_ID");
    if (!nodes)
        return ot_ranks_fail_missing("Slurm", "SLURM_STEP_NODELIST");
    if (!ot_slurm_first_host(nodes, out->host, sizeof out->host))
        return ot_fail(
            OT_E_USAGE,
            "SLURM_STEP_NODELIST or SLURM_JOB_NODELIST is '%.200s', which is no list of hosts; name "
            "the host of rank 0 with --master",
            nodes);
    if (!job)
        return ot_ranks_fail_missing("Slurm", "SLURM_JOB_ID");
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
    out->names[1] = ot_ranks_env(q, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    if (!ot_ranks_env(q, "SLURM_STEP_ID") && !ot_ranks_env(q, "SLURM_STEP_NODELIST"))
        return 0;
    OT_TRY(rc = ot_ranks_read_int(q, out->names[1], 1, OT_LAUNCH_MOST_PROCESSES, &out->processes));
    if (rc == 0 || out->processes == 1)
        return 0;
    OT_TRY(rc = ot_ranks_read_int(q, "SLURM_PROCID", 0, OT_LAUNCH_MOST_PROCESSES, &out->process));
    if (rc == 0)
        return ot_ranks_fail_missing("Slurm", "SLURM_PROCID");
    OT_TRY(ot_ranks_read_int(q, "SLURM_LOCALID", 0, OT_LAUNCH_MOST_PROCESSES, &out->local));
    OT_TRY(rc = ot_ranks_read_int(q, "SLURM_NODEID", 0, OT_LAUNCH_MOST_PROCESSES, &node));
    out->locals = rc && tasks ? ot_slurm_tasks_of(tasks, node) : 0;
    return read_job(q, out);
}
