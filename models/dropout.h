/* The dropouts that a model's config names (config.h), if a run applies them (struct ot_regular). Each is in
 * the same place as in transformers:
 *
 *     EMBED        the embedding, behind learned positions (GPT-2, CodeGen, T5)
 *     ATTENTION    attention's weights, behind the softmax (all families; Falcon: with ALiBi)
 *     O, MLP       what a branch adds to x (GPT-2, BLOOM, Falcon, CodeGen, Phi-3, T5). Parallel branches of
 *                  Falcon share the dropped elements, because transformers drops their sum
 *     INNER        the MLP's inner activation (T5)
 *     ENCODER_OUT  the encoder's output, behind its norm (T5); HEAD: the decoder's
 *
 * Cross attention has sites of its own. The random words of an element depend on the run's seed, the step,
 * the micro-batch in the step, the layer, the site, and the element's place in the micro-batch: they are the
 * same in forward, in recomputation and in backward, with every plan and any number of ranks. No mask is
 * stored.
 *
 * ROUNDING. A branch's result is rounded to the compute dtype, then dropped and added to x in fp32, as in
 * transformers; without dropout the product adds x (decoder_layer.c).
 *
 * The table of work (decoder_work.c) does not count these passes. Private to models/.
 */
#ifndef OT_MODELS_DROPOUT_H
#define OT_MODELS_DROPOUT_H

#include "models/decoder.h"

enum ot_drop_site {
    OT_DROP_EMBED,
    OT_DROP_ENCODER_OUT,
    OT_DROP_HEAD,
    OT_DROP_ATTENTION, /* from here on: of a layer */
    OT_DROP_CROSS_ATTENTION,
    OT_DROP_O,
    OT_DROP_CROSS_O,
    OT_DROP_MLP,
    OT_DROP_INNER,
    OT_DROP_SITES
};

/* The share of the elements that a pass drops at a site; 0: none. */
float ot_drop_share(const struct ot_model *model, const struct ot_block_run *run, enum ot_drop_site site);
/* The same of any training pass of the model. */
float ot_drop_share_of(const struct ot_model *model, enum ot_drop_site site);
/* Dropout of attention's weights, as the attention ops take it. */
struct ot_weight_drop ot_drop_weights(const struct ot_model *model, const struct ot_block_run *run,
                                      int64_t layer, enum ot_drop_site site);

/* Rows [first_row, first_row + rows) of an array with a row of `cols` for each token of the micro-batch.
 * layer: 0 for sites of no layer. */
struct ot_drop_rows {
    enum ot_drop_site site;
    int64_t layer, first_row, rows, cols;
};
/* out = (addend +) dropout(x), if the pass drops at the site; else nothing. addend: NULL, or of x's shape.
 * out may be x. Backward is the same without addend. Returns true if it drops. */
bool ot_drop(const struct ot_model *model, const struct ot_block_run *run, const struct ot_drop_rows *what,
             const void *x, const void *addend, void *out);

#endif
