/* Keys become rows and settings, by the clauses of their map. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/migrate/migrate_state.h"

/* ---- values ---- */

const char *ot_migrate_format(struct ot_migrating *m, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    const char *kept = n < 0 ? NULL : ot_arena_strdup(m->out->arena, text, (size_t)n);
    if (n >= 0)
        free(text);
    return kept;
}

int ot_migrate_own(struct ot_migrating *m, struct ot_json *tree) {
    int rc = ot_grow(&m->owned, &m->owned_capacity, m->n_owned + 1, sizeof(struct ot_json *), "trees");
    if (rc < 0)
        ot_json_free(tree);
    else
        m->owned[m->n_owned++] = tree;
    return rc;
}

/* A decimal number and nothing else, finite. */
static bool read_number(const char *text, double *out) {
    char *end;
    size_t n = strspn(text, "0123456789+-.eE_");
    if (n == 0 || text[n] || !strpbrk(text, "0123456789"))
        return false;
    *out = strtod(text, &end);
    return !*end && isfinite(*out);
}

bool ot_migrate_number(const struct ot_json *value, double *out) {
    enum ot_json_type type = ot_json_type(value);
    size_t bytes;
    const char *text = ot_json_string(value, &bytes);
    if (text)
        return strlen(text) == bytes && read_number(text, out);
    *out = ot_json_real(value, 0);
    return type == OT_JSON_INT || type == OT_JSON_REAL;
}

/* The shortest text that reads back as the number: 2e-5, not 2.0000000000000002e-05. */
static const char *number_text(struct ot_migrating *m, double value) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (fabs(value) < 1e15 && value == floor(value))
        snprintf(text, sizeof text, "%.0f", value);
    char *exponent = strpbrk(text, "+-");
    exponent = exponent == text ? strpbrk(text + 1, "+-") : exponent;
    if (exponent && exponent[1] == '0')
        memmove(exponent + 1, exponent + 2, strlen(exponent + 2) + 1);
    return ot_migrate_format(m, "%s", text);
}

/* A value of an option, and of a command line: without NUL and other control characters. */
static bool is_one_line(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return false;
    return true;
}

static const char *list_text(struct ot_migrating *m, const struct ot_json *value) {
    struct ot_string_builder list = {0};
    const char *kept = NULL;
    bool is_plain = true;
    for (size_t i = 0; i < ot_json_length(value) && is_plain; i++) {
        const struct ot_json *item = ot_json_at(value, i);
        const char *text = ot_json_type(item) < OT_JSON_ARRAY ? ot_migrate_text(m, item) : NULL;
        is_plain = text != NULL;
        ot_string_append_format(&list, "%s%s", i ? "," : "", text ? text : "");
    }
    if (is_plain && !list.failed)
        kept = ot_migrate_format(m, "%s", list.text ? list.text : "");
    free(list.text);
    return kept;
}

/* NOLINTNEXTLINE(misc-no-recursion): a list has no lists in it here */
const char *ot_migrate_text(struct ot_migrating *m, const struct ot_json *value) {
    size_t bytes;
    const char *text = ot_json_string(value, &bytes);
    switch (ot_json_type(value)) {
    case OT_JSON_NULL:
        return "null";
    case OT_JSON_BOOL:
        return ot_json_bool(value, false) ? "true" : "false";
    case OT_JSON_INT:
        return ot_migrate_format(m, "%lld", (long long)ot_json_int(value, 0));
    case OT_JSON_REAL:
        return number_text(m, ot_json_real(value, 0));
    case OT_JSON_STRING:
        return is_one_line(text, bytes) ? ot_migrate_format(m, "%s", text) : NULL;
    case OT_JSON_ARRAY:
        return list_text(m, value);
    default:
        return NULL;
    }
}

static const struct ot_json *get_path(const struct ot_json *tree, const char *path, size_t bytes) {
    char part[128];
    while (bytes > 0 && tree) {
        const char *dot = memchr(path, '.', bytes);
        size_t n = dot ? (size_t)(dot - path) : bytes;
        if (n >= sizeof part)
            return NULL;
        memcpy(part, path, n);
        part[n] = '\0';
        tree = ot_json_get(tree, part);
        path += n + 1;
        bytes -= dot ? n + 1 : n;
    }
    return tree;
}

/* A default of a map: JSON, or a word. */
static const struct ot_json *parse_default(struct ot_migrating *m, const char *text) {
    struct ot_json *tree = NULL;
    const char *quoted = ot_migrate_format(m, "\"%s\"", text);
    if (ot_json_parse(text, strlen(text), "default", &tree) < 0 &&
        (!quoted || ot_json_parse(quoted, strlen(quoted), "default", &tree) < 0))
        return NULL;
    return tree && ot_migrate_own(m, tree) == 0 ? tree : NULL;
}

