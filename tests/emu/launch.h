/* ot_shared and ot_launch (kernels/cuda/kernel.cuh) for the emulator. */
#ifndef OT_EMU_LAUNCH_H
#define OT_EMU_LAUNCH_H

#include <memory>
#include <tuple>

#include <cuda_runtime.h>

/* The block's shared memory, 128-byte aligned. */
__attribute__((const)) void *ot_emu_shared_memory() noexcept;

template <class T>
__forceinline__ T *ot_shared() {
    return reinterpret_cast<T *>(ot_emu_shared_memory());
}

/* A kernel and its arguments. Every thread runs it once. */
struct ot_emu_call {
    const void *kernel; /* the function; reports use its name */
    size_t bytes;       /* size of this object, which the threads may read */

    ot_emu_call(const void *kernel_, size_t bytes_) : kernel(kernel_), bytes(bytes_) {}
    virtual ~ot_emu_call() {}
    virtual void run() const = 0;
    virtual void *first() = 0; /* the first argument */
};

template <class... P>
struct ot_emu_call_of final : ot_emu_call {
    void (*function)(P...);
    std::tuple<P...> arguments;

    template <class... A>
    ot_emu_call_of(void (*function_)(P...), A... args)
        : ot_emu_call(reinterpret_cast<const void *>(function_), sizeof *this), function(function_),
          arguments(static_cast<P>(args)...) {}
    void run() const override { std::apply(function, arguments); }
    void *first() override { return &std::get<0>(arguments); }
};

/* Enqueues the call; the stream's thread runs it. */
cudaError_t ot_emu_launch(std::unique_ptr<ot_emu_call> call, dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream);

template <class... P, class... A>
cudaError_t ot_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                      A... args) {
    return ot_emu_launch(std::make_unique<ot_emu_call_of<P...>>(kernel, args...), grid, block, shared_bytes,
                         stream);
}

#endif
