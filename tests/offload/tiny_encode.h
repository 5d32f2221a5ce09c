/* Encoded frozen slabs for tests of the engine: those of a base type (models/encoded.h), and an encoding of
 * all frozen slabs that nobody but this file knows: in another dtype (bf16 in fp32, otherwise fp32, which
 * loses nothing), behind a page of rubbish. */
#ifndef OT_TESTS_TINY_ENCODE_H
#define OT_TESTS_TINY_ENCODE_H

#include "models/model.h"
#include "offload/block.h"

/* Changes the model's own chain, so that all frozen slabs have the unknown encoding: every user of the
 * model then sees the same slabs. */
void tiny_encode_slabs(struct ot_model *model);
/* The slab as blocks see it: decoded, so that its parts are those of parameters. */
static inline struct ot_slab_spec tiny_decoded_slab(const struct ot_slab_spec *slab) {
    struct ot_slab_spec decoded = *slab;
    decoded.encoded_bytes = 0;
    return decoded;
}
/* The bytes of an encoded slab of the model, in either encoding, with these values. To be freed with free. */
char *tiny_encoded(const struct ot_model *model, int slab, const float *values);
/* Replaces the values of a slab that a base type encodes by those that blocks compute with: encoded, and
 * decoded to the device's dtype. */
void tiny_decode(const struct ot_model *model, int slab, float *values);

#endif
