/* The machines of a comparison (--gpu names some, or classes of them), and their prices. */
#ifndef OT_PLAN_MACHINES_H
#define OT_PLAN_MACHINES_H

#include <stdbool.h>

/* ---- prices ---- */

/* Reads --price/h, the price of machines an hour: one number for every machine, a price for each card or
 * rented machine ("rtx4090=0.4,h100=2.5"), or a file of such lines. There is no list of prices here: they
 * change every week. */

enum { OT_PRICES_MAX = 128, OT_PRICE_NAME_BYTES = 64 };

struct ot_prices {
    double any; /* of every machine; 0: not given */
    int n;
    struct {
        char name[OT_PRICE_NAME_BYTES]; /* of a card or a rented machine */
        double price;
    } named[OT_PRICES_MAX];
};

/* text: NULL: no prices. In a file each line is "NAME PRICE" or "NAME=PRICE"; # begins a comment. Errors:
 * OT_E_USAGE (the place and its fault; the nearest name), OT_E_IO. */
int ot_prices_read(const char *text, struct ot_prices *out);

/* The price of a described machine an hour, for all its GPUs: its rented machine's price for each host, else
 * its card's for each GPU. machine: "rtx4090", as in --gpu; NULL: this machine. 0: unknown. */
double ot_price_of(const struct ot_prices *prices, const char *machine, int gpus, int hosts);
/* True if there is a price for each machine by its name, and none for all. */
bool ot_prices_are_named(const struct ot_prices *prices);

/* ---- machines ---- */

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
