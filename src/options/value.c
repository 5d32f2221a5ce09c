/* Values of options: parses text into a field, and writes a field as JSON. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/options/options.h"

struct unit {
    const char *name;
    double factor;
};

static const struct unit count_units[] = {
    {"", 1},        {"k", 1e3},     {"K", 1e3},     {"M", 1e6}, {"G", 1e9},
    {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {NULL, 0},
};
/* Sequence lengths are mostly powers of 2, so the units of tokens are too: 16k tokens are 8 sequences of
 * 2048. */
static const struct unit token_units[] = {
    {"", 1},        {"k", 0x1p10},  {"K", 0x1p10},  {"M", 0x1p20}, {"G", 0x1p30},
    {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {NULL, 0},
};
/* The units of GNU coreutils: G and GiB are 2^30, GB is 10^9. Upper and lower case are equal. */
static const struct unit byte_units[] = {
    {"", 1},         {"B", 1},        {"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
    {"T", 0x1p40},   {"Ki", 0x1p10},  {"Mi", 0x1p20},  {"Gi", 0x1p30},  {"Ti", 0x1p40},
    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},
    {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {NULL, 0},
};
/* Rates are decimal, as in data sheets; a "/s" may follow. */
static const struct unit rate_units[] = {
    {"", 1},         {"K", 1e3},        {"M", 1e6},        {"G", 1e9},    {"T", 1e12},
    {"KB", 1e3},     {"MB", 1e6},       {"GB", 1e9},       {"TB", 1e12},  {"KiB", 0x1p10},
    {"MiB", 0x1p20}, {"GiB", 0x1p30},   {"TiB", 0x1p40},   {"MB/s", 1e6}, {"GB/s", 1e9},
    {"TB/s", 1e12},  {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {NULL, 0},
};
static const struct unit share_units[] = {{"", 1}, {"%", 0.01}, {NULL, 0}};
static const struct unit time_units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};
static const struct unit percent_unit[] = {{"%", 0.01}, {NULL, 0}};

/* Parses a finite decimal number with one of the units and nothing after it. */
static bool read_number(const char *text, const struct unit *units, bool any_case, double *out) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!((*digits >= '0' && *digits <= '9') || *digits == '.') || strncasecmp(digits, "0x", 2) == 0)
        return false; /* strtod also accepts spaces, hexadecimal, infinity and nan */
    char *end;
    double value = strtod(text, &end);
    for (; end > text && units->name; units++)
        if (any_case ? strcasecmp(end, units->name) == 0 : strcmp(end, units->name) == 0) {
            value *= units->factor;
            if (isfinite(value))
                *out = value;
            return isfinite(value);
        }
    return false;
}

static bool in_range(const struct ot_option *option, double value) {
    return value >= option->min && value <= option->max;
}

static bool read_count(const struct ot_option *option, const char *text, int64_t *out) {
    double value;
    bool is_whole = read_number(text, option->of_tokens ? token_units : count_units, false, &value) &&
                    value == floor(value) && in_range(option, value);
    *out = is_whole ? (int64_t)value : *out;
    return is_whole;
}

/* True for a count below the least one. Its error then needs no list of valid forms. */
static bool is_too_small(const struct ot_option *option, const char *text) {
    double value;
    return (option->type == OT_OPTION_COUNT || option->type == OT_OPTION_STEP) &&
           read_number(text, option->of_tokens ? token_units : count_units, false, &value) &&
           value < option->min;
}

static bool read_bytes(const struct ot_option *option, const char *text, int64_t *out) {
    double value;
    if (!read_number(text, byte_units, true, &value) || !in_range(option, value))
        return false;
    *out = (int64_t)value;
    return true;
}

bool ot_option_read_size(const char *text, int64_t *bytes) {
    double value;
    if (!read_number(text, byte_units, true, &value) || value < 1 || value > 0x1p60)
        return false;
    *bytes = (int64_t)value;
    return true;
}

/* Parses "2k,8k". No value may appear twice. */
static bool read_list(const struct ot_option *option, const char *text, struct ot_count_list *out) {
    bool (*read)(const struct ot_option *, const char *, int64_t *) =
        option->type == OT_OPTION_COUNTS ? read_count : read_bytes;
    *out = (struct ot_count_list){0};
    for (;; text++) {
        char word[32];
        size_t length = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        if (length >= sizeof word || out->n == OT_LIST_MAX || !read(option, word, &out->values[out->n]))
            return false;
        for (int i = 0; i < out->n; i++)
            if (out->values[i] == out->values[out->n])
                return false;
        out->n++;
        text += length;
        if (!*text)
            return true;
    }
}