const struct ot_json *ot_migrate_given(struct ot_migrating *m, const char *key) {
    const struct ot_map_row *row = ot_map_find(&m->map, key);
    const char *name, *names = row ? row->keys : key;
    const struct ot_json *value = NULL;
    size_t n;
    for (int i = 0; !value && (name = ot_words_at(names, i, &n)); i++)
        value = get_path(m->tree, name, n);
    return value;
}

const struct ot_json *ot_migrate_value(struct ot_migrating *m, const char *key) {
    const struct ot_map_row *row = ot_map_find(&m->map, key);
    const struct ot_json *given = ot_migrate_given(m, key);
    return given || !row || !row->fallback ? given : parse_default(m, row->fallback);
}

/* ---- which clause ---- */

static bool is_off(const struct ot_json *value) {
    double number;
    size_t bytes;
    void *cursor = NULL;
    const char *key, *text = ot_json_string(value, &bytes);
    struct ot_json *member;
    switch (ot_json_type(value)) {
    case OT_JSON_BOOL:
        return !ot_json_bool(value, true);
    case OT_JSON_STRING:
        return bytes == 0 || strcasecmp(text, "none") == 0;
    case OT_JSON_ARRAY:
        return ot_json_length(value) == 0;
    case OT_JSON_OBJECT:
        return !ot_json_next(value, &cursor, &key, &member);
    default:
        return !value || (ot_migrate_number(value, &number) && number == 0);
    }
}

static bool is_value(struct ot_migrating *m, const struct ot_json *value, const char *word) {
    const char *text = ot_migrate_text(m, value);
    double a, b;
    bool is_number = ot_migrate_number(value, &a);
    if (*word == '<' && word[1] >= '0' && word[1] <= '9')
        return is_number && a < strtod(word + 1, NULL);
    if (strcmp(word, "off") == 0)
        return is_off(value);
    if (is_number && read_number(word, &b))
        return a == b;
    return text && strcasecmp(text, word) == 0;
}

/* True if the value is one of the words, which `separator` separates. */
static bool is_among(struct ot_migrating *m, const struct ot_json *value, const char *words, size_t bytes,
                     char separator) {
    char word[96];
    for (size_t at = 0, n; at < bytes; at += n + 1) {
        const char *end = memchr(words + at, separator, bytes - at);
        n = end ? (size_t)(end - words) - at : bytes - at;
        snprintf(word, sizeof word, "%.*s", (int)n, words + at);
        if (is_value(m, value, word))
            return true;
    }
    return false;
}

static bool is_met(struct ot_migrating *m, const char *condition, size_t bytes) {
    char key[96];
    size_t n = strcspn(condition, "!=");
    bool is_not = condition[n] == '!';
    const char *values = condition + n + 1 + is_not;
    snprintf(key, sizeof key, "%.*s", (int)n, condition);
    size_t left = bytes - (size_t)(values - condition);
    if (strcmp(key, "@trainer") == 0)
        return (left == 3 && memcmp(values, "yes", 3) == 0) == (m->trainer != NULL);
    return is_among(m, ot_migrate_value(m, key), values, left, '|') != is_not;
}

static bool fits(struct ot_migrating *m, const struct ot_map_clause *clause, const struct ot_json *value) {
    const char *condition;
    size_t n;
    if (clause->values && !is_among(m, value, clause->values, strlen(clause->values), ' '))
        return false;
    for (int i = 0; clause->conditions && (condition = ot_words_at(clause->conditions, i, &n)); i++)
        if (!is_met(m, condition, n))
            return false;
    return true;
}

/* ---- rows and settings ---- */

int ot_migrate_add_row(struct ot_migrating *m, const struct ot_migrate_key *key,
                       enum ot_migrate_verdict verdict, const char *text) {
    struct ot_migration *out = m->out;
    OT_TRY(ot_grow(&out->rows, &out->row_capacity, out->n_rows + 1, sizeof *out->rows, "rows"));
    if (!text || !key->name)
        return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
    out->rows[out->n_rows++] = (struct ot_migrate_row){
        .file = m->file, .key = key->name, .verdict = verdict, .text = text, .is_default = key->is_default};
    return 0;
}

static bool are_equal(const char *a, const char *b) {
    double x, y;
    return strcmp(a, b) == 0 || (read_number(a, &x) && read_number(b, &y) && x == y);
}

/* The row that a setting came from. */
static struct ot_migrate_row *find_row(struct ot_migration *out, const struct ot_migrate_setting *setting) {
    for (size_t i = 0; i < out->n_rows; i++)
        if (out->rows[i].key == setting->key && out->rows[i].file == setting->file)
            return &out->rows[i];
    return NULL;
}

