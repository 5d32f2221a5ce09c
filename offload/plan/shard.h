/* Shards: the ranks of a run divide the model and a step's work.
 *
 * A run of W ranks trains one model on W devices. Every slab is cut into W equal shares, in order of its
 * parameters; the last shares may be short or empty. A rank's HOLDING is the part of a slab that it holds
 * between uses. There are three modes:
 *
 *   none    A rank holds everything. Every rank makes every update. (Data parallel, as DDP.)
 *   state   A rank holds its share of the state and of the waiting gradients, and the whole weights, on the
 *           device. It updates its share; before the next use the updated shares are gathered. (ZeRO-2.)
 *   full    A rank holds its share of everything. A block's weights are gathered into a slot before each use.
 *           (ZeRO-3, FSDP.)
 *
 * MICRO-BATCHES. A step of M micro-batches is cut into groups of consecutive ones: group g of G has those
 * from g M / G up to (g + 1) M / G. A group may be empty. Rank r runs the groups from r G / W up to (r + 1) G
 * / W.
 *
 * GRADIENTS. Each rank sums its micro-batches in fp32, in order. Then the ranks exchange their sums, so that
 * each rank has W sums of its share, and adds them up in the order of the ranks. The communicator only moves
 * bytes. So the bits depend on W, and on nothing else: not on who is faster, nor on the network.
 *
 * WORLD. With `world` the bits do not depend on W either, for W = 1, 2, 4, 8. There are always 8 groups, and
 * their sums are added along a fixed binary tree: ((0+1)+(2+3))+((4+5)+(6+7)). A rank runs an aligned power
 * of two of the groups, so it makes a subtree by itself; the ranks exchange the roots. A rank of a small run
 * needs up to four accumulators for that instead of one. Squared norms are also taken over fixed eighths of a
 * slab, and added in order. The gradients of a tied slab's two uses cross by themselves. A run may go on with
 * another number of ranks, bit for bit.
 *
 * Without `world` there are W groups, one a rank, and norms are taken over the shares.
 *
 *
 */
#ifndef OT_OFFLOAD_PLAN_SHARD_H
#define OT_OFFLOAD_PLAN_SHARD_H

#include <stdbool.h>
#include <stdint.h>

enum ot_shard_mode { OT_SHARD_NONE, OT_SHARD_STATE, OT_SHARD_FULL, OT_SHARD_MODES };
const char *ot_shard_mode_name(enum ot_shard_mode mode); /* "none", "state", "full" */

/* Zeros are one rank. */
struct ot_shard {
    int rank, ranks; /* ranks 0 counts as 1 */
    enum ot_shard_mode mode;
    bool world;    /* the same bits for 1, 2, 4 and 8 ranks */
    bool narrow;   /* gradients cross between ranks in the chain's dtype, not in fp32 */
    bool one_copy; /* full: the host weights of all ranks are one copy (one_copy.h) */
};

enum { OT_SHARD_WORLD_GROUPS = 8 };
/* Shares are cut at multiples of this number of parameters: 64 bytes of 2-byte values. A slab of
 * OT_SLAB_ALIGN_PARAMS parameters has 64 of them, so that 64 ranks have equal shares of every slab. */
enum { OT_SHARD_ALIGN_PARAMS = 32 };

int ot_shard_ranks(const struct ot_shard *shard); /* >= 1 */
/* Errors: OT_E_USAGE: the rank is not one of the ranks, or `world` with another number than 1, 2, 4 or 8. */
int ot_shard_check(const struct ot_shard *shard);

/* Parameters of an equal share of n_params. The shares cover ranks * this number, at least n_params. */
int64_t ot_shard_share(const struct ot_shard *shard, int64_t n_params);

/* A range of parameters, or of micro-batches. */
struct ot_shard_range {
    int64_t first, n;
};
/* This rank's share of n_params; may be empty. */
struct ot_shard_range ot_shard_own(const struct ot_shard *shard, int64_t n_params);

/* The groups of a step, and the groups of this rank. */
int ot_shard_groups(const struct ot_shard *shard);
int ot_shard_own_groups(const struct ot_shard *shard);
/* The micro-batches of group g, of the n_micro of a step. */
struct ot_shard_range ot_shard_group(const struct ot_shard *shard, int64_t n_micro, int group);
/* The micro-batches of a rank, of the n_micro of a step. */
struct ot_shard_range ot_shard_micro(const struct ot_shard *shard, int64_t n_micro, int rank);
/* The most micro-batches of a group, of the n_micro of a step. */
int64_t ot_shard_group_micro(const struct ot_shard *shard, int64_t n_micro);

/* Accumulators that a rank needs for a use: 1, or the depth of its subtree plus 1. */
int ot_shard_accumulators(const struct ot_shard *shard);
/* The accumulator of the rank's group g (0 for its first group): the number of unfinished subtrees before
 * it. */
int ot_shard_accumulator(int own_group);
/* The number of times that this accumulator is added to the one below it after the group. */
int ot_shard_merges(int own_group);

/* The number of equal ranges, over all ranks, for which the norms of a slab are computed. Range p has the
 * parameters from p * share up to (p + 1) * share, with the share of that many ranks. */
int ot_shard_norm_ranges(const struct ot_shard *shard);
struct ot_shard_range ot_shard_norm_range(const struct ot_shard *shard, int64_t n_params, int range);

#endif
