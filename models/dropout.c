#include "models/dropout.h"

#include "src/base/random.h"

float ot_drop_share_of(const struct ot_model *model, enum ot_drop_site site) {
    const struct ot_model_config *c = &model->config;
    bool pairs = ot_model_has_pairs(c);
    const float shares[OT_DROP_SITES] = {
        [OT_DROP_EMBED] = c->embed_drop,
        [OT_DROP_ENCODER_OUT] = pairs ? c->mlp_drop : 0,
        [OT_DROP_HEAD] = pairs ? c->mlp_drop : 0,
        [OT_DROP_ATTENTION] = c->attention_drop,
        [OT_DROP_CROSS_ATTENTION] = c->attention_drop,
        [OT_DROP_O] = c->o_drop,
        [OT_DROP_CROSS_O] = c->o_drop,
        [OT_DROP_MLP] = c->mlp_drop,
        [OT_DROP_INNER] = pairs ? c->mlp_drop : 0,
    };
    return model->regular.dropout ? shares[site] : 0;
}

float ot_drop_share(const struct ot_model *model, const struct ot_block_run *run, enum ot_drop_site site) {
    return run->pass == OT_PASS_TRAIN ? ot_drop_share_of(model, site) : 0;
}

/* Number 0 of these streams is NEFTune's. */
static struct ot_state_noise noise_of(const struct ot_model *model, const struct ot_block_run *run,
                                      int64_t layer, enum ot_drop_site site) {
    const struct ot_model_config *c = &model->config;
    if (site == OT_DROP_MLP && c->family == OT_FAMILY_FALCON && c->residual != OT_SEQUENTIAL)
        site = OT_DROP_O;
    uint64_t number = 1 + (uint64_t)layer * OT_DROP_SITES + (uint64_t)site;
    return ot_state_noise(run->random.seed, ot_random_stream(OT_RANDOM_REGULAR, run->random.stream, number));
}

struct ot_weight_drop ot_drop_weights(const struct ot_model *model, const struct ot_block_run *run,
                                      int64_t layer, enum ot_drop_site site) {
    return (struct ot_weight_drop){ot_drop_share(model, run, site), noise_of(model, run, layer, site)};
}

bool ot_drop(const struct ot_model *model, const struct ot_block_run *run, const struct ot_drop_rows *what,
             const void *x, const void *addend, void *out) {
    float share = ot_drop_share(model, run, what->site);
    if (share == 0)
        return false;
    const struct ot_dropout op = {
        .dtype = run->dtype,
        .n = what->rows * what->cols,
        .first = what->first_row * what->cols,
        .drop = share,
        .noise = noise_of(model, run, what->layer, what->site),
        .x = x,
        .addend = addend,
        .out = out,
    };
    ot_run_ops(run)->dropout(run->lane, &op);
    return true;
}
