#include "src/session/plan_cure.h"

#include <stdio.h>
#include <string.h>

#include "offload/block.h"
#include "src/base/error.h"

enum { MOST_CURES = 3, CURE_BYTES = 160 };
static const size_t MIB = (size_t)1 << 20, GIB = (size_t)1 << 30;

struct cures {
    const struct ot_cure *about;
    int n;
    char text[MOST_CURES][CURE_BYTES];
};

/* ---- trying ---- */

/* Whether there is a plan; used[T]: what it takes of tier T, where not NULL. */
static bool fits(const struct ot_plan_request *request, size_t used[OT_TIER_COUNT]) {
    struct ot_plan plan;
    if (ot_plan_make(request, &plan) < 0)
        return false;
    for (int t = 0; used && t < OT_TIER_COUNT; t++)
        used[t] = ot_ledger_total(&plan.ledger, (enum ot_tier)t);
    ot_plan_free(&plan);
    return true;
}

static char *next(struct cures *c) {
    return c->n < MOST_CURES ? c->text[c->n++] : NULL;
}

/* "63G", "512M": as an option takes it, rounded up. */
static const char *size_option(size_t bytes, char text[24]) {
    size_t unit = bytes >= 10 * GIB ? GIB : MIB;
    snprintf(text, 24, "%zu%c", bytes / unit + (bytes % unit != 0), unit == GIB ? 'G' : 'M');
    return text;
}

/* ---- what the user forced ---- */

static void let_home(struct ot_plan_request *rq) {
    rq->weights = rq->state = rq->activations = OT_HOME_AUTO;
}
static void let_shares(struct ot_plan_request *rq) {
    memset(rq->shares, 0, sizeof rq->shares);
}
static void let_slots(struct ot_plan_request *rq) {
    rq->slots = 0;
}
static void let_recompute(struct ot_plan_request *rq) {
    rq->recompute = -1;
}
static void let_micro(struct ot_plan_request *rq) {
    rq->micro_sequences = 0;
}

static const struct {
    const char *name;
    void (*let)(struct ot_plan_request *);
} forces[] = {{"home", let_home},
              {"optimizer-engine", let_shares},
              {"micro-batch", let_micro},
              {"recompute", let_recompute},
              {"slots", let_slots}};
enum { FORCES = sizeof forces / sizeof *forces };

static void try_without_forces(struct cures *c) {
    const struct ot_options *o = c->about->options;
    struct ot_plan_request all = *c->about->request;
    char names[CURE_BYTES - 16] = "", *text;
    int given = 0, before = c->n;
    for (int i = 0; i < FORCES; i++) {
        struct ot_plan_request one = *c->about->request;
        if (ot_option_find(forces[i].name, strlen(forces[i].name), o->command) < 0 ||
            !ot_options_given(o, forces[i].name))
            continue;
        forces[i].let(&one);
        forces[i].let(&all);
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s--%s", given++ ? ", " : "", forces[i].name);
        if (fits(&one, NULL) && (text = next(c)))
            snprintf(text, CURE_BYTES, "leave out --%s", forces[i].name);
    }
    if (given > 1 && c->n == before && fits(&all, NULL) && (text = next(c)))
        snprintf(text, CURE_BYTES, "leave out %s", names);
}

/* ---- more memory ---- */

static void try_gpu(struct cures *c, const struct ot_shortage *shortage) {
    char size[24], *text;
    if (shortage->alone[OT_TIER_GPU] && shortage->alone[OT_TIER_GPU] <= c->about->most_gpu_bytes &&
        (text = next(c)))
        snprintf(text, CURE_BYTES, "--gpu-mem %s", size_option(shortage->alone[OT_TIER_GPU], size));
}

/* Of a machine to come the RAM, of which a tenth stays with the system; of this one what it has. False where
 * that cannot be had. */
static bool host_option(const struct cures *c, size_t need, char text[CURE_BYTES]) {
    char size[24];
    bool by_ram = c->about->is_described && !ot_options_given(c->about->options, "host-mem");
    if (!need || need > c->about->most_host_bytes)
        return false;
    if (by_ram)
        snprintf(text, CURE_BYTES, "--ram %s", size_option(need + need / 9 + MIB, size));
    else
        snprintf(text, CURE_BYTES, "--host-mem %s", size_option(need, size));
    return true;
}

static void try_host(struct cures *c, const struct ot_shortage *shortage) {
    char option[CURE_BYTES], *text;
    if (host_option(c, shortage->alone[OT_TIER_HOST], option) && (text = next(c)))
        snprintf(text, CURE_BYTES, "%s", option);
}

/* Where no tier alone is enough. */
static void try_both(struct cures *c, const struct ot_shortage *shortage) {
    size_t gpu = shortage->together[OT_TIER_GPU], nvme = shortage->together[OT_TIER_NVME];
    const size_t *have = c->about->request->budget_bytes;
    char host[CURE_BYTES], gpu_size[24], *text;
    bool more_gpu = gpu > have[OT_TIER_GPU];
    if (!gpu || gpu > c->about->most_gpu_bytes || nvme > have[OT_TIER_NVME] ||
        !host_option(c, shortage->together[OT_TIER_HOST], host) || !(text = next(c)))
        return;
    if (more_gpu)
        snprintf(text, CURE_BYTES, "--gpu-mem %s with %.100s", size_option(gpu, gpu_size), host);
    else
        snprintf(text, CURE_BYTES, "%s", host);
}

/* More than any disk; the plan takes what it needs of it. */
static const size_t ANY_DISK = (size_t)1 << 50;

