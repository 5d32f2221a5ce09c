/* ot_shared and ot_launch (kernels/cuda/kernel.cuh) for the emulator. */
#ifndef OT_EMU_LAUNCH_H
#define OT_EMU_LAUNCH_H

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

/* A call of F, a closure that has a copy of the arguments, the first one in front. */
template <class F>
struct ot_emu_call_of final : ot_emu_call {
    F closure;

    ot_emu_call_of(const void *kernel_, const F &closure_)
        : ot_emu_call(kernel_, sizeof *this), closure(closure_) {}
    void run() const override { closure(); }
    void *first() override { return &closure; }
};

/* Enqueues the call, which it deletes; the stream's thread runs it. */
cudaError_t ot_emu_launch(ot_emu_call *call, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream);

/* A closure in place of a std::tuple, never inlined: sources with fifty kernels compile in half the time. */
template <class... P, class... A>
__attribute__((noinline, cold)) cudaError_t ot_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                                      size_t shared_bytes, cudaStream_t stream, A... args) {
    auto closure = [args..., kernel] { kernel(static_cast<P>(args)...); };
    const void *function = reinterpret_cast<const void *>(kernel);
    return ot_emu_launch(new ot_emu_call_of<decltype(closure)>(function, closure), grid, block, shared_bytes,
                         stream);
}

#endif