/* Parses "16k", or "auto:8k..64k". */
static bool read_step(const struct ot_option *option, const char *text, struct ot_step_tokens *out) {
    static const char word[] = "auto:";
    char least[32];
    *out = (struct ot_step_tokens){0};
    if (strncmp(text, word, strlen(word)) != 0)
        return read_count(option, text, &out->count);
    text += strlen(word);
    const char *dots = strstr(text, "..");
    if (!dots || dots - text >= (ptrdiff_t)sizeof least)
        return false;
    snprintf(least, sizeof least, "%.*s", (int)(dots - text), text);
    return read_count(option, least, &out->least) && read_count(option, dots + 2, &out->most) &&
           out->least <= out->most && out->most <= OT_STEP_MOST_RATIO * out->least;
}

static bool read_warmup(const struct ot_option *option, const char *text, struct ot_warmup *out) {
    *out = (struct ot_warmup){0};
    return read_count(option, text, &out->steps) ||
           (read_number(text, percent_unit, false, &out->share) && out->share >= 0 && out->share <= 1);
}

/* Parses "3" or "3,0.01". */
static bool read_patience(const struct ot_option *option, const char *text, struct ot_patience *out) {
    char count[32];
    size_t length = strcspn(text, ",");
    *out = (struct ot_patience){0};
    snprintf(count, sizeof count, "%.*s", (int)length, text);
    return length < sizeof count && read_count(option, count, &out->evaluations) &&
           (!text[length] ||
            (read_number(text + length + 1, no_units, false, &out->delta) && out->delta >= 0));
}

/* Index of the word [text, text + bytes), in any case, in a list such as "auto|bf16"; -1: it is not there. */
static int find_choice(const char *choices, const char *text, size_t bytes) {
    for (int index = 0; choices; index++) {
        size_t length = strcspn(choices, "|");
        if (length == bytes && strncasecmp(choices, text, bytes) == 0)
            return index;
        choices = choices[length] ? choices + length + 1 : NULL;
    }
    return -1;
}

/* The same for a dtype as PyTorch's users write it too. */
static int find_choice_or_dtype(const char *choices, const char *text) {
    static const char *const also[] = {"bfloat16", "bf16", "float16", "fp16", "float32", "fp32", NULL};
    for (int i = 0; also[i]; i += 2)
        text = strcasecmp(text, also[i]) == 0 ? also[i + 1] : text;
    return find_choice(choices, text, strlen(text));
}

static bool read_every(const struct ot_option *option, const char *text, struct ot_every *out) {
    int word = option->choices ? find_choice(option->choices, text, strlen(text)) : -1;
    *out = (struct ot_every){.epoch = word == 0}; /* if there are choices, "epoch" is the first */
    return word >= 0 || read_count(option, text, &out->steps) ||
           (read_number(text, time_units, false, &out->seconds) && in_range(option, out->seconds));
}

static bool read_device(const char *text, struct ot_device_choice *out) {
    enum { MOST_GPUS = 1024 };
    double index = 0;
    size_t word = strcspn(text, ":");
    int kind = find_choice("auto|cpu|cuda", text, word);
    if (kind < 0 ||
        (text[word] && (kind != OT_DEVICE_CUDA || !read_number(text + word + 1, no_units, false, &index))))
        return false;
    if (!(index >= 0 && index < MOST_GPUS) || index != floor(index))
        return false;
    out->kind = kind;
    out->index = (int)index;
    return true;
}

static const char tier_choices[] = "gpu|host|nvme|auto";
static const enum ot_home tier_homes[] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME, OT_HOME_AUTO};

