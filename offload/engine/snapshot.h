/* A snapshot writes out the engine's parameters and optimizer state as they are between two steps, while the
 * next steps run.
 *
 * A snapshot begins on a drained engine. Its own thread walks over all tiles, in the order in which the next
 * step's updates will change them. It copies each tile from its home into memory of the SINK, and gives it to
 * the sink. Steps go on meanwhile: forward and backward only read weights, so a tile that the thread has not
 * reached yet is still unchanged. A task that is about to change such a tile waits, and the thread takes that
 * tile next. So a snapshot needs no second copy of the state. It slows steps down only if the sink cannot
 * take 12 bytes a parameter in the time between two updates. If the sink is faster, the snapshot pauses to
 * need about that time (bytes_per_second), and leaves the rest of the disk's and the memory's bandwidth to
 * the steps.
 *
 * A snapshot of the weights alone leaves out the moments: 4 bytes a parameter in bf16. It copies everything.
 *
 * A tile on nvme is not copied if the sink can refer to it (store.h). The snapshot pins the present side of
 * each extent, so later writes go to other sides, and tells the sink where the bytes are. When the files of
 * the sink are not wanted any more, ot_engine_release gives the pins back.
 *
 * STATES of a snapshot, and the function of each transition:
 *
 *   IDLE      under_way is false, the gates are open.
 *     ot_snapshot_begin    pins extents, closes the gates, starts the thread: to COPYING. After an error:
 *                          IDLE, with open gates and without pins
 *   COPYING   gates_closed is true. Each tile is taken once: by pin_all, if the sink refers to all of it, or
 *             by take, after ot_snapshot_copy_tile.
 *     copy_all             has taken the last tile: to ENDING
 *     copy_all             a copy or the sink has failed, or `cancel` is set: take_all, and to ENDED, with an
 *                          error
 *   ENDING    the gates are open. refer_all gives the sink the pinned extents, then `end` makes all durable.
 *             `cancel` comes too late now: only COPYING looks at it.
 *     snapshot_main        stores the error, if any: to ENDED
 *   ENDED     `ended` is true. The thread touches nothing any more.
 *     ot_snapshot_finish   joins the thread: to IDLE. The pins go to the caller; after an error they are
 *                          released
 *     ot_snapshot_cancel   joins the thread, from any state: to IDLE. The engine closes, so the pins stay
 *
 * INVARIANTS, with the tests that hold them (tests/offload/engine/test_snapshot.c):
 *
 *   1. A snapshot begins only at rest, or on a stuck engine whose state is that after its last step:
 *      ot_engine_snapshot refuses all else. (when_it_may_begin)
 *   2. The home of a tile that is not taken has the bytes of the beginning. A task that changes it waits in
 *      ot_snapshot_wait_copied (changes_homes, tasks.c); a shadow, which nobody waits for, is left out
 *      (ot_engine_run_shadow). (snapshots_beside_steps, streamed_updates_wait)
 *   3. The sink gets the state and the weights of each trained parameter exactly once. (tiny_keeper_check)
 *   4. No task waits for a thread that takes no more tiles: take_all opens the gates, also after an error.
 *      (failing_sinks)
 *   5. `end` is called only if all before it succeeded. (failing_sinks, a_snapshot_after_one_given_up)
 *   6. A pin belongs to the snapshot, to the caller that finished it, or to nobody: a snapshot that failed
 *      leaves no pin. (failing_sinks; two_snapshots_kept for pins that stay)
 *   7. A snapshot changes no bit of the run, whether it succeeds or not. (snapshots_beside_steps,
 *      failing_sinks)
 *
 * Threads: the engine's driver begins a snapshot, asks about it and finishes it. The functions of the sink
 * run on the snapshot's own thread.
 */
#ifndef OT_OFFLOAD_ENGINE_SNAPSHOT_H
#define OT_OFFLOAD_ENGINE_SNAPSHOT_H

#include "kernels/device.h"
#include "offload/plan/layout.h"
#include "offload/store/store.h"

struct ot_snapshot_sink {
    void *context;
    /* Gets memory for a segment of up to OT_SEGMENT_PARAMS parameters; waits until some is free. The memory
     * should be pinned if the device copies faster to such memory. */
    int (*room)(void *context, void **memory);
    /* Takes back the memory of the last `room`, with the segment in it. Returns before the segment is
     * written. */
    int (*put)(void *context, const struct ot_segment *segment, void *memory);
    /* Takes a segment that is in the store's files, in these spans, with padding at the end. n = 0: all of
     * the segment is zeros. A NULL function: the sink cannot refer to the store. */
    int (*refer)(void *context, const struct ot_segment *segment, const struct ot_store_span *spans, int n);
    /* Called after all segments; makes them durable. */
    int (*end)(void *context);
};

struct ot_snapshot_config {
    struct ot_snapshot_sink sink; /* its context outlives the snapshot */
    double bytes_per_second;      /* pace while no step waits; 0: as fast as possible */
    bool weights_alone;           /* the segments lack the moments, and nothing is referred to */
};

/* The source of a snapshot. Everything that it points to outlives the snapshot. */
struct ot_snapshot_source {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
    char *const *tier_memory; /* [OT_MEMORIES] */
    struct ot_device *device;
    struct ot_store *store; /* NULL: the plan uses no nvme */
    /* Called after each tile, on the snapshot's thread, so that the watchdog does not count a step that waits
     * for the snapshot as stuck. */
    void (*note_progress)(void *context);
    void *context;
};

struct ot_snapshot;
struct ot_pins; /* the pins of the extents that a finished snapshot refers to */

/* Opens a snapshot object, once for the engine's life. The caller must close *out also after an error.
 * Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_snapshot_open(const struct ot_snapshot_source *source, struct ot_snapshot **out);
/* Frees it. No snapshot may be under way, and no task may call ot_snapshot_wait_copied any more. NULL is
 * fine. */
void ot_snapshot_close(struct ot_snapshot *snapshot);
/* Begins a snapshot. The source is at rest, and no other snapshot is under way. Errors: OT_E_BUDGET, OT_E_IO
 * (no thread). */
int ot_snapshot_begin(struct ot_snapshot *snapshot, const struct ot_snapshot_config *config);
bool ot_snapshot_is_under_way(const struct ot_snapshot *snapshot); /* begun and not finished; NULL is fine */
/* These functions have their contract under the same names in engine.h. NULL is fine. */
bool ot_snapshot_busy(const struct ot_snapshot *snapshot);
double ot_snapshot_seconds(const struct ot_snapshot *snapshot);
void ot_snapshot_give_up(struct ot_snapshot *snapshot);
int ot_snapshot_finish(struct ot_snapshot *snapshot, struct ot_pins **pins);
/* Cancels a snapshot that is under way and waits for its thread, so that no task waits for it any more. NULL
 * is fine. */
void ot_snapshot_cancel(struct ot_snapshot *snapshot);
/* Called by a task before it changes these tiles at home: waits until a snapshot that is under way has copied
 * them. NULL is fine. Any thread. */
void ot_snapshot_wait_copied(struct ot_snapshot *snapshot, int slab, struct ot_tile_span span);
/* Returns whether ot_snapshot_wait_copied would return at once. NULL is fine. Any thread. */
bool ot_snapshot_is_copied(struct ot_snapshot *snapshot, int slab, struct ot_tile_span span);

/* Unpins the extents and frees `pins`; NULL is fine. */
void ot_pins_release(struct ot_store *store, struct ot_pins *pins);
/* Only frees `pins`. The pinned contents then stay in files that have a second name when the store is
 * closed. */
void ot_pins_free(struct ot_pins *pins);

#endif
