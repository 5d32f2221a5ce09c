/* Sizes of buffers on a chain whose blocks and slabs all have different sizes, and the functions that add
 * buffers to a layout. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/layout_add.h"
#include "offload/plan/segment.h"
#include "offload/store/store.h"
#include "tests/support/check.h"

enum { BLOCKS = 5, TILE = OT_SLAB_ALIGN_PARAMS, MICROS = 3, MICRO_TOKENS = 8 };

struct uneven {
    size_t saved[BLOCKS], work[BLOCKS], scratch[BLOCKS]; /* saved: at OT_KEEP_PRODUCTS */
    struct ot_block_spec blocks[BLOCKS];
    struct ot_slab_spec slabs[BLOCKS];
    struct ot_chain chain;
    struct ot_slab_plan slab_plans[BLOCKS];
    struct ot_plan plan;
};

static size_t saved_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    return ((const struct uneven *)context)->saved[block] / OT_KEEP_PRODUCTS * level * (size_t)n_tokens;
}

static size_t work_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    size_t work = ((const struct uneven *)context)->work[block];
    return work / OT_KEEP_ALL * (OT_KEEP_ALL - level) * (size_t)n_tokens;
}

static size_t scratch_bytes(const void *context, int block, int64_t n_tokens) {
    return ((const struct uneven *)context)->scratch[block] * (size_t)n_tokens;
}

/* Slab s has s + 1 tiles; everything is on the device. */
static void open_uneven(struct uneven *u) {
    memset(u, 0, sizeof *u);
    for (int b = 0; b < BLOCKS; b++) {
        bool edge = b == 0 || b == BLOCKS - 1;
        u->blocks[b] = (struct ot_block_spec){.name = "block", .n_uses = 1, .uses = {{b, b > 0}}};
        u->slabs[b] =
            (struct ot_slab_spec){.name = "slab", .n_params = (int64_t)TILE * (b + 1), .edge = edge};
        u->slab_plans[b].tiles[OT_TILE_GPU] = b + 1;
        u->saved[b] = u->scratch[b] = 1000;
        u->work[b] = 1500;
    }
    u->chain = (struct ot_chain){.context = u,
                                 .dtype = OT_BF16,
                                 .n_blocks = BLOCKS,
                                 .n_slabs = BLOCKS,
                                 .blocks = u->blocks,
                                 .slabs = u->slabs,
                                 .boundary_elems = 16,
                                 .vocab = 4,
                                 .constant_bytes = 64,
                                 .saved_bytes = saved_bytes,
                                 .work_bytes = work_bytes,
                                 .scratch_bytes = scratch_bytes};
    u->plan = (struct ot_plan){.slabs = u->slab_plans,
                               .n_slabs = BLOCKS,
                               .micro_tokens = MICRO_TOKENS,
                               .max_micro = MICROS,
                               .train = true,
                               .clip = true,
                               .kept = {{OT_KEEP_PRODUCTS, 1}},
                               .tile_params = TILE};
}

static const struct ot_buffer *make(const struct uneven *u, struct ot_layout *layout) {
    check_ok(ot_layout_make(&u->chain, &u->plan, layout));
    return layout->buffers;
}

/* The buffer of kept activations fits its block. The scratch and the work of a recomputed block fit
 * any block. */
static void workspace_is_the_largest_blocks(void **state) {
    (void)state;
    for (int b = 0; b < BLOCKS; b++) {
        int last_middle = BLOCKS - 2; /* it keeps activations */
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        u.saved[b] = 3000;
        u.work[b] = 6000;
        u.scratch[b] = 2000;
        const struct ot_buffer *buffers = make(&u, &l);
        assert_int_equal(buffers[l.kept[last_middle * l.places]].bytes,
                         (b == last_middle ? 3000 : 1000) * MICRO_TOKENS);
        assert_int_equal(buffers[l.work].bytes, 6000 * MICRO_TOKENS);
        assert_int_equal(buffers[l.scratch].bytes, 2000 * MICRO_TOKENS);
        ot_layout_free(&l);
    }
}

/* If each middle block keeps activations, work has the size of the largest block at the levels in use. The
 * edges keep nothing, and here need 1,500 bytes a token. */
