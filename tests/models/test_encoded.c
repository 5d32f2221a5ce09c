/* Frozen slabs in a storage type (models/encoded.h): which slabs, where their parts lie, what the encoder
 * writes, and what the chain decodes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "models/encoded.h"
#include "models/lora.h"
#include "models/row_norms.h"
#include "offload/block.h"
#include "tests/kernels/weight_fixture.h"
#include "tests/offload/tiny_encode.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

/* Without biases, the frozen slab then has no vector, and a matrix follows it. */
static bool trains_norms_and_v(const void *context, const struct ot_tensor *tensor) {
    return trains_norms(context, tensor) || strstr(tensor->name, "v_proj");
}

static bool trains_edges(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "layers") == NULL;
}

/* One map of the unit q, k, v, which then lies in the trained slab; and all other matrices but o_proj. */
static bool trains_all_but_o(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "v_proj") || strstr(tensor->name, "mlp");
}

static bool trains_nothing(const void *context, const struct ot_tensor *tensor) {
    (void)context, (void)tensor->name;
    return false;
}

/* Biases, norms of q and k, and widths that are no multiple of 64. */
static struct ot_model_config odd_config(void) {
    struct ot_model_config c = tiny_config(2, false);
    c.qkv_bias = c.out_bias = c.mlp_bias = true;
    c.qk_norm = true;
    c.hidden = 40;
    return c;
}

static struct ot_model *open_base(const struct ot_model_config *config, enum ot_dtype dtype,
                                  bool (*trains)(const void *, const struct ot_tensor *),
                                  enum ot_base_type base) {
    const struct ot_model_setup parts = {.trains = trains, .base = base};
    struct ot_model *model;
    check_ok(ot_model_open_setup(config, dtype, 8, &parts, &model));
    return model;
}

static int encoded_slabs(const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    int n = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        n += chain->slabs[s].encoded_bytes > 0;
    return n;
}

/* ---- which slabs ---- */

static void test_which_slabs_are_encoded(void **state) {
    (void)state;
    static const struct {
        bool (*trains)(const void *, const struct ot_tensor *);
        enum ot_dtype dtype;
        enum ot_base_type base;
        int encoded, parts; /* slabs; parts of one of them */
    } cases[] = {
        {trains_norms, OT_BF16, OT_BASE_NF4, 2, 8},
        {trains_norms, OT_F32, OT_BASE_NF4_DOUBLE, 2, 8},
        {trains_edges, OT_F16, OT_BASE_INT8, 2, 8},
        {trains_nothing, OT_BF16, OT_BASE_NF4, 2, 8},
        {trains_nothing, OT_F32, OT_BASE_BF16, 2, 8},
        {trains_norms, OT_BF16, OT_BASE_MXFP4, 2, 8},
        {trains_all_but_o, OT_BF16, OT_BASE_NF4, 2, 2},
        {trains_nothing, OT_BF16, OT_BASE_AUTO, 0, 0},
        {trains_nothing, OT_BF16, OT_BASE_BF16, 0, 0}, /* the device's dtype already */
        {trains_nothing, OT_F16, OT_BASE_F16, 0, 0},
        {NULL, OT_BF16, OT_BASE_NF4, 0, 0}, /* nothing is frozen */
    };
    const struct ot_model_config config = odd_config();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_model *model = open_base(&config, cases[i].dtype, cases[i].trains, cases[i].base);
        const struct ot_chain *chain = ot_model_chain(model);
        struct ot_encoded_entry part;
        assert_int_equal(encoded_slabs(model), cases[i].encoded);
        assert_int_equal(ot_model_has_encoded(model), cases[i].encoded > 0);
        assert_int_equal(chain->decode != NULL, cases[i].encoded > 0);
        assert_int_equal(ot_slab_encoder_bytes(model) > 0, cases[i].encoded > 0);
        for (int s = 0; s < chain->n_slabs; s++) {
            bool encoded = chain->slabs[s].encoded_bytes > 0;
            assert_true(!encoded || (chain->slabs[s].frozen && !chain->slabs[s].edge));
            assert_int_equal(ot_encoded_entry(model, s, cases[i].parts - 1, &part), encoded);
            assert_false(ot_encoded_entry(model, s, cases[i].parts, &part));
        }
        ot_model_close(model);
    }
}

