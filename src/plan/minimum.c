/* plan --minimum: finds the smallest card, RAM and disk that can train a model, in three ways.
 *
 *   all on the GPU        the smallest card that holds weights, optimizer state, gradients and activations
 *   GPU and RAM           the smallest card that can train at all (or the card of --gpu), and the least RAM
 *   GPU, RAM and a disk   the same card, a disk, and the least RAM beside them
 *
 * The least of a tier is the shortage that the planner reports for an empty tier beside the other budgets
 * (struct ot_shortage). */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/plan/table.h"

static const size_t NO_END = (size_t)1 << 50, GIB = (size_t)1 << 30;

/* The least bytes of the tier with which the request has a plan. The other budgets stay. 1: the tier
 * may be empty; 0: no amount is enough. */
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

/* The RAM to install for `host` bytes of pinned memory, in whole GiB: a tenth stays free for the system. */
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

/* ---- cards, in the order of their memory ---- */

/* The smallest card with more memory than `before` (NULL: the smallest card). Among cards with equal memory,
 * the first in the list. */
static const struct ot_card *next_card(const struct ot_card *before) {
    const struct ot_card *best = NULL, *card;
    for (int i = 0; (card = ot_card_at(i)); i++)
        if ((!before || card->memory_mib > before->memory_mib) &&
            (!best || card->memory_mib < best->memory_mib))
            best = card;
    return best;
}

/* Opens the case of the smallest card with enough memory for the placement that `force` asks for. With
 * `named` only this card is tried. *name: the card. Returns 1 if one was found (its case is open), 0 if none.
 */
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
    rq->weights = rq->state = rq->grads = rq->sums = rq->activations = OT_HOME_GPU;
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
                   o->gpu ? "the card of --gpu has too little memory" : "no known card has enough memory",
                   table);
        return 0;
    }
    int rc = predict_row(c, label, card, table);
    ot_plan_case_close(c);
    return rc;
}

/* Adds the row with the least host memory, beside `nvme` bytes of disk. */
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

/* A rented machine may have several GPUs. */
static int check_one_gpu(const struct ot_options *o) {
    struct ot_described machine;
    const struct ot_described_request request = {.name = o->gpu};
    if (!o->gpu)
        return 0;
    OT_TRY(ot_cards_describe(&request, &machine));
    if (machine.ranks == 1)
        return 0;
    return ot_fail(OT_E_USAGE, "--minimum works with one GPU, and %s has %d; give its card: --gpu %s",
                   machine.pod->title, machine.ranks, machine.card->name);
}

int ot_plan_minimum(const struct ot_options *o, struct ot_plan_table *table) {
    struct ot_plan_case *c = calloc(1, sizeof *c);
    struct ot_options with_disk = *o; /* so that the described machine has rates of a disk */
    const char *card = NULL;
    int rc, found;
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory to find the smallest machine");
    table->is_described = true;
    with_disk.nvme.n = 1;
    with_disk.nvme.dirs[0] = (struct ot_nvme_dir){.bytes = (int64_t)1 << 50};
    OT_TRY_GOTO(check_one_gpu(o), rc, out);
    OT_TRY_GOTO(add_resident(o, c, table), rc, out);
    OT_TRY_GOTO(found = find_card(&with_disk, o->gpu, anywhere, c, &card), rc, out);
    if (found == 0)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "%s train %s in such steps; lower --tokens-per-step or --seq-len",
                            o->gpu ? "the card of --gpu cannot" : "no known card can", o->model),
                    rc, out);
    OT_TRY_GOTO(add_host(c, "GPU and RAM", card, 0, table), rc, out);
    rc = add_host(c, "GPU, RAM and a disk", card, NO_END, table);
out:
    ot_plan_case_close(c);
    free(c);
    return rc;
}