static void work_has_no_room_for_what_is_kept(void **state) {
    (void)state;
    static const struct {
        struct ot_kept_blocks gpu, host;
        bool evaluates;
        size_t most; /* of a token */
    } cases[] = {
        {{OT_KEEP_ATTENTION, 3}, {0}, false, 4000},
        {{OT_KEEP_PRODUCTS, 3}, {0}, false, 2000},
        {{OT_KEEP_ALL, 3}, {0}, false, 1500},
        {{OT_KEEP_ALL, 2}, {OT_KEEP_ATTENTION, 1}, false, 4000},
        {{OT_KEEP_PRODUCTS, 1}, {OT_KEEP_ATTENTION, 1}, false, 6000},
        {{OT_KEEP_NONE, 3}, {0}, false, 6000},
        {{OT_KEEP_PRODUCTS, 3}, {0}, true, 6000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        for (int b = 1; b < BLOCKS - 1; b++)
            u.work[b] = 6000;
        u.plan.kept[OT_TIER_GPU] = cases[i].gpu;
        u.plan.kept[OT_TIER_HOST] = cases[i].host;
        u.plan.kept_slots = cases[i].host.blocks > 0;
        u.plan.train = !cases[i].evaluates;
        const struct ot_buffer *buffers = make(&u, &l);
        assert_int_equal(buffers[l.work].bytes, cases[i].most * MICRO_TOKENS);
        ot_layout_free(&l);
    }
}

/* The result pages hold a norm per slab, a loss per micro-batch, and the rank's requests. Those on the host
 * also have room for the values that evaluation copies there. */
static void results_have_room(void **state) {
    (void)state;
    for (int mix = 0; mix < 3; mix++) {
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        u.chain.vocab = mix == 1 ? 5000 : 4;
        u.plan.micro_tokens = mix == 2 ? 6000 : 1;
        u.plan.max_micro = 1000;
        size_t results = (1000 + 1 + BLOCKS) * sizeof(double);
        size_t want[] = {results, 5000 * sizeof(float), 6000 * sizeof(float)};
        if (mix == 1)
            want[1] = want[1] > want[0] ? want[1] : want[0];
        const struct ot_buffer *buffers = make(&u, &l);
        assert_int_equal(buffers[l.results_gpu].bytes, results);
        for (int p = 0; p < 2; p++) {
            assert_int_equal(buffers[l.results_host[p]].bytes, want[mix]);
            assert_int_equal(buffers[l.batch_gpu[p]].bytes,
                             (size_t)u.plan.max_micro * (size_t)u.plan.micro_tokens * 4 * sizeof(int32_t));
            assert_int_equal(buffers[l.params_host[p]].n_tiles, BLOCKS);
        }
        assert_int_equal(buffers[l.results_gpu].n_tiles, BLOCKS + 1);
        ot_layout_free(&l);
    }
}

/* A snapshot has a buffer for copies of tiles on nvme, also if checkpoints can refer to these. */
static void a_snapshot_has_room_for_a_tile_it_copies(void **state) {
    (void)state;
    for (int mix = 0; mix < 8; mix++) {
        bool nvme = mix & 1, kept = mix & 2, snapshots = mix & 4;
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        u.plan.pinned_contents = kept;
        u.plan.snapshot_slots = snapshots ? 2 : 0;
        u.plan.tile_slots = nvme ? 2 : 0;
        for (int s = 0; s < BLOCKS; s++) {
            u.slab_plans[s] = (struct ot_slab_plan){
                .state = nvme ? OT_HOME_NVME : OT_HOME_HOST, .tiles = {0, 0, s + 1}, .grads = OT_HOME_HOST};
        }
        const struct ot_buffer *buffers = make(&u, &l);
        assert_int_equal(l.snapshot_slots != OT_NO_BUFFER, snapshots);
        assert_int_equal(l.snapshot_tile != OT_NO_BUFFER, snapshots && nvme);
        if (l.snapshot_tile != OT_NO_BUFFER)
            assert_int_equal(buffers[l.snapshot_tile].bytes, TILE * 10); /* m, v and lo, no weights */
        for (int s = 0; nvme && s < BLOCKS; s++) {
            const struct ot_buffer *b = &buffers[l.slabs[s].state_nvme];
            assert_int_equal(b->n_tiles, s + 1);
            for (int t = 0; t < b->n_tiles; t++) {
                assert_int_equal(l.extent_bytes[b->first_extent + t], TILE * 10);
                assert_int_equal(l.extent_sides[b->first_extent + t], kept ? 3 : 2);
            }
        }
        ot_layout_free(&l);
    }
}

/* The device updates the first tile of slab s and streams half of the others. */
static void keep_state_on_host(struct uneven *u, int s, enum ot_home grads, enum ot_home sums) {
    u->slab_plans[s] = (struct ot_slab_plan){
        .state = OT_HOME_HOST, .tiles = {1, s / 2, s - s / 2}, .grads = grads, .sums = sums};
}

/* Gradients on nvme have one extent per tile, or piece of a sum, with one side. The slots on the host fit the
 * largest of them. */
static void gradients_on_nvme_have_one_side(void **state) {
    (void)state;
    for (int rounds = 1; rounds <= 2; rounds++) {
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        for (int s = 0; s < BLOCKS; s++)
            keep_state_on_host(&u, s, OT_HOME_NVME, OT_HOME_NVME);
        ot_plan_set_rounds(&u.plan, rounds);
        u.plan.pinned_contents = 1;
        u.plan.tile_slots = u.plan.host_grad_slots = u.plan.snapshot_slots = 2;
        const struct ot_buffer *buffers = make(&u, &l);
        for (int s = 0; s < BLOCKS; s++) {
            int grads = l.slabs[s].grad_nvme, sum = l.sums[ot_layout_sum(s, 0, 0)];
            assert_int_equal(l.slabs[s].grad_host, OT_NO_BUFFER);
            assert_int_equal(grads != OT_NO_BUFFER, s > 0); /* slab 0 has one tile, updated on the device */
            assert_int_equal(sum != OT_NO_BUFFER, rounds > 1);
            for (int t = 0; grads != OT_NO_BUFFER && t < s; t++) {
                assert_int_equal(l.extent_bytes[buffers[grads].first_extent + t], TILE * 2);
                assert_int_equal(l.extent_sides[buffers[grads].first_extent + t], 1);
            }
            for (int t = 0; sum != OT_NO_BUFFER && t <= s; t++) {
                assert_int_equal(l.extent_bytes[buffers[sum].first_extent + t], TILE * 4);
                assert_int_equal(l.extent_sides[buffers[sum].first_extent + t], 1);
            }
            if (grads != OT_NO_BUFFER)
                assert_int_equal(buffers[grads].n_tiles, s);
            if (sum != OT_NO_BUFFER)
                assert_int_equal(buffers[sum].n_tiles, s + 1);
        }
        assert_int_equal(buffers[l.host_grad_slots[0]].bytes, TILE * (rounds > 1 ? 4 : 2));
        assert_int_equal(buffers[l.tile_slots[0]].bytes, TILE * 2);
        assert_int_equal(l.snapshot_tile, OT_NO_BUFFER); /* a snapshot copies no gradients */
        ot_layout_free(&l);
    }
}

/* Finished gradients wait on the host where the slab's sum waited between rounds. Without rounds, and without
 * gradients that leave the device, they do not. */
static void gradients_take_the_place_of_sums(void **state) {
    (void)state;
    for (int rounds = 1; rounds <= 2; rounds++) {
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        for (int s = 0; s < BLOCKS; s++)
            keep_state_on_host(&u, s, s % 2 ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST);
        ot_plan_set_rounds(&u.plan, rounds);
        const struct ot_buffer *buffers = make(&u, &l);
        for (int s = 0; s < BLOCKS; s++) {
            int grads = l.slabs[s].grad_host, sum = l.sums[ot_layout_sum(s, 0, 0)];
            assert_int_equal(grads != OT_NO_BUFFER, s > 0); /* slab 0 has one tile, updated on the device */
            assert_int_equal(sum != OT_NO_BUFFER, rounds > 1);
            if (grads == OT_NO_BUFFER)
                continue;
            int64_t waiting = s % 2 ? s - s / 2 : s, first = s + 1 - waiting;
            int64_t begin = ot_layout_index(&l, &u.chain, &u.plan, grads, s, first * TILE);
            assert_int_equal(grads == sum, rounds > 1);
            assert_int_equal(begin, rounds > 1 ? first * TILE : 0);
            assert_true((size_t)(begin + waiting * TILE) * 2 <= buffers[grads].bytes);
        }
        ot_layout_free(&l);
    }
}

static void check_place(enum ot_dtype dtype, const struct ot_segment *segment, enum ot_segment_array array,
                        size_t offset, size_t width) {
    struct ot_segment_values place = ot_segment_find(dtype, segment, array);
    assert_int_equal(place.offset, offset);
    assert_int_equal(place.width, width);
}

/* The arrays of a segment in the format of checkpoints: which arrays, in which order, of which width. */
static void arrays_of_a_part_follow_each_other(void **state) {
    (void)state;
    static const size_t rest[] = {[OT_F32] = 0, [OT_BF16] = 2, [OT_F16] = 4};
    static const size_t weights[] = {[OT_F32] = 4, [OT_BF16] = 2, [OT_F16] = 2};
    const struct ot_segment whole = {.n = 1000, .has_state = true, .has_weights = true};
    const struct ot_segment only_weights = {.n = 1000, .has_weights = true};
    for (int i = OT_F32; i <= OT_F16; i++) {
        enum ot_dtype dtype = (enum ot_dtype)i;
        size_t state_bytes = 8000 + 1000 * rest[i];
        check_place(dtype, &whole, OT_SEGMENT_M, 0, 4);
        check_place(dtype, &whole, OT_SEGMENT_V, 4000, 4);
        check_place(dtype, &whole, OT_SEGMENT_MASTER_REST, 8000, rest[i]);
        check_place(dtype, &whole, OT_SEGMENT_WEIGHTS, state_bytes, weights[i]);
        check_place(dtype, &only_weights, OT_SEGMENT_V, 0, 0);
        check_place(dtype, &only_weights, OT_SEGMENT_WEIGHTS, 0, weights[i]);
        assert_int_equal(ot_state_bytes(&(struct ot_chain){.dtype = dtype}, 1000), state_bytes);
        assert_int_equal(
            ot_state_find(&(struct ot_chain){.dtype = dtype}, OT_SEGMENT_MASTER_REST, 1000).offset, 8000);
        assert_int_equal(ot_segment_padded_bytes(dtype, &whole) % OT_STORE_ALIGN, 0);
    }
}

/* The same with compact moments: 4 or 2 bytes a parameter, and 4 bytes of scales for each 32 of 8 bits.
 * Without masters there is no rest. */
static void compact_arrays_of_a_part_follow_each_other(void **state) {
    (void)state;
    struct ot_segment segment = {.n = 2048, .has_state = true, .has_weights = true, .state = OT_STATE_16BIT};
    check_place(OT_BF16, &segment, OT_SEGMENT_V, 2 * 2048, 2);
    check_place(OT_BF16, &segment, OT_SEGMENT_MASTER_REST, 4 * 2048, 2);
    check_place(OT_BF16, &segment, OT_SEGMENT_SCALES, 6 * 2048, 0);
    check_place(OT_BF16, &segment, OT_SEGMENT_WEIGHTS, 6 * 2048, 2);
    assert_int_equal(ot_segment_bytes(OT_BF16, &segment), 8 * 2048);
    segment.state = OT_STATE_8BIT;
    check_place(OT_BF16, &segment, OT_SEGMENT_V, 2048, 1);
    check_place(OT_BF16, &segment, OT_SEGMENT_MASTER_REST, 2 * 2048, 2);
    check_place(OT_BF16, &segment, OT_SEGMENT_SCALES, 4 * 2048, 4);
    check_place(OT_BF16, &segment, OT_SEGMENT_WEIGHTS, 4 * 2048 + 256, 2);
    assert_int_equal(ot_segment_bytes(OT_BF16, &segment), 6 * 2048 + 256);
    assert_int_equal(ot_state_bytes(&(struct ot_chain){.state = OT_STATE_8BIT}, 64), 2 * 64 + 8);
    assert_int_equal(ot_segment_value_bytes(ot_segment_find(OT_BF16, &segment, OT_SEGMENT_SCALES), 320), 40);
    segment.masters = OT_MASTERS_NONE;
    check_place(OT_BF16, &segment, OT_SEGMENT_MASTER_REST, 2 * 2048, 0);
    check_place(OT_BF16, &segment, OT_SEGMENT_SCALES, 2 * 2048, 4);
    assert_int_equal(ot_segment_bytes(OT_BF16, &segment), 4 * 2048 + 256);
    const struct ot_chain bare = {.dtype = OT_BF16, .state = OT_STATE_8BIT, .masters = OT_MASTERS_NONE};
    assert_int_equal(ot_state_bytes(&bare, 64), 2 * 64 + 8);
}

/* Without the moments the rest comes first, and the weights follow. */
static void the_moments_may_lack(void **state) {
    (void)state;
    static const size_t rest[] = {[OT_F32] = 0, [OT_BF16] = 2, [OT_F16] = 4};
    static const size_t weights[] = {[OT_F32] = 4, [OT_BF16] = 2, [OT_F16] = 2};
    struct ot_segment segment = {.n = 1000, .has_state = true, .has_weights = true, .lacks_moments = true};
    for (int i = OT_F32; i <= OT_F16; i++) {
        check_place((enum ot_dtype)i, &segment, OT_SEGMENT_M, 0, 0);
        check_place((enum ot_dtype)i, &segment, OT_SEGMENT_V, 0, 0);
        check_place((enum ot_dtype)i, &segment, OT_SEGMENT_MASTER_REST, 0, rest[i]);
        check_place((enum ot_dtype)i, &segment, OT_SEGMENT_WEIGHTS, 1000 * rest[i], weights[i]);
        assert_int_equal(ot_segment_bytes((enum ot_dtype)i, &segment), 1000 * (rest[i] + weights[i]));
    }
    segment.state = OT_STATE_8BIT; /* nor are there scales */
    segment.masters = OT_MASTERS_NONE;
    assert_int_equal(ot_segment_bytes(OT_BF16, &segment), 2 * 1000);
    segment.has_weights = false;
    assert_int_equal(ot_segment_bytes(OT_BF16, &segment), 0);
}

/* A slot of a snapshot fits the largest segment of any kind, without one page more. */
static void a_snapshot_slot_is_the_largest_part(void **state) {
    (void)state;
    static const size_t bytes[] = {[OT_F32] = 4 + 4 + 4, [OT_BF16] = 4 + 4 + 2 + 2, [OT_F16] = 4 + 4 + 4 + 2};
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ot_segment whole = {.n = OT_SEGMENT_PARAMS, .has_state = true, .has_weights = true};
        size_t slot = ot_segment_slot_bytes((enum ot_dtype)dtype);
        assert_int_equal(ot_segment_bytes((enum ot_dtype)dtype, &whole), OT_SEGMENT_PARAMS * bytes[dtype]);
        assert_int_equal(slot % OT_STORE_ALIGN, 0);
        assert_true(slot >= OT_SEGMENT_PARAMS * bytes[dtype] &&
                    slot < OT_SEGMENT_PARAMS * bytes[dtype] + OT_STORE_ALIGN);
    }
}

