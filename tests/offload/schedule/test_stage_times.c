/* The table of ticks of stages: any chain, any owners, any rounds, and slabs that some blocks share. */
#include <math.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/schedule/stage_times.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

/* ---- the table ---- */

/* A chain with owners and rounds. */
struct drawn {
    struct fake fake;
    struct ot_plan plan;
    struct ot_slab_plan slabs[MAX_LAYERS + 2];
    struct ot_stage_times times;
    bool train;
    int first_trained;
};

/* The first blocks are frozen in half of the chains. */
static void draw(struct drawn *d, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound)                                                                                          \
    ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 4, 1), i++, (uint64_t)(bound)))
    *d = (struct drawn){.fake = {.layers = 1 + PICK(12),
                                 .hidden = 64,
                                 .layer_params = 1 << 16,
                                 .edge_params = 1 << 16,
                                 .vocab = 64,
                                 .tied = PICK(2),
                                 .dtype = OT_BF16}};
    fake_open(&d->fake);
    struct ot_chain *chain = &d->fake.chain;
    int frozen = PICK(2) ? PICK(chain->n_slabs) : 0;
    for (int s = 0; s < frozen; s++)
        d->fake.slabs[s].frozen = true;
    d->plan = (struct ot_plan){.slabs = d->slabs,
                               .n_slabs = chain->n_slabs,
                               .shard = {.ranks = 2 + PICK(5), .mode = OT_SHARD_STAGES},
                               .max_micro = 1 + PICK(12)};
    int sequences = d->plan.max_micro, sections = PICK(2) ? 1 + PICK(4) : 1; /* of one sequence */
    d->plan.sections = sections;
    d->plan.max_micro *= sections;
    d->plan.first_round = sections * PICK(sequences + 1);
    d->plan.round_micro = sections * (1 + PICK(sequences));
    d->plan.shard.head_layers = PICK(4);
    d->plan.shard.late_layers = PICK(2) ? PICK(chain->n_blocks - 2) : 0;
    d->plan.shard.late_percent = 50 + 10 * PICK(20);
    d->plan.shard.in_flight = PICK(4);
    if (d->plan.shard.in_flight > 1) /* these are equally long */
        d->plan.first_round = d->plan.round_micro;
    bool runs = PICK(3) == 0; /* neighbours belong together */
    for (int s = 0; s < chain->n_slabs; s++)
        d->slabs[s].owner = runs ? s * d->plan.shard.ranks / chain->n_slabs : PICK(d->plan.shard.ranks);
    d->train = PICK(4) > 0;
    d->first_trained = ot_chain_first_trained(chain);
#undef PICK
}

static enum ot_pass pass_of(const struct drawn *d) {
    return d->train ? OT_PASS_TRAIN : OT_PASS_EVAL;
}

static int n_micro_of(const struct drawn *d) {
    return d->train ? d->plan.max_micro : d->plan.sections;
}

static int owner(const struct drawn *d, int block) {
    return d->slabs[d->fake.chain.blocks[block].uses[0].slab].owner;
}

/* The tick in which a unit ends. */
static int end_of(const struct drawn *d, int block, int micro, bool backward) {
    const struct ot_shard *shard = &d->plan.shard;
    int time = ot_stage_time(&d->times, block, micro, backward), end = d->fake.chain.n_blocks - 1;
    int ticks = shard->late_layers > 0 ? 3 : 1;
    if (block == end && shard->head_layers > 1)
        ticks *= shard->head_layers;
    if (block < end && block >= end - shard->late_layers)
        ticks = (int)lround(3 * shard->late_percent / 100.0);
    assert_true(time >= 0);
    return time + ticks * (backward ? OT_STAGE_BACKWARD_TICKS : 1);
}

/* The tick in which a result of (block, micro) may be read by the owner of `reader`. */
static int readable(const struct drawn *d, int block, int micro, bool backward, int reader) {
    bool crosses = owner(d, block) != owner(d, reader);
    return end_of(d, block, micro, backward) + (crosses ? d->times.lead - 1 : 0);
}

/* The tick of the last unit that reads what is in the place that forward(block, micro) writes; 0: the place
 * is new. The next block reads it in backward. If backward does not come so far, the reader's rank must have
 * run all of its blocks. */
static int last_reader(const struct drawn *d, int block, int micro) {
    int before = -1, end = d->fake.chain.n_blocks - 1, last = 0;
    for (int m = 0; m < micro && d->train; m++)
        if (ot_plan_place(&d->plan, m) == ot_plan_place(&d->plan, micro))
            before = m;
    for (int b = block + 1; b <= end && before >= 0; b++) {
        int time = block + 1 >= d->first_trained        ? ot_stage_time(&d->times, block + 1, before, true)
                   : owner(d, b) == owner(d, block + 1) ? ot_stage_time(&d->times, b, before, b == end)
                                                        : 0;
        assert_true(time >= 0);
        last = time > last ? time : last;
    }
    return last;
}

/* A unit has the first tick in which the rank's unit before has ended, its inputs are there, and its place is
 * free. With several rounds in flight the rank may have chosen another visit before. free_at: the ticks in
 * which the unit before ends. */