/* A model whose files join the matrices of all experts, which have biases. */
static struct ot_model_config config_with_joined_experts(int64_t ffn) {
    struct ot_model_config c = tiny_config(2, false);
    c.family = OT_FAMILY_GPT_OSS;
    c.n_experts = 3;
    c.top_experts = 2;
    c.expert_ffn = ffn;
    c.expert_bias = c.router_bias = true;
    return c;
}

/* MXFP4 of a model with experts applies to the experts alone: every other part has the device's dtype. */
static void test_mxfp4_is_of_experts(void **state) {
    (void)state;
    const struct ot_model_config config = config_with_joined_experts(32);
    struct ot_model *model = open_base(&config, OT_BF16, trains_nothing, OT_BASE_MXFP4);
    for (int s = 1; s <= 2; s++) {
        struct ot_encoded_entry part;
        int experts = 0, i = 0;
        for (; ot_encoded_entry(model, s, i, &part); i++) {
            experts += part.weight.format == OT_WEIGHT_MXFP4;
            assert_true(part.weight.format == OT_WEIGHT_MXFP4 || part.weight.format == OT_WEIGHT_BF16);
        }
        assert_int_equal(experts, 2 * config.n_experts); /* gate and up of each expert, and down */
        assert_int_equal(i, 4 + 1 + experts + 1);        /* q, k, v, o; the router; experts; vectors */
    }
    ot_model_close(model);
}

/* A layer that has no frozen matrix stays plain beside others that are encoded. */
static bool trains_matrices_of_layer_1(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "layers.1.") && !strstr(tensor->name, "norm") &&
           !strstr(tensor->name, "bias");
}

static void test_a_slab_of_vectors_is_plain(void **state) {
    (void)state;
    const struct ot_model_config config = odd_config();
    struct ot_model *model = open_base(&config, OT_BF16, trains_matrices_of_layer_1, OT_BASE_NF4);
    const struct ot_chain *chain = ot_model_chain(model);
    for (int s = 0; s < chain->n_slabs; s++)
        assert_int_equal(chain->slabs[s].encoded_bytes > 0,
                         strcmp(chain->slabs[s].name, "layer.0.frozen") == 0);
    ot_model_close(model);
}

/* Experts in the second layer alone. */
static struct ot_model_config config_with_experts(void) {
    struct ot_model_config c = tiny_config(2, false);
    c.family = OT_FAMILY_QWEN3_MOE;
    c.qk_norm = OT_QK_NORM_HEADS;
    c.n_experts = 5;
    c.top_experts = 2;
    c.expert_ffn = 24;
    c.dense_layers.bits[0] = 1;
    return c;
}

/* The bytes of an expert are its pieces of the encoded slab, and no other part lies there. */
static void check_place(const struct ot_slab_spec *slab, const struct ot_tensor *t,
                        const struct ot_encoded_entry *part) {
    int64_t bytes = ot_weight_layout(&part->weight).bytes, expert = t->parts ? part->matrix : t->expert;
    int found = 0;
    for (int a = 0; a < slab->n_pieces; a++) {
        int64_t first = slab->encoded[a].first * OT_ENCODED_UNIT,
                each = slab->encoded[a].each * OT_ENCODED_UNIT;
        if (part->at + bytes <= first || part->at >= first + slab->n_parts * each)
            continue;
        found++;
        assert_true(part->at >= first + expert * each && part->at + bytes <= first + (expert + 1) * each);
    }
    assert_int_equal(found, t->dims == 2 && ot_module_is_expert(t->module));
}

/* Parts cover the slab's parameters and its bytes in order. Each matrix is a part of its own: of experts too,
 * whose router alone stays plain, or with MXFP4 all that is no expert's. */
