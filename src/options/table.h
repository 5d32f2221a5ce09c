/* The parts of the option table, in the order of --help; table.c joins them. Only the files table*.c include
 * this header; all other files use options.h. */
#ifndef OT_OPTIONS_TABLE_H
#define OT_OPTIONS_TABLE_H

#include "src/options/options.h"

struct ot_option_list {
    const struct ot_option *options;
    int n;
};

extern const struct ot_option_list ot_options_of_train;    /* and of commands that have the same options */
extern const struct ot_option_list ot_options_of_commands; /* text, reports, and what one command has */

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
