/* Verifying reads every byte of a checkpoint or of a model directory. It collects all damages instead of
 * stopping at the first one, so that a table shows all of them.
 *
 * It checks of a checkpoint: the manifest and the record (structure, bounds, checksums), the sizes of its
 * files, the slabs against the model that the record describes, every checksum, and every value (weights, m
 * and v are finite, v is not negative). Of a model: config.json, the safetensors headers, every tensor's name
 * and shape against the config, every value, and the tokenizer.
 */
#ifndef OT_CHECKPOINT_VERIFY_H
#define OT_CHECKPOINT_VERIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "models/model.h"
#include "src/base/json.h"

enum { OT_VERIFY_KEPT_DAMAGES = 12 };

/* FROZEN: the checkpoint does not have the slab; it is in the base model. */
enum ot_verify_state {
    OT_VERIFY_NOT_READ,
    OT_VERIFY_OK,
    OT_VERIFY_DAMAGED,
    OT_VERIFY_IN_PART,
    OT_VERIFY_FROZEN
};

struct ot_verify_slab {
    char name[32];
    int64_t params;                     /* in tensors; bytes also counts the padding */
    int64_t bytes;                      /* of a checkpoint */
    double most_weight, most_m, most_v; /* largest magnitudes, valid once the whole slab is read */
    enum ot_verify_state state;
};
struct ot_verify_file {
    char *name;
    int64_t bytes; /* files of the checkpoint */
    bool damaged;
    bool is_elsewhere; /* on another host (--save-local) */
};

struct ot_verify {
    char *dir;
    bool is_checkpoint;
    int64_t step;   /* step of a checkpoint that could be opened; else -1 */
    char what[320]; /* "step 120 of 500, bf16, ..." */
    int n_slabs, n_files;
    struct ot_verify_slab *slabs;
    struct ot_verify_file *files;
    int64_t n_damages;
    char *damages[OT_VERIFY_KEPT_DAMAGES]; /* the first sentences */
    char *missing;                         /* a sentence, if other hosts have parts; NULL: all are here */
};

/* Returns 0 also if something is damaged. progress: show the progress on a terminal. Errors: OT_E_BUDGET.
 * Call ot_verify_free on `out` also after an error. */
int ot_verify_checkpoint(const char *dir, bool progress, struct ot_verify *out);
int ot_verify_model(const char *dir, bool progress, struct ot_verify *out);
void ot_verify_free(struct ot_verify *verify);

void ot_verify_print(const struct ot_verify *verify, FILE *out);
void ot_verify_put_json(const struct ot_verify *verify, const char *key, struct ot_json_writer *w);

#endif