static bool try_disk(struct cures *c, const struct ot_shortage *shortage) {
    const char *dir = c->about->is_described ? "" : "DIR:";
    struct ot_plan_request with = *c->about->request;
    size_t used[OT_TIER_COUNT];
    char size[24], *text;
    bool have = with.budget_bytes[OT_TIER_NVME] > 0;
    with.budget_bytes[OT_TIER_NVME] = ANY_DISK;
    if (have && !shortage->alone[OT_TIER_NVME])
        return false;
    if (!fits(&with, used))
        return false;
    if ((text = next(c)))
        snprintf(text, CURE_BYTES, "--nvme %s%s%s", dir, size_option(used[OT_TIER_NVME], size),
                 have ? " in all" : "");
    return true;
}

/* A disk takes a part, and the host has to have more for the rest. */
static void try_disk_and_host(struct cures *c) {
    const char *dir = c->about->is_described ? "" : "DIR:";
    struct ot_plan_request with = *c->about->request;
    struct ot_plan plan;
    size_t used[OT_TIER_COUNT];
    char option[CURE_BYTES], size[24], *text;
    if (with.budget_bytes[OT_TIER_NVME] > 0)
        return;
    with.budget_bytes[OT_TIER_NVME] = ANY_DISK;
    if (ot_plan_make(&with, &plan) == 0) {
        ot_plan_free(&plan);
        return;
    }
    with.budget_bytes[OT_TIER_HOST] = plan.shortage.alone[OT_TIER_HOST];
    if (host_option(c, with.budget_bytes[OT_TIER_HOST], option) && fits(&with, used) && (text = next(c)))
        snprintf(text, CURE_BYTES, "%.100s with --nvme %s%s", option, dir,
                 size_option(used[OT_TIER_NVME], size));
}

/* ---- less work ---- */

static const char *tokens_option(int64_t tokens, char text[24]) {
    bool k = tokens % 1024 == 0;
    snprintf(text, 24, "%lld%s", (long long)(k ? tokens / 1024 : tokens), k ? "k" : "");
    return text;
}

static void try_smaller_step(struct cures *c) {
    struct ot_plan_request less = *c->about->request;
    char tokens[24], *text;
    for (less.step_sequences /= 2; less.train && less.step_sequences > 0; less.step_sequences /= 2) {
        if (less.micro_sequences > less.step_sequences || !fits(&less, NULL))
            continue;
        if ((text = next(c)))
            snprintf(text, CURE_BYTES, "--tokens-per-step %s",
                     tokens_option(less.step_sequences * less.sequence_tokens, tokens));
        return;
    }
}

static void try_shorter_rows(struct cures *c) {
    enum { SHORTEST = 128 };
    struct ot_plan_request less = *c->about->request;
    bool has_option = c->about->options->command != OT_COMMAND_GENERATE;
    char tokens[24], *text;
    while (less.sequence_tokens / 2 >= SHORTEST) {
        less.sequence_tokens /= 2;
        less.step_sequences *= less.train ? 2 : 1;
        less.micro_sequences *= 2;
        if (!fits(&less, NULL))
            continue;
        if ((text = next(c)))
            snprintf(text, CURE_BYTES, "%s %s", has_option ? "--seq-len" : "texts of at most so many tokens:",
                     tokens_option(less.sequence_tokens, tokens));
        return;
    }
}

/* ---- the sentence ---- */

/* What keeps a disk from helping: gradients have no home there. */
static const char *grads_text(const struct ot_cure *cure, char text[CURE_BYTES]) {
    const struct ot_chain *chain = cure->request->chain;
    double bytes = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        bytes += (double)chain->slabs[s].n_params * (double)ot_dtype_bytes(chain->dtype);
    if (bytes < (double)GIB) /* others matter more */
        return "";
    snprintf(text, CURE_BYTES, " (gradients, %.1f GiB, live on the GPU or in host memory, not on a disk)",
             bytes / (double)GIB);
    return text;
}

int ot_plan_cure(const struct ot_cure *cure, const struct ot_shortage *shortage) {
    struct cures c = {.about = cure};
    char sentence[OT_ERROR_TEXT_BYTES], all[MOST_CURES * CURE_BYTES] = "", grads[CURE_BYTES] = "",
                                                         text[CURE_BYTES];
    bool is_short = false;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        is_short = is_short || shortage->alone[t] || shortage->together[t];
    if (!is_short)
        return -OT_E_BUDGET;
    snprintf(sentence, sizeof sentence, "%s", ot_error_text());
    try_without_forces(&c);
    bool by_disk = try_disk(&c, shortage);
    if (!by_disk)
        try_disk_and_host(&c);
    try_gpu(&c, shortage);
    try_host(&c, shortage);
    try_both(&c, shortage);
    try_smaller_step(&c);
    try_shorter_rows(&c);
    bool host_is_short = shortage->alone[OT_TIER_HOST] ||
                         shortage->together[OT_TIER_HOST] > cure->request->budget_bytes[OT_TIER_HOST];
    if (!by_disk && cure->request->train && host_is_short)
        snprintf(grads, sizeof grads, "%s", grads_text(cure, text));
    for (int i = 0; i < c.n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? "; or " : "", c.text[i]);
    return c.n ? ot_fail(OT_E_BUDGET, "%s%s. What helps: %s", sentence, grads, all)
               : ot_fail(OT_E_BUDGET, "%s%s. No option helps: the machine is too small for this model",
                         sentence, grads);
}
