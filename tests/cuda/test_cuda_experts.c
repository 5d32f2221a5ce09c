/* The ops of mixtures of experts on the cuda device against the cpu device: the same bits, except where a dot
 * product is computed. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/experts_products.h"

/* ---- router ---- */

static void check_router(const struct router_case *c, enum ot_dtype dtype) {
    static const char *const names[] = {"ids", "weights", "dlogits", "dlogits in place"};
    struct cuda_pair p;
    cuda_run(&p, router_run, c, dtype, 0);
    for (int i = 0; i < 4; i++)
        cuda_check_bits(&p, names[i]);
    cuda_close(&p);
}

static void test_router(void **state) {
    (void)state;
    /* n, experts, top, gap; tokens that fill no warp, one expert, all chosen, more experts than lanes */
    static const int64_t shapes[][4] = {
        {9, 8, 2, 0}, {3, 1, 1, 2}, {17, 16, 16, 0}, {5, 130, 8, 3}, {33, 40, 5, 0}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const int64_t *shape = shapes[i / 2];
        struct router_case c = {.n = shape[0], .experts = shape[1], .top = shape[2], .over_all = i % 2};
        c.ld = c.experts + shape[3];
        float *logits = ops_random(i, c.n * c.ld, 2), *dweights = ops_random(9, c.n * c.top, 1);
        for (int64_t j = 0; j < c.n * c.ld; j++) { /* ties, NaNs and infinities */
            uint64_t draw = mix_bits((uint64_t)j);
            logits[j] = draw % 41 == 0 ? NAN : draw % 37 == 0 ? -INFINITY : draw % 3 == 0 ? 1 : logits[j];
        }
        c.logits = logits;
        c.dweights = dweights;
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_router(&c, (enum ot_dtype)dtype);
        free(logits);
        free(dweights);
    }
}

/* ---- group ---- */

static void test_group(void **state) {
    (void)state;
    static const char *const names[] = {"offsets", "counts", "rows", "assignments"};
    /* n, top, experts, multiple; one chunk, several, all experts that there may be, no tokens */
    static const int64_t shapes[][4] = {{100, 2, 8, 1},  {700, 4, 33, 16}, {1, 3, 7, 32},
                                        {40, 8, 128, 1}, {3, 16, 1024, 2}, {0, 2, 40, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct group_case c = {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], NULL};
        int32_t *ids = experts_ids(i, c.n, c.top, c.experts, 3);
        struct cuda_pair p;
        c.ids = ids;
        cuda_run(&p, group_run, &c, OT_F32, 0);
        for (int n = 0; n < 4; n++)
            cuda_check_bits(&p, names[n]);
        cuda_close(&p);
        free(ids);
    }
}

/* ---- gather and combine ---- */

/* n, top, experts, multiple, cols, pad; whole packs, no packs, wider rows, a block for each row */
static const int64_t shapes[][6] = {{30, 2, 8, 1, 64, 0},
                                    {21, 4, 16, 8, 37, 5},
                                    {9, 3, 5, 4, 1000, 8},
                                    {2, 1, 3, 1, 1, 0},
                                    {12, 2, 4, 2, 48, 2}};
static const int shifts[] = {0, 0, 0, 0, 2};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_gather_and_combine(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 3; s++) {
        struct packed_case c;
        struct cuda_pair p;
        packed_open(&c, shapes[s / 3], 1);
        cuda_run(&p, packed_run_forward, &c, (enum ot_dtype)(s % 3), shifts[s / 3]);
        cuda_check_bits(&p, "gathered");
        cuda_check_bits(&p, "sum");
        cuda_check_bits(&p, "combined");
        cuda_close(&p);
        packed_close(&c);
    }
}

/* Both devices may be off by an assignment's bound. */
static double *dweight_bounds(const struct packed_case *c, const struct cuda_pair *p) {
    int64_t n = c->group.n * c->group.top;
    double *each = calloc((size_t)n, sizeof *each);
    assert_non_null(each);
    for (int64_t r = 0; r < group_capacity(&c->group); r++) {
        int32_t a = experts_id(&p->cpu, "assignments", r);
        if (a < 0)
            continue;
        packed_dot(c, r, a / c->group.top, &each[a]);
        each[a] *= 2;
    }
    return each;
}

static void test_combine_backward(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 3; s++) {
        struct packed_case c;
        struct cuda_pair p, places;
        packed_open(&c, shapes[s / 3], 1);
        cuda_run(&places, group_run, &c.group, OT_F32, 0);
        cuda_run(&p, packed_run_backward, &c, (enum ot_dtype)(s % 3), shifts[s / 3]);
        double *each = dweight_bounds(&c, &places);
        cuda_check_bits(&p, "dpacked alone");
        cuda_check_bits(&p, "dpacked");
        cuda_check_close(&p, "dweights", &(struct cuda_bound){.each = each});
        free(each);
        cuda_close(&p);
        cuda_close(&places);
        packed_close(&c);
    }
}

/* ---- products by groups ---- */

/* Several tiles and more steps than stages; rows off 16 bytes; one column; one expert; no rows at all; rows
 * of C, or of A and B, with an odd length, as adapters of rank 3 and 5 have them. */
