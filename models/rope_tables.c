/* The tables of rope: cosines and sines by position and pair. */
#include <math.h>
#include <string.h>

#include "models/decoder.h"
#include "models/rope.h"

enum { MAIN, LOCAL, OF_Q, TABLES };

static bool has_local(const struct ot_model_config *c) {
    return c->local_rope_theta != 0 && c->window > 0;
}

/* The tables that a model has, in this order. */
static int list_tables(const struct ot_model_config *c, int tables[TABLES]) {
    int n = 0;
    if (c->positions != OT_POSITIONS_ROPE)
        return 0;
    tables[n++] = MAIN;
    if (has_local(c))
        tables[n++] = LOCAL;
    if (c->q_scale_beta != 0)
        tables[n++] = OF_Q;
    return n;
}

static int64_t table_elems(const struct ot_model *model) {
    return model->chain.max_position * (model->config.rotary_dim / 2);
}

/* Bytes of the cosines, and of the sines. */
static size_t half_bytes(const struct ot_model *model) {
    return ((size_t)table_elems(model) * sizeof(float) + 255) & ~(size_t)255;
}

size_t ot_rope_bytes(const struct ot_model *model) {
    int tables[TABLES];
    return (size_t)list_tables(&model->config, tables) * 2 * half_bytes(model);
}

/* The factor of cos and sin at a position. */
static double magnitude(const struct ot_model_config *c, int table, int64_t position) {
    bool scales = c->rope.scaling == OT_ROPE_YARN || c->rope.scaling == OT_ROPE_LONGROPE;
    double size = scales && table != LOCAL ? c->rope.attention_factor : 1;
    if (table == OF_Q)
        size *= 1 + c->q_scale_beta * log(1 + floor((double)position / c->rope.original_max_position));
    return size;
}

/* Computes in double and rounds once: an fp32 angle at position 100,000 would be off by 0.004. */
static void fill_table(const struct ot_model *model, int table, char *memory) {
    const struct ot_model_config *c = &model->config;
    int64_t half = c->rotary_dim / 2, n = model->chain.max_position;
    float *cosines = (float *)memory, *sines = (float *)(memory + half_bytes(model));
    memset(memory, 0, 2 * half_bytes(model));
    for (int64_t j = 0; j < half; j++) {
        double frequency = ot_rope_frequency(c, n, table == LOCAL, j);
        for (int64_t p = 0; p < n; p++) {
            double size = magnitude(c, table, p);
            cosines[p * half + j] = (float)(size * cos((double)p * frequency));
            sines[p * half + j] = (float)(size * sin((double)p * frequency));
        }
    }
}

void ot_rope_fill(const struct ot_model *model, void *host_memory) {
    int tables[TABLES], n = list_tables(&model->config, tables);
    for (int i = 0; i < n; i++)
        fill_table(model, tables[i], (char *)host_memory + (size_t)i * 2 * half_bytes(model));
}

struct ot_rope_table ot_rope_find(const struct ot_model *model, const void *constants, int64_t layer,
                                  enum ot_rope_use use) {
    const struct ot_model_config *c = &model->config;
    int tables[TABLES], n = list_tables(c, tables), i = 0;
    int wanted = use == OT_ROPE_OF_Q && c->q_scale_beta != 0       ? OF_Q
                 : has_local(c) && ot_model_layer_window(c, layer) ? LOCAL
                                                                   : MAIN;
    while (i < n - 1 && tables[i] != wanted)
        i++;
    const char *at = (const char *)constants + (size_t)i * 2 * half_bytes(model);
    return (struct ot_rope_table){(const float *)at, (const float *)(at + half_bytes(model))};
}