static void check_parts(const struct ot_model_config *config,
                        bool (*trains)(const void *, const struct ot_tensor *)) {
    for (int base = OT_BASE_BF16; base <= OT_BASE_MXFP4; base++) {
        struct ot_model *model = open_base(config, OT_F32, trains, (enum ot_base_type)base);
        const struct ot_chain *chain = ot_model_chain(model);
        int64_t tensor = 0;
        for (int s = 0; s < chain->n_slabs; s++) {
            struct ot_encoded_entry part = {0};
            int64_t params = 0, bytes = 0;
            while (ot_model_tensor(model, tensor)->slab < s)
                tensor++;
            for (int i = 0; ot_encoded_entry(model, s, i, &part); i++) {
                const struct ot_tensor *t = ot_model_tensor(model, tensor + part.tensor);
                int64_t matrices = t->parts > 0 ? t->parts : 1;
                bool is_matrix = t->slab == s && t->dims == 2, expert = ot_module_is_expert(t->module);
                bool is_plain = t->module == OT_MODULE_ROUTER ||
                                (base == OT_BASE_MXFP4 && config->n_experts > 0 && !expert);
                assert_true(part.first == params && part.at == bytes);
                assert_int_equal(part.weight.format, is_matrix && !is_plain
                                                         ? ot_base_format((enum ot_base_type)base, OT_F32)
                                                         : OT_WEIGHT_F32);
                assert_true(!is_matrix ||
                            (part.weight.rows == t->rows / matrices && part.weight.cols == t->cols));
                check_place(&chain->slabs[s], t, &part);
                params += part.weight.rows * part.weight.cols;
                bytes += ot_weight_layout(&part.weight).bytes;
            }
            assert_int_equal(bytes, chain->slabs[s].encoded_bytes);
            assert_int_equal(bytes % OT_ENCODED_ALIGN, 0);
            assert_true(bytes == 0 || params == chain->slabs[s].n_params);
        }
        ot_model_close(model);
    }
}

static void test_parts_cover_the_slab(void **state) {
    (void)state;
    const struct ot_model_config odd = odd_config(), experts = config_with_experts();
    const struct ot_model_config joined = config_with_joined_experts(24), plain = tiny_config(2, false);
    check_parts(&odd, trains_norms);
    check_parts(&experts, trains_norms);
    check_parts(&joined, trains_norms);
    check_parts(&plain, trains_norms_and_v);
}

/* The project's figures for a layer of Llama 7B: 4.5, 4.127, 4.25 and 8 bits a weight and little more. */
static void test_bytes_of_a_llama_7b(void **state) {
    (void)state;
    const struct ot_model_config *config = &ot_preset_find("llama-7b")->config;
    const double weights = 4 * 4096.0 * 4096 + 3 * 4096.0 * 11008;
    const double bits[] = {
        [OT_BASE_INT8] = 8, [OT_BASE_NF4] = 4.5, [OT_BASE_NF4_DOUBLE] = 4.127, [OT_BASE_MXFP4] = 4.25};
    for (int base = OT_BASE_INT8; base <= OT_BASE_MXFP4; base++) {
        struct ot_model *model = open_base(config, OT_BF16, trains_nothing, (enum ot_base_type)base);
        double bytes = (double)ot_model_chain(model)->slabs[1].encoded_bytes;
        assert_true(bytes >= weights * bits[base] / 8 * 0.9999 && bytes <= weights * bits[base] / 8 * 1.002);
        /* The encoder holds one matrix of them. */
        assert_true((double)ot_slab_encoder_bytes(model) < 0.3 * bytes);
        ot_model_close(model);
    }
}

/* ---- encoding ---- */

struct taken {
    char *bytes;
    int64_t next; /* unit */
    int calls;
    int fail_at; /* call; 0: none */
};

static int take_part(void *context, int slab, int64_t first, int64_t n, const void *bytes) {
    struct taken *taken = context;
    (void)slab;
    if (++taken->calls == taken->fail_at)
        return ot_fail(OT_E_IO, "the disk is full");
    assert_int_equal(first, taken->next);
    memcpy(taken->bytes + first * OT_ENCODED_UNIT, bytes, (size_t)n * OT_ENCODED_UNIT);
    taken->next += n;
    return 0;
}

/* Values with every sign and size; in vectors also ones that matrices cannot have. */
static float *values_of(const struct ot_model *model, int slab) {
    return weight_formula(ot_model_chain(model)->slabs[slab].n_params);
}

