/* Layout: every buffer that a plan needs, with name, tier and size. The ledger is the sum of the buffers. The
 * engine allocates exactly these bytes. Tasks of the schedule name buffers by their index here. A buffer on
 * nvme is a row of extents (store.h), one per tile. Each extent has two sides; an extent of state or weights
 * has another side for each content that may be pinned, and an extent of gradients has only one.
 *
 * Two tasks conflict when they use the same buffer. Weights, and state on the host, are also cut into tiles:
 * then tiles can be updated by independent tasks, and the verifier knows the version of each tile. Parity
 * buffers exist twice, because the two steps in flight alternate between them.
 *
 * With several ranks (plan.h) the tiles of a slab are those of this rank's HOLDING. A buffer that receives
 * the other ranks' shares too has one tile more, the REST: everything outside of the holding. Weights on the
 * host that are one copy of all ranks have a rest too.
 *
 */
#ifndef OT_OFFLOAD_PLAN_LAYOUT_H
#define OT_OFFLOAD_PLAN_LAYOUT_H

#include "offload/block.h"
#include "offload/plan/segment.h"
#include "offload/plan/slabs.h"

enum { OT_NO_BUFFER = -1 };
/* The memory of buffers: one allocation a tier, and the memory that ranks share (slabs.h, stages.h). */
enum { OT_MEMORY_SHARED = OT_TIER_COUNT, OT_MEMORIES };
/* A slot for the holdings of several slabs begins with the first held parameter of the slab that is in it. */
enum { OT_HELD_PARAM = -1 };

struct ot_buffer {
    enum ot_tier tier;
    const char *name; /* name of its ledger entry */
    size_t bytes;     /* bytes that are used */
    size_t reserved;  /* bytes that it takes from the tier, rounded up; on nvme for all sides */
    size_t offset;    /* in its memory */
    /* It is in the memory that ranks share. `bytes` and `reserved` are those of a rank's share, and the
     * buffer takes `reserved` there for each rank. */
    bool is_shared;
    int sides; /* sides of its extents on nvme (store.h); 1 on other tiers */
    int n_tiles;
    int first_extent;    /* nvme: the extent of its first tile */
    int64_t first_param; /* its first unit (slabs.h) in its slab, or OT_HELD_PARAM */
};

/* Indices into `buffers`. OT_NO_BUFFER: the plan has no such buffer. */
struct ot_slab_buffers {
    bool frozen; /* as in the chain, for the verifier */
    /* The holding, cut into tiles. If a rank keeps all weights (slabs.h), weights_gpu is the whole slab. If
     * the ranks have one copy, weights_host is the whole slab. */
    int weights_gpu, weights_host, weights_nvme;
    /* state_gpu: state of the tiles that the gpu engine updates. state_host: state of the other tiles, cut
     * into tiles. Both hold m and v, fp32 [n] each, then lo int16 [n] (bf16 training) or the master fp32 [n]
     * (fp16 training); n is the number of parameters in those tiles. */
    int state_gpu, state_host;
    int state_nvme; /* replaces state_host: one extent per tile, with the state of that tile */
    /* Gradients that wait for their update, in the chain's dtype. grad_gpu: the first part of the holding.
     * grad_host: the rest; grad_nvme replaces it: one extent per tile of the rest. grad_host is the buffer of
     * the slab's first sum, if that waits on the host between rounds. In fp32, if a rank holds a whole slab,
     * all of it waits on the device, and it has one accumulator, grad_gpu is also the accumulator. */
    int grad_gpu, grad_host, grad_nvme;
    int kept_grad; /* host, fp32, if plan.keep_grads */
};

