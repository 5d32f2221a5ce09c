/* The router of a mixture of experts: the largest logits of each token, their weights, and the gradients of
 * all logits. The bits are those of the cpu device (kernels/cpu/op_experts.inc).
 *
 * Bytes: each logit once from memory, and its gradient once. That is little beside the products of a block:
 * 2 KiB a token for 512 experts in bf16, both ways.
 *
 * A team of 16 lanes has a token, so that its sums have the 16 parts that the contract names. Choosing takes
 * `top` rounds. A round finds the first logit, in the order of the router, that stands behind the logit of
 * the round before. So no list of chosen experts is searched. Lane l reads the logits l, l + 16, ... again in
 * each round, from the L1 cache. Lane s keeps the logit that round s chose.
 */
#include "kernels/cuda/scalar.cuh"

enum { TEAM = OT_MOST_TOP, ROUTER_BLOCK = 128, TEAMS = ROUTER_BLOCK / TEAM };

struct router_place {
    float logit;
    int id;
};

/* True if a stands before b: the larger logit, or NaN; of equal logits the lower id. */
static __device__ __forceinline__ bool router_before(const struct router_place &a,
                                                     const struct router_place &b) {
    bool nan_a = a.logit != a.logit, nan_b = b.logit != b.logit;
    if (a.logit > b.logit || (nan_a && !nan_b))
        return true;
    return (a.logit == b.logit || (nan_a && nan_b)) && a.id < b.id;
}

static __device__ __forceinline__ float team_sum(float x) {
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* The first place behind `last`, for every lane of the team. first: there is no `last` yet. */
template <class T>
static __device__ __forceinline__ struct router_place
router_next(const T *logits, int experts, const struct router_place &last, bool first) {
    struct router_place best = {-INFINITY, INT32_MAX};
    for (int e = (int)threadIdx.x % TEAM; e < experts; e += TEAM) {
        struct router_place here = {ot_to_float(logits[e]), e};
        if ((first || router_before(last, here)) && router_before(here, best))
            best = here;
    }
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2) {
        struct router_place other = {__shfl_xor_sync(0xffffffffu, best.logit, offset),
                                     __shfl_xor_sync(0xffffffffu, best.id, offset)};
        best = router_before(other, best) ? other : best;
    }
    return best;
}

template <class T>
__global__ void router_forward(struct ot_router op) {
    int64_t token = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    int lane = (int)threadIdx.x % TEAM, experts = (int)op.experts, top = (int)op.top;
    bool live = token < op.n; /* a team without a token takes part in the exchanges of its warp */
    const T *logits = static_cast<const T *>(op.logits) + (live ? token : 0) * op.ld;
    struct router_place last = {0, 0}, own = {0, 0};
    float largest = 0;
    for (int s = 0; s < top; s++) {
        last = router_next(logits, experts, last, s == 0);
        largest = s == 0 ? last.logit : largest;
        own = s == lane ? last : own;
    }
    float term = lane < top ? vec_exp(own.logit - largest) : 0.0f, part = term;
    if (op.over_all) {
        part = 0;
        for (int e = lane; e < experts; e += TEAM)
            part += vec_exp(ot_to_float(logits[e]) - largest);
    }
    float weight = term / team_sum(part);
    if (live && lane < top) {
        op.ids[token * top + lane] = own.id;
        op.weights[token * top + lane] = weight;
    }
}

/* weights[0] is 1 / the sum, because the first chosen logit is the largest: exp of 0. */
template <class T>
__global__ void router_gradients(struct ot_router_backward op) {
    const struct ot_router &forward = op.forward;
    int64_t token = (int64_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    int lane = (int)threadIdx.x % TEAM, experts = (int)forward.experts, top = (int)forward.top;
    bool live = token < forward.n;
    int64_t here = live ? token : 0, own = here * top + lane;
    const T *logits = static_cast<const T *>(forward.logits) + here * forward.ld;
    T *dlogits = static_cast<T *>(op.dlogits) + here * forward.ld;
    float weight = lane < top ? forward.weights[own] : 0.0f;
    float dweight = lane < top ? op.dweights[own] : 0.0f, d = team_sum(weight * dweight);
    int id = lane < top ? forward.ids[own] : -1;
    float gradient = weight * (dweight - d), first = __shfl_sync(0xffffffffu, weight, 0, TEAM);
    /* The lane that will write over the largest logit reads it. */
    int top_id = __shfl_sync(0xffffffffu, id, 0, TEAM), owner = top_id % TEAM;
    float largest = live && lane == owner ? ot_to_float(logits[top_id]) : 0.0f;
    largest = __shfl_sync(0xffffffffu, largest, owner, TEAM);
    for (int begin = 0; begin < experts; begin += TEAM) {
        int e = begin + lane;
        bool mine = live && e < experts;
        float x = 0;
        if (forward.over_all && mine)
            x = -d * (vec_exp(ot_to_float(logits[e]) - largest) * first);
        for (int s = 0; s < top; s++) {
            int chosen = __shfl_sync(0xffffffffu, id, s, TEAM);
            float its = __shfl_sync(0xffffffffu, gradient, s, TEAM);
            x = chosen == e ? its : x;
        }
        if (mine)
            dlogits[e] = ot_from_float<T>(x);
    }
}

cudaError_t ot_cuda_router(const struct ot_router *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        return ot_launch(router_forward<decltype(zero)>, dim3((unsigned)ot_ceil_div(args->n, TEAMS)),
                         dim3(ROUTER_BLOCK), 0, on->stream, *args);
    });
}

cudaError_t ot_cuda_router_backward(const struct ot_router_backward *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->forward.dtype, [&](auto zero) {
        return ot_launch(router_gradients<decltype(zero)>,
                         dim3((unsigned)ot_ceil_div(args->forward.n, TEAMS)), dim3(ROUTER_BLOCK), 0,
                         on->stream, *args);
    });
}
