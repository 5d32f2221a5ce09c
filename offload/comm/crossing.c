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
    char *data;                /* [n_links][slots][slot_stride] */
    size_t slot_stride;
    int n_links, slots;
    struct ot_crossing_link *links;
    uint32_t *n_enqueued; /* [n_links] transfers, of which this rank has enqueued its half */
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

size_t ot_crossing_bytes(const struct ot_crossing *crossing) {
    return states_bytes(crossing->n_links) +
           (size_t)crossing->n_links * (size_t)crossing->slots * round_up(crossing->slot_bytes);
}

int ot_comm_cross(struct ot_comm *comm, const struct ot_crossing *crossing, void *memory) {
    const size_t n = (size_t)crossing->n_links;
    assert(ot_comm_wants_crossing(comm) && crossing->slots > 0 && crossing->slots <= MOST_SLOTS);
    struct ot_comm_crossing *c = calloc(1, sizeof *c);
    if (c) {
        *c = (struct ot_comm_crossing){.states = memory,
                                       .data = (char *)memory + states_bytes(crossing->n_links),
                                       .slot_stride = round_up(crossing->slot_bytes),
                                       .n_links = crossing->n_links,
                                       .slots = crossing->slots,
                                       .links = calloc(n, sizeof *c->links),
                                       .n_enqueued = calloc(n, sizeof *c->n_enqueued)};
        comm->crossing = c;
    }
    if (!c || !c->links || !c->n_enqueued)
        return ot_fail(OT_E_BUDGET, "no memory for %d links between ranks", crossing->n_links);
    memcpy(c->links, crossing->links, n * sizeof *c->links);
    return 0;
}

void ot_comm_crossing_free(struct ot_comm_crossing *c) {
    if (!c)
        return;
    free(c->links);
    free(c->n_enqueued);
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
    const struct ot_crossing_link *link = &c->links[op->root];
    struct link_state *state = &c->states[op->root];
    uint32_t slots = (uint32_t)c->slots, filled = atomic_load(&state->filled),
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

static int find_link(const struct ot_comm *comm, const struct ot_comm_transfer_v1 *t) {
    const struct ot_comm_crossing *c = comm->crossing;
    int from = t->is_send ? comm->rank : t->rank, to = t->is_send ? t->rank : comm->rank, i = 0;
    while (i < c->n_links && (c->links[i].from != from || c->links[i].to != to))
        i++;
    assert(i < c->n_links && t->bytes <= c->slot_stride);
    return i;
}

/* One half of a transfer: the lane waits, copies, and counts. */
static void enqueue_half(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_transfer_v1 *t) {
    struct ot_comm_crossing *c = comm->crossing;
    int link = find_link(comm, t);
    struct ot_comm_operation op = {.comm = comm, .bytes = t->bytes, .root = link};
    uint32_t slot = c->n_enqueued[link]++ % (uint32_t)c->slots;
    char *memory = c->data + ((size_t)link * (size_t)c->slots + slot) * c->slot_stride;
    op.kind = t->is_send ? OT_COMM_AWAIT_FREE : OT_COMM_AWAIT_FILLED;
    ot_comm_enqueue(comm, lane, &op);
    if (t->is_send)
        ot_lane_copy(lane, OT_COPY_D2H, memory, t->memory, t->bytes);
    else
        ot_lane_copy(lane, OT_COPY_H2D, t->memory, memory, t->bytes);
    op.kind = t->is_send ? OT_COMM_FILLED : OT_COMM_FREED;
    ot_comm_enqueue(comm, lane, &op);
}

void ot_comm_crossing_enqueue(struct ot_comm *comm, struct ot_lane *lane,
                              const struct ot_comm_transfer_v1 *transfers, int n) {
    for (int i = 0; i < n; i++)
        if (transfers[i].is_send)
            enqueue_half(comm, lane, &transfers[i]);
    for (int i = 0; i < n; i++)
        if (!transfers[i].is_send)
            enqueue_half(comm, lane, &transfers[i]);
}