/* Decides between the setting that is there and the last row, which says another value. */
static int settle(struct ot_migrating *m, struct ot_migrate_setting *setting, const char *value) {
    struct ot_migration *out = m->out;
    struct ot_migrate_row *row = &out->rows[out->n_rows - 1], *old = find_row(out, setting);
    if (row->is_default) {
        out->n_rows--;
        return 0;
    }
    if (old && old->is_default) {
        old->verdict = OT_MIGRATE_IGNORED;
        old->text = ot_migrate_format(m, "%s of %s says it", row->key, row->file);
        *setting = (struct ot_migrate_setting){setting->option, value, row->file, row->key};
        return old->text ? 0 : -OT_E_BUDGET;
    }
    row->verdict = OT_MIGRATE_REFUSED;
    row->text = ot_migrate_format(m, "%s contradicts %s of %s (--%s %s); remove one of them", value,
                                  setting->key, setting->file, setting->option, setting->value);
    row->value = NULL; /* the option lifts the refusal if the user gives it */
    return row->text ? 0 : -OT_E_BUDGET;
}

static int take_setting(struct ot_migrating *m, const char *option, const char *value, bool repeats) {
    struct ot_migration *out = m->out;
    const struct ot_migrate_row *row = &out->rows[out->n_rows - 1];
    for (size_t i = 0; i < out->n_settings; i++) {
        struct ot_migrate_setting *setting = &out->settings[i];
        if (strcmp(setting->option, option) != 0)
            continue;
        if (are_equal(setting->value, value))
            return 0;
        if (!repeats)
            return settle(m, setting, value);
    }
    OT_TRY(ot_grow(&out->settings, &out->setting_capacity, out->n_settings + 1, sizeof *out->settings,
                   "settings"));
    out->settings[out->n_settings++] = (struct ot_migrate_setting){option, value, row->file, row->key};
    return 0;
}

int ot_migrate_use(struct ot_migrating *m, const char *option, const char *value, bool repeats) {
    struct ot_migrate_row *row = &m->out->rows[m->out->n_rows - 1];
    if (!value)
        return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
    row->option = option;
    row->value = value;
    return take_setting(m, option, value, repeats);
}

int ot_migrate_use_part(struct ot_migrating *m, const char *option, const char *name, const char *value) {
    struct ot_migrate_row *row = &m->out->rows[m->out->n_rows - 1];
    const char *whole = value ? ot_migrate_format(m, "%s%s%s", name, *value ? "=" : "", value) : NULL;
    if (!whole)
        return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
    row->option = option;
    row->value = whole;
    for (size_t i = 0; i < m->n_parts; i++)
        if (strcmp(m->parts[i].option, option) == 0 && strcmp(m->parts[i].name, name) == 0) {
            struct ot_migrate_setting old = {option, m->parts[i].value, m->out->rows[m->parts[i].row].file,
                                             m->out->rows[m->parts[i].row].key};
            return are_equal(old.value, whole) ? 0 : settle(m, &old, whole);
        }
    OT_TRY(ot_grow(&m->parts, &m->part_capacity, m->n_parts + 1, sizeof *m->parts, "parts of options"));
    m->parts[m->n_parts++] = (struct ot_migrate_part){option, name, whole, m->out->n_rows - 1};
    return 0;
}

/* Parts with commas in them come last: a word that has no '=' goes on with the part before it. */
static const char *join(struct ot_migrating *m, const char *option) {
    const char *whole = "";
    for (int has_comma = 0; has_comma < 2; has_comma++)
        for (size_t i = 0; i < m->n_parts && whole; i++)
            if (strcmp(m->parts[i].option, option) == 0 &&
                (strchr(m->parts[i].value, ',') != NULL) == (has_comma == 1))
                whole = ot_migrate_format(m, "%s%s%s", whole, *whole ? "," : "", m->parts[i].value);
    return whole;
}

int ot_migrate_join_parts(struct ot_migrating *m) {
    struct ot_migration *out = m->out;
    for (size_t i = 0; i < m->n_parts; i++) {
        size_t first = 0;
        while (strcmp(m->parts[first].option, m->parts[i].option) != 0)
            first++;
        if (first < i)
            continue;
        const struct ot_migrate_row *row = &out->rows[m->parts[i].row];
        const char *whole = join(m, row->option);
        OT_TRY(ot_grow(&out->settings, &out->setting_capacity, out->n_settings + 1, sizeof *out->settings,
                       "settings"));
        if (!whole)
            return ot_fail(OT_E_BUDGET, "no memory for what %s says", row->file);
        out->settings[out->n_settings++] =
            (struct ot_migrate_setting){m->parts[i].option, whole, row->file, row->key};
    }
    return 0;
}

/* ---- actions ---- */

/* "q_proj, v_proj" as "q_proj,v_proj". */
static const char *without_spaces(struct ot_migrating *m, const char *text) {
    char *copy = ot_arena_strdup(m->out->arena, text, strlen(text)), *to = copy;
    for (; copy && *text; text++)
        if (*text != ' ')
            *to++ = *text;
    if (copy)
        *to = '\0';
    return copy;
}

