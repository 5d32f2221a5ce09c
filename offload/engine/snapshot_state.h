/* The inside of a snapshot, shared by snapshot.c and snapshot_copy.c. */
#ifndef OT_OFFLOAD_ENGINE_SNAPSHOT_STATE_H
#define OT_OFFLOAD_ENGINE_SNAPSHOT_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "offload/engine/snapshot.h"

struct ot_pins {
    int n;
    struct ot_store_pin pins[];
};

struct ot_snapshot {
    struct ot_snapshot_source source;
    struct ot_snapshot_config config;
    bool refers;    /* to what lives on nvme, instead of copying it */
    bool under_way; /* the driver's: begun and not finished */
    pthread_t thread;
    struct ot_lane *lane;        /* for copies from the device, beside the steps' */
    struct ot_pins *pins;        /* in the order of tiles: state, weights */
    struct ot_store_span *spans; /* room for any extent's */
    char *tile_memory;           /* what is on nvme and has to be copied is read there, a tile at a time */
    void *spare;                 /* that memory where the plan has none, as it counts on references; NULL */

    int n_tiles;     /* of all slabs */
    int *first_tile; /* [n_slabs]: number of its first tile */
    int *order;      /* [n_tiles]: as the next updates come */
    bool *taken;     /* [n_tiles]: copied, or need not be */
    bool *wanted;    /* [n_tiles]: a task waits for it */

    pthread_mutex_t mutex; /* over taken, wanted, n_wanted, hurry, cancel, error */
    pthread_cond_t changed;
    int n_wanted;
    bool hurry, cancel;
    double slept, seconds; /* to keep the pace; the whole without that, of the last one that ended */
    struct ot_error error;
    atomic_bool gates_closed; /* some tile may not be taken yet */
    atomic_bool ended;        /* the thread is through */
};

/* Where a tile lies among all, and back. */
struct ot_tile_place {
    int slab, tile;
};
struct ot_tile_place ot_snapshot_place(const struct ot_snapshot *snapshot, int number);
/* What of the tile can be referred to. */
bool ot_snapshot_refers_state(const struct ot_snapshot *snapshot, struct ot_tile_place place);
bool ot_snapshot_refers_weights(const struct ot_snapshot *snapshot, struct ot_tile_place place);

/* One tile to the sink: all of it but what is referred to, part by part. `copied` counts bytes. Errors: the
 * sink's, OT_E_IO, OT_E_DEVICE. */
int ot_snapshot_copy_tile(struct ot_snapshot *snapshot, struct ot_tile_place place, int64_t *copied);

#endif
