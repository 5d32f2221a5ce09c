#include "src/plan/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/world.h"
#include "offload/predict/calibrate.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/session/device.h"
#include "src/session/measure.h"

/* Tokens of a micro-batch that keeps every device busy (offload/plan/search.c), and the most seconds that
 * calibration may take. */
enum { MICRO_TOKENS = 4096 };
static const double CALIBRATION_SECONDS = 3;

/* ---- disks ---- */

/* The size of a described disk: "500G", or the size that follows a directory. -1: no size was given. */
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
                "--nvme %.200s: for the disk of a described machine the size is needed, such as --nvme 500G",
                o->nvme.dirs[i].path);
        *bytes += size;
    }
    return 0;
}

/* A size without a directory stands for a disk that this machine does not have yet. */
static int count_future_disks(const struct ot_options *o) {
    int n = 0;
    for (int i = 0; i < o->nvme.n; i++) {
        int64_t size;
        n += o->nvme.dirs[i].bytes == 0 && ot_option_read_size(o->nvme.dirs[i].path, &size);
    }
    return n;
}

/* ---- another machine ---- */

/* The data sheets give a card's peak in one format only. */
static int choose_dtype(struct ot_settings *settings, const struct ot_described *machine) {
    const struct ot_options *o = &settings->in_effect;
    int known = machine->dtype == OT_F16 ? OT_CHOICE_DTYPE_FP16 : OT_CHOICE_DTYPE_BF16;
    if (o->dtype == OT_CHOICE_DTYPE_AUTO)
        ot_settings_choose_word(settings, "dtype", known);
    if (o->dtype == known)
        return 0;
    return ot_fail(OT_E_USAGE, "--dtype: for %s only the rate in %s is known; leave out --dtype",
                   machine->card->title, ot_dtype_name(machine->dtype));
}

/* --gpus of a described machine: a number. 0: not given. */
static int count_gpus(const struct ot_options *o, int *out) {
    char *end = NULL;
    long n = o->gpus ? strtol(o->gpus, &end, 10) : 0;
    if (o->gpus && (end == o->gpus || *end || n < 1 || n > OT_MAX_RANKS))
        return ot_fail(OT_E_USAGE, "--gpus '%.60s': for a described machine, give a number from 1 to %d",
                       o->gpus, OT_MAX_RANKS);
    *out = (int)n;
    return 0;
}

/* "2 x AWS g6e.12xlarge with 4 x L40S", "2 hosts with 4 x L40S". Returns the length. */
static int write_machine(const struct ot_described *m, char *text, size_t bytes) {
    int hosts = m->ranks / m->local_ranks;
    char before[32] = "", each[32] = "";
    if (hosts > 1)
        snprintf(before, sizeof before, m->pod ? "%d x " : "%d hosts", hosts);
    if (m->local_ranks > 1)
        snprintf(each, sizeof each, "%d x ", m->local_ranks);
    return snprintf(text, bytes, "%s%s%s%s%s", before, m->pod ? m->pod->title : "",
                    m->pod || hosts > 1 ? " with " : "", each, m->card->title);
}

static int describe(struct ot_settings *settings, struct ot_plan_machine *out) {
    static const enum ot_p2p p2p[] = {
        [OT_CHOICE_P2P_AUTO] = OT_P2P_AUTO, [OT_CHOICE_P2P_YES] = OT_P2P_YES, [OT_CHOICE_P2P_NO] = OT_P2P_NO};
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
                                           .nvme_write = o->nvme_write,
                                           .nodes = (int)o->nodes,
                                           .nic = o->nic,
                                           .p2p = p2p[o->p2p],
                                           .masters = (enum ot_masters)o->master_weights};
    OT_TRY(count_gpus(o, &request.gpus));
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
    int used = write_machine(&machine, out->name, sizeof out->name);
    snprintf(out->name + used, sizeof out->name - (size_t)used,
             ", described: %.1f GiB, %.1f TFLOP/s dense %s, PCIe %d.0 x%d, %.0f GiB of RAM",
             machine.card->memory_mib / 1024.0, machine.card->peak_tflops, ot_dtype_name(machine.dtype),
             machine.card->pcie_gen, machine.card->pcie_lanes, (double)machine.host_ram_bytes / 0x1p30);
    if (machine.pod && machine.pod->disk_gb && !o->nvme.n)
        snprintf(out->name + strlen(out->name), sizeof out->name - strlen(out->name),
                 ", with a local disk (use it with --nvme %dGB)", machine.pod->disk_gb);
    ot_cards_assumed(&request, &machine, out->assumed, sizeof out->assumed);
    return 0;
}

/* ---- this machine ---- */

/* Opens this machine with its disks. Future disks have no directory to open, so --nvme is then left out. */
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
    int to_come = count_future_disks(o);
    char ram[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    if (to_come > 0 && to_come < o->nvme.n)
        return ot_fail(
            OT_E_USAGE,
            "--nvme: directories and sizes without a directory do not mix; give either DIR or SIZE for all");
    if (to_come == 0 && (ot_options_given(o, "nvme-read") || ot_options_given(o, "nvme-write")))
        return ot_fail(OT_E_USAGE,
                       "--nvme-read and --nvme-write have no effect with --nvme DIR, which is measured");
    OT_TRY(open_here(settings, out, to_come));
    out->dtype = s->model.dtype;
    out->workspace_bytes = s->machine.workspace_bytes;
    memcpy(out->budget_bytes, s->machine.budget_bytes, sizeof out->budget_bytes);
    ot_session_most_bytes(s, out->most_bytes);
    out->has_future_disks = to_come > 0;
    if (to_come) {
        int64_t bytes;
        OT_TRY(sum_described_disks(o, &bytes));
        out->budget_bytes[OT_TIER_NVME] = (size_t)bytes;
        ot_cards_set_disk(o->nvme_read, o->nvme_write, &out->rates);
        /* Everything else is measured, so it is not listed as assumed. */
        struct ot_described_request said = {.host_mem = 1,
                                            .cores = 1,
                                            .host_bw = 1,
                                            .pcie = 1,
                                            .nvme_read = o->nvme_read,
                                            .nvme_write = o->nvme_write};
        struct ot_described here = {.rates = out->rates};
        ot_cards_assumed(&said, &here, out->assumed, sizeof out->assumed);
    }
    snprintf(out->name, sizeof out->name, "%.100s · RAM %s, %s free%s", ot_device_name(s->machine.device),
             ot_text_bytes(s->machine.limits.ram_bytes, ram),
             ot_text_bytes(s->machine.limits.free_bytes, left), s->machine.limits.within);
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

/* Tokens of the micro-batch whose blocks are measured or estimated. */
static int64_t micro_tokens(int64_t sequence_tokens, int64_t step_tokens) {
    int64_t micro =
        sequence_tokens > MICRO_TOKENS ? sequence_tokens : MICRO_TOKENS / sequence_tokens * sequence_tokens;
    return ot_min(micro, step_tokens);
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
                                         .device = machine->session.machine.device,
                                         .rates = &machine->rates,
                                         .micro_tokens = micro,
                                         .sequence_tokens = sequence_tokens,
                                         .device_bytes =
                                             machine->budget_bytes[OT_TIER_GPU] - machine->workspace_bytes,
                                         .seconds = CALIBRATION_SECONDS};
    return ot_calibrate(&calibration, out);
}