static bool read_homes(const char *text, struct ot_homes *out) {
    int all = find_choice(tier_choices, text, strlen(text));
    enum ot_home home = all < 0 ? OT_HOME_AUTO : tier_homes[all];
    *out = (struct ot_homes){home, home, home, home, home, home, home};
    for (bool seen[7] = {false}; all < 0; text++) {
        size_t key = strcspn(text, "=,");
        int what = find_choice("weights|state|activations|kept|grads|sums|cache", text, key);
        if (what < 0 || seen[what] || text[key] != '=')
            return false;
        seen[what] = true;
        text += key + 1;
        size_t value = strcspn(text, ",");
        int tier = find_choice(tier_choices, text, value);
        if (tier < 0)
            return false;
        enum ot_home *const fields[] = {&out->weights, &out->state, &out->activations, &out->kept,
                                        &out->grads,   &out->sums,  &out->cache};
        *fields[what] = tier_homes[tier];
        text += value;
        if (!*text)
            break;
    }
    return true;
}

/* Parses "auto", "gpu", or "cpu:0.6,gpu:0.4". Returns NULL, or the error of the part that begins at *part. */
static const char *read_engines(const char *text, struct ot_engine_fractions *out, const char **part) {
    double sum = 0;
    *out = (struct ot_engine_fractions){{0}};
    *part = text;
    if (strcmp(text, "auto") == 0)
        return NULL;
    for (const char *at = text; *at; at += *at == ',') {
        char number[24] = "1"; /* an engine without a share */
        size_t name = strcspn(at, ":,"), value = 0;
        int engine = find_choice("gpu|stream|cpu", at, name);
        *part = at;
        if (engine < 0)
            return "is not an engine";
        at += name;
        if (*at == ':') {
            value = strcspn(++at, ",");
            snprintf(number, sizeof number, "%.*s", (int)value, at);
        }
        double share;
        if (value >= sizeof number || !read_number(number, share_units, false, &share) || share <= 0 ||
            share > 1)
            return "needs a share above 0 and at most 1";
        if (out->share[engine] > 0)
            return "gives the same engine a second share";
        out->share[engine] = share;
        sum += share;
        at += value;
        if (strcmp(at, ",") == 0)
            return "ends in a comma";
    }
    return fabs(sum - 1) > 1e-6 ? "does not make the shares add up to 1" : NULL;
}

static int parse_engines(const char *spelled, const char *text, struct ot_engine_fractions *out) {
    const char *part, *wrong = read_engines(text, out, &part);
    if (!wrong)
        return 0;
    return ot_fail(OT_E_USAGE,
                   "%s %.80s: '%.*s' %s; must be auto, gpu, stream or cpu, or shares that add up to 1, such "
                   "as cpu:0.6,gpu:0.4",
                   spelled, *text ? text : "''", (int)strcspn(part, ","), part, wrong);
}

/* Adds one directory. If the text after the last colon is not a size, it is part of the path. */
static int parse_nvme(const struct ot_option *option, const char *spelled, const char *text,
                      struct ot_nvme_dirs *out) {
    const char *colon = strrchr(text, ':');
    double bytes = 0;
    bool sized = colon && read_number(colon + 1, byte_units, true, &bytes);
    size_t length = sized ? (size_t)(colon - text) : strlen(text);
    if (length == 0 || length >= OT_NVME_PATH_BYTES || (sized && !in_range(option, bytes)))
        return ot_fail(OT_E_USAGE,
                       "%s %.80s: must be DIR or DIR:SIZE, with a size from 1M to 1024T, such as "
                       "/mnt/a:500G; if the path itself ends in a colon and a size, add a slash",
                       spelled, *text ? text : "''");
    for (int i = 0; i < out->n; i++)
        if (strlen(out->dirs[i].path) == length && memcmp(out->dirs[i].path, text, length) == 0)
            return ot_fail(OT_E_USAGE, "%s: %.200s is given twice", spelled, out->dirs[i].path);
    if (out->n == OT_NVME_MAX_DIRS)
        return ot_fail(OT_E_USAGE, "%s: more than %d directories", spelled, OT_NVME_MAX_DIRS);
    struct ot_nvme_dir *dir = &out->dirs[out->n++];
    memcpy(dir->path, text, length);
    dir->path[length] = '\0';
    dir->bytes = (int64_t)bytes;
    return 0;
}

static int parse_texts(const char *spelled, const char *text, struct ot_texts *out) {
    if (!*text)
        return ot_fail(OT_E_USAGE, "%s '': the value is empty", spelled);
    for (int i = 0; i < out->n; i++)
        if (strcmp(out->items[i], text) == 0)
            return ot_fail(OT_E_USAGE, "%s: %.200s is given twice", spelled, text);
    if (out->n == OT_TEXTS_MAX)
        return ot_fail(OT_E_USAGE, "%s: more than %d values", spelled, OT_TEXTS_MAX);
    out->items[out->n++] = text;
    return 0;
}

