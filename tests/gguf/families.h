/* Small models of each family that llama.cpp has, in the forms that differ in files. */
#ifndef OT_TESTS_GGUF_FAMILIES_H
#define OT_TESTS_GGUF_FAMILIES_H

#include "models/family.h"

/* Reads the config of a form; false past the last. *name: what the form is called. */
bool family_form(int index, const char **name, struct ot_model_config *config);
/* The form of this name. */
struct ot_model_config family_named(const char *name);
/* Reads the keys of a config.json. */
struct ot_model_config config_of(const char *json);

#endif
