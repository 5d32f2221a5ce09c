/* Shuffles numbers as the loop of Fisher and Yates does (Durstenfeld, CACM 7 (1964), algorithm 235): for i
 * from n down to 2, the item at i - 1 and the item at a random place below i change places. The numbers may
 * be more than the memory has. The order is the same then.
 *
 * IN BLOCKS. The items are cut into blocks, and the loop goes through the blocks from the last one to the
 * first. Within a block the items change places as usual. If the random place is in an earlier block, the
 * item goes on a list for that block, and its place is left open. The list has all such items in the order of
 * the loop, so the earlier block takes them before its own turn: each replaces the item at its random place,
 * and the list gets that item in return. At the end the items of the lists are put at the open places. Each
 * block, and each list, is read and written a few times as a whole.
 *
 * Threads: any number, each with its own items.
 */
#ifndef OT_DATA_SHUFFLE_H
#define OT_DATA_SHUFFLE_H

#include <stdint.h>

struct ot_shuffle {
    uint64_t seed, stream, first; /* random numbers: those of the stream from `first` on */
    const char *scratch;          /* a directory for the lists; NULL: the items are shuffled as one block */
    uint32_t block;               /* items of a block */
};

/* Errors: OT_E_IO, OT_E_BUDGET (the lists). A single block has no error. */
int ot_shuffle(const struct ot_shuffle *how, uint32_t *items, uint32_t n);

#endif