/* A slot of a kind fits the bytes and the tiles of the largest slab of that kind. */
static void slots_are_the_largest_slabs(void **state) {
    (void)state;
    static const int largest[OT_SLOT_KINDS] = {
        [OT_SLOT_LAYER] = BLOCKS - 1, [OT_SLOT_EDGE] = BLOCKS}; /* in tiles */
    struct uneven u;
    struct ot_layout l;
    open_uneven(&u);
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        u.plan.weight_slots[k] = u.plan.grad_slots[k] = u.plan.grad_out_slots[k] =
            u.plan.host_weight_slots[k] = 1;
    const struct ot_buffer *buffers = make(&u, &l);
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        size_t params = (size_t)largest[k] * TILE;
        assert_int_equal(buffers[l.weight_slots[k][0]].bytes, params * 2);
        assert_int_equal(buffers[l.weight_slots[k][0]].n_tiles, largest[k]);
        assert_int_equal(buffers[l.host_weight_slots[k][0]].bytes, params * 2);
        assert_int_equal(buffers[l.host_weight_slots[k][0]].n_tiles, largest[k]);
        assert_int_equal(buffers[l.grad_slots[k][0]].bytes, params * 4);
        assert_int_equal(buffers[l.grad_out_slots[k][0]].bytes, params * 2);
    }
    ot_layout_free(&l);
}

