/* Which tiles get a frame for an update ahead of the decision, and how many frames a plan has. */
#include <string.h>

#include "offload/plan/shadow.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { SLABS = 4 };

struct few {
    struct ot_slab_plan slabs[SLABS];
    struct ot_plan plan;
};

/* Slab s has s + 2 tiles of the pool, after one of each other engine. */
static void open_few(struct few *f) {
    memset(f, 0, sizeof *f);
    for (int s = 0; s < SLABS; s++)
        f->slabs[s] = (struct ot_slab_plan){
            .weights = OT_HOME_HOST, .state = OT_HOME_HOST, .grads = OT_HOME_HOST, .tiles = {1, 1, s + 2}};
    f->plan = (struct ot_plan){.slabs = f->slabs, .n_slabs = SLABS, .train = true, .clip = true};
}

/* Counts the tiles with a frame. Frames must come in the order of the tiles, each once. */
static int count_frames(const struct few *f, int *longest_gap) {
    int frames = 0, gap = 0;
    *longest_gap = 0;
    for (int s = 0; s < SLABS; s++)
        for (int t = 2; t < f->slabs[s].tiles[OT_TILE_CPU] + 2; t++) {
            int frame = ot_plan_shadow_frame(&f->plan, s, t);
            gap = frame < 0 ? gap + 1 : 0;
            *longest_gap = gap > *longest_gap ? gap : *longest_gap;
            if (frame >= 0)
                assert_int_equal(frame, frames++);
        }
    return frames;
}

static void frames_are_spread_evenly(void **state) {
    (void)state;
    struct few f;
    int gap;
    open_few(&f);
    int tiles = (int)ot_plan_shadow_tiles(&f.plan);
    assert_int_equal(tiles, 2 + 3 + 4 + 5);
    for (int frames = 0; frames <= tiles; frames++) {
        f.plan.shadow_frames = frames;
        assert_int_equal(count_frames(&f, &gap), frames);
        assert_true(frames == 0 || gap <= (tiles - 1) / frames);
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
    int gap;
    open_few(&f);
    f.slabs[1].state = OT_HOME_NVME;
    f.slabs[2].weights = OT_HOME_NVME;
    f.slabs[3].weights = OT_HOME_GPU; /* the pool updates a copy on the host */
    assert_int_equal(ot_plan_shadow_tiles(&f.plan), 2 + 5);
    f.plan.shadow_frames = 7;
    assert_int_equal(count_frames(&f, &gap), 7);
    assert_int_equal(gap, 3 + 4);
    for (int t = 2; t < 5; t++)
        assert_int_equal(ot_plan_shadow_frame(&f.plan, 1, t), -1);
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
    size_t frame = (ot_plan_shadow_bytes(rq.chain, &plan) + 4095) / 4096 * 4096;
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
        cmocka_unit_test(frames_take_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
