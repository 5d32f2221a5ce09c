#include "src/session/plan_request.h"

#include <string.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"

static int keep_of(const struct ot_options *o) {
    static const int levels[] = {[OT_CHOICE_RECOMPUTE_AUTO] = OT_KEEP_CHOSEN,
                                 [OT_CHOICE_RECOMPUTE_ALL] = OT_KEEP_NONE,
                                 [OT_CHOICE_RECOMPUTE_PRODUCTS] = OT_KEEP_ATTENTION,
                                 [OT_CHOICE_RECOMPUTE_ELEMENTWISE] = OT_KEEP_PRODUCTS,
                                 [OT_CHOICE_RECOMPUTE_NONE] = OT_KEEP_ALL};
    return levels[o->recompute];
}

struct ot_plan_request ot_plan_request_of(const struct ot_options *o) {
    struct ot_plan_request request = {
        .clip = o->clip > 0,
        .weights = o->home.weights,
        .state = o->home.state,
        .grads = o->home.grads,
        .sums = o->home.sums,
        .activations = o->home.activations,
        .slots = (int)o->slots,
        .keep = keep_of(o),
        .kept = o->home.kept,
        .rounds = (int)o->rounds,
        .shadows = OT_SHADOWS_CHOSEN,
        .fetch = (enum ot_fetch_choice)o->fetch_experts,
    };
    if (ot_options_given(o, "shadow")) {
        request.shadows = o->shadow > 0;
        request.shadow_bytes = (size_t)o->shadow;
    }
    memcpy(request.fractions, o->optimizer_engine.share, sizeof request.fractions);
    return request;
}

struct ot_selection ot_plan_request_selection(const struct ot_options *o) {
    bool trains = o->command != OT_COMMAND_EVAL && o->command != OT_COMMAND_GENERATE;
    bool selects = o->train || o->freeze || o->lora;
    return (struct ot_selection){.train = o->train,
                                 .freeze = o->freeze,
                                 .lora = o->lora,
                                 .trains_nothing = !trains && !selects && o->base_type != OT_BASE_AUTO,
                                 .base = (enum ot_base_type)o->base_type};
}

/* Checks --base-type against the dtype of the run. */
static int check_base(const struct ot_options *o, enum ot_dtype dtype) {
    enum ot_weight_format base = ot_base_format((enum ot_base_type)o->base_type, dtype);
    bool smaller = !ot_weight_is_plain(base) || ot_dtype_bytes((enum ot_dtype)base) < ot_dtype_bytes(dtype);
    return smaller || base == (enum ot_weight_format)dtype
               ? 0
               : ot_fail(OT_E_USAGE,
                         "--base-type %s: weights are computed in %s here, which is no larger; leave out "
                         "--base-type, or add --dtype fp32",
                         ot_weight_format_name(base), ot_dtype_name(dtype));
}

/* Refuses a choice of --fetch-experts that changes nothing. */
static int check_experts(const struct ot_options *o, const struct ot_model *model) {
    if (o->fetch_experts != OT_FETCH_CHOSEN && ot_model_get_config(model)->n_experts == 0)
        return ot_fail(OT_E_USAGE, "--fetch-experts has no effect here: the model has no experts");
    return 0;
}

int ot_plan_request_check_fetch(const struct ot_options *o, const struct ot_chain *chain,
                                const struct ot_plan *plan) {
    static const char *const cures[OT_WHOLE_CAUSES] = {
        [OT_WHOLE_GATHERED] =
            "ranks gather whole layers from each other; add --share-weights yes or --shard none",
        [OT_WHOLE_STREAMED] =
            "the stream engine updates a part of every layer of experts; add --optimizer-engine cpu",
        [OT_WHOLE_KEPT] = "what layers keep for backward leaves the GPU through fewer buffers than there are "
                          "micro-batches; add --recompute all",
    };
    enum ot_whole_cause cause = ot_plan_whole_cause(chain, plan);
    return o->fetch_experts == OT_FETCH_USED_PARTS && cause != OT_WHOLE_NOT
               ? ot_fail(OT_E_USAGE,
                         "--fetch-experts used has no effect here: %s, or leave out --fetch-experts",
                         cures[cause])
               : 0;
}

/* Refuses a --base-type that changes nothing, because no matrix of a layer is frozen. The patterns of a run
 * that is resumed are known only now, so this is no rule of the options. */
static int check_effect(const struct ot_options *o, const struct ot_model *model) {
    enum ot_dtype dtype = ot_model_chain(model)->dtype;
    bool same = ot_base_format((enum ot_base_type)o->base_type, dtype) == (enum ot_weight_format)dtype;
    if (o->base_type == OT_BASE_AUTO)
        return 0;
    if (!ot_model_has_frozen(model))
        return ot_fail(OT_E_USAGE,
                       "--base-type is the format of frozen weights, and nothing is frozen here; add "
                       "--lora, --train WHAT or --freeze WHAT");
    return same || ot_model_has_encoded(model)
               ? 0
               : ot_fail(OT_E_USAGE, "--base-type has no effect here: it is the format of the layers' frozen "
                                     "matrices, and --train and --freeze leave none frozen");
}

int ot_plan_request_model(const struct ot_options *o, const struct ot_model_config *config,
                          enum ot_dtype dtype, int64_t max_position, struct ot_model **out) {
    const struct ot_selection selection = ot_plan_request_selection(o);
    OT_TRY(check_base(o, dtype));
    if (o->master_weights == OT_MASTERS_NONE && dtype != OT_BF16)
        return ot_fail(
            OT_E_USAGE,
            "--master-weights none: weights are %s here, and only bf16 weights are trained without "
            "masters; add --dtype bf16, or leave out --master-weights",
            ot_dtype_name(dtype));
    OT_TRY(ot_model_open_selected(config, dtype, max_position, &selection, out));
    int rc = check_effect(o, *out);
    if (rc >= 0)
        rc = check_experts(o, *out);
    if (rc < 0) {
        ot_model_close(*out);
        *out = NULL;
        return rc;
    }
    ot_model_set_state(*out, (enum ot_state_format)o->state, (enum ot_masters)o->master_weights);
    return 0;
}

enum ot_shard_mode ot_plan_request_mode(const struct ot_options *o) {
    static const enum ot_shard_mode modes[] = {[OT_CHOICE_SHARD_AUTO] = OT_SHARD_FULL,
                                               [OT_CHOICE_SHARD_NONE] = OT_SHARD_NONE,
                                               [OT_CHOICE_SHARD_STATE] = OT_SHARD_STATE,
                                               [OT_CHOICE_SHARD_FULL] = OT_SHARD_FULL};
    return modes[o->shard];
}

bool ot_plan_request_may_one_copy(const struct ot_options *o) {
    return o->share_weights == OT_CHOICE_SHARE_WEIGHTS_AUTO && ot_plan_request_mode(o) == OT_SHARD_FULL &&
           (o->home.weights == OT_HOME_AUTO || o->home.weights == OT_HOME_HOST);
}
