/* Topics: help pages about matters that concern more than one option. `offload-train help TOPIC` prints one;
 * the man page has all of them. The texts are in topics_*.c, in plain ASCII. */
#ifndef OT_OPTIONS_TOPICS_H
#define OT_OPTIONS_TOPICS_H

struct ot_topic_block {
    /* NULL: a paragraph; "": lines that are printed as they are; else an item that `text` explains. */
    const char *term;
    const char *text; /* for a paragraph or an item: one line, wrapped when printed */
};

struct ot_topic {
    const char *name, *title; /* "exit-codes", "What the exit codes mean" */
    const struct ot_topic_block *blocks;
    int n_blocks;
};

/* In alphabetical order; NULL past the last. */
const struct ot_topic *ot_topic_at(int index);
/* NULL: no such topic. */
const struct ot_topic *ot_topic_find(const char *name);

/* The topics themselves, for topics.c only. */
#define OT_TOPIC(name, title, blocks)                                                                        \
    { name, title, blocks, (int)(sizeof(blocks) / sizeof *(blocks)) }
extern const struct ot_topic ot_topic_bits, ot_topic_checkpoints, ot_topic_environment, ot_topic_exit_codes,
    ot_topic_files, ot_topic_gguf, ot_topic_gpu, ot_topic_launchers, ot_topic_lora, ot_topic_models,
    ot_topic_numbers, ot_topic_planning, ot_topic_quantize, ot_topic_ranks, ot_topic_renting, ot_topic_rows,
    ot_topic_signals, ot_topic_templates, ot_topic_tiers;

#endif
