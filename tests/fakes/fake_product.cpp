#include "tests/fakes/fake_product.h"

#include <string.h>
#include <unistd.h>
#include <vector>

#include "tests/emu/emu_runtime.h"
#include "tests/emu/launch.h"

extern "C" {
#include "kernels/cuda/cublaslt_api.h"
#include "src/base/dtype.h"
}

namespace {

size_t bytes_of(int type) {
    return type == OT_CUBLASLT_R_32F ? 4 : 2;
}

float load(int type, const void *array, int64_t i) {
    if (type == OT_CUBLASLT_R_32F)
        return static_cast<const float *>(array)[i];
    uint16_t bits = static_cast<const uint16_t *>(array)[i];
    return type == OT_CUBLASLT_R_16BF ? ot_bf16_to_f32(bits) : ot_f16_to_f32(bits);
}

void store(int type, void *array, int64_t i, float value) {
    if (type == OT_CUBLASLT_R_32F)
        static_cast<float *>(array)[i] = value;
    else
        static_cast<uint16_t *>(array)[i] =
            type == OT_CUBLASLT_R_16BF ? ot_bf16_from_f32(value) : ot_f16_from_f32(value);
}

float round_to(int type, float value) {
    uint32_t room;
    store(type, &room, 0, value);
    return load(type, &room, 0);
}

/* op(X)[rows, cols] in fp32, column-major and dense. */
std::vector<float> unpack(int type, const void *x, bool trans, int64_t rows, int64_t cols, int64_t ld) {
    std::vector<float> out((size_t)(rows * cols));
    for (int64_t col = 0; col < cols; col++)
        for (int64_t row = 0; row < rows; row++)
            out[(size_t)(col * rows + row)] = load(type, x, trans ? row * ld + col : col * ld + row);
    return out;
}

/* Adds k = [begin, end) of one column of the product to sums[m], in order. The inner loop goes over rows, so
 * it runs as wide as the CPU allows, and each sum stays one chain. */
void add_stretch(const float *a, const float *b, int64_t m, int64_t begin, int64_t end, float *sums) {
    for (int64_t p = begin; p < end; p++)
        for (int64_t i = 0; i < m; i++)
            sums[i] += a[p * m + i] * b[p];
}

void finish_column(const fake_product &p, int64_t col, const float *sums) {
    for (int64_t i = 0; i < p.m; i++) {
        float value = p.alpha * sums[i];
        if (p.beta != 0)
            value += p.beta * load(p.d_type, p.c, col * p.ldc + i);
        if (p.bias)
            value += load(p.d_type, p.bias, i);
        store(p.d_type, p.d, col * p.ldd + i, value);
    }
}

void multiply(const fake_product &p) {
    std::vector<float> a = unpack(p.type, p.a, p.trans_a, p.m, p.k, p.lda);
    std::vector<float> b = unpack(p.type, p.b, p.trans_b, p.k, p.n, p.ldb);
    std::vector<float> first((size_t)p.m), sums((size_t)p.m);
    for (int64_t col = 0; col < p.n; col++) {
        const float *column = b.data() + col * p.k;
        sums.assign(sums.size(), 0);
        if (p.split > 0) {
            first.assign(first.size(), 0);
            add_stretch(a.data(), column, p.m, 0, p.split, first.data());
            add_stretch(a.data(), column, p.m, p.split, p.k, sums.data());
            for (size_t i = 0; i < sums.size(); i++)
                sums[i] = (p.rounds_parts ? round_to(p.d_type, first[i]) : first[i]) + sums[i];
        } else {
            add_stretch(a.data(), column, p.m, 0, p.k, sums.data());
        }
        finish_column(p, col, sums.data());
    }
    if (p.flips)
        *static_cast<uint8_t *>(p.d) ^= 1;
}

/* A column-major matrix ends with its last column, not with that column's padding. */
bool may_touch(const void *memory, int type, int64_t rows, int64_t cols, int64_t ld) {
    return ot_emu::is_device_memory(memory, (size_t)((cols - 1) * ld + rows) * bytes_of(type));
}

bool may_run(const fake_product &p) {
    return may_touch(p.a, p.type, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda) &&
           may_touch(p.b, p.type, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb) &&
           (p.beta == 0 || may_touch(p.c, p.d_type, p.m, p.n, p.ldc)) &&
           may_touch(p.d, p.d_type, p.m, p.n, p.ldd) &&
           (!p.bias || may_touch(p.bias, p.d_type, p.m, 1, p.m)) &&
           (!p.workspace_bytes || ot_emu::is_device_memory(p.workspace, p.workspace_bytes));
}

/* Overwrites both ends of the workspace, so that other data kept there is lost. */
void soil_workspace(const fake_product &p) {
    size_t part = p.workspace_bytes < 8192 ? p.workspace_bytes / 2 : 4096;
    memset(p.workspace, 0xff, part);
    memset(static_cast<char *>(p.workspace) + p.workspace_bytes - part, 0xff, part);
}

/* One thread is the whole grid. */
void product_kernel(fake_product p) {
    if (!may_run(p)) {
        ot_emu::set_sticky(cudaErrorIllegalAddress,
                           "a product of the fake cuBLASLt leaves its matrices' memory");
        return;
    }
    if (p.delay_us > 0)
        usleep((useconds_t)p.delay_us);
    soil_workspace(p);
    multiply(p);
}

} // namespace

cudaError_t fake_product_enqueue(const struct fake_product *product, cudaStream_t stream) {
    return ot_launch(product_kernel, dim3(1), dim3(1), 0, stream, *product);
}
