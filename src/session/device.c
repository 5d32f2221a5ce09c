#include "src/session/device.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "offload/comm/world.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/thread.h"
#include "src/base/units.h"
#include "src/options/options.h"
#include "src/session/session_ranks.h"

/* Warns if a given budget is more than the free RAM. The budget stays as given: other programs may end, and
 * some virtual machines get more memory as they use it. If memory is missing, touching it fails before
 * step 1. */
static void note_given(const struct ot_session *s, const char *name, int64_t given) {
    char text[OT_TEXT_BYTES], have[OT_TEXT_BYTES];
    if (given > s->machine.limits.free_bytes)
        ot_log(OT_LOG_WARN, "--%s %s is more than the %s of RAM that are free%s. Trying it anyway", name,
               ot_text_bytes(given, text), ot_text_bytes(s->machine.limits.free_bytes, have),
               s->machine.limits.within);
}

/* ---- placement ---- */

static void place_thread(void *context, int index, int count) {
    struct ot_session *s = context;
    ot_topology_place_thread(&s->machine.binding, index, count);
}

static int64_t find_free_bytes(void *context) {
    int64_t bytes;
    (void)context;
    return ot_machine_free_pages("", &bytes) < 0 ? INT64_MAX : bytes;
}

/* Placing memory is logged if it takes longer than this. */
#define LONG_SECONDS 1.0

