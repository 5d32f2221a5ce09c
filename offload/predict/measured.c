#include "offload/predict/measured.h"

#include "src/base/error.h"

/* The first simulation finds the factors of lanes that work alone. The others correct the effects of lanes on
 * each other. Three bring each plan of the tests within 3 %, and most of them within 0.1 %. */
enum { SIMULATIONS = 3 };

static void correct(const struct ot_prediction *predicted, const double busy[OT_LANE_COUNT],
                    struct ot_costs *costs) {
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        double before = costs->slower[l] > 0 ? costs->slower[l] : 1;
        if (busy[l] > 0 && predicted->busy[l] > 0)
            costs->slower[l] = before * busy[l] / predicted->busy[l];
    }
}

int ot_predict_measured(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_prediction *first, const double busy[OT_LANE_COUNT],
                        struct ot_costs *costs, struct ot_prediction *out) {
    *out = *first;
    for (int i = 0; i < SIMULATIONS; i++) {
        correct(out, busy, costs);
        OT_TRY(ot_simulate_plan(chain, plan, costs, out));
    }
    return 0;
}
