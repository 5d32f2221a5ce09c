/* Helpers for the tests of the emulator: arrays in device memory, and launches that wait for the kernel. */
#ifndef OT_TESTS_EMU_FIXTURE_H
#define OT_TESTS_EMU_FIXTURE_H

#include <string.h>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "kernels/emu/emu.h"
#include "kernels/emu/emu_faults.h"

extern "C" {
#include "tests/support/check.h"
}

/* Copies through registered memory on the default stream, and waits for the copy. */
template <class T>
struct DeviceArray {
    T *device = nullptr;
    std::vector<T> host;

    explicit DeviceArray(std::vector<T> values) : host(values) {
        assert_int_equal(cudaMalloc((void **)&device, bytes()), cudaSuccess);
        copy(device, host.data(), cudaMemcpyHostToDevice);
    }
    DeviceArray(size_t n, T value) : DeviceArray(std::vector<T>(n, value)) {}
    DeviceArray(const DeviceArray &) = delete;
    ~DeviceArray() { cudaFree(device); }
    size_t bytes() const { return host.size() * sizeof(T); }
    const std::vector<T> &get() {
        copy(host.data(), device, cudaMemcpyDeviceToHost);
        return host;
    }

  private:
    void copy(void *to, const void *from, cudaMemcpyKind kind) {
        assert_int_equal(cudaHostRegister(host.data(), bytes(), 0), cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(to, from, bytes(), kind, nullptr), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(nullptr), cudaSuccess);
        assert_int_equal(cudaHostUnregister(host.data()), cudaSuccess);
    }
};

/* Launches a kernel and waits for it. Returns the error, or cudaSuccess. */
template <class... P, class... A>
cudaError_t run(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args) {
    cudaError_t error = ot_launch(kernel, grid, block, shared_bytes, nullptr, args...);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

/* Launches a kernel and waits for it. The launch must succeed. */
template <class... P, class... A>
void run_well(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args) {
    cudaError_t error = run(kernel, grid, block, shared_bytes, args...);
    if (error != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(error));
}

#endif