static void check_unit(const struct drawn *d, int block, int micro, bool backward, int free_at[]) {
    int end = d->fake.chain.n_blocks - 1, rank = owner(d, block), input = 0, place = 0;
    int time = ot_stage_time(&d->times, block, micro, backward);
    bool flies = d->train && d->plan.shard.in_flight > 1;
    if (backward && block < end)
        input = readable(d, block + 1, micro, true, block);
    else if (block > 0)
        input = readable(d, block - 1, micro, false, block);
    if (!backward && block < end)
        place = last_reader(d, block, micro);
    int least = input > place ? input : place;
    least = !flies && free_at[rank] > least ? free_at[rank] : least;
    bool late = time == least + 1 && least == place; /* a later rank's reader begins in the same tick */
    assert_true(flies ? time >= least : time == least || late);
    free_at[rank] = end_of(d, block, micro, backward);
}

/* Sections of a sequence go backward from the last to the first. */
static int in_backward(const struct drawn *d, int turn) {
    int section = turn % d->plan.sections;
    return turn - section + d->plan.sections - 1 - section;
}

/* Walks all units in the order of one rank. Returns their number. */
static int walk(const struct drawn *d) {
    int end = d->fake.chain.n_blocks - 1, n = 0, free_at[8] = {0};
    for (int r = 0; r < (d->train ? ot_plan_rounds(&d->plan) : 1); r++) {
        struct ot_round round =
            d->train ? ot_plan_round(&d->plan, r) : (struct ot_round){0, d->plan.sections};
        for (int b = 0; b <= end - d->train; b++)
            for (int m = round.first; m < round.first + round.n; m++, n++)
                check_unit(d, b, m, false, free_at);
        for (int b = end; d->train && b >= d->first_trained; b--)
            for (int m = round.first; m < round.first + round.n; m++, n++)
                check_unit(d, b, in_backward(d, m), true, free_at);
    }
    return n;
}

static int count_units(const struct drawn *d) {
    int n = 0;
    for (int i = 0; i < d->times.n_blocks * d->times.n_micro; i++)
        n += (d->times.forward[i] >= 0) + (d->times.backward[i] >= 0);
    return n;
}

/* Each result that another rank reads crosses once, LEAD - 1 ticks after its unit; in the order of ticks. */
static void check_transfers(const struct drawn *d) {
    int crossings = 0;
    for (int b = 0; b + 1 < d->fake.chain.n_blocks; b++)
        crossings += owner(d, b) == owner(d, b + 1) ? 0 : 1 + (d->train && b >= d->first_trained);
    assert_int_equal(d->times.n_transfers, crossings * d->times.n_micro);
    for (int i = 0; i < d->times.n_transfers; i++) {
        const struct ot_stage_transfer *t = &d->times.transfers[i], *before = i ? t - 1 : NULL;
        bool gradient = t->kind == OT_TRANSFER_GRADIENT;
        int from = t->index + gradient, to = t->index + !gradient;
        assert_int_equal(t->from, owner(d, from));
        assert_int_equal(t->to, owner(d, to));
        assert_int_equal(t->tick, readable(d, from, t->micro, gradient, to) - 1);
        if (before)
            assert_true(before->tick < t->tick || (before->tick == t->tick && before->from != t->from));
        if (before && before->tick == t->tick)
            assert_true(before->index < t->index || (before->index == t->index && before->micro < t->micro));
    }
}

static void ticks_follow_their_rules(void **state) {
    (void)state;
    int leads[3] = {0}, rounds = 0, late = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct drawn d;
        draw(&d, seed);
        check_ok(ot_stage_times_make(&d.fake.chain, &d.plan, pass_of(&d), &d.times));
        int places = d.train ? ot_plan_round_places(&d.plan) : d.plan.sections;
        assert_int_equal(d.times.lead, places >= 2 * d.plan.shard.ranks ? 2 : 1);
        assert_int_equal(d.times.n_micro, n_micro_of(&d));
        assert_int_equal(walk(&d), count_units(&d));
        check_transfers(&d);
        leads[d.times.lead]++;
        rounds += d.train && ot_plan_rounds(&d.plan) > 1;
        late += d.first_trained > 1;
        ot_stage_times_free(&d.times);
    }
    assert_true(leads[1] > 50 && leads[2] > 50 && rounds > 50 && late > 50);
}

/* ---- shared slabs ---- */

/* A slab that some blocks of a drawn chain use beside their own. users: these blocks, in order. Returns their
 * number. */
static int share_slab(struct drawn *d, uint64_t seed, int users[]) {
    struct ot_chain *chain = &d->fake.chain;
    int shared = chain->n_slabs, n = 0;
    d->fake.slabs[shared] = (struct ot_slab_spec){
        .name = "shared", .n_params = 2048, .shared = true, .frozen = !d->train || seed % 4 == 0};
    chain->n_slabs++;
    for (int b = 1; b < chain->n_blocks - 1; b++) {
        struct ot_block_spec *block = &d->fake.blocks[b];
        if (ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 5, 1), (uint64_t)b, 3) == 0)
            continue;
        block->uses[block->n_uses++] = (struct ot_block_use){shared, true};
        users[n++] = b;
    }
    d->plan.n_slabs = chain->n_slabs;
    d->slabs[shared].owner = n ? owner(d, users[0]) : 0;
    d->first_trained = ot_chain_first_trained(chain);
    return n;
}

