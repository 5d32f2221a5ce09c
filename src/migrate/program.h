/* The programs whose settings are read. The choices of --from are in this order. */
#ifndef OT_MIGRATE_PROGRAM_H
#define OT_MIGRATE_PROGRAM_H

enum ot_program {
    OT_PROGRAM_DEEPSPEED,
    OT_PROGRAM_TRAINER, /* transformers, and TRL */
    OT_PROGRAM_LLAMAFACTORY,
    OT_PROGRAM_AXOLOTL,
    OT_PROGRAM_COUNT
};

static inline const char *ot_program_name(enum ot_program program) {
    static const char *const names[OT_PROGRAM_COUNT] = {"DeepSpeed", "transformers", "LLaMA-Factory",
                                                        "axolotl"};
    return names[program];
}

#endif
