#include "src/options/topics.h"

#include <stddef.h>
#include <string.h>

static const struct ot_topic *const topics[] = {
    &ot_topic_bits,    &ot_topic_checkpoints, &ot_topic_environment, &ot_topic_exit_codes, &ot_topic_files,
    &ot_topic_gguf,    &ot_topic_gpu,         &ot_topic_launchers,   &ot_topic_lora,       &ot_topic_models,
    &ot_topic_numbers, &ot_topic_planning,    &ot_topic_quantize,    &ot_topic_ranks,      &ot_topic_renting,
    &ot_topic_rows,    &ot_topic_signals,     &ot_topic_templates,   &ot_topic_tiers,
};
enum { N_TOPICS = sizeof topics / sizeof *topics };

const struct ot_topic *ot_topic_at(int index) {
    return index >= 0 && index < N_TOPICS ? topics[index] : NULL;
}

const struct ot_topic *ot_topic_find(const char *name) {
    for (int i = 0; i < N_TOPICS; i++)
        if (strcmp(topics[i]->name, name) == 0)
            return topics[i];
    return NULL;
}
