/* Private declarations of the tcp communicator.
 *
 *   tcp.c          the functions of plugin.h, and the loop that waits
 *   tcp_connect.c  connects every rank with every other
 *   tcp_link.c     moves the bytes of one operation between two ranks
 *
 * LINKS. Every two ranks have a stream: a UNIX socket if they run on one host (one kernel and one network
 * namespace), else a TCP connection. One thread serves all streams of a rank with poll, so data flows in both
 * directions of all links at once and no order of operations can block. Abort wakes the poll through an
 * eventfd. A rank that is gone closes its streams, so its death is seen at once. Every wait ends after
 * `timeout_seconds` without progress.
 *
 * MESSAGES. A message of fixed size precedes or replaces data. It names the operation, so ranks that are in
 * different operations fail with a sentence instead of mixing their data. There are three ways for data:
 *
 *   in the stream    OT_TCP_DATA, then the bytes. Between hosts, and for little data.
 *   by reading       OT_TCP_LOOK says where the bytes are in the sender's memory. The receiver copies them
 *                    with process_vm_readv and answers OT_TCP_TAKEN. Each byte is copied once. Ranks of one
 *                    host do this if the system permits it, which they try when they connect. A sender that
 *                    breaks off shuts the link down before it uses the memory for something else. So a
 *                    receiver that finds the link open after reading has read the right bytes.
 *   through a ring   Shared memory of OT_TCP_SLOTS slots for each direction of a link. OT_TCP_SLOT says that
 *                    the next slot is filled, OT_TCP_FREED that it is empty again. Each byte is copied twice.
 *                    Ranks of one host do this otherwise.
 *
 * TRANSFERS. A link does the transfers of a call one after the other, in both directions at once. Other
 * ranks may be in an earlier or a later call. So what a rank sends may come before the other expects it:
 *
 *   in the stream    It waits in the sockets, and is not read before. Nothing else has to be read for that:
 *                    data in the stream needs no answer.
 *   otherwise        A sender that waits for an answer reads the stream, and finds the other rank's
 *                    announcements for later calls in front of it. It keeps them (`early`). There are few,
 *                    because their data is in slots, or awaits OT_TCP_TAKEN. For that reason transfers
 *                    between ranks of one host never go through the stream, however little they have.
 */
#ifndef OT_OFFLOAD_COMM_TCP_STATE_H
#define OT_OFFLOAD_COMM_TCP_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "offload/comm/plugin.h"
#include "offload/comm/tcp.h"
#include "offload/comm/world.h"

enum ot_tcp_kind { OT_TCP_DATA = 1, OT_TCP_LOOK, OT_TCP_TAKEN, OT_TCP_SLOT, OT_TCP_FREED };
enum ot_tcp_operation { OT_TCP_GATHER = 1, OT_TCP_EXCHANGE, OT_TCP_BROADCAST, OT_TCP_CLOSE, OT_TCP_TRANSFER };

enum {
    OT_TCP_MAGIC = 0x6f74636d,
    OT_TCP_SLOTS = 4,
    OT_TCP_SLOT_BYTES = 256 << 10, /* two of them fit in the L2 cache of a core, so the second copy is fast */
    OT_TCP_QUEUE =
        2 * OT_TCP_SLOTS + 2, /* room for each slot of both rings, the first message, and an answer to it */
    OT_TCP_EARLY = OT_TCP_SLOTS + 1, /* a slot each, and one OT_TCP_LOOK */
    OT_TCP_TOKEN_BYTES = 16,
    OT_TCP_WHY_BYTES = 256
};

/* Ranks have the same byte order: all machines that the program supports are little-endian. */
struct ot_tcp_message {
    uint32_t magic;
    uint16_t kind, operation;
    uint64_t sequence;   /* number of the operation; of transfers: among those of this link and direction */
    uint64_t part_bytes; /* part size of the operation */
    uint64_t bytes;      /* size of this message's data */
    uint64_t address;    /* OT_TCP_LOOK: in the sender's memory */
};

