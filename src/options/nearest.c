/* Finds the name that a misspelled one was meant to be. */
#include <string.h>

#include "src/base/minmax.h"
#include "src/options/options.h"

/* The largest edit distance of a guess: one third of a long word, two edits in a shorter one, one in a very
 * short one. */
static int worst_distance(size_t length) {
    return length < 4 ? 1 : length < 9 ? 2 : (int)(length / 3);
}

/* Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours. If the
 * lengths differ too much for a guess, returns LONGEST. */
static int edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    enum { LONGEST = 48 };
    size_t apart = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (a_length > LONGEST || b_length > LONGEST || apart > (size_t)worst_distance(a_length))
        return LONGEST;
    int rows[3][LONGEST + 1];
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int *row = rows[i % 3];
        const int *last = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

const char *ot_nearest_name(const char *word, const char *const *names, int n) {
    const char *nearest = NULL;
    int best = worst_distance(strlen(word)) + 1;
    for (int i = 0; i < n; i++) {
        int distance = edit_distance(word, strlen(word), names[i], strlen(names[i]));
        if (distance < best) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

/* Our own names win over names of other programs; options of this command win over options of other commands.
 */
const char *ot_option_nearest(const char *word, enum ot_command command) {
    const char *nearest = NULL;
    int best = 4 * (worst_distance(strlen(word)) + 1);
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++) {
        int rank = option->commands & (1u << command) ? 0 : 2;
        int distance = 4 * edit_distance(word, strlen(word), option->name, strlen(option->name)) + rank;
        for (const char *other = option->elsewhere; other && *other;) {
            size_t length = strcspn(other, " ");
            int far = 4 * edit_distance(word, strlen(word), other, length) + rank + 1;
            distance = ot_min(far, distance);
            other += length + (other[length] == ' ');
        }
        if (distance < best) {
            best = distance;
            nearest = option->name;
        }
    }
    return nearest;
}
