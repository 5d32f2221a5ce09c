/* Opens a communicator, and keeps the first error that breaks it. */
#include "offload/comm/comm.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/comm_state.h"
#include "src/base/log.h"

enum { DEFAULT_TIMEOUT_SECONDS = 600 };

/* ---- the first error ---- */

int ot_comm_break(struct ot_comm *comm, int rc) {
    struct ot_error first;
    pthread_mutex_lock(&comm->mutex);
    bool is_first = comm->error.code == 0;
    if (is_first)
        ot_error_save(&comm->error, rc);
    first = comm->error;
    pthread_mutex_unlock(&comm->mutex);
    atomic_store(&comm->is_broken, true);
    if (is_first && comm->is_open)
        comm->api->abort(comm->context);
    return ot_error_load(&first);
}

void ot_comm_break_by_code(struct ot_comm *comm, const char *what, int code) {
    char why[512] = "";
    comm->api->poll_error(comm->context, why, sizeof why);
    int rc = comm->world ? ot_world_error(comm->world) : 0;
    if (rc == 0)
        rc = ot_fail(OT_E_COMM, "the communicator %s failed in %s: %s", comm->api->name, what,
                     *why                          ? why
                     : code == OT_COMM_TIMED_OUT   ? "another rank did not arrive in time"
                     : code == OT_COMM_UNSUPPORTED ? "it cannot do this"
                                                   : "it gives no reason");
    ot_comm_break(comm, rc);
}

static void on_loss(void *context) {
    struct ot_comm *comm = context;
    int rc = ot_world_error(comm->world);
    ot_comm_break(comm, rc < 0 ? rc : ot_fail(OT_E_COMM, "a rank is lost"));
}

int ot_comm_error(struct ot_comm *comm) {
    char why[512] = "";
    if (!atomic_load(&comm->is_broken)) {
        int rc = comm->world ? ot_world_error(comm->world) : 0;
        int code = rc < 0 ? OT_COMM_OK : comm->api->poll_error(comm->context, why, sizeof why);
        if (rc == 0 && code == OT_COMM_OK)
            return 0;
        if (rc == 0)
            rc = ot_fail(OT_E_COMM, "the communicator %s is broken: %s", comm->api->name,
                         *why ? why : "it gives no reason");
        return ot_comm_break(comm, rc);
    }
    return ot_comm_break(comm, -OT_E_COMM);
}

/* The caller aborts because of an error of its own, and keeps it. */
void ot_comm_abort(struct ot_comm *comm) {
    struct ot_error kept;
    ot_error_save(&kept, 0);
    ot_comm_break(comm, ot_fail(OT_E_COMM, "the communicator %s was aborted", comm->api->name));
    ot_error_load(&kept);
}

/* ---- functions for a plugin ---- */

static void write_log(void *host, int level, const char *text) {
    static const enum ot_log_level levels[] = {OT_LOG_ERROR, OT_LOG_WARN, OT_LOG_INFO, OT_LOG_DEBUG};
    const struct ot_comm *comm = host;
    if (level >= 0 && level < (int)(sizeof levels / sizeof *levels))
        ot_log(levels[level], "%s: %s", comm->api->name, text);
}

static int exchange(void *host, const void *mine, size_t bytes, void *all) {
    const struct ot_comm *comm = host;
    return ot_world_all_gather(comm->world, mine, bytes, all) < 0 ? OT_COMM_FAILED : OT_COMM_OK;
}

/* Writes the address of this host on the way to rank 0. No packet is sent: connecting a datagram socket only
 * chooses the route. "": there is none. */
static void find_address(const struct ot_ranks *ranks, char *text, socklen_t bytes) {
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    char port[16];
    text[0] = '\0';
    snprintf(port, sizeof port, "%d", ranks->port);
    if (!*ranks->address || getaddrinfo(ranks->address, port, &hints, &found) != 0)
        return;
    for (const struct addrinfo *at = found; at && !*text; at = at->ai_next) {
        struct sockaddr_storage own = {0};
        socklen_t own_bytes = sizeof own;
        int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        if (connect(fd, at->ai_addr, at->ai_addrlen) != 0 ||
            getsockname(fd, (struct sockaddr *)&own, &own_bytes) != 0 ||
            getnameinfo((struct sockaddr *)&own, own_bytes, text, bytes, NULL, 0, NI_NUMERICHOST) != 0)
            text[0] = '\0';
        close(fd);
    }
    freeaddrinfo(found);
}

static int check_facts(const struct ot_comm *comm, const struct ot_comm_host_v1 *host,
                       const struct ot_comm_facts_v1 *facts) {
    if (facts->ranks < 1 || facts->rank < 0 || facts->rank >= facts->ranks)
        return ot_fail(OT_E_COMM, "the communicator %s says that this is rank %d of %d", comm->api->name,
                       facts->rank, facts->ranks);
    if (host->ranks > 0 && (facts->rank != host->rank || facts->ranks != host->ranks))
        return ot_fail(OT_E_COMM,
                       "the communicator %s says that this is rank %d of %d, but it is rank %d of %d",
                       comm->api->name, facts->rank, facts->ranks, host->rank, host->ranks);
    if (facts->ranks > OT_MAX_RANKS)
        return ot_fail(OT_E_USAGE, "there are %d ranks, but %d at most are supported", facts->ranks,
                       OT_MAX_RANKS);
    return 0;
}

