/* Declarations that the parts of model_dir share: open (model_dir.c), load (model_dir_load.c), save
 * (model_dir_save.c). */
#ifndef OT_FILES_MODEL_DIR_STATE_H
#define OT_FILES_MODEL_DIR_STATE_H

#include <limits.h>

#include "src/files/model_dir.h"
#include "src/files/safetensors.h"

struct ot_arena;
struct ot_json;
struct ot_tensor;

/* A stored tensor and its file. Its name is the one in the file. */
struct ot_stored {
    const struct ot_safetensor *tensor;
    const struct ot_safetensors *file;
};

/* The small files that a save copies; the configs, which may change, come first. They are held open, so that
 * a save works even if the base is deleted during training. */
enum { OT_SMALL_CONFIG, OT_SMALL_GENERATION_CONFIG, OT_SMALL_COPIED, OT_N_SMALL_FILES = 11 };
extern const char *const ot_small_files[OT_N_SMALL_FILES];

/* Another file that a save copies, also held open. */
enum { OT_MAX_KEPT_FILES = 64 };
struct ot_kept_file {
    const char *name;
    int fd;
};

struct ot_model_dir {
    char *path;
    int small_fds[OT_N_SMALL_FILES]; /* -1: absent */
    struct ot_kept_file kept[OT_MAX_KEPT_FILES];
    int n_kept;
    struct ot_arena *arena;
    struct ot_model_facts facts;
    struct ot_json *config, *generation; /* generation NULL: the file is absent */
    struct ot_safetensors **files;       /* [facts.n_shards] */
    struct ot_stored *stored;            /* sorted by name */
    int64_t n_stored;
};

/* Writes "PATH/name" to `path` and returns it. Open has checked that a name of up to 255 bytes fits. */
const char *ot_model_dir_file(const struct ot_model_dir *dir, const char *name, char path[PATH_MAX]);
/* True if the directory has a regular file of that name. */
bool ot_model_dir_has(const struct ot_model_dir *dir, const char *name);

/* Path to small file i that stays valid while dir is open; NULL if open found no such file. */
const char *ot_model_dir_small_file(const struct ot_model_dir *dir, int i, char path[PATH_MAX]);

/* Fills in `kept` and facts.left_out. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_hold_others(struct ot_model_dir *dir);

/* Finds the stored tensor for each tensor of the model. The caller frees *map. Errors: as
 * ot_model_dir_check. */
int ot_model_dir_map(const struct ot_model_dir *dir, const struct ot_model *model,
                     const struct ot_stored ***map);

#endif
