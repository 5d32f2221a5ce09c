/* The walk over a model's tensors that places each in its slab: params.c has the model's own tensors,
 * params_lora.c the adapters'. Private to these files. */
#ifndef OT_MODELS_PARAMS_H
#define OT_MODELS_PARAMS_H

#include "models/decoder.h"

/* The tensors of a block, before they have places. */
struct ot_params_walk {
    struct ot_model *model;
    const struct ot_model_setup *setup;
    int block;
    int64_t layer; /* -1: the block is none */
    bool edge, shared;
    int64_t numbered; /* tensors with a number of their own so far */
    int64_t adapted;  /* modules with an adapter so far */
    int rc;           /* the first wrong adapter, or matrix that cannot be encoded */
    int n;
    struct ot_tensor *tensors; /* [most_tensors()] */
    struct ot_place **places;  /* of the unit that begins with the tensor; else NULL */
};

/* place: where the place of a unit goes, whose first tensor this is. NULL: the tensor goes on with the unit
 * before it. */
/* Adds the rows of new tokens beside a table, if the run trains them by themselves. unit: its adapter. */
void ot_params_add_token_rows(struct ot_params_walk *w, struct ot_tensor table,
                              const struct ot_lora_unit *unit, struct ot_place *place);
struct ot_tensor *ot_params_append(struct ot_params_walk *w, struct ot_place *place, int64_t rows,
                                   int64_t cols, enum ot_init init);

/* Adds the adapters of a unit of linear maps, whose weights are `targets`. */
void ot_params_add_lora(struct ot_params_walk *w, const struct ot_tensor *targets, int n,
                        struct ot_lora_unit *unit);
/* Adds the adapters of a layer's experts. gate_up and down: the first tensors of their units. */
void ot_params_add_experts_lora(struct ot_params_walk *w, const struct ot_tensor *gate_up,
                                const struct ot_tensor *down, struct ot_layer_layout *at);
/* Adds the adapter of the embedding, whose table is w's only tensor. */
void ot_params_add_embedding_lora(struct ot_params_walk *w);

#endif
