#include "src/session/plan_request.h"

#include <string.h>

struct ot_plan_request ot_plan_request_of(const struct ot_options *o) {
    struct ot_plan_request request = {
        .clip = o->clip > 0,
        .weights = o->home.weights,
        .state = o->home.state,
        .activations = o->home.activations,
        .slots = (int)o->slots,
        .recompute = o->recompute == OT_CHOICE_RECOMPUTE_AUTO ? -1 : o->recompute == OT_CHOICE_RECOMPUTE_ALL,
        .order = (enum ot_order)o->order,
    };
    memcpy(request.shares, o->optimizer_engine.share, sizeof request.shares);
    return request;
}