struct ot_tcp_link {
    int fd; /* -1: this rank itself, or not connected */
    bool is_local;
    bool we_read, they_read; /* process_vm_readv works from their memory, and from ours */
    pid_t pid;               /* the other rank's; 0: not visible here */

    /* rings; NULL: none. Both have OT_TCP_SLOTS slots. */
    char *out_ring, *in_ring;
    unsigned out_slot, in_slot, free_slots;

    /* outgoing: messages; data may follow the first one in the stream */
    struct ot_tcp_message queue[OT_TCP_QUEUE];
    int queued;
    size_t queue_sent; /* bytes of the queue */
    const char *payload;
    size_t payload_left;

    /* incoming: the message in progress */
    struct ot_tcp_message in;
    size_t in_have; /* bytes of the message itself */
    size_t in_left; /* bytes of its data that have not arrived */

    struct ot_tcp_message early[OT_TCP_EARLY]; /* transfers of later calls, oldest first */
    int n_early;

    /* the operation */
    bool is_active;
    struct ot_tcp_message sends, expected; /* the fields that all of its messages share, for each direction */
    size_t next_out, next_in;              /* of tcp->transfers: those before have begun */
    uint64_t n_out, n_in;                  /* transfers that have begun, in all calls */
    const char *source;                    /* through a ring: data that is not in slots yet */
    size_t source_left;
    bool awaits_taken;
    char *target;
    size_t target_left;
    bool expects; /* data, or a message without data, is still to come */
};

struct ot_tcp {
    int rank, ranks;
    double timeout_seconds;
    int wake_fd;                                 /* readable after abort */
    uint64_t sequence;                           /* of operations of all ranks */
    struct ot_tcp_message now;                   /* the operation: the fields that all its messages share */
    const struct ot_comm_transfer_v1 *transfers; /* of the operation */
    size_t n_transfers;                          /* 0: it has none */
    struct ot_tcp_link links[OT_MAX_RANKS];

    atomic_int state;      /* OT_COMM_OK, or the code that broke it */
    pthread_mutex_t mutex; /* guards `why` */
    char why[OT_TCP_WHY_BYTES];
};

/* Breaks the communicator, if it is not broken yet, and shuts all links down, so that the other ranks learn
 * it. Returns the code that broke it. Any thread. */
int ot_tcp_fail(struct ot_tcp *tcp, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- tcp_connect.c ---- */

enum ot_tcp_ways { OT_TCP_ALL_WAYS, OT_TCP_RING_ONLY, OT_TCP_SOCKETS_ONLY };

/* Connects all ranks. Fails on all of them or on none, unless a rank is lost. Returns a code of plugin.h. */
int ot_tcp_connect(struct ot_tcp *tcp, const struct ot_comm_host_v1 *host, enum ot_tcp_ways ways);
void ot_tcp_disconnect(struct ot_tcp *tcp);

/* ---- tcp_link.c ---- */

/* Begins an operation on a link: sends `out_bytes` (has_out) and expects `in_bytes` (has_in). */
struct ot_tcp_exchange {
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    bool has_out, has_in;
};
void ot_tcp_link_begin(struct ot_tcp *tcp, int rank, const struct ot_tcp_exchange *exchange);
/* Begins the transfers with this rank whose turn has come: one in each direction at a time. *moved: there was
 * one. */
void ot_tcp_link_begin_transfers(struct ot_tcp *tcp, int rank, bool *moved);
/* Moves data without waiting, at most a few MiB. *moved: some data was moved. Returns a code of plugin.h. */
int ot_tcp_link_advance(struct ot_tcp *tcp, int rank, bool *moved);
bool ot_tcp_link_is_done(const struct ot_tcp_link *link);
bool ot_tcp_link_wants_input(const struct ot_tcp_link *link);
bool ot_tcp_link_wants_output(const struct ot_tcp_link *link);

#endif