/* The only transfer of a kind and an index to a rank; NULL: there is none. */
static const struct ot_stage_transfer *only(const struct drawn *d, enum ot_transfer_kind kind, int index,
                                            int to) {
    const struct ot_stage_transfer *found = NULL;
    for (int i = 0; i < d->times.n_transfers; i++) {
        const struct ot_stage_transfer *t = &d->times.transfers[i];
        if (t->kind != kind || t->index != index || t->to != to)
            continue;
        assert_null(found);
        found = t;
    }
    return found;
}

/* Every rank with users gets the weights once: from a rank that has them, after that rank's user has begun,
 * and before its own first user begins. Returns the number of transfers. */
static int check_weights(const struct drawn *d, int slab, const int users[], int n) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        int rank = owner(d, users[i]), j = 0;
        const struct ot_stage_transfer *t = only(d, OT_TRANSFER_WEIGHTS, slab, rank), *source;
        while (owner(d, users[j]) != rank)
            j++;
        assert_true((t == NULL) == (j == 0));
        if (j != i || j == 0)
            continue;
        source = only(d, OT_TRANSFER_WEIGHTS, slab, t->from);
        assert_int_equal(t->from, owner(d, users[i - 1]));
        assert_true(source ? source->tick < t->tick : t->from == d->slabs[slab].owner);
        assert_true(t->tick >= ot_stage_time(&d->times, users[i - 1], 0, false));
        assert_true(t->tick < ot_stage_time(&d->times, users[i], 0, false));
        count++;
    }
    return count;
}

/* The sum of a use goes to the owner, between the use's last unit and the last unit of the owner's first use.
 */
static int check_sums(const struct drawn *d, int slab, const int users[], int n) {
    int count = 0, to = d->slabs[slab].owner, last = in_backward(d, d->times.n_micro - 1);
    for (int i = 0; i < n; i++) {
        const struct ot_stage_transfer *t =
            only(d, OT_TRANSFER_SUM, users[i] * OT_MAX_USES + d->fake.blocks[users[i]].n_uses - 1, to);
        bool crosses = d->train && !d->fake.slabs[slab].frozen && owner(d, users[i]) != to;
        assert_true((t != NULL) == crosses);
        if (!crosses)
            continue;
        assert_true(t->from == owner(d, users[i]) && t->micro == last);
        assert_true(t->tick >= end_of(d, users[i], last, true) - 1);
        assert_true(t->tick < ot_stage_time(&d->times, users[0], last, true));
        count++;
    }
    return count;
}

/* No rank sends and receives more in a tick than the plan has room for. */
static void check_bytes_at_once(const struct drawn *d) {
    size_t most = ot_stages_bytes_at_once(&d->fake.chain, &d->plan);
    for (int rank = 0; rank < d->plan.shard.ranks; rank++) {
        size_t bytes = 0;
        for (int i = 0; i < d->times.n_transfers; i++) {
            const struct ot_stage_transfer *t = &d->times.transfers[i];
            bytes = i > 0 && t[-1].tick != t->tick ? 0 : bytes;
            if (t->from == rank || t->to == rank)
                bytes += ot_stages_transfer_bytes(&d->fake.chain, t->kind, t->index, d->plan.micro_tokens);
            assert_true(bytes <= most);
        }
    }
}

static void shared_slabs_cross_once(void **state) {
    (void)state;
    int weights = 0, sums = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct drawn d;
        int users[MAX_LAYERS];
        draw(&d, seed);
        int shared = d.fake.chain.n_slabs, n = share_slab(&d, seed, users), others = 0;
        d.plan.micro_tokens = seed % 2 ? 64 : 1;
        check_ok(ot_stage_times_make(&d.fake.chain, &d.plan, pass_of(&d), &d.times));
        int n_weights = check_weights(&d, shared, users, n), n_sums = check_sums(&d, shared, users, n);
        for (int i = 0; i < d.times.n_transfers; i++)
            others += d.times.transfers[i].kind < OT_TRANSFER_WEIGHTS;
        assert_int_equal(others + n_weights + n_sums, d.times.n_transfers);
        weights += n_weights;
        sums += n_sums;
        ot_stage_times_free(&d.times);
        struct drawn few = d; /* as the planner divides */
        few.plan.shard.turn_blocks = 0;
        if (ot_stages_divide(&few.fake.chain, &few.plan) == 0) {
            check_ok(ot_stage_times_make(&few.fake.chain, &few.plan, pass_of(&few), &few.times));
            check_bytes_at_once(&few);
            ot_stage_times_free(&few.times);
        }
    }
    assert_true(weights > 300 && sums > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_follow_their_rules),
        cmocka_unit_test(shared_slabs_cross_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
