#include "src/plan/machines.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
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
