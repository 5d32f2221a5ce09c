/* The state of a world, and the format of its messages. Private to world*.c.
 *
 * One thread of each rank owns the sockets (world_thread.c). All other threads queue messages under the mutex
 * and wake that thread. Everything in struct ot_world below `mutex` is guarded by it.
 *
 * WHO DECIDES. Ranks often learn of one failure in several ways: rank 3 runs out of memory, and rank 2 only
 * sees that rank 3 is gone. The first reason that arrives is then not the cause. So reasons have weights, and
 * rank 0 waits reason_seconds for a heavier one before it tells all ranks which reason counts.
 *
 * Integers are little-endian, as on every machine that this program supports.
 */
#ifndef OT_OFFLOAD_COMM_WORLD_STATE_H
#define OT_OFFLOAD_COMM_WORLD_STATE_H

#include <poll.h>
#include <pthread.h>

#include "offload/comm/world.h"
#include "src/base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are sent as they lie in memory");

#define OT_WORLD_MAGIC "OTWORLD"
enum { OT_WORLD_PROTOCOL = 2, OT_WORLD_NAME_BYTES = 192, OT_WORLD_NONCE_BYTES = 16 };

/* A rank's first bytes. The first two fields are the same in every protocol. */
struct ot_world_hello {
    char magic[8];
    uint32_t protocol, rank, ranks;
    int32_t local_rank, local_ranks; /* -1, 0: not known */
    int32_t process;
    char version[24]; /* the program's */
    char run_id[128];
    char host[128];
    char boot_id[40]; /* identifies the host: two hosts may have the same name */
    uint32_t has_secret;
    uint8_t nonce[OT_WORLD_NONCE_BYTES]; /* random */
};

/* The answer of rank 0. The first two fields and the offset of the text are the same in every protocol.
 *
 * With a secret the first answer is OT_WORLD_CHALLENGE. The rank checks the proof of rank 0 and sends its
 * own, OT_SHA256_BYTES bytes. Then rank 0 answers again. */
enum { OT_WORLD_TAKEN = 0, OT_WORLD_CHALLENGE = 1 << 16 };
struct ot_world_reply {
    char magic[8];
    uint32_t protocol, verdict;     /* one of the above; any other value: refused, with this error code */
    char text[OT_ERROR_TEXT_BYTES]; /* reason */
    uint8_t nonce[OT_WORLD_NONCE_BYTES], proof[OT_SHA256_BYTES];
};

enum ot_world_kind {
    OT_WORLD_ALIVE = 1,
    OT_WORLD_PART,   /* to rank 0: this rank's part of gather number `number` */
    OT_WORLD_RESULT, /* from rank 0: all parts */
    OT_WORLD_FAIL,   /* a sentence; number: its error code. To rank 0: a reason. From rank 0: the decision */
    OT_WORLD_GOODBYE
};

struct ot_world_head {
    uint32_t kind, bytes; /* bytes that follow */
    uint64_t number;
};

/* A message on its way out; rank 0 queues one result for all. */
struct ot_world_message {
    int n_queued; /* in how many queues */
    size_t bytes; /* with its head */
    struct ot_world_head head;
    unsigned char data[];
};

/* A rank takes one result at a time, so its queue never has more than a result, a sign of life, two reasons
 * and a goodbye. */
enum { OT_WORLD_QUEUE = 8 };

/* A connection to another rank. */
struct ot_world_peer {
    int fd;         /* -1: none */
    bool is_lost;   /* closed without a goodbye, silent, or it sent nonsense */
    bool has_ended; /* has said goodbye */
    int64_t heard_ns, said_ns;
    /* the message that is being received */
    struct ot_world_head head;
    size_t received; /* bytes of the head and of the data */
    unsigned char *data;
    /* the messages to send */
    struct ot_world_message *queue[OT_WORLD_QUEUE];
    int n_queue;
    size_t sent; /* bytes of the first message */
    /* rank 0: the part of a gather that has arrived; others: the result */
    unsigned char *part;
    size_t part_bytes;
    uint64_t part_number; /* 0: none */
};

/* A connection to rank 0 that has not identified itself yet. */
struct ot_world_stranger {
    int fd; /* -1: none */
    int64_t since_ns;
    size_t received; /* bytes of the hello and, after a challenge, of the proof */
    struct ot_world_hello hello;
    uint8_t proof[OT_SHA256_BYTES], wanted[OT_SHA256_BYTES];
    char address[64];
};
enum { OT_WORLD_STRANGERS = 32 };

