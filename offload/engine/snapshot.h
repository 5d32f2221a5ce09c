/* Snapshot: the engine's parameters and optimizer state as they are between two steps, written out while the
 * next steps run.
 *
 * A snapshot begins on a drained engine. From then on a thread of its own walks over all tiles, in the order
 * in which the next step's updates will change them, copies each from its home into memory of the SINK and
 * hands it over. Steps go on meanwhile: forward and backward only read weights, so what the thread has not
 * come to yet is what it was. A task that is about to change a tile which the snapshot does not have yet
 * waits for it, and the thread takes that tile next. So a snapshot needs no second copy of the state, and
 * slows steps down only where the sink cannot take 12 bytes a parameter in the time from one update to the
 * next. Otherwise it is paced to need about that time (bytes_per_second), and leaves the rest of the disk and
 * of the memory's rate to the steps.
 *
 * What lives on nvme is not copied where the sink can refer to it (store.h): the snapshot pins the present
 * side of each extent, later writes go to others, and the sink is told where the bytes lie. The pins are
 * given back when whoever keeps the files no longer wants them (ot_engine_release).
 *
 * Threads: the engine's driver begins, asks and finishes; the sink is called on the snapshot's own thread.
 */
#ifndef OT_OFFLOAD_ENGINE_SNAPSHOT_H
#define OT_OFFLOAD_ENGINE_SNAPSHOT_H

#include "kernels/device.h"
#include "offload/plan/layout.h"
#include "offload/store/store.h"

struct ot_snapshot_sink {
    void *context;
    /* Memory for a part of up to OT_PART_PARAMS; waits until there is some. Pinned, if the device wants
     * it. */
    int (*room)(void *context, void **memory);
    /* The memory of the last `room`, with the part in it; returns before it is written. */
    int (*put)(void *context, const struct ot_part *part, void *memory);
    /* The part lies in the store's files, with padding behind it; no span: all of it is zeros. NULL: nothing
     * can be referred to. */
    int (*refer)(void *context, const struct ot_part *part, const struct ot_store_span *spans, int n);
    /* All parts have come; makes them durable. */
    int (*end)(void *context);
};

struct ot_snapshot_config {
    struct ot_snapshot_sink sink; /* its context outlives the snapshot */
    double bytes_per_second;      /* to aim at, while no step waits; 0: as fast as it goes */
};

/* What a snapshot is of. All outlive it. */
struct ot_snapshot_source {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
    char *const *tier_memory; /* [OT_TIER_COUNT] */
    struct ot_device *device;
    struct ot_store *store; /* NULL: nothing is on nvme */
    /* Called after each tile, on the thread of the snapshot: tells the watchdog of steps that wait for it. */
    void (*note_progress)(void *context);
    void *context;
};

struct ot_snapshot;
struct ot_pins; /* what a finished snapshot refers to in the store */

/* Opened once for the engine's life. Errors: OT_E_BUDGET, OT_E_DEVICE. *out: to be closed in either case. */
int ot_snapshot_open(const struct ot_snapshot_source *source, struct ot_snapshot **out);
/* When none is under way and no task can ask any more; NULL is fine. */
void ot_snapshot_close(struct ot_snapshot *snapshot);
/* The source is at rest, and none is under way. Errors: OT_E_BUDGET, OT_E_IO (no thread). */
int ot_snapshot_begin(struct ot_snapshot *snapshot, const struct ot_snapshot_config *config);
bool ot_snapshot_is_under_way(const struct ot_snapshot *snapshot); /* begun and not finished; NULL is fine */
/* The functions that the engine has under the same names (engine.h); NULL is fine. */
bool ot_snapshot_busy(const struct ot_snapshot *snapshot);
double ot_snapshot_seconds(const struct ot_snapshot *snapshot);
void ot_snapshot_give_up(struct ot_snapshot *snapshot);
int ot_snapshot_finish(struct ot_snapshot *snapshot, struct ot_pins **pins);
/* Ends one that is under way, so that nothing waits for it any more; NULL is fine. */
void ot_snapshot_cancel(struct ot_snapshot *snapshot);
/* Before these tiles, or their homes, are changed: waits until a snapshot under way has them. */
void ot_snapshot_pass(struct ot_snapshot *snapshot, int slab, struct ot_tile_span span);

/* Lets go of what they hold, and frees them; NULL is fine. */
void ot_pins_release(struct ot_store *store, struct ot_pins *pins);
/* Frees them alone: what they hold stays when the store is closed, in files with a second name. */
void ot_pins_free(struct ot_pins *pins);

#endif
