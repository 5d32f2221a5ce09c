/* Which tiles get a frame for an update ahead of the decision, and how many frames a plan has. */
#include <math.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/shadow_updates.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { LAYERS = 2, SLABS = LAYERS + 2 };

struct few {
    struct fake fake;
    struct ot_slab_plan slabs[SLABS];
    struct ot_plan plan;
    struct ot_shadow_frames deal[SLABS];
};

/* Slab s has s + 2 tiles of the pool, after one of each other engine. */
static void open_few(struct few *f) {
    memset(f, 0, sizeof *f);
    f->fake = (struct fake){.layers = LAYERS, .hidden = 64, .layer_params = 1 << 14, .edge_params = 1 << 14};
    fake_open(&f->fake);
    for (int s = 0; s < SLABS; s++)
        f->slabs[s] = (struct ot_slab_plan){
            .weights = OT_HOME_HOST, .state = OT_HOME_HOST, .grads = OT_HOME_HOST, .tiles = {1, 1, s + 2}};
    f->plan = (struct ot_plan){.slabs = f->slabs,
                               .n_slabs = SLABS,
                               .max_micro = 1,
                               .tile_params = OT_SLAB_ALIGN_PARAMS,
                               .train = true,
                               .clip = true};
}

/* Deals the frames, and counts the tiles with one. Frames must come in the order of the tiles, each once, and
 * lie evenly in their slab. */
static int count_frames(struct few *f) {
    int first_frame[SLABS + 1] = {0}, frames = 0;
    struct ot_frame some;
    struct ot_layout layout = {.frames = &some, .first_frame = first_frame};
    ot_plan_deal_frames(&f->fake.chain, &f->plan, f->deal);
    for (int s = 0; s < SLABS; s++)
        first_frame[s + 1] = first_frame[s] + f->deal[s].all;
    for (int s = 0; s < SLABS; s++) {
        int tiles = f->slabs[s].tiles[OT_TILE_CPU], gap = 0;
        for (int t = 2; t < tiles + 2; t++) {
            int frame = ot_layout_frame(&layout, &f->plan, s, t);
            gap = frame < 0 ? gap + 1 : 0;
            assert_true(f->deal[s].all == 0 || gap <= (tiles - 1) / f->deal[s].all);
            if (frame >= 0)
                assert_int_equal(frame, frames++);
        }
        assert_int_equal(frames, first_frame[s + 1]);
    }
    return frames;
}

static void frames_are_spread_evenly(void **state) {
    (void)state;
    struct few f;
    open_few(&f);
    int tiles = (int)ot_plan_shadow_tiles(&f.plan);
    assert_int_equal(tiles, 2 + 3 + 4 + 5);
    for (int frames = 0; frames <= tiles; frames++) {
        f.plan.shadow_frames = frames;
        assert_int_equal(count_frames(&f), frames);
        for (int s = 0; s < SLABS; s++) {
            double share = (double)f.slabs[s].tiles[OT_TILE_CPU] * frames / tiles;
            assert_true(fabs(f.deal[s].all - share) < 1 && f.deal[s].over_kept == 0);
        }
        assert_int_equal(ot_plan_has_shadows(&f.plan), frames > 0);
        assert_int_equal(ot_plan_sends_norms(&f.plan), frames > 0);
    }
    f.plan.clip = false; /* each slab has its own decision, which needs its norm */
    assert_true(ot_plan_sends_norms(&f.plan) && ot_plan_shadow_tiles(&f.plan) == 0);
}

/* Tiles that are not at home on the host have none: an update in a slot is not the only copy, and the
 * device's tiles need no pool. */
static void only_tiles_on_the_host_have_frames(void **state) {
    (void)state;
    struct few f;
    open_few(&f);
    f.slabs[1].state = OT_HOME_NVME;
    f.slabs[2].weights = OT_HOME_NVME;
    f.slabs[3].weights = OT_HOME_GPU; /* the pool updates a copy on the host */
    assert_int_equal(ot_plan_shadow_tiles(&f.plan), 2 + 5);
    f.plan.shadow_frames = 7;
    assert_int_equal(count_frames(&f), 7);
    assert_true(f.deal[1].all == 0 && f.deal[2].all == 0);
}

/* A plan in which every layer keeps its products on the host: 48 KiB for each of 512 tokens. A frame has 12
 * bytes a parameter: 8 of them fit over what a layer keeps of a micro-batch. `micros` micro-batches of a
 * round are kept at a time. */
enum { FRAME_PARAMS = 64 << 10, LAYER_TILES = 16, EDGE_TILES = 32, OVER_KEPT = 8, ALL_LAYERS = 12 };

