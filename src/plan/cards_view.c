/* Prints `plan --gpu list`: the cards and rented machines of cards.c. */
#include "src/plan/view.h"

#include "src/base/json.h"
#include "src/base/units.h"
#include "src/report/lines.h"

void ot_cards_print(FILE *out) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    fprintf(out, "%-14s %-26s %10s %14s %16s %9s  %-8s  %s\n", "card", "", "memory", "peak", "products reach",
            "bandwidth", "PCIe", "source of the share");
    for (int i = 0; (card = ot_card_at(i)); i++)
        fprintf(out, "%-14s %-26s %6.1f GiB %6.1f TFLOP/s %7.0f %% +-%2.0f %% %4.0f GB/s  %d.0 x%-3d  %s\n",
                card->name, card->title, card->memory_mib / 1024.0, card->peak_tflops,
                100 * card->achieved->share, 100 * card->achieved->spread, card->memory_gb, card->pcie_gen,
                card->pcie_lanes, card->achieved->source);
    fprintf(out, "\n%-16s %-28s %4s %-14s %6s %10s %10s %12s\n", "rented machine", "", "GPUs", "card",
            "vCPUs", "RAM", "local NVMe", "network");
    for (int i = 0; (pod = ot_pod_at(i)); i++) {
        char disk[OT_TEXT_BYTES] = "-", nic[OT_TEXT_BYTES] = "-";
        if (pod->disk_gb)
            snprintf(disk, sizeof disk, "%d GB", pod->disk_gb);
        if (pod->nic_gbit)
            snprintf(nic, sizeof nic, "%d Gbit/s", pod->nic_gbit);
        fprintf(out, "%-16s %-28s %4d %-14s %6d %6d GiB %10s %12s\n", pod->name, pod->title, pod->gpus,
                pod->card, pod->vcpus, pod->host_gib, disk, nic);
    }
}

int ot_cards_print_json(void) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "cards");
    for (int i = 0; (card = ot_card_at(i)); i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "name", card->name);
        ot_json_put_text(&w, "title", card->title);
        ot_json_put_int(&w, "memory_bytes", (int64_t)card->memory_mib << 20);
        ot_json_put_real(&w, "peak_flops", card->peak_tflops * 1e12);
        ot_json_put_real(&w, "achieved", card->achieved->share);
        ot_json_put_real(&w, "achieved_spread", card->achieved->spread);
        ot_json_put_text(&w, "achieved_source", card->achieved->source);
        ot_json_put_text(&w, "attention_source", card->attention->source);
        ot_json_put_real(&w, "memory_bytes_per_s", card->memory_gb * 1e9);
        ot_json_put_int(&w, "pcie_generation", card->pcie_gen);
        ot_json_put_int(&w, "pcie_lanes", card->pcie_lanes);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "machines");
    for (int i = 0; (pod = ot_pod_at(i)); i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "name", pod->name);
        ot_json_put_text(&w, "title", pod->title);
        ot_json_put_text(&w, "card", pod->card);
        ot_json_put_int(&w, "gpus", pod->gpus);
        ot_json_put_int(&w, "vcpus", pod->vcpus);
        ot_json_put_int(&w, "host_bytes", (int64_t)pod->host_gib << 30);
        ot_json_put_int(&w, "nvme_bytes", (int64_t)pod->disk_gb * 1000000000);
        ot_json_put_real(&w, "network_bits_per_s", pod->nic_gbit * 1e9);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}
