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

#include "offload/engine/engine.h"
#include "offload/plan/part.h"

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

/* What the plan's nvme tier is kept in, for the sink to refer to; NULL: there is none. */
struct ot_store *ot_engine_store(const struct ot_engine *engine);

struct ot_pins; /* what a finished snapshot refers to in the store */

/* On an engine that has been drained, or is stuck and consistent, with a plan that trains, and no other
 * snapshot under way. Errors:
 * OT_E_INTERNAL, OT_E_BUDGET, OT_E_IO (no thread). */
int ot_engine_snapshot(struct ot_engine *engine, const struct ot_snapshot_config *config);
/* Whether one is under way whose sink is still at work. */
bool ot_engine_snapshot_busy(const struct ot_engine *engine);
/* How long the last one took that was finished, without what it slept to keep its pace. */
double ot_engine_snapshot_seconds(const struct ot_engine *engine);
/* It ends as soon as it can, as one that failed; nothing where none is under way. */
void ot_engine_snapshot_give_up(struct ot_engine *engine);
/* Waits for it, unpaced, and ends it; nothing where none is under way. *pins: what it refers to, for
 * ot_engine_release; NULL: nothing. Errors: what the sink or a copy failed with; the engine is unharmed. */
int ot_engine_snapshot_finish(struct ot_engine *engine, struct ot_pins **pins);
/* Lets go of what they hold, and frees them; NULL is fine. */
void ot_engine_release(struct ot_engine *engine, struct ot_pins *pins);
/* Frees them alone: what they hold stays when the engine is closed, in files with a second name. */
void ot_pins_free(struct ot_pins *pins);

/* Slots of ot_part_slot_bytes that the plan has for the sink, one after the other, pinned; also for what
 * reads parts back. */
void *ot_engine_snapshot_slots(const struct ot_engine *engine, int *n);

/* The reverse, before the first step or on a drained engine: takes a part's values home. `memory` as `put`
 * got it. Errors: OT_E_INTERNAL (no such parameters), OT_E_IO, OT_E_DEVICE. */
int ot_engine_put(struct ot_engine *engine, const struct ot_part *part, const void *memory);

#endif
