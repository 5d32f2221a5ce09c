/* Changes several choices of the best plan at a time. A move of one choice often gains nothing alone: less
 * state on the device is worse, and more kept activations do not fit, but both together may be better. */
#include <math.h>

#include "offload/plan/rounds.h"
#include "offload/predict/planner_state.h"
#include "src/base/error.h"
#include "src/base/random.h"

/* A number in [0, 1), the same for the same search. */
static double draw(uint64_t number, uint64_t which) {
    return ot_random_unit(7, number, which);
}

/* A step up or down, of 1/32 to 1/2. */
static double draw_step(uint64_t number, uint64_t which) {
    double unit = draw(number, which);
    double size = exp2(-1 - 4 * draw(number, which + 50));
    return unit < 0.5 ? -size : size;
}

static double clamp(double share) {
    return fmin(fmax(share, 0), 1);
}

/* Changes one choice that the user has left open. */
static void change(const struct ot_search *s, int choice, uint64_t number, uint64_t which,
                   struct ot_plan_request *request) {
    const struct ot_plan_request *given = s->given;
    double step = draw_step(number, which), gpu, stream;
    bool keeps = given->keep == OT_KEEP_CHOSEN;
    switch (choice) {
    case 0:
    case 1:
        ot_planner_get_fractions(s, &gpu, &stream);
        if (ot_planner_may_split(s))
            ot_planner_set_fractions(s, choice == 0 ? gpu + step / 2 : gpu,
                                     choice == 0 ? stream : stream + step, request);
        break;
    case 2:
        request->kept_off = keeps && given->kept != OT_HOME_GPU ? clamp(request->kept_off + step) : 0;
        break;
    case 3:
        request->kept_on = keeps ? clamp(request->kept_on + step) : 0;
        break;
    case 4:
        request->streamed = given->weights == OT_HOME_AUTO ? clamp(request->streamed + step) : 0;
        break;
    case 5:
        request->slots = given->slots ? given->slots : 2 + (int)(draw(number, which + 100) * 4);
        break;
    case 6:
        request->kept_level =
            keeps ? (enum ot_keep_level)(1 + (int)(draw(number, which + 100) * 3)) : request->kept_level;
        request->keep = given->keep;
        break;
    case 7:
        if (given->activations == OT_HOME_AUTO)
            request->activations = draw(number, which + 100) < 0.5 ? OT_HOME_GPU : OT_HOME_HOST;
        break;
    default:
        if (given->rounds == 0)
            request->rounds = (int)fmax(1, lround(ot_plan_rounds(&s->out->plan) * exp2(3 * step)));
        break;
    }
}

int ot_planner_shake(struct ot_search *s) {
    enum { CHOICES = 9 };
    int idle = 0;
    for (uint64_t number = 0; number < MOST_DRAWS && idle < IDLE_DRAWS && s->effort > 0; number++) {
        struct ot_plan_request request = s->out->forced;
        int n = 1 + (int)(draw(number, 0) * 3), rc;
        if (!ot_planner_may_gain(s))
            return 0;
        for (int i = 0; i < n; i++)
            change(s, (int)(draw(number, 1 + (uint64_t)i) * CHOICES), number, 10 + (uint64_t)i, &request);
        OT_TRY(rc = ot_planner_try(s, &request, 0));
        idle = rc > 0 ? 0 : idle + 1;
    }
    return 0;
}
