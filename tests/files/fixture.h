/* Helpers for the tests of model files: raw safetensors files, right or wrong, and a tiny model with a
 * directory. */
#ifndef OT_TESTS_FILES_FIXTURE_H
#define OT_TESTS_FILES_FIXTURE_H

#include "models/model.h"
#include "src/base/file_io.h"
#include "src/files/model_dir.h"
#include "tests/support/check.h"

/* Writes FOLDER/NAME: the true length of the header, the header, then the data. */
void write_raw_safetensors(const char *folder, const char *name, const char *header, const void *data,
                           size_t bytes);
void write_text(const char *folder, const char *name, const char *text);
/* the caller frees it; fails the test if the file is absent */
char *read_text(const char *folder, const char *name, size_t *bytes);
bool file_exists(const char *folder, const char *name);
const char *in_folder(const char *folder, const char *name); /* static; the 64th next call overwrites it */
int count_entries(const char *folder);                       /* not counting . and .. */

/* Hidden 16, two layers, 4 heads of 4 with 2 key/value heads, 24 tokens of vocabulary. */
struct ot_model_config tiny_config(bool tied);
/* its config.json; more: ", \"key\": value" or "" */
const char *tiny_config_text(bool tied, const char *more);
/* The value of a parameter, exact in every dtype. */
float tiny_value(int slab, int64_t index);

/* All parameters of a model, by slab, padding included. */
struct params {
    const struct ot_model *model;
    float **slabs;
    int64_t *next;          /* [slabs]: the index at which the next call of the sink must begin */
    int64_t calls, stop_at; /* > 0: this call of the sink fails */
    int on_slab;
};
struct params *params_open(const struct ot_model *model);
void params_fill(struct params *params); /* tiny_value for tensors, 0 for padding */
void params_close(struct params *params);
/* a sink that checks the order of its calls */
int params_sink(void *context, int slab, int64_t first, int64_t n, const float *values);
int params_source(void *context, int slab, int64_t first, int64_t n, float *values);
void params_check_equal(const struct params *got, const struct params *want);

/* Header and data of a single-file model. The function walks the tensor table and makes one change. */
struct edit {
    const char *drop;                    /* leaves out this tensor */
    const char *rename_from, *rename_to; /* prefixes of names */
    const char *more;                    /* adds at most 2 tensors "NAME" of one fp32 value; "" for none */
    const char *odd_shape;               /* gives this tensor one more row */
    const char *bad_value;               /* makes element 3 of this tensor NaN */
    const char *odd_dtype;               /* gives this tensor the dtype I32 */
    const char *copy;                    /* adds a copy of the embedding under this name */
    bool copy_differs;                   /* in its last value */
};
void write_model(const char *folder, const struct ot_model *model, const struct edit *edit);

/* System calls, some of which fail. */
struct faults {
    int64_t write_bytes; /* < 0: no limit; after this number of bytes writes fail with ENOSPC */
    bool short_writes, fail_fsync, fail_reserve, no_exchange;
    int64_t free_bytes; /* < 0: the true number */
    int interrupts;     /* this number of writes fails with EINTR */
};
extern struct faults faults;
extern const struct ot_io_calls faulty_calls;
void faults_clear(void);

#endif