static const struct groups_shape groups_shapes[] = {
    {136, 152, 8, 0, {40, 0, 130, 5}}, {37, 21, 3, 1, {3, 1, 0, 20}}, {33, 1, 0, 0, {0, 0, 0, 2}},
    {8, 300, 0, 0, {0, 17, 0, 0}},     {8, 8, 0, 4, {1, 0, 9, 0}},    {5, 7, 1, 0, {0, 0, 0, 0}},
    {16, 3, 0, 0, {0, 5, 18, 0}},      {24, 5, 0, 0, {9, 0, 0, 7}},   {3, 16, 0, 0, {0, 6, 0, 11}}};
enum { GROUPS_SHAPES = sizeof groups_shapes / sizeof *groups_shapes };

/* Both devices may be off by an element's bound. */
static void keep_bound(int64_t place, double want, double bound, void *each) {
    (void)want;
    ((double *)each)[place] = 2 * bound;
}

static void check_groups(struct groups_case *c, enum ot_dtype dtype) {
    double *each = calloc((size_t)c->n_c, sizeof *each);
    struct cuda_pair p;
    assert_non_null(each);
    groups_visit(c, keep_bound, each);
    cuda_run(&p, groups_run, c, dtype, c->at.shift);
    cuda_check_close(&p, "c", &(struct cuda_bound){.each = each});
    cuda_close(&p);
    free(each);
}

/* Products in fp32 have the same kernel on all cards. */
#if defined(OT_TEST_SM) && OT_TEST_SM == 90
enum { FIRST_DTYPE = OT_BF16 };
#else
enum { FIRST_DTYPE = OT_F32 };
#endif

static void test_gemm_groups(void **state) {
    (void)state;
    for (int s = 0; s < GROUPS_SHAPES * 3; s++) {
        struct groups_case c;
        groups_open(&c, &groups_shapes[s / 3], s % 3);
        for (int variant = 0; variant < GROUPS_VARIANTS; variant++)
            for (int dtype = FIRST_DTYPE; dtype <= OT_F16; dtype++) {
                c.variant = (enum groups_variant)variant;
                c.wide = (variant + dtype) % 2;
                if (groups_takes(&c))
                    check_groups(&c, (enum ot_dtype)dtype);
            }
        groups_close(&c);
    }
}

/* Shapes that the kernel of compute capability 9.0 takes: several of its tiles, more steps than its ring has
 * slots, groups that end in both halves of a tile; one step, and arrays off 16-byte borders. */
static void test_large_tiles(void **state) {
    (void)state;
    static const struct groups_shape large[] = {{328, 264, 8, 0, {40, 0, 130, 5}},
                                                {64, 136, 0, 4, {0, 65, 1, 0}}};
    for (int s = 0; s < 2 * 3; s++) {
        struct groups_case c;
        groups_open(&c, &large[s / 3], s % 3);
        for (int variant = 0; variant < GROUPS_VARIANTS; variant++) {
            c.variant = (enum groups_variant)variant;
            c.wide = (variant / 2 + s) % 2;
            if (groups_takes(&c))
                check_groups(&c, variant % 2 ? OT_F16 : OT_BF16);
        }
        groups_close(&c);
    }
}

/* Two runs of one product, with arrays at 16-byte borders and off them, have the same bits: with narrow and
 * with wide tiles. */
static void test_alignment_changes_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < 2 * 3; i++) {
        int kind = i % 3;
        struct groups_case c;
        struct ops_fixture f[2];
        groups_open(&c, &(struct groups_shape){72, i / 3 ? 136 : 40, 0, 0, {30, 5, 0, 2}}, kind);
        c.wide = true;
        for (int shift = 0; shift < 2; shift++) {
            cuda_open(&f[shift], OT_BF16);
            f[shift].shift = shift;
            groups_run(&f[shift], &c);
        }
        const float *c0 = ops_result(&f[0], "c", NULL);
        assert_false(isnan(c0[0]));
        assert_memory_equal(c0, ops_result(&f[1], "c", NULL), (size_t)c.n_c * sizeof(float));
        ops_close(&f[0]);
        ops_close(&f[1]);
        groups_close(&c);
    }
}

static void test_block(void **state) {
    (void)state;
    static const char *const kinds[] = {"mixtral", "gpt_oss"};
    struct ot_golden *golden = golden_open("ops.bin");
    for (int i = 0; i < 2; i++) {
        struct block_case c = block_open(golden, kinds[i]);
        struct cuda_pair p;
        cuda_run(&p, block_run, &c, OT_F32, 0);
        block_check(golden, kinds[i], &p.cuda);
        cuda_close(&p);
    }
    golden_close(golden);
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_gather_and_combine),
        cmocka_unit_test(test_combine_backward),
        cmocka_unit_test(test_gemm_groups),
        cmocka_unit_test(test_large_tiles),
        cmocka_unit_test(test_alignment_changes_no_bit),
        cmocka_unit_test(test_block),
    };
    return cmocka_run_group_tests_name("cuda_experts", tests, NULL, NULL);
}
