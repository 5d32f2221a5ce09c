#include "offload/plan/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/store.h"
#include "src/base/error.h"

/* What begins in memory: a device's vector loads want 256 bytes, disks and page tables 4 KiB. */
enum { GPU_ALIGN = 256, HOST_ALIGN = 4096, BUFFER_LIMIT = 1 << 22 };
/* Of an extent that nothing pins: the present content's, and that of the next. */
enum { LEAST_SIDES = 2 };
_Static_assert(LEAST_SIDES + OT_PLAN_MAX_KEPT_CONTENTS == OT_STORE_MAX_SIDES, "plan.h");

struct maker {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    struct ot_layout *layout;
    int capacity, extent_capacity;
    int rc;
};

/* Adds a buffer and returns its index; after a failure it does nothing and the maker's rc says why. */
static int add_sides(struct maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles,
                     int sides) {
    struct ot_layout *layout = mk->layout;
    if (mk->rc < 0)
        return OT_NO_BUFFER;
    if (layout->n_buffers == mk->capacity) {
        int capacity = mk->capacity ? mk->capacity * 2 : 256;
        struct ot_buffer *grown =
            capacity > BUFFER_LIMIT ? NULL : realloc(layout->buffers, (size_t)capacity * sizeof *grown);
        if (!grown) {
            mk->rc = ot_fail(OT_E_BUDGET, "no memory for the plan's %d buffers", layout->n_buffers);
            return OT_NO_BUFFER;
        }
        layout->buffers = grown;
        mk->capacity = capacity;
    }
    size_t align = tier == OT_TIER_GPU ? GPU_ALIGN : HOST_ALIGN;
    size_t rounded = (bytes + align - 1) / align * align * (size_t)sides;
    if (bytes > SIZE_MAX / 4 / OT_STORE_MAX_SIDES || layout->tier_bytes[tier] > SIZE_MAX / 4) {
        mk->rc = ot_fail(
            OT_E_BUDGET,
            "%s: %zu bytes are more than any machine has; lower the sequence length or the micro-batch", name,
            bytes);
        return OT_NO_BUFFER;
    }
    layout->buffers[layout->n_buffers] =
        (struct ot_buffer){tier, name, bytes, rounded, layout->tier_bytes[tier], n_tiles, 0};
    layout->tier_bytes[tier] += rounded;
    return layout->n_buffers++;
}

static int add(struct maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles) {
    return add_sides(mk, tier, name, bytes, n_tiles, 1);
}

static bool make_room_for_extents(struct maker *mk, int n) {
    struct ot_layout *layout = mk->layout;
    while (layout->n_extents + n > mk->extent_capacity) {
        int capacity = mk->extent_capacity ? mk->extent_capacity * 2 : 256;
        size_t *bytes = realloc(layout->extent_bytes, (size_t)capacity * sizeof *bytes);
        layout->extent_bytes = bytes ? bytes : layout->extent_bytes;
        int *sides = realloc(layout->extent_sides, (size_t)capacity * sizeof *sides);
        layout->extent_sides = sides ? sides : layout->extent_sides;
        if (!bytes || !sides)
            return false;
        mk->extent_capacity = capacity;
    }
    return true;
}

/* A buffer on nvme, as a row of n extents. */
static int add_extents(struct maker *mk, const char *name, const size_t *bytes, int n, int sides) {
    struct ot_layout *layout = mk->layout;
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += bytes[i];
    int buffer = add_sides(mk, OT_TIER_NVME, name, sum, n, sides);
    if (buffer == OT_NO_BUFFER)
        return OT_NO_BUFFER;
    if (!make_room_for_extents(mk, n)) {
        mk->rc = ot_fail(OT_E_BUDGET, "no memory for a plan with %d extents", layout->n_extents);
        return OT_NO_BUFFER;
    }
    layout->buffers[buffer].first_extent = layout->n_extents;
    for (int i = 0; i < n; i++) {
        layout->extent_bytes[layout->n_extents] = bytes[i];
        layout->extent_sides[layout->n_extents++] = sides;
    }
    return buffer;
}

