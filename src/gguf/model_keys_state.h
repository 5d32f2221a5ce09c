/* Declarations that the makers of config.json share: the model (model_keys_read.c) and its rope
 * (model_keys_rope.c). */
#ifndef OT_GGUF_MODEL_KEYS_STATE_H
#define OT_GGUF_MODEL_KEYS_STATE_H

#include "models/family.h"
#include "src/gguf/model_keys.h"

#define OT_GGUF_MOST INT64_C(0x7fffffff)

struct ot_gguf_maker {
    const struct ot_gguf *file;
    const struct ot_family_row *family;
    const struct ot_gguf_architecture *row; /* its name is the prefix of the keys */
    struct ot_model_config c;
};

/* "llama.block_count"; static, overwritten by the next call of the thread. */
const char *ot_gguf_maker_key(const struct ot_gguf_maker *m, const char *name);
/* As ot_gguf_need_int and ot_gguf_need_real; *out becomes the decimal that model_keys.h promises. */
int ot_gguf_maker_int(const struct ot_gguf_maker *m, const char *name, bool required, int64_t min,
                      int64_t max, int64_t *out);
int ot_gguf_maker_real(const struct ot_gguf_maker *m, const char *name, bool required, double min, double max,
                       double *out);
/* The decimal with the fewest digits that is stored as this value after a division by `unit`. */
double ot_gguf_decimal(float stored, double unit);

/* Reads the RoPE of q and k, after the sizes and the window. Errors: as ot_gguf_make_config. */
int ot_gguf_read_rope(struct ot_gguf_maker *m);

#endif
