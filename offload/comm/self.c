/* The communicator of one rank. Its only work is to copy the part to its place. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm_state.h"

struct self {
    atomic_bool is_aborted;
};

static int open_self(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                     char *why, size_t why_bytes) {
    if (host->ranks > 1) {
        snprintf(why, why_bytes, "it is for one rank, but there are %d", host->ranks);
        return OT_COMM_UNSUPPORTED;
    }
    struct self *self = calloc(1, sizeof *self);
    if (!self) {
        snprintf(why, why_bytes, "no memory");
        return OT_COMM_FAILED;
    }
    *facts = (struct ot_comm_facts_v1){
        .struct_size = sizeof *facts, .ranks = 1, .local_ranks = 1, .description = "self, 1 rank"};
    *context = self;
    return OT_COMM_OK;
}

static void close_self(void *context, int broken) {
    (void)broken;
    free(context);
}

static int state_of(const void *context) {
    const struct self *self = context;
    return atomic_load(&self->is_aborted) ? OT_COMM_ABORTED : OT_COMM_OK;
}

static int all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    (void)stream;
    if (part_bytes > 0 && part != all && state_of(context) == OT_COMM_OK)
        memcpy(all, part, part_bytes);
    return state_of(context);
}

static int all_to_all(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    (void)send, (void)receive, (void)part_bytes, (void)stream;
    return state_of(context);
}

static int broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    (void)memory, (void)bytes, (void)root, (void)stream;
    return state_of(context);
}

/* There is no other rank, so the list is empty. */
static int transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    (void)transfers, (void)stream;
    return n > 0 ? OT_COMM_UNSUPPORTED : state_of(context);
}

static int poll_error(void *context, char *why, size_t why_bytes) {
    if (state_of(context) != OT_COMM_OK)
        snprintf(why, why_bytes, "it was aborted");
    return state_of(context);
}

static void abort_self(void *context) {
    struct self *self = context;
    atomic_store(&self->is_aborted, true);
}

const struct ot_comm_transfers_v1 ot_comm_self_transfers = {
    .abi = OT_COMM_TRANSFERS_V1,
    .struct_size = sizeof(struct ot_comm_transfers_v1),
    .transfer = transfer,
};

const struct ot_comm_v1 ot_comm_self = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof(struct ot_comm_v1),
    .name = "self",
    .capabilities = OT_COMM_TAKES_HOST,
    .open = open_self,
    .close = close_self,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .poll_error = poll_error,
    .abort = abort_self,
};
