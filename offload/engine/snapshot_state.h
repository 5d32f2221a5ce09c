/* The private state of a snapshot, shared by snapshot.c and snapshot_copy.c. */
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
    bool refers;    /* refers to tiles on nvme instead of copying them */
    bool under_way; /* used by the driver: begun and not finished */
    pthread_t thread;
    struct ot_lane *lane;        /* for copies from the device, besides the lanes of the steps */
    struct ot_pins *pins;        /* in the order of tiles; for each tile state, then weights */
    struct ot_store_span *spans; /* room for the spans of any extent */
    char *tile_memory;           /* buffer for a tile that is copied from nvme; NULL: none is there */

    int n_tiles;     /* number of tiles of all slabs */
    int *first_tile; /* [n_slabs]: index of its first tile among all */
    int *order;      /* [n_tiles]: tiles in the order of the next updates */
    bool *taken;     /* [n_tiles]: copied, or needs no copy */
    bool *wanted;    /* [n_tiles]: a task waits for it */

    pthread_mutex_t mutex; /* protects taken, wanted, n_wanted, hurry, cancel, error */
    pthread_cond_t changed;
    int n_wanted;
    bool hurry, cancel;
    double slept, seconds; /* slept: pauses to keep the pace; seconds: all other time of the last snapshot */
    struct ot_error error;
    atomic_bool gates_closed; /* some tile may not be taken yet, so tasks must ask */
    atomic_bool ended;        /* the thread has nothing left to do */
};

/* A tile by its slab and its number in the slab; the function finds it from its index among all tiles. */
struct ot_tile_id {
    int slab, tile;
};
struct ot_tile_id ot_snapshot_tile(const struct ot_snapshot *snapshot, int number);
/* True if the sink refers to the tile's state, or weights, instead of a copy. */
bool ot_snapshot_refers_state(const struct ot_snapshot *snapshot, struct ot_tile_id id);
bool ot_snapshot_refers_weights(const struct ot_snapshot *snapshot, struct ot_tile_id id);

/* Copies one tile to the sink, segment by segment, without the segments that the sink refers to. Adds the
 * bytes to *copied. Errors: the sink's, OT_E_IO, OT_E_DEVICE. */
int ot_snapshot_copy_tile(struct ot_snapshot *snapshot, struct ot_tile_id id, int64_t *copied);

#endif
