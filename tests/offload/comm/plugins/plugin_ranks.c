#include "tests/offload/comm/plugins/plugin_ranks.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"

enum { MOST_EXCHANGES = 16, MOST_BYTES = 1024 };

struct plugin_meeting {
    atomic_int arrived[MOST_EXCHANGES];
    char bytes[MOST_EXCHANGES][MOST_RANKS][MOST_BYTES];
};

static int exchange(void *host, const void *mine, size_t bytes, void *all) {
    struct plugin_rank *rank = host;
    int number = rank->n_exchanges++;
    if (number >= MOST_EXCHANGES || bytes > MOST_BYTES)
        return OT_COMM_FAILED;
    memcpy(rank->meeting->bytes[number][rank->rank], mine, bytes);
    atomic_fetch_add(&rank->meeting->arrived[number], 1);
    for (double end = ot_clock_seconds() + 20; atomic_load(&rank->meeting->arrived[number]) < rank->ranks;) {
        if (ot_clock_seconds() > end)
            return OT_COMM_TIMED_OUT;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    for (int r = 0; r < rank->ranks; r++)
        memcpy((char *)all + (size_t)r * bytes, rank->meeting->bytes[number][r], bytes);
    return OT_COMM_OK;
}

bool plugin_rank_meet(struct plugin_rank *rank) {
    char mine = 0, all[MOST_RANKS];
    return exchange(rank, &mine, 1, all) == OT_COMM_OK;
}

static void write_log(void *host, int level, const char *text) {
    struct plugin_rank *rank = host;
    (void)level;
    snprintf(rank->logged, sizeof rank->logged, "%s", text);
}

const struct ot_comm_v1 *plugin_load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct ot_comm_v1 *api = library ? dlsym(library, "ot_comm_plugin_v1") : NULL;
    if (!api || api->abi != OT_COMM_ABI_V1 || api->struct_size != sizeof *api) {
        fprintf(stderr, "%s is not a plugin: %s\n", path, library ? "wrong symbol" : dlerror());
        _Exit(1);
    }
    return api;
}

const struct ot_comm_transfers_v1 *plugin_transfers(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct ot_comm_transfers_v1 *transfers =
        library ? dlsym(library, "ot_comm_plugin_transfers_v1") : NULL;
    if (!transfers || transfers->abi != OT_COMM_TRANSFERS_V1 || transfers->struct_size != sizeof *transfers) {
        fprintf(stderr, "%s has no transfers\n", path);
        _Exit(1);
    }
    return transfers;
}

int plugin_open(struct plugin_rank *rank, const struct ot_comm_v1 *api, int device, double timeout_seconds) {
    rank->host = (struct ot_comm_host_v1){.struct_size = sizeof rank->host,
                                          .rank = rank->rank,
                                          .ranks = rank->ranks,
                                          .local_rank = rank->rank,
                                          .local_ranks = rank->ranks,
                                          .device = device,
                                          .timeout_seconds = timeout_seconds,
                                          .run_id = "test",
                                          .host = rank,
                                          .log = write_log,
                                          .exchange = exchange};
    rank->facts = (struct ot_comm_facts_v1){.struct_size = sizeof rank->facts};
    return api->open(&rank->host, &rank->facts, &rank->context, rank->why, sizeof rank->why);
}

/* Waits for a process until the time; kills it then. True if it ended well. */
static bool wait_for(pid_t process, double end) {
    int status;
    pid_t ended;
    while ((ended = waitpid(process, &status, WNOHANG)) == 0 && ot_clock_seconds() < end)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (ended == process)
        return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    fprintf(stderr, "a rank hangs\n");
    kill(process, SIGKILL);
    waitpid(process, &status, 0);
    return false;
}

int plugin_ranks_run(int ranks, void (*body)(struct plugin_rank *rank, const void *argument),
                     const void *argument) {
    pid_t processes[MOST_RANKS];
    int failed = 0;
    struct plugin_meeting *meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        return ranks;
    fflush(NULL);
    for (int r = 0; r < ranks; r++) {
        processes[r] = fork();
        if (processes[r] == 0) {
            struct plugin_rank rank = {.rank = r, .ranks = ranks, .meeting = meeting};
            body(&rank, argument);
            exit(0);
        }
    }
    double end = ot_clock_seconds() + 60;
    for (int r = 0; r < ranks; r++)
        failed += processes[r] < 0 || !wait_for(processes[r], end);
    munmap(meeting, sizeof *meeting);
    return failed;
}
