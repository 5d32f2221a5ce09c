/* The machines of a comparison: --gpu names some, or classes of them. */
#ifndef OT_PLAN_MACHINES_H
#define OT_PLAN_MACHINES_H

#include "src/plan/prices.h"

enum { OT_MACHINES_MAX = 128 };

struct ot_machines {
    bool is_open; /* a class was named: what does not fit is no news */
    int n,
        unpriced; /* unpriced: machines of classes that are left out, because the prices do not name them */
    const char *names[OT_MACHINES_MAX]; /* borrowed from `text` or the tables of cards.h */
    char text[4096];
};

/* True if a word of the list is a class: "all" (cards), "rented" (machines), or a size of memory, such as
 * "24g". */
bool ot_machines_have_class(const char *list);
/* Each machine once, in the order of the list; a class in the order of `plan --gpu list`. If prices are
 * named, a class has only the machines with a price. Errors: OT_E_USAGE (no card of that size; no machine
 * is left). */
int ot_machines_expand(const char *list, const struct ot_prices *prices, struct ot_machines *out);

#endif
