/* Reads the pickle of a file of torch.save into values, without running anything (torch_file.h says why). A
 * tensor stays as the arguments from which PyTorch would build it; the caller checks them.
 *
 * Every value is made by one instruction, whose number is limited, and containers refer to values that were
 * made before them. A container may contain itself: callers do not walk values without knowing where. */
#ifndef OT_FILES_TORCH_PICKLE_H
#define OT_FILES_TORCH_PICKLE_H

#include <stddef.h>
#include <stdint.h>

struct ot_arena;
struct ot_pickle_items;

enum ot_pickle_kind {
    OT_PICKLE_NONE,
    OT_PICKLE_BOOL,
    OT_PICKLE_INT,
    OT_PICKLE_FLOAT,
    OT_PICKLE_TEXT,
    OT_PICKLE_TUPLE,
    OT_PICKLE_LIST,
    OT_PICKLE_DICT,          /* a dict or an OrderedDict */
    OT_PICKLE_STORAGE_CLASS, /* such as torch.FloatStorage: text is the dtype's name in safetensors */
    OT_PICKLE_FUNCTION,      /* a function or class that REDUCE knows */
    OT_PICKLE_STORAGE,       /* its persistent id: items */
    OT_PICKLE_TENSOR,        /* the arguments of torch._utils._rebuild_tensor_v2: items */
    OT_PICKLE_MARK,          /* never in a container */
};

struct ot_pickle_value {
    enum ot_pickle_kind kind;
    union {
        int64_t number; /* INT, BOOL, FUNCTION */
        struct {
            const char *text; /* TEXT: in the pickle, without a NUL at the end; STORAGE_CLASS: with a NUL */
            size_t bytes;
        };
        struct ot_pickle_items *items; /* TUPLE, LIST, DICT (keys and values by turns), STORAGE, TENSOR */
    };
};

struct ot_pickle_items {
    struct ot_pickle_value *at;
    size_t n, room;
};

/* "a tuple" */
const char *ot_pickle_kind_name(enum ot_pickle_kind kind);

/* Reads a pickle. The value points into the pickle and the arena. path: for messages. Errors: OT_E_INPUT (not
 * valid, or it has an instruction, a function or a class that no file of weights needs; the message names
 * it), OT_E_BUDGET. */
int ot_pickle_read(const char *path, const void *data, size_t bytes, struct ot_arena *arena,
                   struct ot_pickle_value *root);

#endif
