#include "src/plan/machine.h"

#include <stdio.h>
#include <string.h>

#include "offload/predict/calibrate.h"
#include "src/base/error.h"
#include "src/base/units.h"
#include "src/session/device.h"
#include "src/session/rates_cache.h"

/* A micro-batch that keeps every device busy, see plan/search.c; and what calibration may take. */
enum { MICRO_TOKENS = 4096 };
static const double CALIBRATION_SECONDS = 3;

/* ---- disks ---- */

/* Of a disk that is not there, the size alone: "500G", or what follows the directory. -1: there is none. */
static int64_t size_of(const struct ot_nvme_dir *dir) {
    int64_t size = dir->bytes;
    return size > 0 || ot_option_read_size(dir->path, &size) ? size : -1;
}

static int sum_described_disks(const struct ot_options *o, int64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < o->nvme.n; i++) {
        int64_t size = size_of(&o->nvme.dirs[i]);
        if (size < 0)
            return ot_fail(
                OT_E_USAGE,
                "--nvme %.200s: of a described machine's disk the size is needed, such as --nvme 500G",
                o->nvme.dirs[i].path);
        *bytes += size;
    }
    return 0;
}

/* On this machine a size without a directory is a disk to come. */
static int count_disks_to_come(const struct ot_options *o) {
    int n = 0;
    for (int i = 0; i < o->nvme.n; i++) {
        int64_t size;
        n += o->nvme.dirs[i].bytes == 0 && ot_option_read_size(o->nvme.dirs[i].path, &size);
    }
    return n;
}

/* ---- another machine ---- */

/* A card's peak is known in one format. */
static int choose_dtype(struct ot_settings *settings, const struct ot_described *machine) {
    const struct ot_options *o = &settings->in_effect;
    int known = machine->dtype == OT_F16 ? OT_CHOICE_DTYPE_FP16 : OT_CHOICE_DTYPE_BF16;
    if (o->dtype == OT_CHOICE_DTYPE_AUTO)
        ot_settings_choose_word(settings, "dtype", known);
    if (o->dtype == known)
        return 0;
    return ot_fail(OT_E_USAGE, "--dtype: of %s only the rate in %s is known; leave it out",
                   machine->card->title, ot_dtype_name(machine->dtype));
}

static int describe(struct ot_settings *settings, struct ot_plan_machine *out) {
    const struct ot_options *o = &settings->in_effect;
    struct ot_described machine;
    struct ot_described_request request = {.name = o->gpu,
                                           .gpu_mem = o->gpu_mem,
                                           .host_mem = o->host_mem,
                                           .ram = o->ram,
                                           .cores = (int)o->threads,
                                           .host_bw = o->host_bw,
                                           .pcie = o->pcie,
                                           .nvme_read = o->nvme_read,
                                           .nvme_write = o->nvme_write};
    OT_TRY(sum_described_disks(o, &request.nvme_bytes));
    OT_TRY(ot_cards_describe(&request, &machine));
    OT_TRY(choose_dtype(settings, &machine));
    out->card = machine.card;
    out->dtype = machine.dtype;
    out->rates = machine.rates;
    out->described = machine;
    out->said = request;
    out->most_bytes[OT_TIER_GPU] = machine.most_gpu_bytes;
    out->most_bytes[OT_TIER_HOST] = SIZE_MAX; /* RAM can be bought */
    out->workspace_bytes = machine.workspace_bytes;
    memcpy(out->budget_bytes, machine.budget_bytes, sizeof out->budget_bytes);
    ot_session_note_whole(o->gpu_mem, (int64_t)machine.budget_bytes[OT_TIER_GPU]);
    snprintf(out->name, sizeof out->name,
             "%s%s%s, described: %.1f GiB, %.1f TFLOP/s dense %s, PCIe %d.0 x%d, %.0f GiB of RAM",
             machine.pod ? machine.pod->title : "", machine.pod ? " with " : "", machine.card->title,
             machine.card->memory_mib / 1024.0, machine.card->peak_tflops, ot_dtype_name(machine.dtype),
             machine.card->pcie_gen, machine.card->pcie_lanes, (double)machine.host_ram_bytes / 0x1p30);
    if (machine.pod && machine.pod->disk_gb && !o->nvme.n)
        snprintf(out->name + strlen(out->name), sizeof out->name - strlen(out->name),
                 ", a local disk that --nvme %dGB uses", machine.pod->disk_gb);
    ot_cards_assumed(&request, &machine, out->assumed, sizeof out->assumed);
    return 0;
}