/* Writes the form of a valid value, for the error. */
static void describe_wanted(const struct ot_option *option, char *out, size_t bytes) {
    switch (option->type) {
    case OT_OPTION_CHOICE:
        snprintf(out, bytes, "one of %s", option->choices);
        break;
    case OT_OPTION_YES_NO:
        snprintf(out, bytes, "yes or no");
        break;
    case OT_OPTION_COUNT:
        snprintf(out, bytes, "a whole number from %.0f to %.0f, such as %s", option->min, option->max,
                 option->of_tokens      ? "16k = 16384"
                 : option->max >= 64000 ? "500, 64k or 64Ki"
                                        : "2");
        break;
    case OT_OPTION_STEP:
        snprintf(
            out, bytes,
            "a whole number from %.0f to %.0f, such as 16k = 16384, or auto:MIN..MAX, such as auto:8k..64k, "
            "with MAX from MIN to %d times MIN",
            option->min, option->max, OT_STEP_MOST_RATIO);
        break;
    case OT_OPTION_BYTES:
        snprintf(out, bytes, "a size from %.0fM to %.0fT, such as 64M or 24G", option->min * 0x1p-20,
                 option->max * 0x1p-40);
        break;
    case OT_OPTION_RATE:
        snprintf(out, bytes, "a rate from %.0fMB to %.0fTB per second, such as 25GB", option->min * 1e-6,
                 option->max * 1e-12);
        break;
    case OT_OPTION_COUNTS:
        snprintf(out, bytes, "up to %d different whole numbers from %.0f to %.0f, such as %s", OT_LIST_MAX,
                 option->min, option->max, option->max >= 64000 * 1024 ? "4k,16k" : "1,4");
        break;
    case OT_OPTION_SIZES:
        snprintf(out, bytes, "up to %d different sizes from %.0fM to %.0fT, such as 8G,16G", OT_LIST_MAX,
                 option->min * 0x1p-20, option->max * 0x1p-40);
        break;
    case OT_OPTION_REAL:
        snprintf(out, bytes, "a number from %.7g to %.7g", option->min, option->max);
        break;
    case OT_OPTION_SHARE:
        snprintf(out, bytes, "a share from %g to %g, such as %g or %g%%", option->min, option->max,
                 option->max / 5, option->max * 20);
        break;
    case OT_OPTION_WARMUP:
        snprintf(out, bytes,
                 "a number of steps, such as 100, or a share of the run with a percent sign, such as 3%%");
        break;
    case OT_OPTION_EVERY:
        snprintf(out, bytes, "a number of steps (at least 1), such as 100, a time, such as 30s, 5m or 1h%s%s",
                 option->choices ? ", or one of " : "", option->choices ? option->choices : "");
        break;
    case OT_OPTION_PATIENCE:
        snprintf(out, bytes, "a number of evaluations, such as 3, or with the least gain, such as 3,0.01");
        break;
    case OT_OPTION_TIME:
        snprintf(out, bytes, "a time of at least %.0fs, such as 30s, 5m or 1h", option->min);
        break;
    case OT_OPTION_DEVICE:
        snprintf(out, bytes, "auto, cpu, cuda, or cuda:N for GPU N, counted from 0");
        break;
    case OT_OPTION_HOMES:
        snprintf(out, bytes, "gpu, host, nvme or auto, or weights=TIER,state=TIER,activations=TIER");
        break;
    default:
        snprintf(out, bytes, "a non-empty text");
        break;
    }
}

