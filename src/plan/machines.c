#include "src/plan/machines.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/text.h"
#include "src/plan/cards.h"

/* The sizes under which cards are sold, in GB. The driver reports up to a sixteenth less. */
static const int SIZES[] = {8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 141, 180, 192};
enum { N_SIZES = sizeof SIZES / sizeof *SIZES };

static int sold_as(const struct ot_card *card) {
    int i = 0;
    while (i < N_SIZES - 1 && card->memory_mib > SIZES[i] * 1024)
        i++;
    return SIZES[i];
}

/* 24 for "24g", "24G" and "24gb"; 0 for another word. */
static int size_of_class(const char *word) {
    char *end;
    long size = isdigit((unsigned char)*word) ? strtol(word, &end, 10) : 0;
    bool is_size = size > 0 && size < 10000 && tolower((unsigned char)*end) == 'g' &&
                   (!end[1] || (tolower((unsigned char)end[1]) == 'b' && !end[2]));
    return is_size ? (int)size : 0;
}

static bool is_class(const char *word) {
    return strcmp(word, "all") == 0 || strcmp(word, "rented") == 0 || size_of_class(word) > 0;
}

bool ot_machines_have_class(const char *list) {
    char word[64];
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        if (is_class(word))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

static int add(const char *name, struct ot_machines *out) {
    for (int i = 0; i < out->n; i++)
        if (strcmp(out->names[i], name) == 0)
            return 0;
    if (out->n == OT_MACHINES_MAX)
        return ot_fail(OT_E_USAGE, "--gpu names more than %d machines", OT_MACHINES_MAX);
    out->names[out->n++] = name;
    return 0;
}

static int add_of_class(const char *name, const struct ot_prices *prices, struct ot_machines *out) {
    bool unpriced = ot_prices_are_named(prices) && !(ot_price_of(prices, name, 1, 1) > 0);
    out->unpriced += unpriced;
    return unpriced ? 0 : add(name, out);
}

static int refuse_size(const char *word) {
    char sizes[256] = "";
    size_t used = 0;
    for (int i = 0; i < N_SIZES; i++) {
        const struct ot_card *card;
        for (int c = 0; (card = ot_card_at(c)) && sold_as(card) != SIZES[i];)
            c++;
        if (card)
            used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%dg", used ? ", " : "", SIZES[i]);
    }
    return ot_fail(OT_E_USAGE, "--gpu %.20s: no card is sold with that memory; there are %s", word, sizes);
}

static int add_class(const char *word, const struct ot_prices *prices, struct ot_machines *out) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    int size = size_of_class(word), found = 0;
    out->is_open = true;
    for (int i = 0; (pod = ot_pod_at(i)) && strcmp(word, "rented") == 0; i++)
        OT_TRY(add_of_class(pod->name, prices, out));
    for (int i = 0; (card = ot_card_at(i)) && strcmp(word, "rented") != 0; i++)
        if (size == 0 || sold_as(card) == size) {
            OT_TRY(add_of_class(card->name, prices, out));
            found++;
        }
    return size > 0 && found == 0 ? refuse_size(word) : 0;
}

int ot_machines_expand(const char *list, const struct ot_prices *prices, struct ot_machines *out) {
    *out = (struct ot_machines){0};
    if (snprintf(out->text, sizeof out->text, "%s", list) >= (int)sizeof out->text)
        return ot_fail(OT_E_USAGE, "--gpu: the list is too long");
    for (char *word = out->text, *next; word; word = next) {
        next = strchr(word, ',');
        if (next)
            *next++ = '\0';
        OT_TRY(is_class(word) ? add_class(word, prices, out) : add(word, out));
    }
    return out->n > 0
               ? 0
               : ot_fail(OT_E_USAGE, "--gpu %.60s: no machine of this class has a price in --price/h", list);
}

/* ---- prices ---- */

enum { FILE_MAX_BYTES = 1 << 20 };
static const double MOST = 1e6; /* an hour, in any currency */

static bool read_number(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

static int add_price(const char *where, char *name, const char *price, struct ot_prices *out) {
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
    return add_price(where, trim(text), trim(middle + 1), out);
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
