#include "src/migrate/map.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/migrate/maps.h"

const char *ot_map_text(enum ot_program program) {
    static const char *const texts[OT_PROGRAM_COUNT] = {[OT_PROGRAM_DEEPSPEED] = OT_MAP_DEEPSPEED,
                                                        [OT_PROGRAM_TRAINER] = OT_MAP_TRAINER,
                                                        [OT_PROGRAM_LLAMAFACTORY] = OT_MAP_LLAMAFACTORY,
                                                        [OT_PROGRAM_AXOLOTL] = OT_MAP_AXOLOTL};
    return texts[program];
}

/* Takes the part of *at up to a closing character; *at moves behind it and its spaces. NULL: none begins with
 * `open`. */
static char *take_group(char **at, char open, char close) {
    char *begin = *at + 1, *end = **at == open ? strchr(begin, close) : NULL;
    if (!end)
        return NULL;
    *end = '\0';
    *at = end + 1 + strspn(end + 1, " ");
    return begin;
}

static char *take_word(char **at) {
    char *begin = *at;
    size_t n = strcspn(begin, " ;");
    *at = begin + n;
    if (**at == ' ')
        *(*at)++ = '\0';
    return n ? begin : NULL;
}

/* The text behind a semicolon; "" where there is none. */
static const char *take_note(char **at) {
    if (**at != ';')
        return **at ? NULL : "";
    *(*at)++ = '\0';
    return *at + strspn(*at, " ");
}

/* Parses "use lr number; a note", which is cut into its words. False: it is not a clause. */
static bool parse_clause(char *at, struct ot_map_clause *out) {
    static const char *const verbs[OT_MAP_ACTION_COUNT] = {"use", "like", "part", "ignore", "refuse", "call"};
    *out = (struct ot_map_clause){.values = take_group(&at, '[', ']')};
    out->conditions = take_group(&at, '(', ')');
    const char *verb = take_word(&at);
    while (verb && out->action < OT_MAP_ACTION_COUNT && strcmp(verb, verbs[out->action]) != 0)
        out->action++;
    if (!verb || out->action == OT_MAP_ACTION_COUNT || !*at)
        return false;
    out->text = "";
    if (out->action == OT_MAP_IGNORE) {
        out->text = at;
        return true;
    }
    if (out->action != OT_MAP_CALL && !(out->option = take_word(&at)))
        return false;
    if (out->action == OT_MAP_PART && !(out->name = take_word(&at)))
        return false;
    if (out->action != OT_MAP_REFUSE && !(out->how = take_word(&at)))
        return false;
    out->text = take_note(&at);
    if (out->option && strcmp(out->option, "-") == 0)
        out->option = NULL;
    bool needs_text = out->action == OT_MAP_REFUSE || out->action == OT_MAP_LIKE;
    return out->text && (*out->text || !needs_text);
}

static int fault(int line, const char *what) {
    return ot_fail(OT_E_INTERNAL, "line %d of a map: %s", line, what);
}

struct reading {
    struct ot_arena *arena;
    struct ot_map *map;
    struct ot_map_clause clauses[32]; /* of the last row */
};
enum { MOST_CLAUSES = 32 };

static int take_line(struct reading *r, char *text, bool is_indented, int line) {
    struct ot_map *map = r->map;
    if (!is_indented) {
        OT_TRY(ot_grow(&map->rows, &map->capacity, map->n + 1, sizeof *map->rows, "rows of a map"));
        map->rows[map->n++] = (struct ot_map_row){.keys = text};
        return 0;
    }
    struct ot_map_row *row = map->n ? &map->rows[map->n - 1] : NULL;
    if (!row || row->fallback)
        return fault(line, "a clause without a row, or after the default of its row");
    if (strncmp(text, "default ", 8) == 0) {
        row->fallback = text + 8;
        return row->n_clauses ? 0 : fault(line, "a default without a clause");
    }
    if (row->n_clauses == MOST_CLAUSES || !parse_clause(text, &r->clauses[row->n_clauses]))
        return fault(line, "not a clause");
    struct ot_map_clause *all = ot_arena_alloc(r->arena, (size_t)row->n_clauses + 1, sizeof *all);
    if (!all)
        return -OT_E_BUDGET;
    memcpy(all, r->clauses, ((size_t)row->n_clauses + 1) * sizeof *all);
    row->clauses = all;
    row->n_clauses++;
    return 0;
}

int ot_map_read(enum ot_program program, struct ot_arena *arena, struct ot_map *out) {
    *out = (struct ot_map){0};
    OT_TRY(ot_map_parse(ot_map_text(program), arena, out));
    return program == OT_PROGRAM_LLAMAFACTORY ? ot_map_parse(ot_map_text(OT_PROGRAM_TRAINER), arena, out) : 0;
}

int ot_map_parse(const char *text, struct ot_arena *arena, struct ot_map *out) {
    struct reading r = {arena, out, {{0}}};
    char *copy = ot_arena_strdup(arena, text, strlen(text)), *line;
    if (!copy)
        return -OT_E_BUDGET;
    for (int number = 1; (line = strsep(&copy, "\n")); number++) {
        size_t indent = strspn(line, " ");
        if (line[0] && line[0] != '#')
            OT_TRY(take_line(&r, line + indent, indent > 0, number));
    }
    return 0;
}

/* True if one of the names fits: exactly, or as what begins it. */
static bool has_name(const char *names, const char *key, bool exactly) {
    const char *name;
    size_t n;
    for (int i = 0; (name = ot_words_at(names, i, &n)); i++) {
        bool is_front = name[n - 1] == '*';
        if (exactly ? strlen(key) == n && memcmp(name, key, n) == 0
                    : is_front && strncmp(name, key, n - 1) == 0)
            return true;
    }
    return false;
}

const struct ot_map_row *ot_map_find(const struct ot_map *map, const char *key) {
    for (int exactly = 1; exactly >= 0; exactly--)
        for (size_t i = 0; i < map->n; i++)
            if (has_name(map->rows[i].keys, key, exactly))
                return &map->rows[i];
    return NULL;
}

bool ot_map_has_inside(const struct ot_map *map, const char *key, bool is_list) {
    const char *name, *next = is_list ? "[]." : ".";
    size_t n, bytes = strlen(key);
    for (size_t i = 0; i < map->n; i++)
        for (int k = 0; (name = ot_words_at(map->rows[i].keys, k, &n)); k++)
            if (n > bytes + strlen(next) && memcmp(name, key, bytes) == 0 &&
                memcmp(name + bytes, next, strlen(next)) == 0)
                return true;
    return false;
}