/* ---- this machine ---- */

/* With the disks that are there; those to come are no directories that could be opened. */
static int open_here(struct ot_settings *settings, struct ot_plan_machine *out, int to_come) {
    int *n_dirs = &settings->in_effect.nvme.n, n = *n_dirs;
    if (to_come)
        *n_dirs = 0;
    int rc = ot_session_open_machine(settings, &out->session);
    if (rc == 0)
        rc = ot_rates_obtain(&out->session, true, &out->rates);
    *n_dirs = n;
    return rc;
}

static int measure(struct ot_settings *settings, struct ot_plan_machine *out) {
    const struct ot_options *o = &settings->in_effect;
    const struct ot_session *s = &out->session;
    int to_come = count_disks_to_come(o);
    char ram[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    if (to_come > 0 && to_come < o->nvme.n)
        return ot_fail(OT_E_USAGE, "--nvme: directories and sizes of disks that are not there do not mix");
    if (to_come == 0 && (ot_options_given(o, "nvme-read") || ot_options_given(o, "nvme-write")))
        return ot_fail(OT_E_USAGE,
                       "--nvme-read and --nvme-write have no effect with --nvme DIR, which is measured");
    OT_TRY(open_here(settings, out, to_come));
    out->dtype = s->dtype;
    out->workspace_bytes = s->workspace_bytes;
    memcpy(out->budget_bytes, s->budget_bytes, sizeof out->budget_bytes);
    ot_session_most_bytes(s, out->most_bytes);
    if (to_come) {
        int64_t bytes;
        OT_TRY(sum_described_disks(o, &bytes));
        out->budget_bytes[OT_TIER_NVME] = (size_t)bytes;
        ot_cards_set_disk(o->nvme_read, o->nvme_write, &out->rates);
        /* All else is measured, and so as good as said. */
        struct ot_described_request said = {.host_mem = 1,
                                            .cores = 1,
                                            .host_bw = 1,
                                            .pcie = 1,
                                            .nvme_read = o->nvme_read,
                                            .nvme_write = o->nvme_write};
        struct ot_described here = {.rates = out->rates};
        ot_cards_assumed(&said, &here, out->assumed, sizeof out->assumed);
    }
    snprintf(out->name, sizeof out->name, "%.100s · RAM %s, %s free%s", ot_device_name(s->device),
             ot_text_bytes(s->machine.ram_bytes, ram), ot_text_bytes(s->machine.free_bytes, left),
             s->machine.within);
    return 0;
}

int ot_plan_machine_open(struct ot_settings *settings, struct ot_plan_machine *out) {
    *out = (struct ot_plan_machine){0};
    return settings->in_effect.gpu ? describe(settings, out) : measure(settings, out);
}

void ot_plan_machine_close(struct ot_plan_machine *machine) {
    if (!machine->card)
        ot_session_close(&machine->session);
}

/* Tokens of a micro-batch to time or estimate the blocks with. */
static int64_t micro_tokens(int64_t sequence_tokens, int64_t step_tokens) {
    int64_t micro =
        sequence_tokens > MICRO_TOKENS ? sequence_tokens : MICRO_TOKENS / sequence_tokens * sequence_tokens;
    return micro < step_tokens ? micro : step_tokens;
}

int ot_plan_machine_cost_at(const struct ot_plan_machine *machine, int end, const struct ot_chain *chain,
                            int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out) {
    struct ot_rates rates;
    ot_cards_vary(&machine->said, &machine->described, end, &rates);
    return ot_costs_estimate(chain, &rates, sequence_tokens, micro_tokens(sequence_tokens, step_tokens), out);
}

int ot_plan_machine_cost(const struct ot_plan_machine *machine, const struct ot_chain *chain,
                         int64_t sequence_tokens, int64_t step_tokens, struct ot_costs *out) {
    int64_t micro = micro_tokens(sequence_tokens, step_tokens);
    if (machine->card)
        return ot_costs_estimate(chain, &machine->rates, sequence_tokens, micro, out);
    struct ot_calibration calibration = {.chain = chain,
                                         .device = machine->session.device,
                                         .rates = &machine->rates,
                                         .micro_tokens = micro,
                                         .sequence_tokens = sequence_tokens,
                                         .device_bytes =
                                             machine->budget_bytes[OT_TIER_GPU] - machine->workspace_bytes,
                                         .seconds = CALIBRATION_SECONDS};
    return ot_calibrate(&calibration, out);
}
