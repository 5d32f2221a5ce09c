/* plan --minimum: the least card, RAM and disk that can train a model, in three ways.
 *
 *   all on the GPU        the smallest card that holds weights, state and activations
 *   GPU and RAM           the smallest card at all, or the one of --gpu, and the RAM that the rest needs
 *   GPU, RAM and a disk   the same card, with as little RAM as the disk leaves
 *
 * The least of a tier is what the planner says is short when the tier has nothing and the others have no end
 * (struct ot_shortage). */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/plan/table.h"

static const size_t NO_END = (size_t)1 << 50, GIB = (size_t)1 << 30;

/* The least of the tier beside the request's other budgets; 0: no amount is enough. */
static size_t least_of(const struct ot_plan_request *request, enum ot_tier tier) {
    struct ot_plan_request none = *request;
    struct ot_plan plan;
    none.budget_bytes[tier] = 0;
    if (ot_plan_make(&none, &plan) == 0) {
        ot_plan_free(&plan);
        return 1;
    }
    return plan.shortage.alone[tier];
}

static void set_budgets(struct ot_plan_request *rq, size_t gpu, size_t host, size_t nvme) {
    rq->budget_bytes[OT_TIER_GPU] = gpu;
    rq->budget_bytes[OT_TIER_HOST] = host;
    rq->budget_bytes[OT_TIER_NVME] = nvme;
}

/* RAM to install for so much pinned memory: a tenth stays with the system. Whole GiB. */
static size_t ram_for(size_t host) {
    return (host + host / 9 + GIB - 1) / GIB * GIB;
}

/* ---- rows ---- */

static struct ot_plan_table_row *add_row(const struct ot_options *o, const char *label, const char *card,
                                         struct ot_plan_table *table) {
    struct ot_plan_table_row *row = ot_plan_table_add(table);
    snprintf(row->label, sizeof row->label, "%s", label);
    snprintf(row->card, sizeof row->card, "%s", card);
    snprintf(row->model, sizeof row->model, "%.63s", o->model);
    return row;
}

static int predict_row(struct ot_plan_case *c, const char *label, const char *card,
                       struct ot_plan_table *table) {
    struct ot_plan_table_row *row = add_row(c->options, label, card, table);
    OT_TRY(ot_plan_case_predict(c));
    ot_plan_table_fill(c, row);
    row->ram_bytes = (int64_t)ram_for((size_t)row->used_bytes[OT_TIER_HOST]);
    return 0;
}

static void refuse_row(const struct ot_options *o, const char *label, const char *card, const char *why,
                       struct ot_plan_table *table) {
    struct ot_plan_table_row *row = add_row(o, label, card, table);
    snprintf(row->reason, sizeof row->reason, "%s", why);
}

/* ---- cards, the smallest first ---- */

/* The next larger card than the one before; of cards with as much memory the one that the list names
 * first. */
static const struct ot_card *next_card(const struct ot_card *before) {
    const struct ot_card *best = NULL, *card;
    for (int i = 0; (card = ot_card_at(i)); i++)
        if ((!before || card->memory_mib > before->memory_mib) &&
            (!best || card->memory_mib < best->memory_mib))
            best = card;
    return best;
}

/* Opens the case of the smallest card, or of the one that was named, whose memory is enough in the way that
 * `force` asks for. 1: found and open, 0: none. */
static int find_card(const struct ot_options *o, const char *named, void (*force)(struct ot_plan_request *),
                     struct ot_plan_case *c, const char **name) {
    const struct ot_card *card = NULL;
    for (bool once = true; named ? once : (card = next_card(card)) != NULL; once = false) {
        *name = named ? named : card->name;
        int rc = ot_plan_case_open(o, o->model, *name, c);
        if (rc < 0) {
            ot_plan_case_close(c);
            return rc;
        }
        set_budgets(&c->request, c->machine.budget_bytes[OT_TIER_GPU], NO_END, NO_END);
        force(&c->request);
        size_t least = least_of(&c->request, OT_TIER_GPU);
        if (least && least <= c->machine.budget_bytes[OT_TIER_GPU])
            return 1;
        ot_plan_case_close(c);
    }
    return 0;
}

static void all_on_gpu(struct ot_plan_request *rq) {
    rq->weights = rq->state = rq->activations = OT_HOME_GPU;
    rq->budget_bytes[OT_TIER_NVME] = 0;
}

static void anywhere(struct ot_plan_request *rq) {
    (void)rq;
}

/* ---- the three ways ---- */

static int add_resident(const struct ot_options *o, struct ot_plan_case *c, struct ot_plan_table *table) {
    static const char label[] = "all on the GPU";
    const char *card;
    int found = find_card(o, o->gpu, all_on_gpu, c, &card);
    if (found < 0)
        return found;
    if (found == 0) {
        refuse_row(o, label, o->gpu ? o->gpu : "none",
                   "no known card has the memory, or not the one of --gpu", table);
        return 0;
    }
    int rc = predict_row(c, label, card, table);
    ot_plan_case_close(c);
    return rc;
}

/* With the least host memory beside this much disk. */
static int add_host(struct ot_plan_case *c, const char *label, const char *card, size_t nvme,
                    struct ot_plan_table *table) {
    size_t gpu = c->machine.budget_bytes[OT_TIER_GPU];
    set_budgets(&c->request, gpu, NO_END, nvme);
    size_t host = least_of(&c->request, OT_TIER_HOST);
    if (!host) {
        refuse_row(c->options, label, card, "no amount of RAM is enough", table);
        return 0;
    }
    set_budgets(&c->request, gpu, host, nvme);
    return predict_row(c, label, card, table);
}

int ot_plan_minimum(const struct ot_options *o, struct ot_plan_table *table) {
    struct ot_plan_case *c = calloc(1, sizeof *c);
    struct ot_options with_disk = *o; /* the rates of a disk belong to the described machine */
    const char *card = NULL;
    int rc, found;
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory for the least machine");
    table->is_described = true;
    with_disk.nvme.n = 1;
    with_disk.nvme.dirs[0] = (struct ot_nvme_dir){.bytes = (int64_t)1 << 50};
    OT_TRY_GOTO(add_resident(o, c, table), rc, out);
    OT_TRY_GOTO(found = find_card(&with_disk, o->gpu, anywhere, c, &card), rc, out);
    if (found == 0)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET,
                            "no known card can train %s in such steps%s; lower --tokens-per-step or "
                            "--seq-len",
                            o->model, o->gpu ? ", or not the one of --gpu" : ""),
                    rc, out);
    OT_TRY_GOTO(add_host(c, "GPU and RAM", card, 0, table), rc, out);
    rc = add_host(c, "GPU, RAM and a disk", card, NO_END, table);
out:
    ot_plan_case_close(c);
    free(c);
    return rc;
}
