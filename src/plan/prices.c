#include "src/plan/prices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/read_file.h"
#include "src/base/text.h"
#include "src/plan/cards.h"

enum { FILE_MAX_BYTES = 1 << 20 };
static const double MOST = 1e6; /* an hour, in any currency */

static bool read_number(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

static int add(const char *where, char *name, const char *price, struct ot_prices *out) {
    double value;
    if (!read_number(price, &value) || value <= 0 || value > MOST)
        return ot_fail(OT_E_USAGE, "%s: the price of %.60s must be a number above 0, not '%.60s'", where,
                       name, price);
    OT_TRY(ot_cards_check_name(where, name));
    if (out->n == OT_PRICES_MAX || strlen(name) >= OT_PRICE_NAME_BYTES)
        return ot_fail(OT_E_USAGE, "%s: more than %d prices", where, OT_PRICES_MAX);
    snprintf(out->named[out->n].name, OT_PRICE_NAME_BYTES, "%s", name);
    out->named[out->n++].price = value;
    return 0;
}

/* Cuts white space off both ends. */
static char *trim(char *text) {
    text += strspn(text, " \t\r");
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r", text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* "rtx4090=0.4", in a file also "rtx4090 0.4": the price is the last word. */
static int add_pair(const char *where, char *pair, bool is_line, struct ot_prices *out) {
    char *text = trim(pair), *middle = strrchr(text, '=');
    for (char *at = text; is_line && !strchr(text, '=') && *at; at++)
        middle = *at == ' ' || *at == '\t' ? at : middle;
    if (!middle)
        return ot_fail(OT_E_USAGE, "%s: '%.60s' is not a card and its price, such as rtx4090=0.4", where,
                       text);
    *middle = '\0';
    return add(where, trim(text), trim(middle + 1), out);
}

static int read_prices_file(const char *path, struct ot_prices *out) {
    char *read = NULL, *text = NULL, where[300];
    size_t bytes;
    int rc = 0, number = 0;
    OT_TRY(ot_read_file(path, FILE_MAX_BYTES, &read, &bytes));
    OT_TRY_GOTO(ot_string_format(&text, "%.*s", (int)bytes, read), rc, out);
    for (char *line = text, *next; rc == 0 && line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        line[strcspn(line, "#")] = '\0';
        snprintf(where, sizeof where, "--price/h %.200s, line %d", path, ++number);
        if (*trim(line))
            rc = add_pair(where, line, true, out);
    }
    if (rc == 0 && out->n == 0)
        rc = ot_fail(OT_E_USAGE, "--price/h %.200s: this file has no prices", path);
out:
    free(text);
    free(read);
    return rc;
}

static int read_list(const char *text, struct ot_prices *out) {
    char pair[2 * OT_PRICE_NAME_BYTES];
    for (const char *at = text; at;) {
        const char *comma = strchr(at, ',');
        snprintf(pair, sizeof pair, "%.*s", comma ? (int)(comma - at) : (int)sizeof pair - 1, at);
        OT_TRY(add_pair("--price/h", pair, false, out));
        at = comma ? comma + 1 : NULL;
    }
    return 0;
}

int ot_prices_read(const char *text, struct ot_prices *out) {
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    if (!read_number(text, &out->any))
        return strchr(text, '=') ? read_list(text, out) : read_prices_file(text, out);
    return out->any >= 0 && out->any <= MOST
               ? 0
               : ot_fail(OT_E_USAGE,
                         "--price/h must be a number from 0 to %.0f, prices such as "
                         "rtx4090=0.4,h100=2.5, or a file of them; not '%.60s'",
                         MOST, text);
}

/* 0: not given. */
static double find(const struct ot_prices *prices, const char *name) {
    for (int i = 0; i < prices->n; i++)
        if (ot_cards_same(prices->named[i].name, name))
            return prices->named[i].price;
    return 0;
}

double ot_price_of(const struct ot_prices *prices, const char *machine, int gpus, int hosts) {
    if (!machine || prices->n == 0)
        return prices->any;
    const struct ot_pod *pod = ot_cards_pod(machine);
    double price = find(prices, machine);
    if (pod)
        return price > 0 ? price * hosts : find(prices, pod->card) * gpus;
    return price * gpus;
}

bool ot_prices_are_named(const struct ot_prices *prices) {
    return prices->n > 0;
}
