#include "kernels/cuda/cuda_guard.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_guard_checks.h"
#include "kernels/cuda/cuda_guard_verdicts.h"
#include "kernels/cuda/gemm_groups.h"
#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/log.h"

enum forced { AUTO, TILED, PLAIN }; /* OFFLOAD_TRAIN_KERNELS */

struct ot_cuda_guard {
    bool is_off;
    enum forced forced;
    struct ot_guard_verdicts verdicts;
    bool said[OT_GUARD_PATHS]; /* a warning about this path was logged */
    struct ot_guard_pinned *pinned;
};

/* ---- verdicts ---- */

/* True if the caller must check the path, and then call `settle`. The stream is drained first, so that the
 * fault of an earlier kernel is not taken for one of the check. */
static bool needs_check(struct ot_cuda_guard *guard, int path, const struct ot_cuda_stream *on) {
    return guard->verdicts.of[path] == OT_GUARD_UNKNOWN && cudaStreamSynchronize(on->stream) == cudaSuccess &&
           ot_guard_verdict_begin(&guard->verdicts, path) == OT_GUARD_UNKNOWN;
}

/* rc: the result of the check. A fault stays, and the lane reports it; the next start must not check
 * again. A check that ends early has kernels behind it, whose fault is waited for. Any other error is
 * cleared, as if no check had run. */
static void settle(struct ot_cuda_guard *guard, int path, const char *name, cudaError_t rc, bool agree,
                   const struct ot_cuda_stream *on) {
    enum ot_guard_verdict verdict = agree ? OT_GUARD_TRUSTED : OT_GUARD_DISTRUSTED;
    cudaError_t behind = rc == cudaSuccess ? cudaSuccess : cudaStreamSynchronize(on->stream);
    rc = ot_cuda_error_is_fault(behind) ? behind : rc;
    if (ot_cuda_error_is_fault(rc)) {
        ot_log(OT_LOG_WARN, "the GPU failed in the check of %s: %s; %s", name, ot_cuda_error_text(rc),
               guard->verdicts.path ? "the next start uses a slower kernel instead"
                                    : "OFFLOAD_TRAIN_KERNELS=plain uses slower kernels instead");
        guard->said[path] = true;
        verdict = OT_GUARD_UNFINISHED;
    } else if (rc != cudaSuccess) {
        (void)cudaGetLastError();
        verdict = OT_GUARD_UNKNOWN;
    }
    ot_guard_verdict_end(&guard->verdicts, path, verdict);
}

/* Warns once for each run, also if an earlier run has found the verdict. */
static bool is_trusted(struct ot_cuda_guard *guard, int path, const char *name) {
    char verdict = guard->verdicts.of[path];
    if (verdict == OT_GUARD_TRUSTED || verdict == OT_GUARD_UNKNOWN)
        return true;
    if (!guard->said[path] && verdict == OT_GUARD_DISTRUSTED)
        ot_log(
            OT_LOG_WARN,
            "the results of %s differ from those of the plain kernel on this GPU; a slower kernel replaces "
            "it; please report this with the output of probe",
            name);
    else if (!guard->said[path])
        ot_log(OT_LOG_WARN,
               "an earlier check of %s never ended: the run was killed, or the GPU hung or failed; a slower "
               "kernel replaces it; to check it again, delete %s",
               name, guard->verdicts.path);
    guard->said[path] = true;
    return false;
}

/* ---- ops ---- */

static bool trusts(const struct ot_cuda_guard *guard, int path) {
    return guard->is_off || guard->verdicts.of[path] == OT_GUARD_TRUSTED;
}

static bool may_attend(struct ot_cuda_guard *guard, const struct ot_attention *op,
                       enum ot_guard_attention kind, const struct ot_cuda_stream *on) {
    int path = ot_guard_attention_path(op, kind);
    if (!ot_attention_is_tiled(op, on->arch) || trusts(guard, path))
        return true;
    char name[OT_GUARD_NAME_BYTES];
    bool agree = false;
    ot_guard_attention_name(op, kind, name);
    if (needs_check(guard, path, on)) {
        cudaError_t rc = ot_guard_check_attention(guard->pinned, op, kind, on, &agree);
        settle(guard, path, name, rc, agree, on);
    }
    return is_trusted(guard, path, name);
}

