/* The maps: for each program, what its keys mean here. They are data, in maps/PROGRAM.txt:
 *
 *     # a comment
 *     learning_rate lr
 *         [null] ignore it is null
 *         use lr number
 *         default 5e-5
 *
 * A row begins with the names of a key: paths, as optimizer.params.lr, or datasets[].path for the keys of
 * the objects in a list; a name may end in * for all that begin so. Where another key, or a function, asks
 * for the value of a key, the names of its row are names of one key. The lines below are its clauses; the
 * first one that fits the value is taken:
 *
 *     [VALUE ..]            the value is one of these; off: false, null, 0, "" and empty; <N: less than N
 *     (KEY=VALUE|VALUE ..)  another key has one of these values; != none of them. A key that the file lacks
 *                           has its default, else null. @trainer is yes if a file of the Trainer, of
 *                           LLaMA-Factory or of axolotl is read too
 *     use OPTION HOW; NOTE  sets an option, with the value as HOW says; the note may be left out
 *     like OPTION HOW; NOTE the same, but the effect differs: the note says how; -: no option is near
 *     part OPTION NAME HOW  adds NAME=VALUE to an option; all parts are joined by commas
 *     ignore WHY
 *     refuse OPTION; WHY    the option that may be given instead; -: none
 *     call FUNCTION         what several keys say together (special.c)
 *     default VALUE         if the file lacks the key, but has the object that the key belongs to
 *
 * HOW: number, int, text; list (joined by commas); each (one of the values of an option that repeats);
 * switch (yes or no); flag (yes; false is off); percent (0.03 is 3%); warmup (steps, or below 1 a share);
 * last (4 is last:4, -4 is first:4); twice; =WORD (this value; = alone in a part: its name without a value).
 */
#ifndef OT_MIGRATE_MAP_H
#define OT_MIGRATE_MAP_H

#include "src/base/memory.h"
#include "src/migrate/program.h"

enum ot_map_action {
    OT_MAP_USE,
    OT_MAP_LIKE,
    OT_MAP_PART,
    OT_MAP_IGNORE,
    OT_MAP_REFUSE,
    OT_MAP_CALL,
    OT_MAP_ACTION_COUNT
};

struct ot_map_clause {
    enum ot_map_action action;
    const char *values;                     /* of [..], separated by spaces; NULL: any */
    const char *conditions;                 /* of (..), separated by spaces; NULL: none */
    const char *option, *name, *how, *text; /* NULL where the action has none; call: the function in `how` */
};

struct ot_map_row {
    const char *keys; /* names, separated by spaces */
    const struct ot_map_clause *clauses;
    int n_clauses;
    const char *fallback; /* of default; NULL: none */
};

struct ot_map {
    struct ot_map_row *rows;
    size_t n, capacity;
};

/* The text of a program's map. */
const char *ot_map_text(enum ot_program program);
/* The rows of a program's map, in an arena; the caller frees out->rows. LLaMA-Factory's has those of
 * transformers' too, behind its own. Errors: as ot_map_parse. */
int ot_map_read(enum ot_program program, struct ot_arena *arena, struct ot_map *out);
/* Adds the rows of a text. Errors: OT_E_INTERNAL (a fault of the text, with its line: a test looks for it),
 * OT_E_BUDGET. */
int ot_map_parse(const char *text, struct ot_arena *arena, struct ot_map *out);
/* The row of a key, "datasets[].path" for all items of the list; an exact name wins over one with *. NULL:
 * the program has no such key. */
const struct ot_map_row *ot_map_find(const struct ot_map *map, const char *key);
/* True if a key of the map begins with `key` and a '.' or "[]". */
bool ot_map_has_inside(const struct ot_map *map, const char *key, bool is_list);

#endif
