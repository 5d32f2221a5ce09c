/* Reads --price/h, the price of machines an hour: one number for every machine, a price for each card or
 * rented machine ("rtx4090=0.4,h100=2.5"), or a file of such lines. There is no list of prices here: they
 * change every week. */
#ifndef OT_PLAN_PRICES_H
#define OT_PLAN_PRICES_H

#include <stdbool.h>

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

#endif
