/* Pinned memory that CUDA does not take in one registration. Only the emulated device can be made to
 * refuse it. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cuda/cuda_state.h"
#include "tests/emu/emu_faults.h"

enum { MIB = 1 << 20, GIB = 1 << 30 };

/* Pieces of pinned memory end at multiples of a GiB. */
static char *border_after(const char *memory) {
    return (char *)((uintptr_t)memory / GIB * GIB + GIB);
}

/* CUDA refuses to pin the memory at once and pins its pieces, and refuses copies across two pieces. */
static void test_memory_is_pinned_in_pieces(void **state) {
    (void)state;
    const size_t bytes = (size_t)2 * GIB + 5 * MIB;
    struct ot_device *device;
    struct ot_lane *lane;
    void *memory, *on_gpu;
    check_ok(ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .memory_bytes = 200 * MIB, .threads = 1}, &device));
    check_ok(ot_lane_open(device, "copies", &lane));
    check_ok(ot_device_alloc(device, 2 * MIB, "test", &on_gpu));
    int before = ot_emu_usage().registered;
    ot_emu_fail_call("cudaHostRegister", 1, cudaErrorMemoryAllocation);
    check_ok(ot_device_alloc_pinned(device, bytes, "the plan", &memory));
    assert_in_range(ot_emu_usage().registered - before, 3, 4);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* a later launch would report it */
    char *in = border_after(memory) - MIB, *out = in + GIB;
    for (size_t i = 0; i < 2 * MIB; i++)
        in[i] = (char)(i * 2654435761u >> 13);
    ot_lane_copy(lane, OT_COPY_H2D, on_gpu, in, 2 * MIB);
    ot_lane_copy(lane, OT_COPY_D2H, out, on_gpu, 2 * MIB);
    check_ok(ot_lane_sync(lane));
    assert_memory_equal(in, out, 2 * MIB);
    ot_device_free_pinned(device, memory, bytes);
    assert_int_equal(ot_emu_usage().registered, before);
    check_ok(ot_device_alloc_pinned(device, bytes, "the plan", &memory)); /* at once */
    assert_int_equal(ot_emu_usage().registered, before + 1);
    ot_device_free_pinned(device, memory, bytes);
    assert_int_equal(ot_emu_usage().registered, before);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    ot_device_free(device, on_gpu);
    ot_lane_close(lane);
    ot_device_close(device);
}

/* CUDA pins some pieces but not all: the error says how much, and none stays pinned. */
static void test_a_piece_cannot_be_pinned(void **state) {
    (void)state;
    const size_t bytes = (size_t)2 * GIB + 5 * MIB;
    struct ot_device *device;
    check_ok(ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .memory_bytes = 200 * MIB, .threads = 1}, &device));
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), words[64];
    assert_true(memory != MAP_FAILED);
    char *taken = border_after(memory) + MIB;
    snprintf(words, sizeof words, "; it pins %.1f MiB of them",
             (double)(border_after(memory) - memory) / MIB);
    assert_int_equal(cudaHostRegister(taken, MIB, cudaHostRegisterDefault), cudaSuccess);
    int before = ot_emu_usage().registered;
    check_fails(ot_device_pin(device, memory, bytes, bytes, "the plan"), OT_E_BUDGET, words);
    assert_int_equal(ot_error_cause(), OT_CAUSE_PINNED_MEMORY);
    assert_int_equal(ot_emu_usage().registered, before);
    assert_int_equal(cudaHostUnregister(taken), cudaSuccess);
    ot_device_close(device);
    munmap(memory, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_pinned_in_pieces),
        cmocka_unit_test(test_a_piece_cannot_be_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
