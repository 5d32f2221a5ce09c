/* What the three parts of model_dir share: open (model_dir.c), load (model_dir_load.c), save
 * (model_dir_save.c). */
#ifndef OT_FILES_MODEL_DIR_STATE_H
#define OT_FILES_MODEL_DIR_STATE_H

#include <limits.h>

#include "src/files/model_dir.h"
#include "src/files/safetensors.h"

struct ot_arena;
struct ot_json;
struct ot_tensor;

/* A tensor of the files, under the name that the index or the file gives it. */
struct ot_stored {
    const struct ot_safetensor *tensor;
    const struct ot_safetensors *file;
};

/* The small files that a save copies, the configs (which may change) first. They are held open: a base that
 * is cleaned away while the model trains does not take the result with it. */
enum { OT_SMALL_CONFIG, OT_SMALL_GENERATION_CONFIG, OT_SMALL_COPIED, OT_N_SMALL_FILES = 11 };
extern const char *const ot_small_files[OT_N_SMALL_FILES];

/* Another file that goes along, held open like those. */
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
    struct ot_json *config, *generation; /* generation: NULL if the file is absent */
    struct ot_safetensors **files;       /* [facts.n_shards] */
    struct ot_stored *stored;            /* sorted by name */
    int64_t n_stored;
};

/* Writes "PATH/name" and returns it; open has seen to it that a name of up to 255 bytes fits. */
const char *ot_model_dir_file(const struct ot_model_dir *dir, const char *name, char path[PATH_MAX]);
/* Whether it is there, as a file. */
bool ot_model_dir_has(const struct ot_model_dir *dir, const char *name);

/* A path to small file i that stays while dir is open; NULL if there was none at open. */
const char *ot_model_dir_small_file(const struct ot_model_dir *dir, int i, char path[PATH_MAX]);

/* Fills kept, and facts.left_out. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_hold_others(struct ot_model_dir *dir);

/* For each tensor of the model where it is stored; the caller frees *map. Errors as ot_model_dir_check. */
int ot_model_dir_map(const struct ot_model_dir *dir, const struct ot_model *model,
                     const struct ot_stored ***map);

#endif