void ot_cuda_guard_attention(struct ot_cuda_guard *guard, const struct ot_attention *op,
                             struct ot_cuda_stream *on) {
    on->plain = on->no_hopper = false;
    if (guard->forced == AUTO && ot_attention_is_hopper(op, on) &&
        may_attend(guard, op, OT_GUARD_HOPPER_FORWARD, on))
        return;
    on->no_hopper = true;
    on->plain = guard->forced == PLAIN || !may_attend(guard, op, OT_GUARD_FORWARD, on);
}

void ot_cuda_guard_attention_backward(struct ot_cuda_guard *guard, const struct ot_attention_backward *op,
                                      struct ot_cuda_stream *on) {
    struct ot_attention like = op->forward;
    /* Only the check with earlier keys has stored sums, which the first section of a row has too. */
    like.n_keys += op->dk_sums != NULL;
    on->plain = on->no_hopper = false;
    if (guard->forced == AUTO && ot_attention_backward_is_hopper(&like, on) &&
        may_attend(guard, &like, OT_GUARD_HOPPER_BACKWARD, on))
        return;
    on->no_hopper = true;
    on->plain = guard->forced == PLAIN || !may_attend(guard, &like, OT_GUARD_BACKWARD, on);
}

bool ot_cuda_guard_gemm(struct ot_cuda_guard *guard, struct ot_cuda_gemm *gemm, const struct ot_gemm *op,
                        const struct ot_cuda_stream *on) {
    int path = ot_guard_gemm_path(op);
    if (guard->forced == PLAIN || trusts(guard, path))
        return guard->forced != PLAIN;
    char name[OT_GUARD_NAME_BYTES];
    bool agree = false;
    ot_guard_gemm_name(op, name);
    if (needs_check(guard, path, on)) {
        cudaError_t rc = ot_guard_check_gemm(guard->pinned, gemm, op, on, &agree);
        settle(guard, path, name, rc, agree, on);
    }
    return is_trusted(guard, path, name);
}

/* The check runs the kernel that *on chooses. */
static bool may_group(struct ot_cuda_guard *guard, const struct ot_gemm_groups *op, bool hopper,
                      const struct ot_cuda_stream *on) {
    int path = ot_guard_groups_path(op, hopper);
    if (!ot_gemm_groups_is_tiled(op) || trusts(guard, path))
        return true;
    char name[OT_GUARD_NAME_BYTES];
    bool agree = false;
    ot_guard_groups_name(op, hopper, name);
    if (needs_check(guard, path, on)) {
        cudaError_t rc = ot_guard_check_groups(guard->pinned, op, hopper, on, &agree);
        settle(guard, path, name, rc, agree, on);
    }
    return is_trusted(guard, path, name);
}

void ot_cuda_guard_gemm_groups(struct ot_cuda_guard *guard, const struct ot_gemm_groups *op,
                               struct ot_cuda_stream *on) {
    on->plain = on->no_hopper = false;
    if (guard->forced == AUTO && ot_gemm_groups_is_hopper(op, on) && may_group(guard, op, true, on))
        return;
    on->no_hopper = true;
    on->plain = guard->forced == PLAIN || !may_group(guard, op, false, on);
}

static bool may_attend_spans(struct ot_cuda_guard *guard, const struct ot_attend_spans *op, bool backward,
                             const struct ot_cuda_stream *on) {
    int path = ot_guard_spans_path(op, backward);
    if (trusts(guard, path))
        return true;
    char name[OT_GUARD_NAME_BYTES];
    bool agree = false;
    ot_guard_spans_name(op, backward, name);
    if (needs_check(guard, path, on)) {
        cudaError_t rc = ot_guard_check_spans(guard->pinned, op, backward, on, &agree);
        settle(guard, path, name, rc, agree, on);
    }
    return is_trusted(guard, path, name);
}

void ot_cuda_guard_spans(struct ot_cuda_guard *guard, const struct ot_attend_spans *op,
                         struct ot_cuda_stream *on) {
    on->plain = guard->forced == PLAIN ||
                (ot_attend_spans_is_tiled(op, on) && !may_attend_spans(guard, op, false, on));
}

