/* Reproducible damage to text files, byte by byte, for tests of hostile or broken input. */
#ifndef OT_TESTS_DAMAGE_H
#define OT_TESTS_DAMAGE_H

#include <stddef.h>
#include <stdint.h>

struct dice { /* the state of one round; `throws` begins at 0 */
    uint64_t round, throws;
};
size_t throw_below(struct dice *dice, size_t bound);

/* Damages the text once or twice. Each time it changes a byte, inserts a byte that has a meaning in JSON,
 * replaces a number by an absurd one, removes a piece, repeats a piece, or ends the text early. Returns the
 * new length, at most `most`. */
size_t damage_text(struct dice *dice, char *text, size_t n, size_t most);

#endif