/* The slots of boundaries that come back are the buffers of forward, those of the last boundary first,
 * because backward frees these first. Only more slots than these have buffers of their own, which come before
 * them. */
static void slots_of_boundaries_are_forwards_buffers(void **state) {
    (void)state;
    for (int n = 1; n <= 2 * MICROS + 2; n++) {
        struct uneven u;
        struct ot_layout l;
        struct ot_ledger sizes;
        open_uneven(&u);
        u.plan.activations = OT_HOME_HOST;
        u.plan.activation_slots = n;
        const struct ot_buffer *buffers = make(&u, &l);
        int own = n > 2 * MICROS ? n - 2 * MICROS : 0, counted = 0;
        assert_int_equal(l.places, MICROS);
        for (int i = 0; i < l.n_buffers; i++)
            counted += strcmp(buffers[i].name, "activation slots") == 0;
        assert_int_equal(counted, own);
        for (int i = 0; i < n; i++) {
            int turn = i - own, boundary = BLOCKS - 2 - turn / MICROS;
            const struct ot_buffer *slot = &buffers[l.activation_slots[i]];
            if (turn < 0)
                assert_string_equal(slot->name, "activation slots");
            else
                assert_int_equal(l.activation_slots[i],
                                 ot_layout_boundary(&l, &u.plan, boundary, turn % MICROS));
            assert_int_equal(slot->bytes, ot_chain_boundary_bytes(&u.chain, MICRO_TOKENS));
        }
        check_ok(ot_layout_measure(&u.chain, &u.plan, &sizes));
        struct ot_ledger whole;
        ot_layout_ledger(&l, &whole);
        assert_int_equal(ot_ledger_total(&sizes, OT_TIER_GPU), ot_ledger_total(&whole, OT_TIER_GPU));
        ot_layout_free(&l);
    }
}

