/* The state of a runner (chain_runner.h), for the files that run blocks: chain_runner.c, chain_sections.c. */
#ifndef OT_TESTS_CHAIN_RUNNER_STATE_H
#define OT_TESTS_CHAIN_RUNNER_STATE_H

#include "tests/models/chain_runner.h"

struct runner {
    struct ot_model *model;
    const struct ot_chain *chain;
    struct ot_device *device;
    struct ot_lane *lane;
    int64_t max_tokens;
    void **weights;               /* [n_slabs] */
    float *(*grads)[OT_MAX_USES]; /* [n_blocks]; NULL: the slab is frozen */
    void **boundary;              /* [n_blocks - 1] */
    void **boundary_grad;         /* [n_blocks - 1]: what backward left of dxy */
    void **saved;                 /* [n_blocks] */
    void *work, *scratch, *constants, *dxy;
    size_t work_bytes, scratch_bytes;
    enum ot_keep_level level; /* runner_keep */
    bool first;               /* of the next runner_train */
    char **whole;  /* [n_slabs]: weights of slabs with parts, on the host; NULL: forward runs whole */
    int32_t *used; /* [most parts] */
    int32_t *tokens, *targets, *position, *row_start, *input_first, *input_end, *key_end;
    float *token_loss, *logits;
    struct ot_kv_cache *caches; /* [n_blocks] while decoding */
    int64_t kv_inputs, kv_capacity;
};

void *runner_alloc(struct runner *r, size_t bytes, const char *name); /* device memory, at least a byte */
void *runner_host_alloc(size_t count, size_t size);                   /* zeros */
void runner_download(struct runner *r, void *to, const void *from, size_t bytes);
/* Fills the memory with NaNs of every dtype. */
void runner_spoil(struct runner *r, void *memory, size_t bytes);
size_t runner_boundary_bytes(const struct runner *r, int64_t n);
/* Forward of a block, in halves if the runner uses them. */
void runner_forward(struct runner *r, int block, struct ot_block_run *run);
void runner_upload_batch(struct runner *r, const struct runner_batch *batch);
/* Fills in the fields that every call of a block needs, and overwrites work and scratch with NaNs. */
struct ot_block_run runner_make_run(struct runner *r, int block, enum ot_pass pass,
                                    const struct runner_batch *batch);

#endif
