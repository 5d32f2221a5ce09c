#include "src/hub/name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"

static const char scheme[] = "hf://";

static bool is_word_byte(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

/* A part of "org/name". The cache joins the parts with "--". */
static bool is_id_part(const char *text, size_t bytes) {
    if (bytes == 0 || strchr(".-", text[0]) || strchr(".-", text[bytes - 1]))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!is_word_byte(text[i]) || (i > 0 && strchr(".-", text[i]) && text[i] == text[i - 1]))
            return false;
    return true;
}

bool ot_hub_is_id(const char *text, size_t bytes) {
    const char *slash = memchr(text, '/', bytes);
    if (!slash || bytes >= OT_HUB_ID_BYTES)
        return false;
    size_t org = (size_t)(slash - text);
    return is_id_part(text, org) && is_id_part(slash + 1, bytes - org - 1);
}

/* Parts of words with slashes between them: "v1.0", "refs/pr/3". */
static bool is_revision(const char *text, size_t bytes) {
    if (bytes == 0 || bytes >= OT_HUB_REVISION_BYTES)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        bool begins = i == 0 || text[i - 1] == '/';
        if ((!is_word_byte(text[i]) && text[i] != '/') || (begins && strchr("./-", text[i])) ||
            (text[i] == '.' && i > 0 && text[i - 1] == '.'))
            return false;
    }
    return text[bytes - 1] != '/';
}

static bool is_file_part(const char *text, size_t bytes) {
    if (bytes == 0 || bytes > 255 || text[0] == '.')
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f || text[i] == '/' || text[i] == '\\')
            return false;
    return true;
}

bool ot_hub_is_file(const char *text) {
    return is_file_part(text, strlen(text));
}

static bool is_path(const char *text) {
    if (strlen(text) >= OT_HUB_FILE_BYTES)
        return false;
    for (;;) {
        size_t bytes = strcspn(text, "/");
        if (!is_file_part(text, bytes))
            return false;
        if (!text[bytes])
            return true;
        text += bytes + 1;
    }
}

bool ot_hub_is_hex(const char *text, size_t digits) {
    return strspn(text, "0123456789abcdef") == digits && text[digits] == '\0';
}

bool ot_hub_is_commit(const char *text) {
    return ot_hub_is_hex(text, 40);
}

/* The text [0..bytes): "org/name" or "org/name@revision". */
static bool parse(const char *text, size_t bytes, struct ot_hub_name *out) {
    const char *at = memchr(text, '@', bytes);
    size_t id = at ? (size_t)(at - text) : bytes, revision = at ? bytes - id - 1 : 0;
    if (!ot_hub_is_id(text, id) || (at && !is_revision(at + 1, revision)))
        return false;
    snprintf(out->id, sizeof out->id, "%.*s", (int)id, text);
    snprintf(out->revision, sizeof out->revision, "%.*s", at ? (int)revision : 4, at ? at + 1 : "main");
    return true;
}

bool ot_hub_name_parse(const char *text, struct ot_hub_name *out) {
    *out = (struct ot_hub_name){.kind = OT_HUB_MODEL};
    return parse(text, strlen(text), out);
}

bool ot_hub_is_url(const char *text) {
    return strncmp(text, scheme, sizeof scheme - 1) == 0;
}

int ot_hub_name_parse_url(const char *text, struct ot_hub_name *out) {
    static const char datasets[] = "datasets/", models[] = "models/";
    const char *at = text + sizeof scheme - 1;
    *out = (struct ot_hub_name){.kind = OT_HUB_MODEL};
    if (strncmp(at, datasets, sizeof datasets - 1) == 0) {
        out->kind = OT_HUB_DATASET;
        at += sizeof datasets - 1;
    } else if (strncmp(at, models, sizeof models - 1) == 0) {
        at += sizeof models - 1;
    }
    /* The file begins at the second slash, or later if the revision has slashes, which only refs/.. have. */
    size_t org = strcspn(at, "/"), name = at[org] ? org + 1 + strcspn(at + org + 1, "/") : org;
    const char *sign = memchr(at, '@', name);
    if (sign && strncmp(sign, "@refs/", 6) == 0)
        for (int i = 0; i < 2 && at[name]; i++)
            name += 1 + strcspn(at + name + 1, "/");
    bool is_other =
        strncmp(at, "spaces/", 7) == 0 || strncmp(at, "kernels/", 8) == 0 || strncmp(at, "buckets/", 8) == 0;
    if (is_other || !parse(at, name, out) || at[name] != '/' || !is_path(at + name + 1))
        return ot_fail(OT_E_INPUT,
                       "%.200s: no file of the hub; the form is hf://datasets/ORG/NAME/FILE, or with a "
                       "revision hf://datasets/ORG/NAME@REVISION/FILE",
                       text);
    snprintf(out->file, sizeof out->file, "%s", at + name + 1);
    return 0;
}
