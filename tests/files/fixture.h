/* What the tests of model files build: raw safetensors files, right or wrong, and a tiny model with a
 * directory. */
#ifndef OT_TESTS_FILES_FIXTURE_H
#define OT_TESTS_FILES_FIXTURE_H

#include "models/model.h"
#include "src/base/io_calls.h"
#include "src/files/model_dir.h"
#include "tests/support/check.h"

/* FOLDER/NAME with a header of the given text, its true length in front, and data behind. */
void write_raw_safetensors(const char *folder, const char *name, const char *header, const void *data,
                           size_t bytes);
void write_text(const char *folder, const char *name, const char *text);
/* the caller frees it; fails if absent */
char *read_text(const char *folder, const char *name, size_t *bytes);
bool file_exists(const char *folder, const char *name);
const char *in_folder(const char *folder, const char *name); /* static, overwritten by the 64th next call */
int count_entries(const char *folder);                       /* without . and .. */

/* Hidden 16, two layers, 4 heads of 4 with 2 key/value heads, 24 words. */
struct ot_model_config tiny_config(bool tied);
/* config.json of it; more: ", \"key\": value" or "" */
const char *tiny_config_text(bool tied, const char *more);
/* The values of a parameter, exact in every dtype. */
float tiny_value(int slab, int64_t index);

/* All parameters of a model, by slab, padding included. */
struct params {
    const struct ot_model *model;
    float **slabs;
    int64_t *next;          /* [slabs]: where the next sink call must begin */
    int64_t calls, stop_at; /* stop_at > 0: that call fails */
    int on_slab;
};
struct params *params_open(const struct ot_model *model);
void params_fill(struct params *params); /* tiny_value for tensors, 0 for padding */
void params_close(struct params *params);
/* checks the order */
int params_sink(void *context, int slab, int64_t first, int64_t n, const float *values);
int params_source(void *context, int slab, int64_t first, int64_t n, float *values);
void params_check_equal(const struct params *got, const struct params *want);

/* Header and data of a single-file model, built by walking the tensor table with one change. */
struct edit {
    const char *drop;                    /* this tensor is left out */
    const char *rename_from, *rename_to; /* a prefix */
    const char *more;                    /* tensors "NAME" of one fp32 value, at most 2, "" none */
    const char *odd_shape;               /* this tensor gets one row more */
    const char *bad_value;               /* this tensor's element 3 is NaN */
    const char *odd_dtype;               /* this one is I32 */
    const char *copy;                    /* the embedding once more, under this name */
    bool copy_differs;                   /* in its last value */
};
void write_model(const char *folder, const struct ot_model *model, const struct edit *edit);

/* The system's calls, some of which fail. */
struct faults {
    int64_t write_bytes; /* < 0: unlimited; then ENOSPC */
    bool short_writes, fail_fsync, fail_reserve, no_exchange;
    int64_t free_bytes; /* < 0: the truth */
    int interrupts;     /* the next writes answer EINTR */
};
extern struct faults faults;
extern const struct ot_io_calls faulty_calls;
void faults_clear(void);

#endif
