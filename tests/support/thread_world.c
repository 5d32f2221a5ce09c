#include "tests/support/thread_world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "offload/comm/plugin.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/thread.h"
#include "tests/support/check.h"

enum { MOST_IN_GROUP = 64, MOST_SENDS = OT_MAX_RANKS * OT_COMM_MOST_TRANSFERS, LONGEST_DELAY_NS = 300000 };

enum kind { GATHER, EXCHANGE, BROADCAST, CONTROL };

struct call {
    enum kind kind;
    const char *from;
    char *to;
    size_t bytes;
    int root;
};

/* Where all ranks wait for each other. */
struct meeting {
    struct call calls[OT_MAX_RANKS];
    int arrived;
    uint64_t generation;
};

/* A send that its rank waits for. */
struct message {
    int from, to;
    const void *memory;
    size_t bytes;
    bool is_taken;
};

struct member { /* the context of a rank's communicator */
    struct thread_world *world;
    int rank;
    struct call group[MOST_IN_GROUP];
    int n_group;
    bool in_group;
    uint64_t n_groups, n_delays;
    atomic_int n_operations;
    int fail_at; /* number of an operation; 0: none */
    int code;    /* guarded by the world's mutex, as `why` */
    char why[128];
};

struct thread_world {
    int ranks;
    uint64_t delay_seed;
    double timeout_seconds;
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    struct meeting operations, control;
    struct message *sends[MOST_SENDS]; /* in the order in which they began */
    int n_sends;
    struct member members[OT_MAX_RANKS];
};

/* ---- waiting, with the mutex held ---- */

static int break_member(struct member *member, int code, const char *why) {
    if (member->code == OT_COMM_OK) {
        member->code = code;
        snprintf(member->why, sizeof member->why, "%s", why);
    }
    pthread_cond_broadcast(&member->world->changed);
    return member->code;
}

static int check_others(struct member *member) {
    char why[64];
    for (int r = 0; r < member->world->ranks; r++)
        if (r != member->rank && member->world->members[r].code != OT_COMM_OK) {
            snprintf(why, sizeof why, "rank %d is gone", r);
            return break_member(member, OT_COMM_FAILED, why);
        }
    return member->code;
}

static int meet(struct member *member, struct meeting *meeting) {
    struct thread_world *world = member->world;
    uint64_t generation = meeting->generation;
    int64_t until = ot_clock_ns() + (int64_t)(world->timeout_seconds * 1e9);
    if (member->code != OT_COMM_OK)
        return member->code;
    if (++meeting->arrived == world->ranks) {
        meeting->arrived = 0;
        meeting->generation++;
        pthread_cond_broadcast(&world->changed);
        return OT_COMM_OK;
    }
    while (meeting->generation == generation) {
        if (member->code != OT_COMM_OK || check_others(member) != OT_COMM_OK)
            return member->code;
        if (!ot_cond_wait_until(&world->changed, &world->mutex, until) && meeting->generation == generation)
            return break_member(member, OT_COMM_TIMED_OUT, "another rank did not arrive");
    }
    return OT_COMM_OK;
}

static int check_same(struct member *member, const struct meeting *meeting) {
    const struct call *own = &meeting->calls[member->rank];
    for (int r = 0; r < member->world->ranks; r++) {
        const struct call *other = &meeting->calls[r];
        if (other->kind != own->kind || other->bytes != own->bytes || other->root != own->root)
            return break_member(member, OT_COMM_FAILED, "the ranks do different operations");
    }
    return OT_COMM_OK;
}

/* ---- operations ---- */