static int *new_indices(struct maker *mk, int64_t n) {
    if (n == 0)
        return NULL;
    int *indices = n > 0 && n < BUFFER_LIMIT ? malloc((size_t)n * sizeof *indices) : NULL;
    if (!indices) {
        if (mk->rc >= 0)
            mk->rc = ot_fail(OT_E_BUDGET, "no memory for a plan with %lld buffers of a kind", (long long)n);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        indices[i] = OT_NO_BUFFER;
    return indices;
}

static int *add_tiled(struct maker *mk, enum ot_tier tier, const char *name, size_t bytes, int n_tiles,
                      int64_t n) {
    int *indices = new_indices(mk, n);
    for (int64_t i = 0; indices && i < n; i++)
        indices[i] = add(mk, tier, name, bytes, n_tiles);
    return indices;
}

static int *add_many(struct maker *mk, enum ot_tier tier, const char *name, size_t bytes, int64_t n) {
    return add_tiled(mk, tier, name, bytes, 1, n);
}

static size_t weight_bytes(const struct ot_chain *chain, int64_t n_params) {
    return (size_t)n_params * ot_dtype_bytes(chain->dtype);
}

static size_t state_bytes(const struct ot_chain *chain, int64_t n_params) {
    return ot_state_bytes(chain->dtype, n_params);
}

enum ot_slot_kind ot_slab_slot_kind(const struct ot_chain *chain, int slab) {
    return chain->slabs[slab].edge ? OT_SLOT_EDGE : OT_SLOT_LAYER;
}

bool ot_slab_is_streamed(const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].weights != OT_HOME_GPU;
}

bool ot_slab_state_passes(const struct ot_plan *plan, int slab, enum ot_tile_engine engine) {
    return engine != OT_TILE_GPU && plan->slabs[slab].state == OT_HOME_NVME;
}

bool ot_slab_weights_pass(const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].weights == OT_HOME_NVME;
}

int64_t ot_plan_passing_tiles(const struct ot_plan *plan) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            if (ot_slab_weights_pass(plan, s) || ot_slab_state_passes(plan, s, (enum ot_tile_engine)e))
                n += plan->slabs[s].tiles[e];
    return n;
}

/* fp32 gradients that wait on the device anyway need no slot: they are summed where they wait. A tied slab's
 * two sums are joined first. */
bool ot_slab_grad_in_place(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return chain->dtype == OT_F32 && ot_slab_uses(chain, slab) == 1 &&
           ot_slab_waiting_on_gpu(chain, plan, slab).n == chain->slabs[slab].n_params;
}

int ot_slab_uses(const struct ot_chain *chain, int slab) {
    int uses = 0;
    for (int b = 0; b < chain->n_blocks; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            uses += chain->blocks[b].uses[u].slab == slab;
    return uses;
}

int ot_slab_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return (int)((chain->slabs[slab].n_params + plan->tile_params - 1) / plan->tile_params);
}

static int64_t clip_params(int64_t params, int64_t most) {
    return params < most ? params : most;
}

struct ot_tile_span ot_slab_span(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 int first_tile, int n_tiles) {
    int64_t n_params = chain->slabs[slab].n_params,
            first = clip_params(first_tile * plan->tile_params, n_params);
    int64_t end = clip_params((first_tile + n_tiles) * plan->tile_params, n_params);
    return (struct ot_tile_span){first_tile, n_tiles, first, end - first};
}

struct ot_tile_span ot_slab_part(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 enum ot_tile_engine engine) {
    const int *tiles = plan->slabs[slab].tiles;
    int first = 0;
    for (int e = 0; e < (int)engine; e++)
        first += tiles[e];
    return ot_slab_span(chain, plan, slab, first, tiles[engine]);
}

