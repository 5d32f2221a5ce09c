/* A tiny model whose layers have parts (offload/block.h): the embedding and the head of the tiny decoder, and
 * between them blocks that this file computes in plain C. A block scales its input by sums of its dense
 * parameters. Then each token is multiplied with one part. Two tokens at the begin of the micro-batch choose
 * the two parts, by the bits of their activations; so a micro-batch leaves most parts alone.
 *
 * The blocks fail the test if the engine breaks the contract of block.h. They run on the cpu device only. */
#ifndef OT_TESTS_TINY_PARTS_H
#define OT_TESTS_TINY_PARTS_H

#include "models/model.h"

enum { TINY_PARTS = 7, TINY_CHOSEN = 2 };

/* Changes the model's own chain, so that every user of the model sees the same blocks. */
void tiny_part_slabs(struct ot_model *model);

#endif
