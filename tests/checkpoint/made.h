/* Checkpoints whose every value is known, made without the writer: segments of every kind, and spans cut
 * where the writer would not cut them. */
#ifndef OT_TESTS_CHECKPOINT_MADE_H
#define OT_TESTS_CHECKPOINT_MADE_H

#include "src/checkpoint/manifest.h"
#include "tests/support/check.h"

enum made_kind { MADE_M, MADE_V, MADE_REST, MADE_WEIGHTS, MADE_SCALES };

/* The bits of a value: all 32 of fp32, the low 16 of other kinds. In a slab of `zeros` every value except the
 * weights is 0. */
uint32_t made_bits(enum made_kind kind, int slab, int64_t index);

struct made {
    char *folder; /* the folder of the checkpoint */
    struct ot_manifest manifest;
    char *segment; /* scratch */
};
enum { MADE_SLABS = 3, MADE_FILES = 3, MADE_ZERO_SLAB = 2 };

/* Slab 0: segments that fit a slot, with state and weights, in state.bin. Slab 1: one segment of state that
 * is larger than a slot, and its weights in several segments, in pieces over two .store files. Slab 2: its
 * state is all zeros and takes no byte on the disk. */
void make_checkpoint(struct made *made, enum ot_dtype dtype);
/* With moments of another format. In 8 bits no array of slab 1's state begins or ends with a block. */
void make_checkpoint_with(struct made *made, enum ot_dtype dtype, enum ot_state_format state);
void write_manifest(struct made *made); /* writes the manifest again after the test changed it */
void remove_made(struct made *made);

/* Fails the test if the memory does not hold the values of the segment. */
void check_segment(const struct made *made, const struct ot_segment *segment, const void *memory);

#endif