/* The extent of a boundary takes whole pages of 4 KiB, and no more of them than it needs. */
static void extents_of_boundaries_are_whole_pages(void **state) {
    (void)state;
    for (int extra = -1; extra <= 1; extra++) {
        struct uneven u;
        struct ot_layout l;
        open_uneven(&u);
        u.plan.activations = OT_HOME_NVME;
        u.plan.micro_tokens = 1;
        u.plan.activation_slots = u.plan.host_activation_slots = 1;
        u.chain.boundary_elems = 4096 / 2 + extra; /* in bf16 */
        const struct ot_buffer *buffers = make(&u, &l);
        for (int i = 0; i < (BLOCKS - 1) * MICROS; i++) {
            const struct ot_buffer *b = &buffers[l.boundary_nvme[i]];
            assert_int_equal(l.extent_bytes[b->first_extent], extra > 0 ? 8192 : 4096);
            assert_int_equal(b->n_tiles, 1);
        }
        ot_layout_free(&l);
    }
}

/* Sizes whose sums or products overflow are refused. */
static void sizes_beyond_any_machine_are_refused(void **state) {
    (void)state;
    struct uneven u;
    struct ot_layout l;
    open_uneven(&u);
    u.chain.constant_bytes = SIZE_MAX / 4 / OT_STORE_MAX_SIDES + 1;
    check_fails(ot_layout_make(&u.chain, &u.plan, &l), OT_E_BUDGET, "constants: 288230376151711744 bytes");
    u.chain.constant_bytes = 64;
    /* Each size is fine, but the sum of the tier overflows. */
    u.saved[1] = u.saved[2] = u.saved[3] = SIZE_MAX / 4 / OT_STORE_MAX_SIDES / MICRO_TOKENS;
    u.plan.kept[OT_TIER_GPU].blocks = 3;
    u.plan.max_micro = 8;
    check_fails(ot_layout_make(&u.chain, &u.plan, &l), OT_E_BUDGET, "more than any machine has");
    assert_null(l.buffers);
    open_uneven(&u);
    u.plan.max_micro = 1 << 20; /* with four boundaries */
    check_fails(ot_layout_make(&u.chain, &u.plan, &l), OT_E_BUDGET,
                "no memory for a plan with 4194304 buffers of a kind");
}

