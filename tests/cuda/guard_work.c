#include "tests/cuda/guard_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/support/check.h"

uint16_t *part(const struct work *w, int number) {
    return w->memory + number * N * DIM;
}

int64_t launches(void) {
    return ot_emu_usage().launches;
}

void open_work(struct work *w) {
    struct ot_device_config config = {.kind = "cuda", .threads = 1};
    check_ok(ot_device_open(&config, &w->device));
    check_ok(ot_lane_open(w->device, "compute", &w->lane));
    check_ok(ot_device_alloc(w->device, 16 * N * DIM * 2 + 4 * N * 4, "memory", (void **)&w->memory));
    check_ok(ot_device_alloc_pinned(w->device, 8 * N * DIM * 2, "host", (void **)&w->host));
    w->lse = (float *)(void *)part(w, 8);
    w->scratch = w->lse + N;
    w->dsinks = w->scratch + N;
    w->row_start = (int32_t *)(w->dsinks + N);
    w->sums = (float *)(w->row_start + N);
    for (int i = 0; i < 8 * N * DIM; i++)
        w->host[i] = ot_bf16_from_f32((float)(i * 7919 % 1009) / 504.5f - 1);
    ot_lane_copy(w->lane, OT_COPY_H2D, w->memory, w->host, 8 * N * DIM * 2);
    ot_lane_fill(w->lane, w->row_start, 0, N * 4 + 2 * N * DIM * 4);
    check_ok(ot_lane_sync(w->lane));
}

void close_work(struct work *w) {
    ot_device_free(w->device, w->memory);
    ot_device_free_pinned(w->device, w->host, 8 * N * DIM * 2);
    ot_lane_close(w->lane);
    ot_device_close(w->device);
}

struct ot_attention_backward attention(const struct work *w) {
    return (struct ot_attention_backward){.forward = {.dtype = OT_BF16,
                                                      .n = N,
                                                      .n_keys = N,
                                                      .heads = 1,
                                                      .kv_heads = 1,
                                                      .head_dim = DIM,
                                                      .ldq = DIM,
                                                      .ldk = DIM,
                                                      .ldv = DIM,
                                                      .ldo = DIM,
                                                      .scale = 0.125f,
                                                      .row_start = w->row_start,
                                                      .q = part(w, 0),
                                                      .k = part(w, 1),
                                                      .v = part(w, 2),
                                                      .out = part(w, 3),
                                                      .lse = w->lse},
                                          .dout = part(w, 4),
                                          .dq = part(w, 5),
                                          .dk = part(w, 6),
                                          .dv = part(w, 7),
                                          .lddk = DIM,
                                          .lddv = DIM,
                                          .scratch = w->scratch};
}

void run_attention(const struct work *w) {
    struct ot_attention_backward op = attention(w);
    ot_device_ops(w->device)->attention(w->lane, &op.forward);
    ot_device_ops(w->device)->attention_backward(w->lane, &op);
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, 8 * N * DIM * 2);
    check_ok(ot_lane_sync(w->lane));
}

int guard_setup(void **state) {
    char *folder = make_folder();
    ot_emu_reset();
    ot_fake_cublaslt_reset();
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    unsetenv("OFFLOAD_TRAIN_KERNELS");
    *state = folder;
    return 0;
}

int guard_teardown(void **state) {
    remove_folder(*state);
    struct ot_emu_usage usage = ot_emu_usage();
    return usage.streams + usage.events + usage.allocations + usage.registered;
}

void choose_card(int compute_capability) {
    struct ot_emu_card card = ot_emu_default_card();
    card.compute_capability = compute_capability;
    card.shared_bytes = compute_capability == 90 ? 227 << 10 : card.shared_bytes;
    ot_emu_set_card(&card);
}

void check_near(const uint16_t *got, const uint16_t *want, int n) {
    for (int i = 0; i < n; i++) {
        float g = ot_bf16_to_f32(got[i]), v = ot_bf16_to_f32(want[i]);
        if (!(g - v <= 0.05f && v - g <= 0.05f)) /* 8 units of roundoff of numbers below 1.6 */
            fail_msg("element %d is %g, wanted %g", i, (double)g, (double)v);
    }
}

void run_product(const struct work *w, const struct ot_gemm *op) {
    ot_device_ops(w->device)->gemm(w->lane, op);
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, 8 * N * DIM * 2);
    check_ok(ot_lane_sync(w->lane));
}

struct ot_gemm product(const struct work *w, bool with_bias) {
    return (struct ot_gemm){.dtype = OT_BF16,
                            .c_dtype = OT_BF16,
                            .trans_b = true,
                            .m = N,
                            .n = N,
                            .k = DIM,
                            .a = part(w, 0),
                            .b = part(w, 1),
                            .bias = with_bias ? part(w, 2) : NULL,
                            .c = part(w, 3),
                            .lda = DIM,
                            .ldb = DIM,
                            .ldc = N};
}

struct ot_gemm_groups groups(const struct work *w, enum ot_groups_form form) {
    bool sums = form == OT_GROUPS_SUMS;
    return (struct ot_gemm_groups){.dtype = OT_BF16,
                                   .c_dtype = OT_BF16,
                                   .form = form,
                                   .trans_b = !sums,
                                   .experts = 1,
                                   .rows = N,
                                   .m = DIM,
                                   .n = sums ? DIM : N,
                                   .k = DIM,
                                   .offsets = w->row_start,
                                   .a = part(w, 0),
                                   .b = part(w, 1),
                                   .c = part(w, 3),
                                   .lda = DIM,
                                   .ldb = DIM,
                                   .ldc = sums ? DIM : N,
                                   .stride = DIM * DIM};
}

int64_t run_groups(const struct work *w, enum ot_groups_form form) {
    const int32_t ends[2] = {0, N};
    struct ot_gemm_groups op = groups(w, form);
    memcpy(w->host, ends, sizeof ends);
    ot_lane_copy(w->lane, OT_COPY_H2D, w->row_start, w->host, sizeof ends);
    int64_t before = launches();
    ot_device_ops(w->device)->gemm_groups(w->lane, &op);
    int64_t after = launches();
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, 8 * N * DIM * 2);
    check_ok(ot_lane_sync(w->lane));
    return after - before;
}

/* ---- the log ---- */

static FILE *log_file;
static int saved_stderr;

void listen(void) {
    log_file = tmpfile();
    assert_non_null(log_file);
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fileno(log_file), STDERR_FILENO);
}

void heard(char text[4096]) {
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    rewind(log_file);
    text[fread(text, 1, 4095, log_file)] = '\0';
    fclose(log_file);
}