struct ot_tile_span ot_slab_waiting_on_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                           int slab) {
    const struct ot_slab_plan *sp = &plan->slabs[slab];
    int streamed = sp->grads == OT_HOME_GPU ? sp->tiles[OT_TILE_STREAM] : 0;
    return ot_slab_span(chain, plan, slab, 0, sp->tiles[OT_TILE_GPU] + streamed);
}

struct ot_tile_span ot_slab_state_off_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                          int slab) {
    const int *tiles = plan->slabs[slab].tiles;
    return ot_slab_span(chain, plan, slab, tiles[OT_TILE_GPU], tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU]);
}

/* Of a slab, an extent a tile, of bytes(n) for n parameters. */
static int add_on_nvme(struct maker *mk, const char *name, int slab, struct ot_tile_span span,
                       size_t (*bytes)(const struct ot_chain *, int64_t)) {
    size_t *extents = malloc((size_t)(span.n_tiles + 1) * sizeof *extents);
    if (!extents) {
        mk->rc = mk->rc < 0 ? mk->rc : ot_fail(OT_E_BUDGET, "no memory for a plan of %d tiles", span.n_tiles);
        return OT_NO_BUFFER;
    }
    for (int t = 0; t < span.n_tiles; t++)
        extents[t] = bytes(mk->chain, ot_slab_span(mk->chain, mk->plan, slab, span.first_tile + t, 1).n);
    int buffer = add_extents(mk, name, extents, span.n_tiles, LEAST_SIDES + mk->plan->kept_contents);
    free(extents);
    return buffer;
}

static void add_training(struct maker *mk, int s) {
    const struct ot_chain *chain = mk->chain;
    struct ot_slab_buffers *b = &mk->layout->slabs[s];
    int64_t n = chain->slabs[s].n_params;
    struct ot_tile_span on_gpu = ot_slab_part(chain, mk->plan, s, OT_TILE_GPU);
    struct ot_tile_span off_gpu = ot_slab_state_off_gpu(chain, mk->plan, s);
    struct ot_tile_span waiting = ot_slab_waiting_on_gpu(chain, mk->plan, s);
    if (on_gpu.n > 0)
        b->state_gpu = add(mk, OT_TIER_GPU, "optimizer state", state_bytes(chain, on_gpu.n), 1);
    if (off_gpu.n > 0 && mk->plan->slabs[s].state == OT_HOME_NVME)
        b->state_nvme = add_on_nvme(mk, "optimizer state", s, off_gpu, state_bytes);
    else if (off_gpu.n > 0)
        b->state_host =
            add(mk, OT_TIER_HOST, "optimizer state", state_bytes(chain, off_gpu.n), off_gpu.n_tiles);
    if (waiting.n > 0)
        b->grad_gpu = add(mk, OT_TIER_GPU, "gradients", weight_bytes(chain, waiting.n), 1);
    if (waiting.n < n)
        b->grad_host = add(mk, OT_TIER_HOST, "gradients", weight_bytes(chain, n - waiting.n), 1);
    if (mk->plan->keep_grads)
        b->kept_grad = add(mk, OT_TIER_HOST, "kept gradients", (size_t)n * 4, 1);
}