/* Each part as ot_weight_encode makes it of the whole part at once. */
static void check_against_whole(const struct ot_model *model, int slab, const float *values, const char *got,
                                struct ot_pool *pool) {
    struct ot_encoded_entry part;
    for (int i = 0; ot_encoded_entry(model, slab, i, &part); i++) {
        void *want = weight_encoded(&part.weight, OT_F32, values + part.first, pool, 0x5a);
        assert_memory_equal(got + part.at, want, (size_t)ot_weight_layout(&part.weight).bytes);
        free(want);
    }
}

/* However the values are cut: pieces of one row, of one value, across parts. */
static void check_pieces(const struct ot_model_config *config) {
    const int slab_of_layer = 2; /* the second layer's */
    for (int base = OT_BASE_BF16; base <= OT_BASE_MXFP4; base++)
        for (int threads = 1; threads <= 3; threads += 2) {
            struct ot_model *model = open_base(config, OT_F32, trains_edges, (enum ot_base_type)base);
            const struct ot_slab_spec *slab = &ot_model_chain(model)->slabs[slab_of_layer];
            struct taken taken = {.bytes = malloc((size_t)slab->encoded_bytes)};
            struct ot_slab_encoder *encoder;
            struct ot_pool *pool;
            float *values = values_of(model, slab_of_layer);
            assert_true(taken.bytes && slab->encoded_bytes > 0);
            check_ok(ot_pool_open(threads, "encode", &pool));
            check_ok(ot_slab_encoder_open(model, pool, take_part, &taken, &encoder));
            static const int64_t pieces[] = {1 << 20, 1, 40, 63, 64, 65, 1000};
            for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
                memset(taken.bytes, 0xa5, (size_t)slab->encoded_bytes);
                taken.next = 0;
                for (int64_t at = 0, n; at < slab->n_params; at += n) {
                    n = slab->n_params - at < pieces[p] ? slab->n_params - at : pieces[p];
                    check_ok(ot_slab_encoder_put(encoder, slab_of_layer, at, n, values + at));
                }
                assert_int_equal(taken.next * OT_ENCODED_UNIT, slab->encoded_bytes);
                check_against_whole(model, slab_of_layer, values, taken.bytes, pool);
            }
            ot_slab_encoder_close(encoder);
            ot_pool_close(pool);
            free(taken.bytes);
            free(values);
            ot_model_close(model);
        }
}

static void test_pieces_change_no_byte(void **state) {
    (void)state;
    const struct ot_model_config odd = odd_config(), experts = config_with_experts();
    const struct ot_model_config joined = config_with_joined_experts(21); /* no multiple of a block */
    check_pieces(&odd);
    check_pieces(&experts);
    check_pieces(&joined);
}

static int give_values(void *context, const struct ot_tensor *weight, int64_t first, int64_t n,
                       float *values) {
    const float *slab = context;
    memcpy(values, slab + weight->first + first, (size_t)n * sizeof *values);
    return 0;
}

/* Row norms of a weight are those of the values with which the run computes. The MLP has more rows than a
 * piece. */
static void test_norms_of_rows(void **state) {
    (void)state;
    enum { LAYER = 1, MOST_ROWS = 300 };
    struct ot_model_config config = odd_config();
    config.ffn = MOST_ROWS;
    struct ot_pool *pool;
    check_ok(ot_pool_open(1, "norms", &pool));
    for (int base = OT_BASE_AUTO; base <= OT_BASE_MXFP4; base++) {
        struct ot_model *model = open_base(&config, OT_F32, trains_nothing, (enum ot_base_type)base);
        float *values = values_of(model, LAYER), want[MOST_ROWS], got[MOST_ROWS];
        int checked = 0;
        for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
            const struct ot_tensor *t = ot_model_tensor(model, i);
            struct ot_encoded_entry part;
            if (t->slab != LAYER || t->dims != 2)
                continue;
            float *used = malloc((size_t)(t->rows * t->cols) * sizeof *used);
            assert_non_null(used);
            check_ok(give_values(values, t, 0, t->rows * t->cols, used));
            for (int p = 0; ot_encoded_entry(model, LAYER, p, &part); p++)
                if (part.first == t->first) {
                    void *bytes = weight_encoded(&part.weight, OT_F32, used, pool, 0);
                    ot_weight_decode(&part.weight, bytes, OT_F32, 0, t->rows * t->cols, used);
                    free(bytes);
                }
            ot_lora_row_norms(used, t->rows, t->cols, want);
            check_ok(ot_model_row_norms(model, t, give_values, values, got));
            assert_memory_equal(got, want, (size_t)t->rows * sizeof *got);
            free(used);
            checked++;
        }
        assert_int_equal(checked, 7);
        free(values);
        ot_model_close(model);
    }
    ot_pool_close(pool);
}

