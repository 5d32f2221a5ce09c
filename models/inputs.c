#include "models/inputs.h"

int64_t ot_model_input_width(const struct ot_model *model, enum ot_layer_input input) {
    const struct ot_model_config *c = ot_model_get_config(model);
    const int64_t widths[OT_LAYER_INPUTS] = {[OT_INPUT_QKV] = c->hidden,
                                             [OT_INPUT_O] = c->n_heads * c->head_dim,
                                             [OT_INPUT_GATE_UP] = c->hidden,
                                             [OT_INPUT_DOWN] = c->ffn};
    return widths[input];
}

bool ot_tensor_reads_input(const struct ot_tensor *tensor, enum ot_layer_input *input) {
    if (tensor->dims != 2 || !ot_module_is_map(tensor->module) || ot_lora_has_tensor(tensor->name))
        return false;
    switch (tensor->module) {
    case OT_MODULE_O:
        *input = OT_INPUT_O;
        return true;
    case OT_MODULE_GATE:
    case OT_MODULE_UP:
    case OT_MODULE_GATE_UP:
        *input = OT_INPUT_GATE_UP;
        return true;
    case OT_MODULE_DOWN:
        *input = OT_INPUT_DOWN;
        return true;
    default:
        *input = OT_INPUT_QKV;
        return true;
    }
}
