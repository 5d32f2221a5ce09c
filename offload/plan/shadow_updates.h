/* Shadows: updates ahead of the decision.
 *
 * With clipping every update waits for the norm of all gradients. So the CPU pool idles during backward, and
 * the next forward then waits for the pool. But in most steps of most runs the norm is below the limit. Then
 * the clip factor is 1, and a tile can be updated as soon as its gradient is complete.
 *
 * A SHADOW is an update that the pool makes during backward, as if the step were neither clipped nor skipped.
 * It changes the tile at its home, and before that copies the tile's weights and state to an UNDO FRAME on
 * the host. The tile's normal update still follows the decision. If the decision is as the shadow has
 * assumed, the update finds its work done: the shadow is COMMITTED, and no byte moves. Otherwise the shadow
 * is DROPPED: the update copies the frame back and then follows the decision. (SuperOffload,
 * arXiv:2509.21271, updates ahead of the norm too.)
 *
 * WHY THE BITS DO NOT DEPEND ON IT. A committed shadow has computed the same function of the same bytes as
 * the update: the update compares every number that it would have used. A dropped shadow leaves no byte,
 * because the frame is a copy. So a shadow may be made or left out for any reason, such as the time or a
 * guess about the norm (engine/shadow.c).
 *
 * NO TASK SEES A SHADOW. The gradient of a slab is complete after the last backward pass of its last use in
 * the last round. No later task of the step fetches the slab's weights, and the tasks of the next step wait
 * for the update. From the shadow to the update, the tile and the frame have the content OT_CONTENT_SHADOW
 * (schedule.h), which only the update accepts. So the verifier finds every other reader. A snapshot
 * (engine/snapshot.h) reads homes while steps run: a tile that it has not copied yet gets no shadow.
 *
 * WHICH TILES. Tiles of the CPU pool whose weights, state and gradients have their home on the host. A frame
 * belongs to one tile, because all frames are in use when the decision comes.
 *
 * PLACES OF FRAMES. First over kept activations (slabs.h) that wait on the host: in the last round, backward
 * has brought back what a block keeps before the block's gradients are complete, and the next forward of the
 * block writes there only after the updates of this slab and of all slabs before it. So the frames of a slab
 * may lie over what any block keeps, from the first block that uses the slab on, and take no memory. The
 * other frames have buffers of their own. These are spread evenly over the other tiles, in the order in which
 * the next forward needs them: then the pool works off what is left evenly, too. With frames for the last
 * slabs alone, forward would wait for the first slabs as long as without.
 *
 * THE PRICE. A frame of its own has 12 bytes a parameter in bf16 (with moments in fp32). A shadow reads and
 * writes these once more than an update does: 50 bytes a parameter instead of 26. It moves them while the
 * pool would idle, and takes 26 bytes from the time in which the next forward waits. A shadow that the pool
 * has not begun when the decision is made does nothing.
 */
#ifndef OT_OFFLOAD_PLAN_SHADOW_UPDATES_H
#define OT_OFFLOAD_PLAN_SHADOW_UPDATES_H

#include "offload/plan/slabs.h"

/* True if a step has shadows. */
bool ot_plan_has_shadows(const struct ot_plan *plan);
/* True if the squared norm of each slab is copied to the host as soon as the slab's gradient is complete:
 * without clipping for the slab's decision, with shadows to guess the norm of the step. */
bool ot_plan_sends_norms(const struct ot_plan *plan);
/* The number of tiles of this slab, or of all slabs, that may have a shadow. */
int ot_slab_shadow_tiles(const struct ot_plan *plan, int slab);
int64_t ot_plan_shadow_tiles(const struct ot_plan *plan);
/* Bytes of a frame: the weights and the state of the largest tile that may have a shadow, rounded up to
 * pages. 0: no tile may have one. */
size_t ot_plan_frame_bytes(const struct ot_chain *chain, const struct ot_plan *plan);
/* The number of frames that fit over the `bytes` of activations that a block keeps on the host for one
 * micro-batch. */
int ot_frames_over(struct ot_kept kept, size_t bytes, size_t frame_bytes);
int ot_plan_frames_over_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block,
                             size_t frame_bytes);

/* The frames of a slab: all of them, and those that lie over kept activations. */
struct ot_shadow_frames {
    int all, over_kept;
};
/* Deals plan->shadow_frames to the slabs: out[n_slabs]. */
void ot_plan_deal_frames(const struct ot_chain *chain, const struct ot_plan *plan,
                         struct ot_shadow_frames *out);
/* The most frames of the plan that can lie over kept activations. */
int64_t ot_plan_free_frames(const struct ot_chain *chain, const struct ot_plan *plan);

#endif