static void delay(struct member *member) {
    struct thread_world *world = member->world;
    if (!world->delay_seed)
        return;
    uint64_t ns =
        ot_random_below(world->delay_seed, ot_random_stream(OT_RANDOM_TEST, 1, (uint64_t)member->rank),
                        member->n_delays++, LONGEST_DELAY_NS + 1);
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void copy_from(const struct member *member, const struct call *own, int rank,
                      const struct call *theirs) {
    switch (own->kind) {
    case CONTROL:
    case GATHER: {
        char *to = own->to + (size_t)rank * own->bytes;
        if (to != theirs->from)
            memcpy(to, theirs->from, own->bytes);
        break;
    }
    case EXCHANGE:
        if (rank != member->rank)
            memcpy(own->to + (size_t)rank * own->bytes, theirs->from + (size_t)member->rank * own->bytes,
                   own->bytes);
        break;
    case BROADCAST:
        if (rank == own->root && rank != member->rank)
            memcpy(own->to, theirs->from, own->bytes);
        break;
    }
}

static int run(struct member *member, struct meeting *meeting, const struct call *call) {
    struct thread_world *world = member->world;
    bool is_operation = call->kind != CONTROL;
    if (is_operation)
        delay(member);
    pthread_mutex_lock(&world->mutex);
    if (is_operation && member->fail_at == atomic_load(&member->n_operations) + 1)
        break_member(member, OT_COMM_FAILED, "this operation was chosen to fail");
    meeting->calls[member->rank] = *call;
    int code = meet(member, meeting);
    if (code == OT_COMM_OK)
        code = check_same(member, meeting);
    pthread_mutex_unlock(&world->mutex);
    for (int i = 0; i < world->ranks && code == OT_COMM_OK; i++) {
        int rank = (member->rank + i) % world->ranks;
        if (call->bytes > 0)
            copy_from(member, call, rank, &meeting->calls[rank]);
        if (is_operation)
            delay(member);
    }
    pthread_mutex_lock(&world->mutex);
    if (code == OT_COMM_OK)
        code = meet(member, meeting); /* nobody changes memory that another rank still reads */
    pthread_mutex_unlock(&world->mutex);
    if (is_operation && code == OT_COMM_OK)
        atomic_fetch_add(&member->n_operations, 1);
    return code;
}

static int enqueue(struct member *member, struct call call) {
    if (!member->in_group)
        return run(member, &member->world->operations, &call);
    if (member->n_group == MOST_IN_GROUP)
        return OT_COMM_UNSUPPORTED;
    member->group[member->n_group++] = call;
    return OT_COMM_OK;
}

static int all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    (void)stream;
    return enqueue(context, (struct call){.kind = GATHER, .from = part, .to = all, .bytes = part_bytes});
}

static int all_to_all(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    (void)stream;
    return enqueue(context,
                   (struct call){.kind = EXCHANGE, .from = send, .to = receive, .bytes = part_bytes});
}

static int broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    (void)stream;
    return enqueue(
        context,
        (struct call){.kind = BROADCAST, .from = memory, .to = memory, .bytes = bytes, .root = root});
}

static int group_begin(void *context) {
    struct member *member = context;
    member->in_group = true;
    member->n_group = 0;
    return OT_COMM_OK;
}

static int group_end(void *context, void *stream) {
    struct member *member = context;
    uint64_t order = ot_random_stream(OT_RANDOM_TEST, 2, member->n_groups++);
    int code = OT_COMM_OK;
    (void)stream;
    member->in_group = false;
    for (int left = member->n_group; left > 0 && code == OT_COMM_OK; left--) {
        int i = (int)ot_random_below(member->world->delay_seed, order, (uint64_t)left, (uint64_t)left);
        code = run(member, &member->world->operations, &member->group[i]);
        member->group[i] = member->group[left - 1];
    }
    return code;
}

/* ---- transfers, with the mutex held ---- */

/* The oldest send of the rank to this member, or NULL. */
static struct message *find_send(const struct member *member, int from) {
    struct thread_world *world = member->world;
    for (int i = 0; i < world->n_sends; i++)
        if (world->sends[i]->from == from && world->sends[i]->to == member->rank &&
            !world->sends[i]->is_taken)
            return world->sends[i];
    return NULL;
}

/* Receives what is there. Returns how many halves of the list are not done. */
static size_t advance(struct member *member, const struct ot_comm_transfer_v1 *list, struct message *own,
                      size_t n) {
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        struct message *theirs = list[i].is_send || own[i].is_taken ? NULL : find_send(member, list[i].rank);
        if (theirs && theirs->bytes != list[i].bytes) {
            break_member(member, OT_COMM_FAILED, "the halves of a transfer have different sizes");
        } else if (theirs) {
            if (theirs->bytes > 0)
                memcpy(list[i].memory, theirs->memory, theirs->bytes);
            theirs->is_taken = own[i].is_taken = true;
            pthread_cond_broadcast(&member->world->changed);
        }
        left += !own[i].is_taken;
    }
    return left;
}

static void withdraw_sends(struct member *member) {
    struct thread_world *world = member->world;
    int n = 0;
    for (int i = 0; i < world->n_sends; i++)
        if (world->sends[i]->from != member->rank)
            world->sends[n++] = world->sends[i];
    world->n_sends = n;
}

static int wait_for_transfers(struct member *member, const struct ot_comm_transfer_v1 *list,
                              struct message *own, size_t n) {
    struct thread_world *world = member->world;
    int64_t until = ot_clock_ns() + (int64_t)(world->timeout_seconds * 1e9);
    while (member->code == OT_COMM_OK && advance(member, list, own, n) > 0)
        if (check_others(member) == OT_COMM_OK && !ot_cond_wait_until(&world->changed, &world->mutex, until))
            return break_member(member, OT_COMM_TIMED_OUT, "another rank did not arrive");
    return member->code;
}