/* ---- adding buffers ---- */

/* Buffers of a tier lie one behind the other, at multiples of its alignment. No buffer follows an error. */
static void buffers_follow_each_other(void **state) {
    (void)state;
    struct ot_layout l = {0};
    struct ot_layout_maker mk = {.layout = &l};
    assert_int_equal(ot_layout_add_row(&mk, OT_TIER_GPU, "a", 257, 7, 3), 0);
    assert_int_equal(ot_layout_add(&mk, OT_TIER_HOST, "b", 4096, 5), 3);
    assert_int_equal(ot_layout_add_row(&mk, OT_TIER_HOST, "none", 4096, 1, 0), OT_NO_BUFFER);
    assert_int_equal(ot_layout_add_from(&mk, OT_TIER_HOST, "c", 9, 1, 2), 4);
    assert_int_equal(ot_layout_add(&mk, OT_TIER_GPU, "d", 256, 1), 5);
    static const size_t offsets[] = {0, 512, 1024, 0, 4096, 1536},
                        reserved[] = {512, 512, 512, 4096, 4096, 256};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(l.buffers[i].offset, offsets[i]);
        assert_int_equal(l.buffers[i].reserved, reserved[i]);
        assert_int_equal(l.buffers[i].first_param, i == 4 ? 9 : 0);
    }
    assert_int_equal(l.n_buffers, 6);
    assert_int_equal(l.tier_bytes[OT_TIER_GPU], 1792);
    assert_int_equal(l.tier_bytes[OT_TIER_HOST], 8192);
    mk.rc = -OT_E_BUDGET;
    assert_int_equal(ot_layout_add(&mk, OT_TIER_GPU, "late", 256, 1), OT_NO_BUFFER);
    assert_int_equal(ot_layout_add_from(&mk, OT_TIER_GPU, "late", 9, 256, 1), OT_NO_BUFFER);
    assert_int_equal(l.n_buffers, 6);
    ot_layout_free(&l);
}