static int place_memory(void *context, void *memory, size_t bytes) {
    struct ot_session *s = context;
    const struct ot_touch_config config = {
        .threads = (int)s->options->threads, .free_bytes = find_free_bytes, .patience_seconds = 5};
    double began = ot_clock_seconds();
    char size[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    ot_topology_place_memory(&s->machine.binding, memory, bytes);
    int rc = ot_touch_memory(memory, bytes, &config);
    double seconds = ot_clock_seconds() - began;
    if (rc < 0)
        return ot_fail((enum ot_error_code) - rc, "%s; lower --gpu-mem or --host-mem", ot_error_text());
    if (seconds > LONG_SECONDS)
        ot_log(OT_LOG_INFO, "memory  %s made resident in %s, %.1f GB/s", ot_text_bytes((int64_t)bytes, size),
               ot_text_duration(seconds, time), (double)bytes / seconds / 1e9);
    return 0;
}

/* ---- opening ---- */

/* Call this before the device is opened: it places the device's threads and memory. bus_id: of the GPU; NULL:
 * no GPU. */
static int open_topology(struct ot_session *s, const char *bus_id) {
    const char *dirs[OT_TOPOLOGY_MAX_DIRS];
    struct ot_topology_config config = {.gpu_bus_id = bus_id, .n_dirs = s->options->nvme.n, .dirs = dirs};
    _Static_assert((int)OT_NVME_MAX_DIRS <= (int)OT_TOPOLOGY_MAX_DIRS, "every --nvme has a place");
    for (int i = 0; i < config.n_dirs; i++)
        dirs[i] = s->options->nvme.dirs[i].path;
    ot_topology_close(s->machine.topology); /* from a GPU that could not be used */
    s->machine.binding = (struct ot_topology_binding){NULL, OT_ROLE_COMPUTE};
    OT_TRY(ot_topology_open(&config, &s->machine.topology));
    s->machine.binding.topology = s->machine.topology;
    return 0;
}

static struct ot_placement placement_of(struct ot_session *s) {
    return (struct ot_placement){s, place_thread, place_memory};
}

static int open_cpu(struct ot_session *s) {
    const struct ot_options *o = s->options;
    note_given(s, "gpu-mem", o->gpu_mem);
    note_given(s, "host-mem", o->host_mem);
    ot_machine_budgets(&s->machine.limits, o->gpu_mem, o->host_mem, s->machine.budget_bytes);
    OT_TRY(open_topology(s, NULL));
    struct ot_device_config config = {.kind = "cpu",
                                      .memory_bytes = s->machine.budget_bytes[OT_TIER_GPU],
                                      .threads = (int)o->threads,
                                      .placement = placement_of(s)};
    OT_TRY(ot_device_open(&config, &s->machine.device));
    if (o->device.kind == OT_DEVICE_AUTO)
        ot_settings_choose_device(s->settings, (struct ot_device_choice){.kind = OT_DEVICE_CPU});
    return 0;
}

static int open_cuda(struct ot_session *s) {
    const struct ot_options *o = s->options;
    struct ot_device_usage usage;
    char bus_id[OT_BUS_ID_BYTES];
    note_given(s, "host-mem", o->host_mem);
    OT_TRY(open_topology(s, ot_device_bus_id("cuda", o->device.index, bus_id) ? bus_id : NULL));
    struct ot_device_config config = {.kind = "cuda",
                                      .index = o->device.index,
                                      .blas = o->cublaslt,
                                      .memory_bytes = (size_t)o->gpu_mem,
                                      .threads = (int)o->threads,
                                      .placement = placement_of(s)};
    OT_TRY(ot_device_open(&config, &s->machine.device));
    ot_device_usage(s->machine.device, &usage);
    s->machine.budget_bytes[OT_TIER_GPU] = usage.budget_bytes;
    ot_session_note_whole(o->gpu_mem, (int64_t)usage.budget_bytes);
    char note[OT_MACHINE_NOTE_BYTES];
    if (*ot_machine_gpu_note((int64_t)usage.taken_bytes, (int64_t)usage.total_bytes, note))
        ot_log(OT_LOG_WARN, "%s", note);
    s->machine.budget_bytes[OT_TIER_HOST] = ot_machine_host_budget(&s->machine.limits, o->host_mem);
    s->machine.workspace_bytes = usage.scratch_bytes;
    if (o->device.kind == OT_DEVICE_AUTO)
        ot_settings_choose_device(s->settings, (struct ot_device_choice){.kind = OT_DEVICE_CUDA});
    return 0;
}

void ot_session_note_whole(int64_t given, int64_t budget) {
    char asked[OT_TEXT_BYTES], used[OT_TEXT_BYTES];
    if (given > budget)
        ot_log(OT_LOG_INFO,
               "note    --gpu-mem %s is more than this GPU has for programs. Using all of it, %s",
               ot_text_bytes(given, asked), ot_text_bytes(budget, used));
}

/* Warns where a user expects the GPU, but this program was built without it. */
static void note_driver(const struct ot_session *s) {
    if (s->machine.limits.has_driver && ot_device_no_cuda() && ot_is_rank0(s))
        ot_log(OT_LOG_WARN, "this machine has the NVIDIA driver, but the cpu device is used: %s",
               ot_device_no_cuda());
}

static int open_any(struct ot_session *s) {
    if (!ot_device_is_present("cuda")) {
        note_driver(s);
        return open_cpu(s);
    }
    int rc = open_cuda(s);
    if (rc != -OT_E_DEVICE)
        return rc;
    ot_log(OT_LOG_WARN, "cannot use the GPU, so the cpu device is used: %s", ot_cure_text());
    return open_cpu(s);
}

static int choose_dtype(struct ot_session *s) {
    static const enum ot_dtype dtypes[] = {
        [OT_CHOICE_DTYPE_BF16] = OT_BF16, [OT_CHOICE_DTYPE_FP32] = OT_F32, [OT_CHOICE_DTYPE_FP16] = OT_F16};
    const struct ot_options *o = s->options;
    bool has_bf16 = ot_device_has_dtype(s->machine.device, OT_BF16);
    if (o->dtype == OT_CHOICE_DTYPE_AUTO)
        ot_settings_choose_word(s->settings, "dtype",
                                o->device.kind != OT_DEVICE_CUDA ? OT_CHOICE_DTYPE_FP32
                                : has_bf16                       ? OT_CHOICE_DTYPE_BF16
                                                                 : OT_CHOICE_DTYPE_FP16);
    s->model.dtype = dtypes[o->dtype];
    if (ot_device_has_dtype(s->machine.device, s->model.dtype))
        return 0;
    return ot_fail(OT_E_DEVICE, "%s cannot compute in %s; give --dtype fp16",
                   ot_device_name(s->machine.device), ot_dtype_name(s->model.dtype));
}

int ot_session_open_device(struct ot_session *s) {
    static int (*const open[])(struct ot_session *) = {
        [OT_DEVICE_AUTO] = open_any, [OT_DEVICE_CPU] = open_cpu, [OT_DEVICE_CUDA] = open_cuda};
    OT_TRY(open[s->options->device.kind](s));
    return choose_dtype(s);
}

/* ---- the plan's bytes and the machine's ---- */

void ot_session_most_bytes(const struct ot_session *s, size_t most[OT_TIER_COUNT]) {
    size_t ram = (size_t)s->machine.limits.free_bytes;
    size_t gpu = s->machine.budget_bytes[OT_TIER_GPU], host = s->machine.budget_bytes[OT_TIER_HOST];
    struct ot_device_usage usage;
    ot_device_usage(s->machine.device, &usage);
    bool shared = s->options->device.kind == OT_DEVICE_CPU; /* both tiers are RAM */
    most[OT_TIER_GPU] = !shared ? usage.total_bytes - usage.taken_bytes : ram > host ? ram - host : 0;
    most[OT_TIER_HOST] = !shared ? ram : ram > gpu ? ram - gpu : 0;
    most[OT_TIER_NVME] = s->machine.budget_bytes[OT_TIER_NVME];
}

int ot_session_check_free(const struct ot_session *s) {
    bool shared = s->options->device.kind == OT_DEVICE_CPU; /* both tiers are RAM */
    if (s->options->host_mem > s->machine.limits.free_bytes ||
        (shared && s->options->gpu_mem > s->machine.limits.free_bytes))
        return 0; /* the user asked for more than is free; note_given has warned */
    size_t gpu = ot_ledger_total(&s->plan.chosen.ledger, OT_TIER_GPU);
    size_t host = ot_ledger_total(&s->plan.chosen.ledger, OT_TIER_HOST), ram = host + (shared ? gpu : 0);
    if (ram <= (size_t)s->machine.limits.free_bytes)
        return 0;
    char need[OT_TEXT_BYTES], gpu_text[OT_TEXT_BYTES], host_text[OT_TEXT_BYTES], have[OT_TEXT_BYTES];
    ot_text_bytes((int64_t)ram, need);
    ot_text_bytes(s->machine.limits.free_bytes, have);
    if (!shared)
        return ot_fail(
            OT_E_BUDGET,
            "the plan needs %s of RAM and %s are free%s; raise --gpu-mem, or lower --tokens-per-step", need,
            have, s->machine.limits.within);
    return ot_fail(OT_E_BUDGET,
                   "the plan needs %s of RAM (gpu tier %s, host tier %s) and %s are free%s; lower --gpu-mem, "
                   "--micro-batch or --seq-len",
                   need, ot_text_bytes((int64_t)gpu, gpu_text), ot_text_bytes((int64_t)host, host_text), have,
                   s->machine.limits.within);
}

/* ---- store ---- */

int64_t ot_session_free_in(const char *dir) {
    struct statvfs info;
    if (statvfs(dir, &info) < 0)
        return -1;
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

/* Checks that the bytes promised to the plan are free on the disk now. */
static int check_dir(const struct ot_nvme_dir *dir, int64_t limit) {
    int64_t have = ot_session_free_in(dir->path);
    char give[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    if (have < 0 || access(dir->path, W_OK) < 0)
        return ot_fail_errno(OT_E_IO, errno, "--nvme %s: cannot write to this directory", dir->path);
    if (limit == 0)
        return ot_fail(
            OT_E_BUDGET,
            "--nvme %s: the disk has no space left for it; free some space, or give less to other --nvme on "
            "the same disk",
            dir->path);
    if (limit <= have)
        return 0;
    return ot_fail(OT_E_BUDGET, "--nvme %s: %s is more than the %s that are free on this disk; give less",
                   dir->path, ot_text_bytes(limit, give), ot_text_bytes(have, left));
}

int ot_session_open_store(struct ot_session *s) {
    const struct ot_options *o = s->options;
    int64_t limits[OT_STORE_MAX_DIRS];
    _Static_assert((int)OT_NVME_MAX_DIRS <= (int)OT_STORE_MAX_DIRS, "every --nvme has a place");
    if (o->nvme.n == 0)
        return 0;
    for (int i = 0; i < o->nvme.n; i++)
        s->machine.store_dirs[i] = (struct ot_store_dir){o->nvme.dirs[i].path, (size_t)o->nvme.dirs[i].bytes};
    int rc = ot_store_find_limits(s->machine.store_dirs, o->nvme.n, limits);
    if (rc < 0)
        return ot_fail_context(rc, "--nvme");
    for (int i = 0; i < o->nvme.n; i++) {
        OT_TRY(check_dir(&o->nvme.dirs[i], limits[i]));
        limits[i] /= s->ranks.world ? ot_world_ranks(s->ranks.world)->local_ranks
                                    : 1; /* the ranks of a host share it */
        s->machine.store_dirs[i].bytes = (size_t)limits[i];
        s->machine.budget_bytes[OT_TIER_NVME] += (size_t)limits[i];
    }
    s->machine.store = (struct ot_store_config){.n_dirs = o->nvme.n,
                                                .dirs = s->machine.store_dirs,
                                                .engine = (enum ot_io_choice)o->io_engine,
                                                .no_verify = o->no_io_verify,
                                                .topology = s->machine.topology};
    return 0;
}

void ot_session_warn_disks(const struct ot_session *s) {
    const double look_seconds = 0.05;
    char note[OT_MACHINE_NOTE_BYTES];
    for (int i = 0; i < s->machine.store.n_dirs; i++)
        if (*ot_machine_dir_note("", s->machine.store.dirs[i].path, look_seconds, note))
            ot_log(OT_LOG_WARN, "%s", note);
}