struct ot_layout {
    int n_buffers;
    struct ot_buffer *buffers;
    struct ot_slab_buffers *slabs; /* [n_slabs] */
    /* as many as the plan says */
    int *weight_slots[OT_SLOT_KINDS], *grad_slots[OT_SLOT_KINDS], *grad_out_slots[OT_SLOT_KINDS];
    /* Room for the gradients of one share from every rank, in fp32. If they cross in the chain's dtype, it
     * holds the sent ones, then the received ones. */
    int *exchange_slots[OT_SLOT_KINDS];
    int *encoded_slots[OT_SLOT_KINDS];
    int n_blocks;     /* of the chain */
    int n_boundaries; /* boundaries that have their own device buffers */
    int places;       /* the most micro-batches of a round */
    /* Boundary activations of a round: [n_boundaries][places] for all n_blocks - 1 boundaries, or 2 that
     * alternate; [n_blocks - 1][places], or NULL. Stages: OT_NO_BUFFER if another rank reads it. */
    int *boundary_gpu, *boundary_host, *boundary_nvme;
    int *activation_slots; /* [plan.activation_slots], in the order in which backward may use them; without
                            * stages and boundaries_pass some are also buffers of boundary_gpu */
    /* [OT_STAGE_BUFFERS] device buffers of boundary activations on their way to other ranks, or with
     * boundaries_pass to their homes; else NULL */
    int *stage_buffers;
    /* Slots between nvme and the device, as many as the plan says. A tile slot counts as three tiles: the
     * state of a tile, at slot_weights_offset its weights, and at slot_grads_offset its gradients. */
    int *host_weight_slots[OT_SLOT_KINDS], *tile_slots, *host_grad_slots, *host_activation_slots;
    size_t slot_weights_offset, slot_grads_offset;
    /* Frames of shadows (shadow_updates.h), of frame_bytes each: frames[plan.shadow_frames] in the order of
     * their slabs, which begin at first_frame[n_slabs + 1]. A frame is a tile of its own buffer, or of a
     * block's kept activations. */
    struct ot_frame {
        int buffer, tile;
    } * frames;
    int *first_frame;
    size_t frame_bytes;
    /* On the host. snapshot_slots: the slots of a snapshot's sink (snapshot.h), one after the other.
     * snapshot_tile: like a tile slot without gradients, for a snapshot that copies tiles from nvme.
     * OT_NO_BUFFER: not needed. */
    int snapshot_slots, snapshot_tile;
    int *state_slots;    /* [plan.state_slots]: state of a tile, then its gradients, then its weights */
    int64_t slot_params; /* parameters that fit a state slot: the size of the largest streamed tile */
    int *boundary_grad;  /* [places]; with boundaries_pass slots, [plan.activation_slots] */
    /* Inner activations that blocks keep: [n_blocks][places], and slots for those that leave. */
    int *kept, *kept_slots, *host_kept_slots;
    /* By ot_layout_sum: homes of gradient sums between rounds, on nvme one extent per piece (slabs.h).
     * OT_NO_BUFFER: the sum has no home. */
    int *sums;
    /* Keys and values of one sequence in sections, for a block at a time, and the sums of their gradients, in
     * fp32 (block.h, SECTIONS). OT_NO_BUFFER: sequences are whole. With key groups (slabs.h) a tile is a
     * slot, and the homes on the host have a tile for each group; else OT_NO_BUFFER. A tile has all keys,
     * then all values. */
    int row_keys, row_sums, row_keys_home, row_sums_home;
    /* Generation: the cache of each middle block that this rank has, at its home [n_blocks], and slots. Each
     * holds k of all rows, and from cache_bytes on v. On nvme it is cut into extents of cache_extent_bytes:
     * first all of k, then as many of v. The arrays are NULL if the plan has no cache. */
    int *cache, *cache_slots, *host_cache_slots;
    size_t cache_bytes, cache_extent_bytes;
    int work, scratch, token_loss, logits;
    /* gpu, of a chain that compares (block.h), else OT_NO_BUFFER: the weights of a micro-batch's tokens, and
     * two log-probabilities of each of its comparisons, in double */
    int token_weights, answers;
    int constants;
    /* Results of a step, in double. Tile s: the squared norms of slab s, over the parts that this rank takes
     * ([own_norms]). The last tile: the losses of its micro-batches, micro_results numbers of each, and its
     * requests ([own_results]).
     * all_results has the same tiles with those of all ranks: [norms] for a slab, [ranks][own_results] in the
     * end. With one rank it is results_gpu. With stages too: it has a part for each rank, with all tiles, and
     * [norms] for a slab. */
    int results_gpu, all_results, results_host[2];
    int own_norms, norms, own_results;
    int micro_results; /* 1: the loss; OT_COMPARE_SUMS if the chain compares */
    /* The parts that a round's micro-batches have chosen (used_parts.h), int32 [most_parts] for each block: a
     * tile. OT_NO_BUFFER: no block chooses. */
    int used_gpu, used_host[2];
    int most_parts;
    int batch_gpu[2], batch_host[2]; /* per micro-batch: ot_chain_token_arrays */
    int params_gpu, params_host[2];  /* struct ot_adamw_step [n_slabs], each one a tile */
    /* host: holds the loss scale. Accesses to it order the DECIDE tasks, which also share struct
     * ot_engine_control */
    int control;
    int staging;    /* host: for the communicator; OT_NO_BUFFER: it needs none */
    int crossing;   /* shared: the slots of transfers between stages; OT_NO_BUFFER: the plan has none */
    int meeting;    /* gpu, one copy: [ranks][OT_MEETING_BYTES] for MEET; else OT_NO_BUFFER */
    int loss_scale; /* gpu, fp16: loss scale of the present step */
    size_t tier_bytes[OT_TIER_COUNT]; /* the rank's own memory */
    size_t shared_bytes;              /* memory that the ranks share */
    int n_extents;
    size_t *extent_bytes; /* [n_extents] */
    int *extent_sides;    /* [n_extents] */
    /* A range of the gpu tier: slots, boundary activations, inner activations of blocks and their scratch.
     * While nothing is in flight, no task will read its content. */
    size_t idle_offset, idle_bytes;
};

