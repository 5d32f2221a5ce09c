/* Instantiates a kernel for each activation: the formulas of kernels/formulas.h, with the switch decided at
 * compile time. */
#ifndef OT_KERNELS_CUDA_ACTIVATION_CUH
#define OT_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/scalar.cuh"

template <ot_activation ACT>
struct ot_activation_constant {
    static constexpr ot_activation value = ACT;
};

/* Calls f(zero, act) like ot_dispatch; act.value is the activation. */
template <class F>
cudaError_t ot_dispatch_activation(enum ot_dtype dtype, enum ot_activation act, F f) {
    return ot_dispatch(dtype, [&](auto zero) {
        switch (act) {
        case OT_ACT_SILU:
            return f(zero, ot_activation_constant<OT_ACT_SILU>());
        case OT_ACT_GELU_ERF:
            return f(zero, ot_activation_constant<OT_ACT_GELU_ERF>());
        case OT_ACT_GELU_TANH:
            return f(zero, ot_activation_constant<OT_ACT_GELU_TANH>());
        case OT_ACT_RELU:
            return f(zero, ot_activation_constant<OT_ACT_RELU>());
        }
        return cudaErrorInvalidValue;
    });
}

#endif