static bool read_value(const struct ot_option *option, const char *text, void *field) {
    switch (option->type) {
    case OT_OPTION_FLAG:
    case OT_OPTION_YES_NO: {
        int choice = find_choice("no|yes|false|true", text, strlen(text));
        *(bool *)field = choice & 1;
        return choice >= 0;
    }
    case OT_OPTION_TEXT:
        *(const char **)field = text;
        return *text || option->letter == 'p'; /* an empty prompt is a prompt */
    case OT_OPTION_CHOICE:
        return (*(int *)field = find_choice_or_dtype(option->choices, text)) >= 0;
    case OT_OPTION_COUNT:
        return read_count(option, text, field);
    case OT_OPTION_STEP:
        return read_step(option, text, field);
    case OT_OPTION_BYTES:
        return read_bytes(option, text, field);
    case OT_OPTION_RATE:
        return read_number(text, rate_units, true, field) && in_range(option, *(double *)field);
    case OT_OPTION_COUNTS:
    case OT_OPTION_SIZES:
        return read_list(option, text, field);
    case OT_OPTION_REAL:
        return read_number(text, no_units, false, field) && in_range(option, *(double *)field);
    case OT_OPTION_SHARE:
        return read_number(text, share_units, false, field) && in_range(option, *(double *)field);
    case OT_OPTION_WARMUP:
        return read_warmup(option, text, field);
    case OT_OPTION_EVERY:
        return read_every(option, text, field);
    case OT_OPTION_PATIENCE:
        return read_patience(option, text, field);
    case OT_OPTION_TIME:
        return read_number(text, time_units, false, field) && in_range(option, *(double *)field);
    case OT_OPTION_DEVICE:
        return read_device(text, field);
    case OT_OPTION_HOMES:
        return read_homes(text, field);
    case OT_OPTION_ENGINES: /* ot_option_parse_value parses these itself */
    case OT_OPTION_TEXTS:
    case OT_OPTION_NVME:
    case OT_OPTION_TYPE_COUNT:
        break;
    }
    return false;
}

int ot_option_parse_value(const struct ot_option *option, const char *spelled, const char *text,
                          struct ot_options *out) {
    if (option->type == OT_OPTION_ENGINES)
        return parse_engines(spelled, text, (struct ot_engine_fractions *)((char *)out + option->field));
    if (option->type == OT_OPTION_TEXTS)
        return parse_texts(spelled, text, (struct ot_texts *)((char *)out + option->field));
    if (option->type == OT_OPTION_NVME)
        return parse_nvme(option, spelled, text, (struct ot_nvme_dirs *)((char *)out + option->field));
    if (read_value(option, text, (char *)out + option->field))
        return 0;
    if (is_too_small(option, text))
        return ot_fail(OT_E_USAGE, "%s must be at least %.0f.", spelled, option->min);
    char wanted[200];
    describe_wanted(option, wanted, sizeof wanted);
    return ot_fail(OT_E_USAGE, "%s %.80s: must be %s", spelled, *text ? text : "''", wanted);
}

static const char *home_name(enum ot_home home) {
    return home == OT_HOME_AUTO ? "auto" : ot_tier_name((enum ot_tier)home);
}

static void put_engines(const char *name, const struct ot_engine_fractions *engines,
                        struct ot_json_writer *w) {
    char text[128] = "auto";
    size_t used = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        if (engines->share[e] > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:%.17g", used ? "," : "",
                                     ot_tile_engine_name((enum ot_tile_engine)e), engines->share[e]);
    ot_json_put_text(w, name, text);
}

static void put_list(const char *name, const struct ot_count_list *list, struct ot_json_writer *w) {
    char text[OT_LIST_MAX * 24];
    size_t used = 0;
    for (int i = 0; i < list->n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", used ? "," : "",
                                 (long long)list->values[i]);
    ot_json_put_text(w, name, text);
}

/* A single text is not an array, as in files of earlier versions. */
static void put_texts(const char *name, const struct ot_texts *texts, struct ot_json_writer *w) {
    if (texts->n == 1) {
        ot_json_put_text(w, name, texts->items[0]);
        return;
    }
    ot_json_begin_array(w, name);
    for (int i = 0; i < texts->n; i++)
        ot_json_put_text(w, NULL, texts->items[i]);
    ot_json_end_array(w);
}

static void put_nvme(const char *name, const struct ot_nvme_dirs *nvme, struct ot_json_writer *w) {
    char text[OT_NVME_PATH_BYTES + 24];
    ot_json_begin_array(w, name);
    for (int i = 0; i < nvme->n; i++) {
        const struct ot_nvme_dir *dir = &nvme->dirs[i];
        snprintf(text, sizeof text, dir->bytes ? "%s:%lld" : "%s", dir->path, (long long)dir->bytes);
        ot_json_put_text(w, NULL, text);
    }
    ot_json_end_array(w);
}

