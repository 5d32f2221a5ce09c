/* The engine's work on shadows (plan/shadow_updates.h): it chooses them, and keeps or undoes them.
 *
 * THE RULE. A shadow is made if the step's norm will probably stay below the limit. The engine knows the
 * squared norms of some slabs whose gradients are complete, and which share of the whole squared norm these
 * slabs had in the steps before: a running mean, in which the newest step weighs a quarter. The sum of these
 * norms divided by that share is the guess. A shadow is made if guess * SHADOW_MARGIN < limit^2. From step to
 * step the shares change less than the norm does. So the guess is better than the norm of the step before,
 * and it is better for slabs that are complete later. There are no shadows in the first step, because no
 * share is known, and none after a norm that is not finite.
 *
 * A shadow is also left out if the decision of its step is made, or if a snapshot has yet to copy the tile:
 * to wait for the snapshot would delay the decision.
 *
 * So the shadows of a step depend on the time that tasks take. They may: the bits do not depend on shadows.
 *
 * THREADS. SHADOW, DECIDE and UPDATE_CPU tasks run on the thread of the cpu lane. So the schedule needs no
 * accesses for their shared data: the running means, the last decided step, and the state of decisions. The
 * mutex protects pending shadows from the driver, which undoes them before it saves the state of a stuck
 * engine. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "offload/engine/engine_state.h"
#include "offload/plan/shadow_updates.h"
#include "src/base/error.h"

/* For the squared norm: the norm may become a tenth larger than the guess. */
static const double SHADOW_MARGIN = 1.21, NEWEST_WEIGHT = 0.25;

int ot_engine_open_shadows(struct ot_engine *en) {
    struct ot_engine_shadows *s = &en->shadows;
    if (!ot_plan_has_shadows(&en->plan))
        return 0;
    s->portions = calloc((size_t)en->chain.n_slabs, sizeof *s->portions);
    s->pending = calloc((size_t)en->plan.shadow_frames, sizeof *s->pending);
    if (!s->portions || !s->pending)
        return ot_fail(OT_E_BUDGET, "no memory for %d updates ahead of the decision", en->plan.shadow_frames);
    return 0;
}

void ot_engine_close_shadows(struct ot_engine *en) {
    free(en->shadows.portions);
    free(en->shadows.pending);
    pthread_mutex_destroy(&en->shadows.mutex);
}

void ot_engine_shadow_usage(struct ot_engine *en, struct ot_shadow_usage *out) {
    pthread_mutex_lock(&en->shadows.mutex);
    *out = en->shadows.usage;
    pthread_mutex_unlock(&en->shadows.mutex);
}

/* ---- the rule ---- */

static bool is_probably_below(const struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const double *results = ot_engine_at_parity(en, en->layout.results_host[0], step);
    double limit = (double)en->optimizer.clip * (double)ot_engine_loss_scale(en), squares = 0, share = 0;
    for (int s = task->slab; s < task->slab + task->n_norms; s++) {
        squares += ot_engine_slab_squares(en, results, s);
        share += en->shadows.portions[s];
    }
    return share > 0 && squares / share * SHADOW_MARGIN < limit * limit; /* false for NaN */
}

void ot_engine_note_decision(struct ot_engine *en, const double *results, int64_t step) {
    struct ot_engine_shadows *shadows = &en->shadows;
    double all = 0;
    shadows->decided = step;
    for (int s = 0; s < en->chain.n_slabs; s++)
        all += ot_engine_slab_squares(en, results, s);
    if (!shadows->pending || !(all > 0) || !isfinite(all))
        return;
    for (int s = 0; s < en->chain.n_slabs; s++) {
        double share = ot_engine_slab_squares(en, results, s) / all;
        shadows->portions[s] +=
            (shadows->knows_portions ? NEWEST_WEIGHT : 1) * (share - shadows->portions[s]);
    }
    shadows->knows_portions = true;
}

/* ---- tasks ---- */

static struct ot_engine_shadow *shadow_of(struct ot_engine *en, const struct ot_task *task) {
    return &en->shadows.pending[task->frame];
}

void ot_engine_run_shadow(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    struct ot_engine_shadows *shadows = &en->shadows;
    struct ot_engine_shadow *shadow = shadow_of(en, task);
    if (shadows->decided == step || !is_probably_below(en, task, step) ||
        !ot_snapshot_is_copied(en->snapshot, task->slab, task->span))
        return;
    pthread_mutex_lock(&shadows->mutex);
    if (!shadows->closed) {
        shadow->assumed =
            ot_engine_adamw_step(en, step, task->slab, 1 / (double)ot_engine_loss_scale(en), false);
        ot_engine_work_on_tile(en, task, OT_TILE_SHADOW, &shadow->assumed);
        shadow->task = task;
    }
    pthread_mutex_unlock(&shadows->mutex);
}

/* The numbers of an update before `noise` have no padding between them. */
static bool are_same_numbers(const struct ot_adamw_step *a, const struct ot_adamw_step *b) {
    size_t bytes = offsetof(struct ot_adamw_step, skip) + sizeof a->skip;
    return memcmp(a, b, bytes) == 0 && a->noise.begin == b->noise.begin && a->noise.key == b->noise.key;
}

bool ot_engine_settle_shadow(struct ot_engine *en, const struct ot_task *task,
                             const struct ot_adamw_step *params) {
    struct ot_engine_shadows *shadows = &en->shadows;
    if (task->frame < 0)
        return false;
    struct ot_engine_shadow *shadow = shadow_of(en, task);
    pthread_mutex_lock(&shadows->mutex);
    bool pending = shadow->task, stands = pending && are_same_numbers(&shadow->assumed, params);
    if (pending && !stands)
        ot_engine_work_on_tile(en, shadow->task, OT_TILE_UNDO, NULL);
    shadow->task = NULL;
    shadows->usage.committed += stands;
    shadows->usage.dropped += pending && !stands;
    pthread_mutex_unlock(&shadows->mutex);
    return stands;
}

void ot_engine_undo_shadows(struct ot_engine *en) {
    struct ot_engine_shadows *shadows = &en->shadows;
    pthread_mutex_lock(&shadows->mutex);
    shadows->closed = true;
    for (int i = 0; i < en->plan.shadow_frames; i++) {
        struct ot_engine_shadow *shadow = &shadows->pending[i];
        if (!shadow->task)
            continue;
        ot_engine_work_on_tile(en, shadow->task, OT_TILE_UNDO, NULL);
        shadow->task = NULL;
        shadows->usage.dropped++;
    }
    pthread_mutex_unlock(&shadows->mutex);
}