static void add_slab(struct maker *mk, int s) {
    const struct ot_slab_plan *sp = &mk->plan->slabs[s];
    struct ot_slab_buffers *b = &mk->layout->slabs[s];
    size_t bytes = weight_bytes(mk->chain, mk->chain->slabs[s].n_params);
    int tiles = ot_slab_tiles(mk->chain, mk->plan, s);
    *b = (struct ot_slab_buffers){-1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (sp->weights == OT_HOME_GPU)
        b->weights_gpu = add(mk, OT_TIER_GPU, "weights", bytes, tiles);
    if (sp->weights == OT_HOME_NVME)
        b->weights_nvme =
            add_on_nvme(mk, "weights", s, ot_slab_span(mk->chain, mk->plan, s, 0, tiles), weight_bytes);
    else if (sp->weights == OT_HOME_HOST || (mk->plan->train && sp->tiles[OT_TILE_CPU] > 0))
        b->weights_host = add(mk, OT_TIER_HOST, "weights", bytes, tiles);
    if (mk->plan->train)
        add_training(mk, s);
}

static void add_state_slots(struct maker *mk) {
    struct ot_layout *layout = mk->layout;
    bool grads = false;
    for (int s = 0; mk->plan->train && s < mk->chain->n_slabs; s++) {
        struct ot_tile_span part = ot_slab_part(mk->chain, mk->plan, s, OT_TILE_STREAM);
        int64_t largest = clip_params(part.n, mk->plan->tile_params);
        layout->slot_params = largest > layout->slot_params ? largest : layout->slot_params;
        grads = grads || (part.n > 0 && mk->plan->slabs[s].grads == OT_HOME_HOST);
    }
    size_t bytes = state_bytes(mk->chain, layout->slot_params) +
                   (grads ? weight_bytes(mk->chain, layout->slot_params) : 0);
    layout->state_slots = add_many(mk, OT_TIER_GPU, "optimizer state slots", bytes, mk->plan->state_slots);
}

/* As large as the largest tile that passes needs it: its state, then its weights. */
static size_t tile_slot_bytes(struct maker *mk) {
    int64_t state = 0, weights = 0;
    for (int s = 0; mk->plan->train && s < mk->chain->n_slabs; s++) {
        int64_t tile = clip_params(mk->chain->slabs[s].n_params, mk->plan->tile_params);
        bool off_gpu = ot_slab_state_off_gpu(mk->chain, mk->plan, s).n > 0;
        if (off_gpu && mk->plan->slabs[s].state == OT_HOME_NVME && tile > state)
            state = tile;
        if (ot_slab_weights_pass(mk->plan, s) && tile > weights)
            weights = tile;
    }
    mk->layout->slot_weights_offset = state_bytes(mk->chain, state);
    mk->layout->tile_slot_bytes = mk->layout->slot_weights_offset + weight_bytes(mk->chain, weights);
    return mk->layout->tile_slot_bytes;
}

static void add_tile_slots(struct maker *mk) {
    mk->layout->tile_slots =
        add_tiled(mk, OT_TIER_HOST, "optimizer state slots", tile_slot_bytes(mk), 2, mk->plan->tile_slots);
}

static void add_snapshot(struct maker *mk) {
    struct ot_layout *layout = mk->layout;
    const struct ot_plan *plan = mk->plan;
    size_t slots = (size_t)plan->snapshot_slots * ot_part_slot_bytes(mk->chain->dtype);
    bool copies = plan->kept_contents == 0 && ot_plan_passing_tiles(plan) > 0;
    layout->snapshot_slots = layout->snapshot_tile = OT_NO_BUFFER;
    if (slots == 0)
        return;
    layout->snapshot_slots = add(mk, OT_TIER_HOST, "checkpoint", slots, 1);
    if (copies)
        layout->snapshot_tile = add(mk, OT_TIER_HOST, "checkpoint", tile_slot_bytes(mk), 1);
}

static void add_slots(struct maker *mk) {
    const struct ot_chain *chain = mk->chain;
    int64_t largest[OT_SLOT_KINDS] = {0};
    int tiles[OT_SLOT_KINDS] = {0};
    for (int s = 0; s < chain->n_slabs; s++) {
        enum ot_slot_kind k = ot_slab_slot_kind(chain, s);
        if (chain->slabs[s].n_params <= largest[k])
            continue;
        largest[k] = chain->slabs[s].n_params;
        tiles[k] = ot_slab_tiles(chain, mk->plan, s);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        const struct ot_plan *plan = mk->plan;
        struct ot_layout *layout = mk->layout;
        layout->weight_slots[k] = add_tiled(mk, OT_TIER_GPU, "weight slots", weight_bytes(chain, largest[k]),
                                            tiles[k], plan->weight_slots[k]);
        layout->host_weight_slots[k] =
            add_tiled(mk, OT_TIER_HOST, "weight slots", weight_bytes(chain, largest[k]), tiles[k],
                      plan->host_weight_slots[k]);
        layout->grad_slots[k] =
            add_many(mk, OT_TIER_GPU, "gradient slots", (size_t)largest[k] * 4, plan->grad_slots[k]);
        layout->stage_slots[k] = add_many(mk, OT_TIER_GPU, "gradient slots", weight_bytes(chain, largest[k]),
                                          plan->stage_slots[k]);
    }
}

static int *add_boundary_extents(struct maker *mk, size_t bytes, int64_t n) {
    int *indices = new_indices(mk, n);
    size_t rounded = (bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
    for (int64_t i = 0; indices && i < n; i++)
        indices[i] = add_extents(mk, "activations", &rounded, 1, LEAST_SIDES);
    return indices;
}

static void add_boundaries(struct maker *mk) {
    const struct ot_chain *chain = mk->chain;
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t bytes = (size_t)plan->micro_tokens * (size_t)chain->boundary_elems * ot_dtype_bytes(chain->dtype);
    int boundaries = chain->n_blocks - 1;
    bool all = plan->train && plan->activations == OT_HOME_GPU;
    layout->n_boundaries = all || boundaries < 2 ? boundaries : 2;
    layout->boundary_gpu =
        add_many(mk, OT_TIER_GPU, "activations", bytes, (int64_t)layout->n_boundaries * plan->max_micro);
    if (!plan->train)
        return;
    if (plan->activations == OT_HOME_HOST)
        layout->boundary_host =
            add_many(mk, OT_TIER_HOST, "activations", bytes, (int64_t)boundaries * plan->max_micro);
    if (plan->activations == OT_HOME_NVME)
        layout->boundary_nvme = add_boundary_extents(mk, bytes, (int64_t)boundaries * plan->max_micro);
    layout->host_activation_slots =
        add_many(mk, OT_TIER_HOST, "activation slots", bytes, plan->host_activation_slots);
    layout->activation_slots = add_many(mk, OT_TIER_GPU, "activation slots", bytes, plan->activation_slots);
    layout->boundary_grad = add_many(mk, OT_TIER_GPU, "activation gradients", bytes, plan->max_micro);
}

/* The insides of blocks, and the scratch that all blocks share: only the compute lane touches them. */
static void add_workspace(struct maker *mk) {
    const struct ot_chain *chain = mk->chain;
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t saved = 0, saved_middle = 0, scratch = 0;
    for (int b = 0; b < chain->n_blocks; b++) {
        size_t bytes = chain->saved_bytes(chain->context, b, plan->micro_tokens);
        saved = bytes > saved ? bytes : saved;
        if (b > 0 && b < chain->n_blocks - 1)
            saved_middle = bytes > saved_middle ? bytes : saved_middle;
        bytes = chain->scratch_bytes(chain->context, b, plan->micro_tokens);
        scratch = bytes > scratch ? bytes : scratch;
    }
    layout->saved = add_many(mk, OT_TIER_GPU, "kept activations", saved_middle,
                             (int64_t)plan->kept_blocks * plan->max_micro);
    layout->saved_scratch = add(mk, OT_TIER_GPU, "workspace", saved, 1);
    layout->scratch = add(mk, OT_TIER_GPU, "workspace", scratch, 1);
    layout->token_loss = add(mk, OT_TIER_GPU, "workspace", (size_t)plan->micro_tokens * sizeof(float), 1);
    layout->logits = add(mk, OT_TIER_GPU, "workspace", (size_t)chain->vocab * sizeof(float), 1);
}

static void add_step_buffers(struct maker *mk) {
    const struct ot_plan *plan = mk->plan;
    struct ot_layout *layout = mk->layout;
    size_t batch = (size_t)plan->max_micro * (size_t)plan->micro_tokens * 4 * sizeof(int32_t);
    /* Tile s holds slab s's squared norm, the last tile the losses: they leave at different times. */
    size_t results = ((size_t)plan->max_micro + (size_t)mk->chain->n_slabs) * sizeof(double);
    size_t forward = (size_t)(mk->chain->vocab > plan->micro_tokens ? mk->chain->vocab : plan->micro_tokens) *
                     sizeof(float);
    int tiles = mk->chain->n_slabs + 1;
    layout->constants = add(mk, OT_TIER_GPU, "constants", mk->chain->constant_bytes, 1);
    results =
        results > forward ? results : forward; /* the same pages bring token losses and logits to the host */
    layout->results_gpu = add(mk, OT_TIER_GPU, "batches, results", results, tiles);
    size_t params = (size_t)mk->chain->n_slabs * sizeof(struct ot_adamw_step);
    layout->params_gpu = add(mk, OT_TIER_GPU, "batches, results", params, mk->chain->n_slabs);
    for (int p = 0; p < 2; p++)
        layout->batch_gpu[p] = add(mk, OT_TIER_GPU, "batches, results", batch, 1);
    for (int p = 0; p < 2; p++)
        layout->batch_host[p] = add(mk, OT_TIER_HOST, "batches, results", batch, 1);
    for (int p = 0; p < 2; p++)
        layout->results_host[p] = add(mk, OT_TIER_HOST, "batches, results", results, tiles);
    for (int p = 0; p < 2; p++)
        layout->params_host[p] = add(mk, OT_TIER_HOST, "batches, results", params, mk->chain->n_slabs);
    layout->control = add(mk, OT_TIER_HOST, "batches, results", 64, 1);
    layout->loss_scale = plan->train && mk->chain->dtype == OT_F16
                             ? add(mk, OT_TIER_GPU, "batches, results", 64, 1)
                             : OT_NO_BUFFER;
}

/* ---- extents in the order in which a step uses them ---- */

struct order {
    int *extents, n;
};

static void put_tile(struct order *order, const struct ot_layout *layout, int buffer, int tile) {
    if (buffer != OT_NO_BUFFER)
        order->extents[order->n++] = layout->buffers[buffer].first_extent + tile;
}

/* Tiles that the host updates are read and written with state and weights together, so they lie in pairs, in
 * the order of a tile's transfer (engine/nvme.c). The device has its tiles' weights already: it reads and
 * writes their state alone, and forward and backward read the weights alone. */
static void order_slab(const struct maker *mk, int s, struct order *order) {
    const struct ot_layout *layout = mk->layout;
    const struct ot_slab_buffers *b = &layout->slabs[s];
    const int *tiles = mk->plan->slabs[s].tiles;
    int n = ot_slab_tiles(mk->chain, mk->plan, s);
    int first_state = mk->plan->train ? tiles[OT_TILE_GPU] : n; /* the first tile that has an extent of it */
    int first_pair = mk->plan->train ? n - tiles[OT_TILE_CPU] : n;
    for (int t = 0; t < first_pair; t++)
        put_tile(order, layout, b->weights_nvme, t);
    for (int t = first_state; t < first_pair; t++)
        put_tile(order, layout, b->state_nvme, t - first_state);
    for (int t = first_pair; t < n; t++) {
        put_tile(order, layout, b->state_nvme, t - first_state);
        put_tile(order, layout, b->weights_nvme, t);
    }
}

/* Slabs are numbered in the order in which forward needs them, and updated in that order. Boundaries are
 * written in theirs, and come last. */
static void order_extents(struct maker *mk) {
    struct ot_layout *layout = mk->layout;
    struct order order = {calloc((size_t)layout->n_extents + 1, sizeof *order.extents), 0};
    layout->extent_order = order.extents;
    if (mk->rc < 0)
        return;
    if (!order.extents) {
        mk->rc = ot_fail(OT_E_BUDGET, "no memory for a plan with %d extents", layout->n_extents);
        return;
    }
    for (int s = 0; s < mk->chain->n_slabs; s++)
        order_slab(mk, s, &order);
    int64_t boundaries = (int64_t)(mk->chain->n_blocks - 1) * mk->plan->max_micro;
    for (int64_t i = 0; layout->boundary_nvme && i < boundaries; i++)
        put_tile(&order, layout, layout->boundary_nvme[i], 0);
    assert(order.n == layout->n_extents);
}

int ot_layout_make(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_layout *out) {
    struct maker mk = {.chain = chain, .plan = plan, .layout = out};
    memset(out, 0, sizeof *out);
    out->slabs = calloc((size_t)chain->n_slabs, sizeof *out->slabs);
    if (!out->slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the plan of %d slabs", chain->n_slabs);
    for (int s = 0; s < chain->n_slabs; s++)
        add_slab(&mk, s);
    out->idle_offset = out->tier_bytes[OT_TIER_GPU];
    add_slots(&mk);
    add_state_slots(&mk);
    add_tile_slots(&mk);
    add_snapshot(&mk);
    add_boundaries(&mk);
    add_workspace(&mk);
    out->idle_bytes = out->tier_bytes[OT_TIER_GPU] - out->idle_offset;
    add_step_buffers(&mk);
    order_extents(&mk);
    if (mk.rc < 0)
        ot_layout_free(out);
    return mk.rc;
}

void ot_layout_free(struct ot_layout *layout) {
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        free(layout->weight_slots[k]);
        free(layout->grad_slots[k]);
        free(layout->stage_slots[k]);
        free(layout->host_weight_slots[k]);
    }
    free(layout->boundary_gpu);
    free(layout->boundary_host);
    free(layout->boundary_nvme);
    free(layout->host_activation_slots);
    free(layout->tile_slots);
    free(layout->extent_bytes);
    free(layout->extent_sides);
    free(layout->extent_order);
    free(layout->activation_slots);
    free(layout->state_slots);
    free(layout->boundary_grad);
    free(layout->saved);
    free(layout->slabs);
    free(layout->buffers);
    memset(layout, 0, sizeof *layout);
}

static bool is_entry(const struct ot_ledger_entry *entry, const struct ot_buffer *b) {
    return entry->tier == b->tier && strcmp(entry->name, b->name) == 0;
}

void ot_layout_ledger(const struct ot_layout *layout, struct ot_ledger *out) {
    int e = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < layout->n_buffers; i++) {
        const struct ot_buffer *b = &layout->buffers[i];
        if (e == out->n || !is_entry(&out->entries[e], b)) /* most are of the kind before them */
            for (e = 0; e < out->n && !is_entry(&out->entries[e], b);)
                e++;
        assert(e < OT_LEDGER_MAX); /* there are fewer names than that */
        if (e == out->n)
            out->entries[out->n++] = (struct ot_ledger_entry){b->tier, b->name, 0};
        out->entries[e].bytes += b->reserved;
    }
}

int ot_layout_boundary(const struct ot_layout *layout, const struct ot_plan *plan, int boundary, int micro) {
    return layout->boundary_gpu[boundary % layout->n_boundaries * plan->max_micro + micro];
}

int ot_layout_saved(const struct ot_layout *layout, const struct ot_chain *chain, const struct ot_plan *plan,
                    int block, int micro) {
    int last_middle = chain->n_blocks - 2;
    int slot = last_middle - block; /* the last middle block has slot 0 */
    if (block < 1 || block > last_middle || slot >= plan->kept_blocks)
        return OT_NO_BUFFER;
    return layout->saved[slot * plan->max_micro + micro];
}