void ot_cuda_guard_spans_backward(struct ot_cuda_guard *guard, const struct ot_attend_spans_backward *op,
                                  struct ot_cuda_stream *on) {
    on->plain = guard->forced == PLAIN || (ot_attend_spans_backward_is_tiled(op, on) &&
                                           !may_attend_spans(guard, &op->forward, true, on));
}

/* ---- opening ---- */

/* The place of a variable's value in the list; 0, the default, if it is not set or empty. */
static int read_choice(const char *variable, const char *const *values, int n, int *out) {
    const char *value = getenv(variable);
    *out = 0;
    if (!value || !*value)
        return 0;
    for (int i = 0; i < n; i++)
        if (strcmp(value, values[i]) == 0) {
            *out = i;
            return 0;
        }
    return ot_fail(OT_E_INPUT, "the environment variable %s is '%s', but must be %s%s%s%s%s", variable, value,
                   values[0], n > 2 ? ", " : " or ", values[1], n > 2 ? " or " : "", n > 2 ? values[2] : "");
}

static int read_environment(struct ot_cuda_guard *guard) {
    static const char *const kernels[] = {"auto", "tiled", "plain"}, *const checks[] = {"on", "off"};
    int forced, off;
    OT_TRY(read_choice("OFFLOAD_TRAIN_KERNELS", kernels, 3, &forced));
    OT_TRY(read_choice("OFFLOAD_TRAIN_KERNEL_CHECKS", checks, 2, &off));
    guard->forced = (enum forced)forced;
    guard->is_off = off;
    return 0;
}

const char *ot_cuda_guard_forced(const struct ot_cuda_guard *guard) {
    static const char *const names[] = {"", "tiled kernels", "plain kernels"};
    return names[guard->forced];
}

/* Reports the environment's changes once for each process: a bench opens the device for each of its points.
 */
static void say_wish(const struct ot_cuda_guard *guard) {
    static atomic_bool said;
    if (guard->forced == AUTO || atomic_exchange(&said, true))
        return;
    ot_log(OT_LOG_WARN, guard->forced == PLAIN
                            ? "OFFLOAD_TRAIN_KERNELS is plain: plain kernels compute all attention and all "
                              "products, which is much slower and changes the last digits"
                            : "OFFLOAD_TRAIN_KERNELS is tiled: no kernel of compute capability 9.0 computes "
                              "attention or products by groups, which is slower and changes the last digits");
}

static int open_verdicts(struct ot_cuda_guard *guard, const struct ot_cuda_guard_config *config) {
    char build[OT_BUILD_ID_BYTES], identity[384];
    ot_build_id(build);
    snprintf(identity, sizeof identity, "guard 6, %s, driver %d, %s, build %s", config->gpu,
             config->driver_version, config->library, build);
    return ot_guard_verdicts_open(&guard->verdicts, OT_GUARD_PATHS, identity,
                                  build[0] ? config->cache_folder : NULL);
}

int ot_cuda_guard_open(const struct ot_cuda_guard_config *config, struct ot_cuda_guard **out) {
    struct ot_cuda_guard *guard = calloc(1, sizeof *guard);
    void *pinned = NULL;
    int rc;
    *out = NULL;
    if (!guard)
        return ot_fail(OT_E_BUDGET, "no host memory to check kernels with");
    guard->verdicts.lock = -1;
    OT_TRY_GOTO(read_environment(guard), rc, out);
    OT_TRY_GOTO(open_verdicts(guard, config), rc, out);
    OT_TRY_GOTO(ot_cuda_check(cudaHostAlloc(&pinned, sizeof *guard->pinned, cudaHostAllocPortable),
                              "pin host memory"),
                rc, out);
    guard->pinned = pinned;
    say_wish(guard);
    *out = guard;
    return 0;
out:
    ot_cuda_guard_close(guard);
    return rc;
}

void ot_cuda_guard_close(struct ot_cuda_guard *guard) {
    if (!guard)
        return;
    if (guard->pinned)
        cudaFreeHost(guard->pinned);
    ot_guard_verdicts_close(&guard->verdicts);
    free(guard);
}
