/* Declarations that the files of the reader share: the header (reader.c), the getters (reader_get.c). */
#ifndef OT_GGUF_READER_STATE_H
#define OT_GGUF_READER_STATE_H

#include "src/gguf/gguf.h"

struct ot_arena;

struct ot_gguf {
    struct ot_mapped_file map;
    struct ot_arena *arena;
    int64_t n_keys, n_tensors, alignment;
    size_t data_at;
    struct ot_gguf_value *values;   /* sorted by key */
    struct ot_gguf_tensor *tensors; /* sorted by name */
};

#endif