/* The value as HOW says. NULL: it has another form; *wanted says which. */
static const char *convert(struct ot_migrating *m, const char *how, const struct ot_json *value,
                           const char **wanted) {
    double number = 0;
    bool is_number = ot_migrate_number(value, &number), is_bool = ot_json_type(value) == OT_JSON_BOOL;
    const char *text = ot_migrate_text(m, value);
    if (*how == '=')
        return how + 1;
    *wanted = "true or false";
    if (strcmp(how, "switch") == 0 || strcmp(how, "flag") == 0)
        return is_bool ? (ot_json_bool(value, false) ? "yes" : "no") : NULL;
    *wanted = "a text, or a list of texts";
    if (strcmp(how, "list") == 0)
        return text && *text && !is_bool ? without_spaces(m, text) : NULL;
    if (strcmp(how, "text") == 0 || strcmp(how, "each") == 0)
        return text && *text && !is_bool && ot_json_type(value) != OT_JSON_ARRAY ? text : NULL;
    bool is_int = strcmp(how, "int") == 0 || strcmp(how, "twice") == 0 || strcmp(how, "last") == 0;
    *wanted = is_int ? "a whole number" : "a number";
    if (!is_number || (is_int && number != floor(number)))
        return NULL;
    if (strcmp(how, "percent") == 0 || (strcmp(how, "warmup") == 0 && number > 0 && number < 1))
        return ot_migrate_format(m, "%.10g%%", number * 100);
    if (strcmp(how, "last") == 0)
        return ot_migrate_format(m, "%s:%.0f", number < 0 ? "first" : "last", fabs(number));
    return number_text(m, strcmp(how, "twice") == 0 ? 2 * number : number);
}

static int refuse_value(struct ot_migrating *m, const struct ot_migrate_key *key, const char *wanted) {
    const char *text = ot_migrate_text(m, key->value);
    return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                              ot_migrate_format(m, "%.200s is not %s", text ? text : "the value", wanted));
}

/* "auto" of a ds_config. */
static int apply_auto(struct ot_migrating *m, const struct ot_migrate_key *key,
                      const struct ot_map_clause *clause) {
    if (!clause->option)
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, "auto: DeepSpeed's default");
    if (!m->trainer)
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED,
                                  ot_migrate_format(m, "auto: the default of --%s", clause->option));
    return ot_migrate_add_row(m, key, OT_MIGRATE_USED,
                              ot_migrate_format(m, "auto: --%s, as %s says", clause->option, m->trainer));
}

static int use(struct ot_migrating *m, const struct ot_migrate_key *key, const struct ot_map_clause *clause) {
    const char *wanted = "", *value;
    if (!clause->option) { /* a difference that no option removes */
        OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, clause->text));
        m->out->rows[m->out->n_rows - 1].differs = true;
        return 0;
    }
    if (strcmp(clause->how, "flag") == 0 && is_off(key->value))
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, "it is off, as here");
    value = convert(m, clause->how, key->value, &wanted);
    if (!value)
        return refuse_value(m, key, wanted);
    OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, clause->text));
    m->out->rows[m->out->n_rows - 1].differs = clause->action == OT_MAP_LIKE;
    return clause->action == OT_MAP_PART
               ? ot_migrate_use_part(m, clause->option, clause->name, value)
               : ot_migrate_use(m, clause->option, value, strcmp(clause->how, "each") == 0);
}

int ot_migrate_apply(struct ot_migrating *m, const struct ot_migrate_key *key) {
    const struct ot_map_clause *clause = NULL, *first = NULL;
    const char *text = ot_json_string(key->value, NULL);
    bool is_auto = m->program == OT_PROGRAM_DEEPSPEED && text && strcmp(text, "auto") == 0;
    if (!key->value)
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, "null is the same as no key");
    for (int i = 0; i < key->row->n_clauses && !clause; i++) {
        clause = fits(m, &key->row->clauses[i], key->value) ? &key->row->clauses[i] : NULL;
        first = !first && key->row->clauses[i].option ? &key->row->clauses[i] : first;
    }
    if (is_auto && (!clause || clause->option))
        return apply_auto(m, key, first ? first : &key->row->clauses[0]);
    if (!clause)
        return refuse_value(m, key, "a value that this key can have");
    switch (clause->action) {
    case OT_MAP_IGNORE:
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, clause->text);
    case OT_MAP_REFUSE:
        OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED, clause->text));
        m->out->rows[m->out->n_rows - 1].option = clause->option;
        return 0;
    case OT_MAP_CALL:
        return ot_migrate_call(m, clause->how, key);
    default:
        return use(m, key, clause);
    }
}
