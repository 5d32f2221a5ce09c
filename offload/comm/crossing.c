#include "offload/comm/crossing.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "offload/comm/comm_state.h"
#include "src/base/clock.h"

enum { PAGE = 4096, MOST_SLOTS = 32, LOOK_NS = 2000000 };

/* At the beginning of the memory, for each link. Each counter is written by one rank. */
struct link_state {
    _Alignas(64) _Atomic uint32_t filled; /* by the sender */
    _Alignas(64) _Atomic uint32_t freed;  /* by the receiver */
    uint64_t bytes[MOST_SLOTS];           /* of the transfer in each slot */
};

struct ot_comm_crossing {
    struct link_state *states; /* [n_links] */
    int n_links;
    struct link {
        struct ot_crossing_link is;
        char *data;          /* [slots], each round_up(slot_bytes) long */
        uint32_t n_enqueued; /* transfers, of which this rank has enqueued its half */
    } * links;               /* [n_links] */
};

static size_t round_up(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t states_bytes(int n_links) {
    return round_up((size_t)n_links * sizeof(struct link_state));
}

bool ot_comm_wants_crossing(const struct ot_comm *comm) {
    return comm->is_staged && comm->ranks > 1;
}

static size_t data_bytes(const struct ot_crossing_link *link) {
    return (size_t)link->slots * round_up(link->slot_bytes);
}

size_t ot_crossing_bytes(const struct ot_crossing *crossing) {
    size_t bytes = states_bytes(crossing->n_links);
    for (int i = 0; i < crossing->n_links; i++)
        bytes += data_bytes(&crossing->links[i]);
    return bytes;
}

int ot_comm_cross(struct ot_comm *comm, const struct ot_crossing *crossing, void *memory) {
    struct ot_comm_crossing *c = calloc(1, sizeof *c);
    struct link *links = calloc((size_t)crossing->n_links, sizeof *links);
    char *data = (char *)memory + states_bytes(crossing->n_links);
    if (!c || !links) {
        free(c);
        free(links);
        return ot_fail(OT_E_BUDGET, "no memory for %d links between ranks", crossing->n_links);
    }
    for (int i = 0; i < crossing->n_links; i++) {
        assert(crossing->links[i].slots > 0 && crossing->links[i].slots <= MOST_SLOTS);
        links[i] = (struct link){.is = crossing->links[i], .data = data};
        data += data_bytes(&links[i].is);
    }
    *c = (struct ot_comm_crossing){.states = memory, .n_links = crossing->n_links, .links = links};
    comm->crossing = c;
    return 0;
}

void ot_comm_crossing_free(struct ot_comm_crossing *c) {
    if (!c)
        return;
    free(c->links);
    free(c);
}

void ot_comm_end_crossing(struct ot_comm *comm) {
    ot_comm_crossing_free(comm->crossing);
    comm->crossing = NULL;
}

/* ---- in calls of the lane ---- */

static void count(_Atomic uint32_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_release);
    syscall(SYS_futex, counter, FUTEX_WAKE, INT_MAX);
}

/* Waits while the other rank's counter is `blocked`. False: the communicator is broken. */
static bool wait_for(struct ot_comm *comm, int other, _Atomic uint32_t *counter, uint32_t blocked) {
    const struct timespec look = {.tv_nsec = LOOK_NS};
    double until = ot_clock_seconds() + comm->timeout_seconds;
    while (atomic_load_explicit(counter, memory_order_acquire) == blocked) {
        if (ot_comm_error(comm) < 0)
            return false;
        if (ot_clock_seconds() > until) {
            ot_comm_break(comm, ot_fail(OT_E_COMM,
                                        "the communicator %s failed in transfer: rank %d did not answer for "
                                        "%g s",
                                        comm->api->name, other, comm->timeout_seconds));
            return false;
        }
        syscall(SYS_futex, counter, FUTEX_WAIT, blocked, &look);
    }
    return true;
}

void ot_comm_crossing_run(const struct ot_comm_operation *op) {
    const struct ot_comm_crossing *c = op->comm->crossing;
    const struct ot_crossing_link *link = &c->links[op->root].is;
    struct link_state *state = &c->states[op->root];
    uint32_t slots = (uint32_t)link->slots, filled = atomic_load(&state->filled),
             freed = atomic_load(&state->freed);
    switch (op->kind) {
    case OT_COMM_AWAIT_FREE:
        wait_for(op->comm, link->to, &state->freed, filled - slots);
        break;
    case OT_COMM_FILLED:
        state->bytes[filled % slots] = op->bytes;
        count(&state->filled);
        break;
    case OT_COMM_AWAIT_FILLED:
        if (wait_for(op->comm, link->from, &state->filled, freed) && state->bytes[freed % slots] != op->bytes)
            ot_comm_break(
                op->comm,
                ot_fail(OT_E_COMM,
                        "the communicator %s failed in transfer: rank %d sends %llu bytes, but this "
                        "rank receives %zu",
                        op->comm->api->name, link->from, (unsigned long long)state->bytes[freed % slots],
                        op->bytes));
        break;
    default:
        count(&state->freed);
        break;
    }
}

/* ---- enqueued ---- */

/* The number of the transfer's link; -1: the transfer is the communicator's. */
static int find_link(const struct ot_comm *comm, const struct ot_comm_transfer_v1 *t) {
    const struct ot_comm_crossing *c = comm->crossing;
    int from = t->is_send ? comm->rank : t->rank, to = t->is_send ? t->rank : comm->rank;
    for (int i = 0; i < c->n_links; i++)
        if (c->links[i].is.from == from && c->links[i].is.to == to)
            return t->bytes <= c->links[i].is.slot_bytes ? i : -1;
    return -1;
}

/* One half of a transfer: the lane waits, copies, and counts. */
static void enqueue_half(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_transfer_v1 *t,
                         int number) {
    struct link *link = &comm->crossing->links[number];
    struct ot_comm_operation op = {.comm = comm, .bytes = t->bytes, .root = number};
    uint32_t slot = link->n_enqueued++ % (uint32_t)link->is.slots;
    char *memory = link->data + slot * round_up(link->is.slot_bytes);
    op.kind = t->is_send ? OT_COMM_AWAIT_FREE : OT_COMM_AWAIT_FILLED;
    ot_comm_enqueue(comm, lane, &op);
    if (t->is_send)
        ot_lane_copy(lane, OT_COPY_D2H, memory, t->memory, t->bytes);
    else
        ot_lane_copy(lane, OT_COPY_H2D, t->memory, memory, t->bytes);
    op.kind = t->is_send ? OT_COMM_FILLED : OT_COMM_FREED;
    ot_comm_enqueue(comm, lane, &op);
}

int ot_comm_crossing_enqueue(struct ot_comm *comm, struct ot_lane *lane,
                             const struct ot_comm_transfer_v1 *transfers, int n,
                             struct ot_comm_transfer_v1 *others) {
    int n_others = 0;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 0; i < n; i++) {
            int link = find_link(comm, &transfers[i]);
            if (link >= 0 && transfers[i].is_send == sends)
                enqueue_half(comm, lane, &transfers[i], link);
        }
    for (int i = 0; i < n; i++)
        if (find_link(comm, &transfers[i]) < 0)
            others[n_others++] = transfers[i];
    return n_others;
}
