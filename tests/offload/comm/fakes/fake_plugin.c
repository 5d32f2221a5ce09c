/* A communicator plugin for one rank. meson.build compiles it several times, each time with another fault. */
#include <stdio.h>

#include "offload/comm/plugin.h"

#ifndef FAKE_ABI
#define FAKE_ABI OT_COMM_ABI_V1
#endif
#ifndef FAKE_BYTES
#define FAKE_BYTES sizeof(struct ot_comm_v1)
#endif
#ifndef FAKE_ABORT
#define FAKE_ABORT fake_abort
#endif
#ifndef FAKE_BEGIN
#define FAKE_BEGIN NULL
#endif
#ifndef FAKE_CAPABILITIES
#define FAKE_CAPABILITIES OT_COMM_TAKES_HOST
#endif
#ifndef FAKE_RANK
#define FAKE_RANK 0
#endif
#ifndef FAKE_SYMBOL
#define FAKE_SYMBOL ot_comm_plugin_v1
#endif

static int fake_open(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                     char *why, size_t why_bytes) {
    (void)context;
#ifdef FAKE_REASON
    (void)host, (void)facts;
    snprintf(why, why_bytes, "%s", FAKE_REASON);
    return OT_COMM_UNSUPPORTED;
#else
    (void)why, (void)why_bytes;
    host->log(host->host, OT_COMM_LOG_DEBUG, "it starts");
    *facts = (struct ot_comm_facts_v1){.struct_size = sizeof *facts,
                                       .rank = FAKE_RANK,
                                       .ranks = 1,
                                       .local_ranks = 1,
                                       .description = "a fake"};
    return OT_COMM_OK;
#endif
}

static void fake_close(void *context, int broken) {
    (void)context, (void)broken;
}

static int fake_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    (void)context, (void)part, (void)all, (void)part_bytes, (void)stream;
    return OT_COMM_FAILED;
}

static int fake_exchange(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    (void)context, (void)send, (void)receive, (void)part_bytes, (void)stream;
    return OT_COMM_OK;
}

static int fake_broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    (void)context, (void)memory, (void)bytes, (void)root, (void)stream;
    return OT_COMM_OK;
}

static int fake_poll(void *context, char *why, size_t why_bytes) {
    (void)context, (void)why, (void)why_bytes;
    return OT_COMM_OK;
}

void fake_abort(void *context);
void fake_abort(void *context) {
    (void)context;
}

int fake_begin(void *context);
int fake_begin(void *context) {
    (void)context;
    return OT_COMM_OK;
}

#ifdef FAKE_TRANSFERS
int fake_transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream);
int fake_transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    (void)context, (void)transfers, (void)n, (void)stream;
    return OT_COMM_OK;
}

const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1 = {FAKE_TRANSFERS};
#endif

extern const struct ot_comm_v1 FAKE_SYMBOL;
const struct ot_comm_v1 FAKE_SYMBOL = {
    .abi = FAKE_ABI,
    .struct_size = FAKE_BYTES,
    .name = "fake",
    .capabilities = FAKE_CAPABILITIES,
    .open = fake_open,
    .close = fake_close,
    .all_gather = fake_gather,
    .all_to_all = fake_exchange,
    .broadcast = fake_broadcast,
    .group_begin = FAKE_BEGIN,
    .poll_error = fake_poll,
    .abort = FAKE_ABORT,
};
