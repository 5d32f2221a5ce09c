/* Settings files of people, as trees (src/base/json.h): JSON, HJSON, and YAML with libyaml.
 *
 * HJSON is read as Python's package hjson reads it, which DeepSpeed uses: comments, keys and texts without
 * quotes, commas that are missing or too many. YAML is read as PyYAML does: the types of YAML 1.1, so that
 * "yes" is true and 1e-4 is a text (ot_migrate and --config take it as a number where they want one), aliases
 * and merge keys. Both are stricter in one point: a key that is given twice is an error.
 *
 * A file is hostile until it is read: depth, nodes (also those that aliases repeat), keys of an object and
 * bytes have limits (tree.h). Errors name the file and the line.
 */
#ifndef OT_MIGRATE_SETTINGS_FILE_H
#define OT_MIGRATE_SETTINGS_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/json.h"

enum { OT_SETTINGS_MAX_BYTES = 1 << 20 };

/* where: the name of the text in errors. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_hjson_parse(const char *text, size_t bytes, const char *where, struct ot_json **out);
/* Also OT_E_USAGE: this build has no libyaml. */
int ot_yaml_parse(const char *text, size_t bytes, const char *where, struct ot_json **out);

/* True if the name ends in .yaml or .yml. */
bool ot_settings_are_yaml(const char *path);
/* Reads a file: YAML by its name, else HJSON (which all JSON is too). The value must be an object. */
int ot_settings_read(const char *path, struct ot_json **out);

#endif
