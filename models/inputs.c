#include "models/inputs.h"

#include <string.h>

int64_t ot_model_input_width(const struct ot_model *model, enum ot_layer_input input) {
    const struct ot_model_config *c = ot_model_get_config(model);
    const int64_t widths[OT_LAYER_INPUTS] = {[OT_INPUT_QKV] = c->hidden,
                                             [OT_INPUT_O] = c->n_heads * c->head_dim,
                                             [OT_INPUT_GATE_UP] = c->hidden,
                                             [OT_INPUT_DOWN] = c->ffn};
    return widths[input];
}

bool ot_tensor_reads_input(const struct ot_tensor *tensor, enum ot_layer_input *input) {
    static const struct {
        const char *map;
        enum ot_layer_input input;
    } maps[] = {
        {".q_proj.", OT_INPUT_QKV},     {".k_proj.", OT_INPUT_QKV},        {".v_proj.", OT_INPUT_QKV},
        {".o_proj.", OT_INPUT_O},       {".gate_proj.", OT_INPUT_GATE_UP}, {".up_proj.", OT_INPUT_GATE_UP},
        {".down_proj.", OT_INPUT_DOWN},
    };
    for (size_t i = 0; tensor->dims == 2 && i < sizeof maps / sizeof *maps; i++)
        if (strstr(tensor->name, maps[i].map)) {
            *input = maps[i].input;
            return true;
        }
    return false;
}