static void test_wrong_values_are_refused(void **state) {
    (void)state;
    const struct ot_model_config config = odd_config();
    struct ot_model *model = open_base(&config, OT_BF16, trains_edges, OT_BASE_NF4);
    const struct ot_slab_spec *slab = &ot_model_chain(model)->slabs[1];
    struct taken taken = {.bytes = malloc((size_t)slab->encoded_bytes)};
    struct ot_slab_encoder *e;
    struct ot_pool *pool;
    float *values = values_of(model, 1);
    check_ok(ot_pool_open(1, "encode", &pool));
    check_ok(ot_slab_encoder_open(model, pool, take_part, &taken, &e));
    check_fails(ot_slab_encoder_put(e, 1, 64, 64, values), OT_E_INTERNAL, "does not follow");
    check_ok(ot_slab_encoder_put(e, 1, 0, 64, values));
    check_fails(ot_slab_encoder_put(e, 1, 128, 64, values), OT_E_INTERNAL, "does not follow");
    check_fails(ot_slab_encoder_put(e, 2, 64, 64, values), OT_E_INTERNAL, "does not follow");
    check_fails(ot_slab_encoder_put(e, 0, 0, 64, values), OT_E_INTERNAL, "no encoded part");
    struct ot_encoded_entry part;
    assert_true(ot_encoded_entry(model, 1, 2, &part));
    values[part.first + 3 * 40 + 7] = NAN;
    check_fails(ot_slab_encoder_put(e, 1, 0, slab->n_params, values), OT_E_INPUT,
                "slab 'layer.0.frozen', matrix 3: the weight at row 3, column 7 is not a finite number");
    values[part.first + 3 * 40 + 7] = 0;
    taken.next = 0;
    taken.fail_at = taken.calls + 2;
    check_fails(ot_slab_encoder_put(e, 1, 0, slab->n_params, values), OT_E_IO, "the disk is full");
    taken.next = taken.fail_at = 0;
    check_ok(ot_slab_encoder_put(e, 1, 0, slab->n_params, values)); /* a new begin clears everything */
    check_against_whole(model, 1, values, taken.bytes, pool);
    ot_slab_encoder_close(e);
    ot_pool_close(pool);
    free(taken.bytes);
    free(values);
    ot_model_close(model);
}

/* A matrix of more than 2^42 weights cannot be encoded. */
static void test_too_large_a_matrix(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(1, false);
    const struct ot_model_setup parts = {.trains = trains_nothing, .base = OT_BASE_INT8};
    struct ot_model *model;
    config.hidden = 1 << 20;
    config.ffn = 1 << 23;
    check_fails(ot_model_open_setup(&config, OT_BF16, 8, &parts, &model), OT_E_INPUT,
                "slab 'layer.0.frozen': a matrix of 8388608 x 1048576 is too large");
    assert_null(model);
}

/* ---- decoding ---- */

enum { DECODED_SLAB = 2 }; /* the second layer's */

/* What the slab decodes to, by the reference; 0xff where it is not decoded. Fills what need not be there of
 * `encoded` with 0xff too. */