static int start(struct ot_comm *comm, const struct ot_comm_config *config) {
    const struct ot_ranks *ranks = config->world ? ot_world_ranks(config->world) : NULL;
    bool finds_ranks = !ranks && (comm->api->capabilities & OT_COMM_HAS_CONTROL);
    char why[512] = "", address[NI_MAXHOST] = "";
    struct ot_comm_facts_v1 facts = {.struct_size = sizeof facts};
    struct ot_comm_host_v1 host = {
        .struct_size = sizeof host,
        .rank = ranks         ? ranks->rank
                : finds_ranks ? -1
                              : 0,
        .ranks = ranks         ? ranks->ranks
                 : finds_ranks ? 0
                               : 1,
        .local_rank = ranks         ? ranks->local_rank
                      : finds_ranks ? -1
                                    : 0,
        .local_ranks = ranks         ? ranks->local_ranks
                       : finds_ranks ? 0
                                     : 1,
        .device = config->device_index,
        .timeout_seconds = comm->timeout_seconds,
        .run_id = ranks ? ranks->run_id : "",
        .host = comm,
        .log = write_log,
        .exchange = ranks ? exchange : NULL,
    };
    if (ranks)
        find_address(ranks, address, sizeof address);
    host.address = *address ? address : NULL;
    int code = comm->api->open(&host, &facts, &comm->context, why, sizeof why);
    if (code != OT_COMM_OK) {
        OT_TRY(config->world ? ot_world_error(config->world) : 0);
        return ot_fail(OT_E_COMM, "the communicator %s cannot start: %s", comm->api->name,
                       *why ? why : "it gives no reason");
    }
    comm->is_open = true;
    OT_TRY(check_facts(comm, &host, &facts));
    comm->rank = facts.rank;
    comm->ranks = facts.ranks;
    snprintf(comm->description, sizeof comm->description, "%.*s", (int)sizeof facts.description,
             *facts.description ? facts.description : comm->api->name);
    return 0;
}

/* ---- opening and closing ---- */

static int choose_memory(struct ot_comm *comm, const struct ot_comm_config *config) {
    uint32_t takes = comm->api->capabilities;
    bool is_gpu = config->device_index >= 0;
    if (!is_gpu && !(takes & OT_COMM_TAKES_HOST))
        return ot_fail(OT_E_USAGE, "the communicator %s is for GPUs, but the device is the CPU",
                       comm->api->name);
    comm->on_stream = is_gpu && (takes & OT_COMM_TAKES_DEVICE);
    comm->is_staged = is_gpu && !comm->on_stream;
    return 0;
}

/* `library` belongs to the communicator from here on, also if it fails. */
static int open_with(const struct ot_comm_found *found, const struct ot_comm_config *config,
                     struct ot_comm **out) {
    struct ot_comm *comm = calloc(1, sizeof *comm);
    char text[128];
    int rc;
    *out = NULL;
    if (!comm) {
        if (found->library)
            dlclose(found->library);
        return ot_fail(OT_E_BUDGET, "no memory for the communicator");
    }
    comm->api = found->api;
    comm->transfers = found->transfers;
    comm->library = found->library;
    comm->world = config->world;
    comm->device = config->device;
    comm->timeout_seconds = config->timeout_seconds > 0 ? config->timeout_seconds : DEFAULT_TIMEOUT_SECONDS;
    comm->rank = config->world ? ot_world_ranks(config->world)->rank : 0;
    comm->ranks = config->world ? ot_world_ranks(config->world)->ranks : 1;
    pthread_mutex_init(&comm->mutex, NULL);
    OT_TRY_GOTO(choose_memory(comm, config), rc, out);
    snprintf(text, sizeof text, "%s%s", comm->api->name, comm->transfers ? "" : " without transfers");
    if (comm->world)
        OT_TRY_GOTO(ot_comm_agree(comm, "the communicator", text), rc, out);
    OT_TRY_GOTO(start(comm, config), rc, out);
    OT_TRY_GOTO(ot_comm_monitor_start(comm), rc, out);
    if (comm->world)
        ot_world_on_loss(comm->world, on_loss, comm);
    *out = comm;
    return 0;
out:
    if (comm->is_open)
        ot_comm_break(comm, rc);
    ot_comm_close(comm);
    return rc;
}

int ot_comm_open(const struct ot_comm_config *config, struct ot_comm **out) {
    struct ot_comm_found found;
    *out = NULL;
    OT_TRY(ot_comm_find(config, &found));
    return open_with(&found, config, out);
}

int ot_comm_open_with(const struct ot_comm_v1 *api, const struct ot_comm_transfers_v1 *transfers,
                      const struct ot_comm_config *config, struct ot_comm **out) {
    const struct ot_comm_found found = {.api = api, .transfers = transfers};
    *out = NULL;
    OT_TRY(ot_comm_check(&found, api->name ? api->name : "the communicator"));
    return open_with(&found, config, out);
}

void ot_comm_close(struct ot_comm *comm) {
    if (!comm)
        return;
    if (comm->world)
        ot_world_on_loss(comm->world, NULL, NULL);
    ot_comm_monitor_stop(comm);
    if (comm->is_open)
        comm->api->close(comm->context, atomic_load(&comm->is_broken));
    if (comm->library)
        dlclose(comm->library);
    ot_comm_crossing_free(comm->crossing);
    pthread_mutex_destroy(&comm->mutex);
    free(comm);
}

int ot_comm_need_transfers(const struct ot_comm *comm) {
    if (comm->transfers)
        return 0;
    return ot_fail(OT_E_USAGE,
                   "the communicator %s cannot send from one rank to one other: its plugin has no symbol "
                   "ot_comm_plugin_transfers_v1; use tcp, nccl or mpi, or a newer plugin",
                   comm->api->name);
}

int ot_comm_rank(const struct ot_comm *comm) {
    return comm->rank;
}

int ot_comm_ranks(const struct ot_comm *comm) {
    return comm->ranks;
}

const char *ot_comm_describe(const struct ot_comm *comm) {
    return comm->description;
}
