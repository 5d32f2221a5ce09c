#include "models/linear_inputs.h"

bool ot_model_input_is_of_experts(const struct ot_model *model, int block, enum ot_layer_input input) {
    return input >= OT_INPUT_GATE_UP && ot_model_layer_has_experts(ot_model_get_config(model), block - 1);
}

int64_t ot_model_input_width(const struct ot_model *model, int block, enum ot_layer_input input) {
    const struct ot_model_config *c = ot_model_get_config(model);
    int64_t ffn = ot_model_input_is_of_experts(model, block, input) ? c->expert_ffn : c->ffn;
    const int64_t widths[OT_LAYER_INPUTS] = {[OT_INPUT_QKV] = c->hidden,
                                             [OT_INPUT_O] = c->n_heads * c->head_dim,
                                             [OT_INPUT_CROSS_Q] = c->hidden,
                                             [OT_INPUT_CROSS_KV] = c->hidden,
                                             [OT_INPUT_CROSS_O] = c->n_heads * c->head_dim,
                                             [OT_INPUT_GATE_UP] = c->hidden,
                                             [OT_INPUT_DOWN] = ffn};
    return widths[input];
}

bool ot_tensor_reads_input(const struct ot_tensor *tensor, enum ot_layer_input *input) {
    bool is_map = ot_module_is_map(tensor->module) || ot_module_is_expert(tensor->module);
    if (tensor->dims != 2 || !is_map || ot_lora_has_tensor(tensor->name))
        return false;
    switch (tensor->module) {
    case OT_MODULE_O:
        *input = OT_INPUT_O;
        return true;
    case OT_MODULE_CROSS_Q:
        *input = OT_INPUT_CROSS_Q;
        return true;
    case OT_MODULE_CROSS_K:
    case OT_MODULE_CROSS_V:
        *input = OT_INPUT_CROSS_KV;
        return true;
    case OT_MODULE_CROSS_O:
        *input = OT_INPUT_CROSS_O;
        return true;
    case OT_MODULE_GATE:
    case OT_MODULE_UP:
    case OT_MODULE_GATE_UP:
    case OT_MODULE_EXPERT_GATE:
    case OT_MODULE_EXPERT_UP:
    case OT_MODULE_EXPERTS_GATE_UP:
        *input = OT_INPUT_GATE_UP;
        return true;
    case OT_MODULE_DOWN:
    case OT_MODULE_EXPERT_DOWN:
    case OT_MODULE_EXPERTS_DOWN:
        *input = OT_INPUT_DOWN;
        return true;
    default:
        *input = OT_INPUT_QKV;
        return true;
    }
}