static void expect(const struct ot_model *model, const struct ot_slab_decoding *what, char *encoded,
                   char *want) {
    const struct ot_chain *chain = ot_model_chain(model);
    const struct ot_slab_spec *slab = &chain->slabs[DECODED_SLAB];
    size_t item = ot_dtype_bytes(chain->dtype);
    struct ot_encoded_entry part;
    int64_t tensor = 0;
    while (ot_model_tensor(model, tensor)->slab < DECODED_SLAB)
        tensor++;
    memset(want, 0xff, (size_t)slab->n_params * item);
    for (int i = 0; ot_encoded_entry(model, DECODED_SLAB, i, &part); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, tensor + part.tensor);
        int64_t expert = t->parts ? part.matrix : t->expert;
        bool is_piece = t->dims == 2 && ot_module_is_expert(t->module);
        if (is_piece ? what->parts && (!what->used || what->used[expert]) : what->dense)
            ot_weight_decode(&part.weight, encoded + part.at, chain->dtype, 0,
                             part.weight.rows * part.weight.cols, want + (size_t)part.first * item);
        else
            memset(encoded + part.at, 0xff, (size_t)ot_weight_layout(&part.weight).bytes);
    }
}

static void check_decoding(const struct ot_model *model, struct ot_slab_decoding what) {
    const struct ot_chain *chain = ot_model_chain(model);
    const struct ot_slab_spec *slab = &chain->slabs[DECODED_SLAB];
    size_t bytes = (size_t)slab->n_params * ot_dtype_bytes(chain->dtype);
    struct ot_device *device;
    struct ot_lane *lane;
    void *on_device;
    float *values = values_of(model, DECODED_SLAB);
    char *encoded = tiny_encoded(model, DECODED_SLAB, values), *got = malloc(bytes), *want = malloc(bytes);
    assert_true(got && want);
    expect(model, &what, encoded, want);
    tiny_open_device((size_t)slab->encoded_bytes + bytes + (1 << 20), 1, 0, &device);
    check_ok(ot_lane_open(device, "decode", &lane));
    check_ok(ot_device_alloc(device, (size_t)slab->encoded_bytes, "encoded", &on_device));
    check_ok(ot_device_alloc(device, bytes, "decoded", &what.weights));
    ot_lane_copy(lane, OT_COPY_H2D, on_device, encoded, (size_t)slab->encoded_bytes);
    ot_lane_fill(lane, what.weights, 0xff, bytes);
    what.encoded = on_device;
    chain->decode(chain->context, DECODED_SLAB, lane, &what);
    ot_lane_copy(lane, OT_COPY_D2H, got, what.weights, bytes);
    check_ok(ot_lane_sync(lane));
    assert_memory_equal(got, want, bytes);
    ot_lane_close(lane);
    ot_device_free(device, on_device);
    ot_device_free(device, what.weights);
    ot_device_close(device);
    free(values);
    free(encoded);
    free(got);
    free(want);
}

/* The chain's decoding on the device is the reference's, part by part: of all parts, or of some alone. Then
 * it writes no other weight, and the bytes of the others may be anything. */
static void test_chain_decodes(void **state) {
    (void)state;
    const struct ot_model_config configs[] = {odd_config(), config_with_experts(),
                                              config_with_joined_experts(24)};
    static const int32_t used[] = {0, 1, 1, 0, 1};
    const struct ot_slab_decoding forms[] = {
        {NULL, NULL, true, true, NULL},
        {NULL, NULL, true, false, NULL},
        {NULL, NULL, false, true, used},
        {NULL, NULL, true, true, used},
    };
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            for (int base = OT_BASE_BF16; base <= OT_BASE_MXFP4; base++) {
                struct ot_model *model =
                    open_base(&configs[c], (enum ot_dtype)dtype, trains_edges, (enum ot_base_type)base);
                bool encoded = ot_model_chain(model)->slabs[DECODED_SLAB].encoded_bytes > 0;
                for (size_t f = 0; f < (c == 0 ? 1 : sizeof forms / sizeof *forms) && encoded; f++)
                    check_decoding(model, forms[f]);
                ot_model_close(model);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4_is_of_experts),
        cmocka_unit_test(test_which_slabs_are_encoded),
        cmocka_unit_test(test_a_slab_of_vectors_is_plain),
        cmocka_unit_test(test_parts_cover_the_slab),
        cmocka_unit_test(test_bytes_of_a_llama_7b),
        cmocka_unit_test(test_pieces_change_no_byte),
        cmocka_unit_test(test_norms_of_rows),
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_too_large_a_matrix),
        cmocka_unit_test(test_chain_decodes),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
