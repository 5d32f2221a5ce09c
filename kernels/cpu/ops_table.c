/* The cpu device's ops as one translation unit. The files below are inlined into each other and compiled for
 * one instruction set. */
#include "kernels/cpu/op_shared.h"

#include "kernels/cpu/op_elementwise.inc"
#include "kernels/cpu/op_decode.inc"
#include "kernels/cpu/op_sums.inc"
#include "kernels/cpu/op_dora.inc"
#include "kernels/cpu/op_norm.inc"
#include "kernels/cpu/op_compare.inc"
#include "kernels/cpu/op_cross_entropy.inc"
#include "kernels/cpu/op_gemm.inc"
#include "kernels/cpu/op_attention.inc"
#include "kernels/cpu/op_experts.inc"
#include "kernels/cpu/op_spans.inc"

/* OT_CPU_OPS is the symbol of this build, from kernels/cpu/meson.build. */
extern const struct ot_ops OT_CPU_OPS;

const struct ot_ops OT_CPU_OPS = {
    .gemm = cpu_gemm,
    .bias_backward = cpu_bias_backward,
    .embed = cpu_embed,
    .embed_backward = cpu_embed_backward,
    .norm = cpu_norm,
    .norm_backward = cpu_norm_backward,
    .rope = cpu_rope,
    .attention = cpu_attention,
    .attention_backward = cpu_attention_backward,
    .glu = cpu_glu,
    .glu_backward = cpu_glu_backward,
    .activate = cpu_activate,
    .activate_backward = cpu_activate_backward,
    .add = cpu_add,
    .dropout = cpu_dropout,
    .neftune = cpu_neftune,
    .dora_factors = cpu_dora_factors,
    .dora = cpu_dora,
    .dora_backward = cpu_dora_backward,
    .join = cpu_join,
    .softcap = cpu_softcap,
    .compare = cpu_compare,
    .cross_entropy = cpu_cross_entropy,
    .reduce = cpu_reduce,
    .cast = cpu_cast,
    .decode = cpu_decode,
    .adamw = cpu_adamw,
    .router = cpu_router,
    .router_backward = cpu_router_backward,
    .load = cpu_load,
    .balance = cpu_balance,
    .group = cpu_group,
    .gather = cpu_gather,
    .combine = cpu_combine,
    .combine_backward = cpu_combine_backward,
    .gemm_groups = cpu_gemm_groups,
    .attend_spans = cpu_attend_spans,
    .attend_spans_backward = cpu_attend_spans_backward,
};