/* A row of extents has the bytes of all of them, and each extent is listed. One extent has `last` bytes. */
static void rows_of_extents_are_listed(void **state) {
    (void)state;
    enum { ROWS = 400, SIDES = 3 };
    struct ot_layout l = {0};
    struct ot_layout_maker mk = {.layout = &l};
    int extents = 0;
    for (int row = 0; row < ROWS; row++) {
        int n = row % 3, buffer = ot_layout_add_extents(&mk, "row", 8192, 4096, n, SIDES);
        const struct ot_buffer *b = &l.buffers[buffer];
        assert_int_equal(buffer, row);
        assert_int_equal(b->bytes, n == 0 ? 0 : 8192 * (n - 1) + 4096);
        assert_int_equal(b->reserved, b->bytes * SIDES);
        assert_int_equal(b->n_tiles, n);
        assert_int_equal(b->first_extent, extents);
        for (int i = 0; i < n; i++) {
            assert_int_equal(l.extent_bytes[extents + i], i == n - 1 ? 4096 : 8192);
            assert_int_equal(l.extent_sides[extents + i], SIDES);
        }
        assert_int_equal(l.n_extents, extents += n);
    }
    ot_layout_free(&l);
}

/* Every slot of a list is listed, the first too, and those for holdings say so. */
static void slots_are_listed(void **state) {
    (void)state;
    for (int n = 0; n <= 2; n++) {
        struct ot_layout l = {0};
        struct ot_layout_maker mk = {.layout = &l};
        int *tiled = ot_layout_add_tiled(&mk, OT_TIER_GPU, "tiled", 256, 3, n);
        int *held = ot_layout_add_held(&mk, OT_TIER_GPU, "held", 256, 4, n);
        int *many = ot_layout_add_many(&mk, OT_TIER_GPU, "many", 256, n);
        int *empty = ot_layout_new_indices(&mk, n);
        check_ok(mk.rc);
        assert_int_equal(l.n_buffers, 3 * n);
        assert_true(!tiled == (n == 0) && !held == (n == 0) && !many == (n == 0) && !empty == (n == 0));
        for (int i = 0; i < n; i++) {
            assert_int_equal(tiled[i], i);
            assert_int_equal(held[i], n + i);
            assert_int_equal(many[i], 2 * n + i);
            assert_int_equal(empty[i], OT_NO_BUFFER);
            assert_int_equal(l.buffers[tiled[i]].first_param, 0);
            assert_int_equal(l.buffers[held[i]].first_param, OT_HELD_PARAM);
            assert_int_equal(l.buffers[tiled[i]].n_tiles, 3);
            assert_int_equal(l.buffers[held[i]].n_tiles, 4);
            assert_int_equal(l.buffers[many[i]].n_tiles, 1);
        }
        free(tiled);
        free(held);
        free(many);
        free(empty);
        ot_layout_free(&l);
    }
}

