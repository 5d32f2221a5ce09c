#include "tests/offload/tiny_encode.h"

#include <stdlib.h>
#include <string.h>

#include "models/encoded.h"
#include "offload/plan/used_parts.h"
#include "src/base/thread.h"
#include "tests/support/check.h"

/* ---- the unknown encoding ---- */

enum { RUBBISH_BYTES = OT_ENCODED_ALIGN };

static enum ot_dtype unknown_dtype(enum ot_dtype dtype) {
    return dtype == OT_F32 ? OT_BF16 : OT_F32;
}

static enum ot_fetched fetched_of(const struct ot_slab_decoding *what) {
    if (!what->parts)
        return OT_FETCH_DENSE;
    return !what->used ? OT_FETCH_ALL : what->dense ? OT_FETCH_DENSE_AND_USED : OT_FETCH_USED;
}

static void decode(const void *context, int slab, struct ot_lane *lane, const struct ot_slab_decoding *what) {
    const struct ot_chain *chain = ot_model_chain(context);
    enum ot_dtype from = unknown_dtype(chain->dtype);
    const struct ot_slab_spec decoded = tiny_decoded_slab(&chain->slabs[slab]);
    struct ot_run_walk walk = ot_run_walk(&decoded, fetched_of(what), what->used);
    for (int64_t first, n; ot_run_next(&walk, &first, &n);)
        ot_device_ops(ot_lane_device(lane))
            ->cast(lane, &(struct ot_cast){.from = from,
                                           .to = chain->dtype,
                                           .n = n,
                                           .src = (const char *)what->encoded + RUBBISH_BYTES +
                                                  (size_t)first * ot_dtype_bytes(from),
                                           .dst = (char *)what->weights +
                                                  (size_t)first * ot_dtype_bytes(chain->dtype)});
}

/* Of the pieces of parts too. item: bytes of an encoded parameter. */
static void encode_slab(struct ot_slab_spec *slab, int64_t item) {
    slab->encoded_bytes = RUBBISH_BYTES + slab->n_params * item;
    for (int a = 0; a < slab->n_pieces; a++)
        slab->encoded[a] =
            (struct ot_piece_array){(RUBBISH_BYTES + slab->pieces[a].first * item) / OT_ENCODED_UNIT,
                                    slab->pieces[a].each * item / OT_ENCODED_UNIT};
}

void tiny_encode_slabs(struct ot_model *model) {
    struct ot_chain *chain = (struct ot_chain *)ot_model_chain(model);
    struct ot_slab_spec *slabs = (struct ot_slab_spec *)chain->slabs;
    int64_t item = (int64_t)ot_dtype_bytes(unknown_dtype(chain->dtype));
    for (int s = 0; s < chain->n_slabs; s++)
        if (slabs[s].frozen)
            encode_slab(&slabs[s], item);
    chain->decode = decode;
}

/* ---- base types ---- */

struct copied {
    char *to;
    int64_t units;
};

static int copy_part(void *context, int slab, int64_t first, int64_t n, const void *bytes) {
    struct copied *copied = context;
    (void)slab;
    memcpy(copied->to + first * OT_ENCODED_UNIT, bytes, (size_t)n * OT_ENCODED_UNIT);
    copied->units += n;
    return 0;
}

char *tiny_encoded(const struct ot_model *model, int slab, const float *values) {
    const struct ot_chain *chain = ot_model_chain(model);
    const struct ot_slab_spec *spec = &chain->slabs[slab];
    struct copied copied = {.to = malloc((size_t)spec->encoded_bytes)};
    assert_non_null(copied.to);
    memset(copied.to, 0xa5, (size_t)spec->encoded_bytes);
    if (chain->decode == decode) {
        for (int64_t i = 0; i < spec->n_params; i++)
            ot_dtype_write(unknown_dtype(chain->dtype), copied.to + RUBBISH_BYTES, i, values[i]);
        return copied.to;
    }
    struct ot_pool *pool;
    struct ot_slab_encoder *encoder;
    check_ok(ot_pool_open(1, "encode", &pool));
    check_ok(ot_slab_encoder_open(model, pool, copy_part, &copied, &encoder));
    check_ok(ot_slab_encoder_put(encoder, slab, 0, spec->n_params, values));
    assert_int_equal(copied.units * OT_ENCODED_UNIT, spec->encoded_bytes);
    ot_slab_encoder_close(encoder);
    ot_pool_close(pool);
    return copied.to;
}

void tiny_decode(const struct ot_model *model, int slab, float *values) {
    enum ot_dtype dtype = ot_model_chain(model)->dtype;
    int64_t n = ot_model_chain(model)->slabs[slab].n_params;
    size_t item = ot_dtype_bytes(dtype);
    struct ot_encoded_entry part;
    char *encoded = tiny_encoded(model, slab, values), *decoded = malloc((size_t)n * item);
    assert_non_null(decoded);
    for (int i = 0; ot_encoded_entry(model, slab, i, &part); i++)
        ot_weight_decode(&part.weight, encoded + part.at, dtype, 0, part.weight.rows * part.weight.cols,
                         decoded + (size_t)part.first * item);
    for (int64_t i = 0; i < n; i++)
        values[i] = ot_dtype_read(dtype, decoded, i);
    free(encoded);
    free(decoded);
}
