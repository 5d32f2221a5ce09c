/* The parts of the option table, in the order of --help; table.c joins them. Only the files table*.c include
 * this header; all other files use options.h. */
#ifndef OT_OPTIONS_TABLE_H
#define OT_OPTIONS_TABLE_H

#include "src/options/options.h"

struct ot_option_list {
    const struct ot_option *options;
    int n;
};

extern const struct ot_option_list ot_options_of_run;     /* input and output, rows, batches, optimizer */
extern const struct ot_option_list ot_options_of_machine; /* memory and machine */
extern const struct ot_option_list ot_options_of_ranks;   /* several GPUs and hosts */
extern const struct ot_option_list ot_options_of_safety;  /* checkpoints and safety */
extern const struct ot_option_list ot_options_of_plan;    /* a described machine, and what a run costs */
extern const struct ot_option_list ot_options_of_text;    /* text, evaluation and reports */
extern const struct ot_option_list ot_options_of_bench;   /* other meaning in bench than in train */
extern const struct ot_option_list ot_options_of_check;   /* verify, export and merge */
extern const struct ot_option_list ot_options_of_quantize;

#define OT_OPTION_LIST(table)                                                                                \
    { table, (int)(sizeof(table) / sizeof *(table)) }

#define FIELD(name) offsetof(struct ot_options, name)

enum {
    TRAIN = OT_FOR_TRAIN,
    GENERATE = OT_FOR_GENERATE,
    EVAL = OT_FOR_EVAL,
    TOKENIZE = OT_FOR_TOKENIZE,
    PROBE = OT_FOR_PROBE,
    PLAN = OT_FOR_PLAN,
    BENCH = OT_FOR_BENCH,
    VERIFY = OT_FOR_VERIFY,
    EXPORT = OT_FOR_EXPORT,
    MERGE = OT_FOR_MERGE,
    QUANTIZE = OT_FOR_QUANTIZE,
    COMM_TEST = OT_FOR_COMM_TEST,
    MODELS = TRAIN | GENERATE | EVAL /* the commands that run a model */
};

#define K    1024.0
#define MANY 1e9

#endif