/* A maker of sizes lists no buffer, and needs no memory for them. Its limits are those of every layout. */
static void sizes_have_the_limits_of_layouts(void **state) {
    (void)state;
    enum { MOST_BUFFERS = 1 << 22 };
    const size_t most = SIZE_MAX / 4 / OT_STORE_MAX_SIDES; /* of a buffer; on the device 16 do not fit */
    struct ot_layout l = {0};
    struct ot_ledger sizes = {0};
    struct ot_layout_maker mk = {.layout = &l, .sizes = &sizes};
    assert_int_equal(ot_layout_add_row(&mk, OT_TIER_HOST, "most", 1, 1, MOST_BUFFERS), OT_NO_BUFFER);
    check_ok(mk.rc);
    assert_int_equal(sizes.entries[0].bytes, (size_t)MOST_BUFFERS * 4096);
    assert_int_equal(ot_layout_add(&mk, OT_TIER_HOST, "one more", 1, 1), OT_NO_BUFFER);
    check_fails(mk.rc, OT_E_BUDGET, "no memory for the plan's 4194304 buffers");
    for (int n = 15; n <= 16; n++) {
        l = (struct ot_layout){0};
        mk = (struct ot_layout_maker){.layout = &l, .sizes = &sizes};
        ot_layout_add_row(&mk, OT_TIER_GPU, "large", most, 1, n);
        assert_int_equal(mk.rc, n == 15 ? 0 : -OT_E_BUDGET);
    }
    l = (struct ot_layout){0};
    mk = (struct ot_layout_maker){.layout = &l, .sizes = &sizes};
    for (int i = 0; i < 3; i++) { /* a tier may pass the limit once, and takes nothing after that */
        ot_layout_add_row(&mk, OT_TIER_GPU, "large", most, 1, 15);
        assert_int_equal(mk.rc, i < 2 ? 0 : -OT_E_BUDGET);
    }
    assert_null(l.buffers);
    assert_null(l.extent_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_follow_each_other),
        cmocka_unit_test(rows_of_extents_are_listed),
        cmocka_unit_test(slots_are_listed),
        cmocka_unit_test(sizes_have_the_limits_of_layouts),
        cmocka_unit_test(workspace_is_the_largest_blocks),
        cmocka_unit_test(work_has_no_room_for_what_is_kept),
        cmocka_unit_test(slots_of_boundaries_are_forwards_buffers),
        cmocka_unit_test(results_have_room),
        cmocka_unit_test(a_snapshot_has_room_for_a_tile_it_copies),
        cmocka_unit_test(gradients_on_nvme_have_one_side),
        cmocka_unit_test(gradients_take_the_place_of_sums),
        cmocka_unit_test(arrays_of_a_part_follow_each_other),
        cmocka_unit_test(compact_arrays_of_a_part_follow_each_other),
        cmocka_unit_test(the_moments_may_lack),
        cmocka_unit_test(a_snapshot_slot_is_the_largest_part),
        cmocka_unit_test(slots_are_the_largest_slabs),
        cmocka_unit_test(extents_of_boundaries_are_whole_pages),
        cmocka_unit_test(sizes_beyond_any_machine_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
