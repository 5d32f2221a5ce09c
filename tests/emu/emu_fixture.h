/* Helpers for the tests of the emulator: arrays in device memory, and launches that wait for the kernel. */
#ifndef OT_TESTS_EMU_FIXTURE_H
#define OT_TESTS_EMU_FIXTURE_H

#include <string.h>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "tests/emu/emu.h"
#include "tests/emu/emu_faults.h"

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

/* ---- wrong and right kernels ---- */

/* A wrong kernel and its right twin. Each case is launched as kernel(data, wrong) with 256 floats of data. */
struct Case {
    const char *name;
    void (*kernel)(float *data, bool wrong);
    dim3 grid, block;
    size_t shared_bytes;
    cudaError_t error;
    std::vector<const char *> words; /* the report contains these words */
    bool needs_access_checks;        /* false: page faults or the scheduler find the error, in every build */
    int compute_capability;          /* of the card; 0: the default card */
};

/* A new runtime with a card of this compute capability; 0: with the default card. */
inline void reset_to(int compute_capability) {
    ot_emu_reset();
    struct ot_emu_card card = ot_emu_default_card();
    if (compute_capability)
        card.compute_capability = compute_capability;
    ot_emu_set_card(&card);
}

inline void check_right(const Case &c) {
    reset_to(c.compute_capability);
    DeviceArray<float> data(256, 0.5f);
    for (uint64_t seed = 0; seed < 4; seed++) {
        ot_emu_set_order(seed);
        cudaError_t error = run(c.kernel, c.grid, c.block, c.shared_bytes, data.device, false);
        if (error != cudaSuccess)
            fail_msg("the right version of %s failed in order %d: %s", c.name, (int)seed,
                     cudaGetErrorString(error));
    }
    ot_emu_set_order(0);
}

inline void check_wrong(const Case &c) {
    reset_to(c.compute_capability);
    DeviceArray<float> data(256, 0.5f);
    cudaError_t error = run(c.kernel, c.grid, c.block, c.shared_bytes, data.device, true);
    std::string report = ot_emu_report();
    ot_emu_reset();
    if (error != c.error)
        fail_msg("%s: error %d instead of %d: %s", c.name, error, c.error, report.c_str());
    for (const char *words : c.words)
        if (report.find(words) == std::string::npos)
            fail_msg("%s: the report does not contain \"%s\": %s", c.name, words, report.c_str());
}

/* The right version of each case passes, in random orders too. */
inline void check_right_kernels(const std::vector<Case> &cases) {
    for (const Case &c : cases)
        check_right(c);
}

/* The wrong version of each case is reported. */
inline void check_wrong_kernels(const std::vector<Case> &cases) {
    int skipped = 0;
    for (const Case &c : cases)
        if (c.needs_access_checks && !ot_emu_checks_accesses())
            skipped++;
        else
            check_wrong(c);
    if (skipped)
        print_message("%d kernels are left out: this build does not check accesses\n", skipped);
}

#endif
