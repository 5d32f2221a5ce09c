/* The option table, joined from its parts in the order of --help. */
#include "src/options/table.h"

#include <stdio.h>

static const struct ot_option_list *const lists[] = {&ot_options_of_train, &ot_options_of_commands};

const struct ot_option *ot_option_at(int index) {
    if (index < 0)
        return NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (index < lists[i]->n)
            return &lists[i]->options[index];
        index -= lists[i]->n;
    }
    return NULL;
}

const char *ot_option_section_title(enum ot_option_section section) {
    static const char *const titles[OT_SECTION_COUNT] = {
        [OT_SECTION_INPUT] = "Input and output",
        [OT_SECTION_DATA] = "Rows",
        [OT_SECTION_STEP] = "Length and batches",
        [OT_SECTION_OPTIMIZER] = "Optimizer",
        [OT_SECTION_MEMORY] = "Memory and machine",
        [OT_SECTION_RANKS] = "Several GPUs and hosts",
        [OT_SECTION_SAFETY] = "Checkpoints and safety",
        [OT_SECTION_DESCRIBED] = "A described machine, and what a run costs",
        [OT_SECTION_TEXT] = "Text",
        [OT_SECTION_REPORT] = "Evaluation and reports",
    };
    return titles[section];
}

const char *ot_command_name(enum ot_command command) {
    static const char *const names[OT_COMMAND_COUNT] = {"train",  "generate", "eval",     "tokenize",
                                                        "probe",  "plan",     "bench",    "verify",
                                                        "export", "merge",    "quantize", "comm-test"};
    return names[command];
}

const char *ot_command_list(unsigned commands, char list[OT_COMMAND_LIST_BYTES]) {
    int used = 0;
    list[0] = '\0';
    for (int c = 0; c < OT_COMMAND_COUNT; c++)
        if (commands & (1u << c))
            used += snprintf(list + used, (size_t)(OT_COMMAND_LIST_BYTES - used), "%s%s", used ? ", " : "",
                             ot_command_name((enum ot_command)c));
    return list;
}