/* Writes the value in units of `unit`, with the fewest digits that are read back as the same bits. */
static void format_exact(double value, double unit, const char *suffix, char *text, size_t bytes) {
    for (int digits = 9; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g%s", digits, value / unit, suffix);
        if (strtod(text, NULL) * unit == value)
            break;
    }
}

void ot_option_put_value(const struct ot_option *option, const struct ot_options *options,
                         struct ot_json_writer *w) {
    const void *field = (const char *)options + option->field;
    char text[96] = "";
    switch (option->type) {
    case OT_OPTION_FLAG:
    case OT_OPTION_YES_NO:
        ot_json_put_bool(w, option->name, *(const bool *)field);
        return;
    case OT_OPTION_TEXT:
        ot_json_put_text(w, option->name, *(const char *const *)field);
        return;
    case OT_OPTION_COUNT:
    case OT_OPTION_BYTES:
        ot_json_put_int(w, option->name, *(const int64_t *)field);
        return;
    case OT_OPTION_STEP: {
        const struct ot_step_tokens *step = field;
        snprintf(text, sizeof text, "auto:%lld..%lld", (long long)step->least, (long long)step->most);
        if (step->count > 0)
            ot_json_put_int(w, option->name, step->count);
        else
            ot_json_put_text(w, option->name, text);
        return;
    }
    case OT_OPTION_RATE:
    case OT_OPTION_REAL:
    case OT_OPTION_SHARE:
        ot_json_put_exact(w, option->name, *(const double *)field);
        return;
    case OT_OPTION_CHOICE: {
        const char *word = option->choices;
        for (int skip = *(const int *)field; skip > 0; skip--)
            word += strcspn(word, "|") + 1;
        ot_json_put_string(w, option->name, word, strcspn(word, "|"));
        return;
    }
    case OT_OPTION_WARMUP: {
        const struct ot_warmup *warmup = field;
        format_exact(warmup->share, 0.01, "%", text, sizeof text);
        if (warmup->share > 0)
            ot_json_put_text(w, option->name, text);
        else
            ot_json_put_int(w, option->name, warmup->steps);
        return;
    }
    case OT_OPTION_PATIENCE: {
        const struct ot_patience *patience = field;
        char delta[40];
        format_exact(patience->delta, 1, "", delta, sizeof delta);
        snprintf(text, sizeof text, "%lld,%s", (long long)patience->evaluations, delta);
        if (patience->delta > 0)
            ot_json_put_text(w, option->name, text);
        else
            ot_json_put_int(w, option->name, patience->evaluations);
        return;
    }
    case OT_OPTION_EVERY: {
        const struct ot_every *every = field;
        format_exact(every->seconds, 1, "s", text, sizeof text);
        if (every->steps > 0)
            ot_json_put_int(w, option->name, every->steps);
        else
            ot_json_put_text(w, option->name, every->epoch ? "epoch" : every->seconds > 0 ? text : "never");
        return;
    }
    case OT_OPTION_TIME:
        format_exact(*(const double *)field, 1, "s", text, sizeof text);
        ot_json_put_text(w, option->name, text);
        return;
    case OT_OPTION_DEVICE: {
        const struct ot_device_choice *device = field;
        static const char *const kinds[] = {"auto", "cpu", "cuda"};
        snprintf(text, sizeof text, device->kind == OT_DEVICE_CUDA ? "%s:%d" : "%s", kinds[device->kind],
                 device->index);
        ot_json_put_text(w, option->name, text);
        return;
    }
    case OT_OPTION_HOMES: {
        const struct ot_homes *homes = field;
        snprintf(text, sizeof text, "weights=%s,state=%s,activations=%s,kept=%s,grads=%s,sums=%s,cache=%s",
                 home_name(homes->weights), home_name(homes->state), home_name(homes->activations),
                 home_name(homes->kept), home_name(homes->grads), home_name(homes->sums),
                 home_name(homes->cache));
        ot_json_put_text(w, option->name, text);
        return;
    }
    case OT_OPTION_ENGINES:
        put_engines(option->name, field, w);
        return;
    case OT_OPTION_COUNTS:
    case OT_OPTION_SIZES:
        put_list(option->name, field, w);
        return;
    case OT_OPTION_TEXTS:
        put_texts(option->name, field, w);
        return;
    case OT_OPTION_NVME:
        put_nvme(option->name, field, w);
        return;
    case OT_OPTION_TYPE_COUNT:
        break;
    }
    assert(!"an option without a type");
}