/* Measures the memory that blocks work in. A plan holds the result, for a search. */
struct ot_workspace ot_plan_workspace(const struct ot_chain *chain, int64_t micro_tokens);
/* Returns the bytes that a middle block saves of a micro-batch at a level, as chain->saved_bytes does. */
size_t ot_plan_saved_bytes(const struct ot_chain *chain, const struct ot_plan *plan, int block,
                           enum ot_keep_level level);
/* Lays out the buffers of a plan. Errors: OT_E_BUDGET (a size overflows, or no memory for the tables). Free
 * with ot_layout_free. */
int ot_layout_make(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_layout *out);
/* Only the ledger of the plan's layout, for a search, which measures thousands of plans. Errors: the same. */
int ot_layout_measure(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_ledger *out);
void ot_layout_free(struct ot_layout *layout);

/* Lists the layout's extents in the order in which a step uses them, for the store. *extents: [n_extents], to
 * be freed with free. Errors: OT_E_BUDGET (no memory). */
int ot_layout_order(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_layout *layout,
                    int **extents);

/* Size of a rank's message in a MEET. Its content means nothing. */
enum { OT_MEETING_BYTES = 8 };

/* The address of a buffer. memory: [OT_MEMORIES]. */
static inline void *ot_layout_at(const struct ot_layout *layout, char *const *memory, int buffer) {
    const struct ot_buffer *b = &layout->buffers[buffer];
    return memory[b->is_shared ? OT_MEMORY_SHARED : (int)b->tier] + b->offset;
}

/* The units (slabs.h) before `first` in a buffer that has this slab. */
int64_t ot_layout_index(const struct ot_layout *layout, const struct ot_chain *chain,
                        const struct ot_plan *plan, int buffer, int slab, int64_t first);

/* The number of the frame of a tile of the CPU pool. -1: the tile has no shadow. */
int ot_layout_frame(const struct ot_layout *layout, const struct ot_plan *plan, int slab, int tile);

/* Adds up the buffers by name and tier, in order of first appearance. */
void ot_layout_ledger(const struct ot_layout *layout, struct ot_ledger *out);

/* The index in `sums` of the sum of a use of a slab by a block, at a depth of its tree (plan.h). */
static inline int ot_layout_sum(int block, int use, int depth) {
    return (block * OT_MAX_USES + use) * OT_SHARD_WORLD_GROUPS + depth;
}

/* The device buffer of a boundary (the output of block number `boundary`) of one micro-batch, during the
 * forward of that block and of the next. With boundaries_pass: in a pass of one micro-batch. */
int ot_layout_boundary(const struct ot_layout *layout, const struct ot_plan *plan, int boundary, int micro);
/* True if the home of the boundaries is not the device. */
static inline bool ot_layout_spills_boundaries(const struct ot_layout *layout) {
    return layout->boundary_host || layout->boundary_nvme;
}

#endif