static void keep_on_host(struct fake *f, int micros, struct ot_plan *plan) {
    fake_open_small(f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(f);
    rq.weights = rq.state = rq.kept = OT_HOME_HOST;
    rq.keep = OT_KEEP_PRODUCTS;
    rq.tile_params = FRAME_PARAMS;
    rq.micro_sequences = 1;
    rq.rounds = (int)rq.step_sequences / micros;
    check_ok(ot_plan_make(&rq, plan));
    assert_int_equal(ot_plan_frame_bytes(&f->chain, plan), FRAME_PARAMS * 12);
    assert_int_equal(ot_plan_frames_over_kept(&f->chain, plan, 1, FRAME_PARAMS * 12), OVER_KEPT);
    assert_int_equal(ot_plan_frames_over_kept(&f->chain, plan, 0, FRAME_PARAMS * 12), 0);
    assert_int_equal(ot_plan_shadow_tiles(plan), ALL_LAYERS * LAYER_TILES + 2 * EDGE_TILES);
}

/* Frames lie over what a block keeps at or behind the first use of their slab, and take no memory there. */
static void check_frames(const struct fake *f, const struct ot_plan *plan, size_t own_bytes) {
    struct ot_layout l;
    size_t own = 0;
    check_ok(ot_layout_make(&f->chain, plan, &l));
    int first_kept = l.kept[l.places], places = l.places;
    for (int s = 0; s < plan->n_slabs; s++)
        for (int i = l.first_frame[s]; i < l.first_frame[s + 1]; i++) {
            const struct ot_buffer *b = &l.buffers[l.frames[i].buffer];
            int block = (l.frames[i].buffer - first_kept) / places + 1;
            assert_true(l.frames[i].tile >= 0 && l.frames[i].tile < b->n_tiles);
            assert_true((size_t)(l.frames[i].tile + 1) * l.frame_bytes <= b->bytes);
            if (strcmp(b->name, "shadow updates") == 0) {
                own += b->reserved;
                continue;
            }
            assert_true(strcmp(b->name, "kept activations") == 0 && block >= s && block <= ALL_LAYERS);
            for (int j = 0; j < i; j++)
                assert_true(l.frames[j].buffer != l.frames[i].buffer || l.frames[j].tile != l.frames[i].tile);
        }
    assert_int_equal(own, own_bytes);
    assert_int_equal(l.first_frame[plan->n_slabs], plan->shadow_frames);
    ot_layout_free(&l);
}

static void frames_lie_over_kept_activations(void **state) {
    (void)state;
    for (int micros = 1; micros <= 4; micros *= 2) {
        struct fake f;
        struct ot_plan plan;
        keep_on_host(&f, micros, &plan);
        int64_t room = ALL_LAYERS * OVER_KEPT * micros, layers = ALL_LAYERS * LAYER_TILES;
        int64_t free_frames = room < layers ? room : layers;
        free_frames += room - free_frames < EDGE_TILES ? room - free_frames : EDGE_TILES;
        assert_int_equal(ot_plan_free_frames(&f.chain, &plan), free_frames);
        size_t without = ot_ledger_total(&plan.ledger, OT_TIER_HOST);
        const int64_t counts[] = {1, 7, free_frames, free_frames + 5, layers + 2 * EDGE_TILES};
        for (int i = 0; i < 5; i++) {
            size_t own = (size_t)(i < 3 ? 0 : counts[i] - free_frames) * FRAME_PARAMS * 12;
            plan.shadow_frames = (int)counts[i];
            check_ok(ot_plan_finish(&f.chain, &plan));
            assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_HOST) - without, own);
            check_frames(&f, &plan, own);
        }
        ot_plan_free(&plan);
    }
}

/* On the device, kept activations have no room for frames of the host. */
static void frames_need_activations_on_the_host(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    keep_on_host(&f, 2, &plan);
    plan.kept[OT_TIER_GPU] = plan.kept[OT_TIER_HOST];
    plan.kept[OT_TIER_HOST].blocks = 0;
    assert_int_equal(ot_plan_free_frames(&f.chain, &plan), 0);
    ot_plan_free(&plan);
}

/* The search gives frames to the share of the tiles that the request names, within its bytes and the host's
 * budget, and the ledger has them. */
static void frames_take_what_is_left(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = OT_HOME_HOST;
    rq.clip = true;
    rq.shadows = OT_SHADOWS_CHOSEN;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(plan.shadow_frames, 0);
    size_t without = ot_ledger_total(&plan.ledger, OT_TIER_HOST);
    ot_plan_free(&plan);
    rq.shadows = 0.5;
    check_ok(ot_plan_make(&rq, &plan));
    int64_t tiles = ot_plan_shadow_tiles(&plan);
    size_t frame = ot_plan_frame_bytes(rq.chain, &plan);
    assert_int_equal(plan.shadow_frames, (tiles + 1) / 2);
    assert_true(ot_ledger_total(&plan.ledger, OT_TIER_HOST) == without + (size_t)plan.shadow_frames * frame);
    ot_plan_free(&plan);
    rq.shadows = 1;
    rq.shadow_bytes = 3 * frame + 1;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(plan.shadow_frames, 3);
    plan.shadow_frames = (int)tiles + 1;
    check_fails(ot_plan_finish(rq.chain, &plan), OT_E_USAGE, "frames for updates ahead of the decision");
    ot_plan_free(&plan);
    rq.shadow_bytes = 0;
    rq.budget_bytes[OT_TIER_HOST] = without + 2 * frame + 1;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(plan.shadow_frames, 2);
    check_fits(&rq, &plan);
    ot_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_spread_evenly),
        cmocka_unit_test(only_tiles_on_the_host_have_frames),
        cmocka_unit_test(frames_lie_over_kept_activations),
        cmocka_unit_test(frames_need_activations_on_the_host),
        cmocka_unit_test(frames_take_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