/* Messages are kept outside of the list, which the others do not see. */
static int transfer(void *context, const struct ot_comm_transfer_v1 *list, size_t n, void *stream) {
    struct member *member = context;
    struct thread_world *world = member->world;
    struct message own[OT_COMM_MOST_TRANSFERS] = {{0}};
    (void)stream;
    delay(member);
    pthread_mutex_lock(&world->mutex);
    if (member->fail_at == atomic_load(&member->n_operations) + 1)
        break_member(member, OT_COMM_FAILED, "this operation was chosen to fail");
    for (size_t i = 0; i < n; i++) {
        own[i] = (struct message){member->rank, list[i].rank, list[i].memory, list[i].bytes, false};
        if (list[i].is_send)
            world->sends[world->n_sends++] = &own[i];
    }
    pthread_cond_broadcast(&world->changed);
    int code = wait_for_transfers(member, list, own, n);
    withdraw_sends(member);
    pthread_mutex_unlock(&world->mutex);
    if (code == OT_COMM_OK)
        atomic_fetch_add(&member->n_operations, 1);
    return code;
}

static int all_gather_host(void *context, const void *mine, size_t bytes, void *all) {
    struct member *member = context;
    return run(member, &member->world->control,
               &(struct call){.kind = CONTROL, .from = mine, .to = all, .bytes = bytes});
}

static int barrier(void *context) {
    return all_gather_host(context, NULL, 0, NULL);
}

static int poll_error(void *context, char *why, size_t why_bytes) {
    struct member *member = context;
    pthread_mutex_lock(&member->world->mutex);
    int code = member->code;
    if (code != OT_COMM_OK)
        snprintf(why, why_bytes, "%s", member->why);
    pthread_mutex_unlock(&member->world->mutex);
    return code;
}

static void abort_member(void *context) {
    struct member *member = context;
    pthread_mutex_lock(&member->world->mutex);
    break_member(member, OT_COMM_ABORTED, "it was aborted");
    pthread_mutex_unlock(&member->world->mutex);
}

/* ---- opening ---- */

static _Thread_local struct member
    *joining; /* by the calling thread: `open` of a plugin has no argument for it */

static int open_member(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                       char *why, size_t why_bytes) {
    (void)host, (void)why, (void)why_bytes;
    *context = joining;
    *facts = (struct ot_comm_facts_v1){.struct_size = sizeof *facts,
                                       .rank = joining->rank,
                                       .ranks = joining->world->ranks,
                                       .local_rank = joining->rank,
                                       .local_ranks = joining->world->ranks,
                                       .description = "threads"};
    return OT_COMM_OK;
}

static void close_member(void *context, int broken) {
    (void)context, (void)broken; /* thread_world_close frees everything */
}

static const struct ot_comm_v1 threads = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof threads,
    .name = "threads",
    .capabilities = OT_COMM_TAKES_HOST | OT_COMM_HAS_CONTROL,
    .open = open_member,
    .close = close_member,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .group_begin = group_begin,
    .group_end = group_end,
    .all_gather_host = all_gather_host,
    .barrier = barrier,
    .poll_error = poll_error,
    .abort = abort_member,
};

static const struct ot_comm_transfers_v1 thread_transfers = {
    .abi = OT_COMM_TRANSFERS_V1, .struct_size = sizeof thread_transfers, .transfer = transfer};

struct thread_world *thread_world_open(int ranks, uint64_t delay_seed) {
    struct thread_world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    assert_in_range(ranks, 1, OT_MAX_RANKS);
    world->ranks = ranks;
    world->delay_seed = delay_seed;
    world->timeout_seconds = 60;
    pthread_mutex_init(&world->mutex, NULL);
    ot_cond_init(&world->changed);
    for (int r = 0; r < ranks; r++) {
        world->members[r].world = world;
        world->members[r].rank = r;
    }
    return world;
}

void thread_world_close(struct thread_world *world) {
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->mutex);
    free(world);
}

void thread_world_fail_at(struct thread_world *world, int rank, int number) {
    world->members[rank].fail_at = number;
}

void thread_world_set_timeout(struct thread_world *world, double seconds) {
    world->timeout_seconds = seconds;
}

int thread_world_join(struct thread_world *world, int rank, struct ot_device *device, struct ot_comm **out) {
    struct ot_comm_config config = {.device = device,
                                    .device_index = device->api == &ot_cpu_device_api ? -1 : 0,
                                    .timeout_seconds = world->timeout_seconds};
    joining = &world->members[rank];
    return ot_comm_open_with(&threads, &thread_transfers, &config, out);
}

int thread_world_operations(const struct thread_world *world, int rank) {
    return atomic_load(&world->members[rank].n_operations);
}