enum ot_world_weight {
    OT_WORLD_NO_REASON,
    OT_WORLD_CONSEQUENCE, /* a rank failed because another one is gone */
    OT_WORLD_LOSS,        /* a connection broke */
    OT_WORLD_CAUSE,       /* a rank says why it failed */
    OT_WORLD_USAGE        /* the same, and OT_E_USAGE is the code on all ranks */
};

struct ot_world {
    struct ot_ranks ranks;
    double timeout_seconds, silence_seconds, linger_seconds;
    const char *secret, *secret_name; /* secret NULL: none */
    struct ot_world_hello own;
    char place[300]; /* "HOST:PORT", for people */
    int wake;        /* eventfd that ends the thread's poll */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t loss_mutex; /* held while on_loss runs; taken before `mutex` */
    void (*on_loss)(void *context);
    void *context;
    bool has_told; /* on_loss was called */

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct ot_world_peer peers[OT_MAX_RANKS]; /* by rank; other ranks than 0 use peers[0] alone */
    char names[OT_MAX_RANKS][OT_WORLD_NAME_BYTES];
    int n_hosts;
    uint64_t gathers; /* begun by this rank */

    struct ot_error broken; /* code 0: the world is whole */
    struct ot_error reason; /* the heaviest reason so far */
    enum ot_world_weight weight;
    int64_t decide_ns; /* time at which the reason becomes the decision; 0: none */

    bool closing;
    int64_t close_by_ns, linger_by_ns; /* linger_by_ns 0: no rank is to be told why the run ends */

    /* rank 0, until all ranks are connected */
    int listener;
    uint64_t connected; /* set of ranks */
    int n_dropped;      /* strangers */
    int n_told;         /* ranks of this run that were refused and told why */
    bool is_late;       /* the deadline for connecting has passed */
    struct ot_world_stranger strangers[OT_WORLD_STRANGERS];
};

/* ---- world_connect.c ---- */

/* Opens a socket that listens on the port of all addresses of this host, or of the address that the user
 * named (ot_ranks.is_bound). Errors: OT_E_COMM. */
int ot_world_listen(const struct ot_ranks *ranks, int *out);
/* Connects to rank 0 and shakes hands, until the deadline. *out: the connection, non-blocking. Errors:
 * OT_E_COMM, or the code with which rank 0 refuses this rank. */
int ot_world_connect(struct ot_world *world, int64_t deadline_ns, int *out);
/* Makes the connection non-blocking and sets its options. Errors: OT_E_COMM. */
int ot_world_prepare_socket(const struct ot_world *world, int fd);

/* ---- world_secret.c ---- */

/* The author of a proof: rank 0, or the rank that said hello. */
enum ot_world_prover { OT_WORLD_ROOT, OT_WORLD_OTHER };
/* nonce: rank 0's. */
void ot_world_prove(const struct ot_world *world, enum ot_world_prover who,
                    const struct ot_world_hello *hello, const uint8_t nonce[OT_WORLD_NONCE_BYTES],
                    uint8_t proof[OT_SHA256_BYTES]);
/* Errors: OT_E_IO. */
int ot_world_make_nonce(uint8_t nonce[OT_WORLD_NONCE_BYTES]);

/* ---- world_accept.c: on the thread of rank 0, with the mutex ---- */

/* Takes new connections from the listener. */
void ot_world_accept(struct ot_world *world, int64_t now);
/* Reads a stranger's hello. A rank of this run becomes a peer. All others are dropped. */
void ot_world_meet(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now);
void ot_world_drop_slow(struct ot_world *world, int64_t now);
/* Closes the listener, and the connections of strangers. */
void ot_world_stop_listening(struct ot_world *world);
/* Ends texts that came over a connection, and names the rank. */
void ot_world_name_rank(const struct ot_world_hello *hello, char name[OT_WORLD_NAME_BYTES]);

/* ---- world_thread.c ---- */

void *ot_world_serve(void *world);
void ot_world_wake(struct ot_world *world);

/* The functions below need the mutex. */

void ot_world_begin_peer(struct ot_world *world, int rank, int fd, int64_t now);
void ot_world_end_peer(struct ot_world_peer *peer);
/* Queues a message for one peer, or for all. Without memory, the world breaks. */
void ot_world_send(struct ot_world *world, int rank, const struct ot_world_head *head, const void *data);
void ot_world_send_all(struct ot_world *world, const struct ot_world_head *head, const void *data);
/* Takes note of a reason. The heaviest, and of these the first, breaks the world. Returns whether this is the
 * heaviest so far. */
bool ot_world_propose(struct ot_world *world, enum ot_world_weight weight, const char *text);

#endif
