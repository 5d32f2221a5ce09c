/* Damage to files, the same in every run: what a hostile or broken input looks like, byte by byte. */
#ifndef OT_TESTS_DAMAGE_H
#define OT_TESTS_DAMAGE_H

#include <stddef.h>
#include <stdint.h>

struct dice { /* of one round; throws begins at 0 */
    uint64_t round, throws;
};
size_t throw_below(struct dice *dice, size_t bound);

/* Once or twice: changes a byte, puts one in that JSON cares for, replaces a number by an absurd one, cuts a
 * piece out, repeats one, or ends the text early. Returns the new length, at most `most`. */
size_t damage_text(struct dice *dice, char *text, size_t n, size_t most);

#endif
