/* The description of a run: the value in effect of every option.
 *
 * struct ot_options holds the options as the user gave them. It is const after parsing. A command copies it
 * into settings and fills in the values that the user did not give:
 *
 *   ot_settings_take_recorded   the value of the run that is resumed (src/train/resume.h)
 * ot_settings_choose_* the program's choice: threads by the machine, micro-batch by the plan, ...
 *
 * `in_effect.source` says where each value comes from, and run.json and --json record it. Only the command
 * that owns the settings, and these functions, write to them. All other code reads `in_effect` through a
 * pointer to const, so that each value has one place. The program never chooses a value that the user gave:
 * the functions assert this. Only words, --device and --tokens-per-step may be given as auto and then chosen.
 *
 * The settings borrow what the options own, so the options must outlive them. One thread.
 */
#ifndef OT_OPTIONS_SETTINGS_H
#define OT_OPTIONS_SETTINGS_H

#include "src/options/options.h"

struct ot_settings {
    struct ot_options in_effect; /* begins as a copy of the options */
};

/* `name` must be in the table, with the type that the function names. Texts are borrowed. */
void ot_settings_choose_count(struct ot_settings *settings, const char *name, int64_t value);
void ot_settings_choose_list(struct ot_settings *settings, const char *name, struct ot_count_list list);
void ot_settings_choose_real(struct ot_settings *settings, const char *name, double value);
void ot_settings_choose_text(struct ot_settings *settings, const char *name, const char *value);
/* index: into the choices of the option. */
void ot_settings_choose_word(struct ot_settings *settings, const char *name, int index);
/* Keeps the bounds that the user gave. */
void ot_settings_choose_step(struct ot_settings *settings, int64_t tokens);
void ot_settings_choose_device(struct ot_settings *settings, struct ot_device_choice device);

/* Takes the value of option `index` from the record of the run that is resumed; its texts are borrowed.
 * given: that run was given it; false: it is the option's default here, too. Errors: OT_E_USAGE: not a valid
 * value of this option. */
int ot_settings_take_recorded(struct ot_settings *settings, int index, const struct ot_json *value,
                              bool given);

#endif
