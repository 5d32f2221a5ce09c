#include "src/data/source_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

enum { BUFFER_BYTES = 1 << 18, SMALL_BUFFER_BYTES = 1 << 12 };

/* ---- the row ---- */

int ot_source_append(struct ot_source *s, int64_t line, const void *bytes, size_t n) {
    if (n > OT_SOURCE_MAX_ROW_BYTES - s->row_bytes)
        return ot_fail(OT_E_INPUT, "%s:%lld: a row of more than %zu MB; put each row on a line of its own",
                       s->path, (long long)line, OT_SOURCE_MAX_ROW_BYTES >> 20);
    int rc = ot_grow(&s->row, &s->row_capacity, s->row_bytes + n, 1, "bytes of a row");
    if (rc < 0)
        return ot_fail_context(rc, "%s:%lld", s->path, (long long)line);
    memcpy(s->row + s->row_bytes, bytes, n);
    s->row_bytes += n;
    return 0;
}

/* ---- opening ---- */

/* Other kinds of files that users give by mistake, recognised by their first bytes. */
static int refuse_other_magic(const struct ot_source *s) {
    static const struct {
        const char *magic, *name, *cure;
    } kinds[] = {
        {"\xff\xfe", "UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"},
        {"\xfe\xff", "UTF-16 text", "convert it with iconv -f UTF-16 -t UTF-8"},
        {"ARROW1", "an Arrow file", "export it as JSON lines (datasets: to_json(\"rows.jsonl\"))"},
        {"\xff\xff\xff\xff", "an Arrow stream",
         "export it as JSON lines (datasets: to_json(\"rows.jsonl\"))"},
        {"GGUF", "a GGUF model", "--data needs rows, and models of this format are not supported either"},
        {"\x28\xb5\x2f\xfd", "a zstd file inside a gzip file", "unpack it once"},
        {"\x1f\x8b", "a gzip file inside a zstd file", "unpack it once"},
        {"PK\x03\x04", "a zip file", "unpack it, or use gzip or zstd"},
        {"BZh", "a bzip2 file", "unpack it, or use gzip or zstd"},
        {"\xfd"
         "7zXZ",
         "an xz file", "unpack it, or use gzip or zstd"},
        {"MMIDIDX", "Megatron's index of tokens",
         "tokens of other programs are not supported; give the text"},
        {"SQLite format 3", "an SQLite database", "export its rows as JSON lines"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].magic);
        if (s->end >= n && memcmp(s->buffer, kinds[i].magic, n) == 0)
            return ot_fail(OT_E_INPUT, "%s: this is %s, not JSON lines; %s", s->path, kinds[i].name,
                           kinds[i].cure);
    }
    return 0;
}

static bool is_space(int byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* True for "---", "- name: ..." or "name: ...". */
static bool is_yaml(const char *line, size_t bytes) {
    size_t at = bytes > 1 && line[0] == '-' && line[1] == ' ' ? 2 : 0, name = at;
    if (bytes >= 3 && memcmp(line, "---", 3) == 0)
        return true;
    while (name < bytes && ot_source_is_name_byte((unsigned char)line[name]))
        name++;
    return name > at && name < bytes && line[name] == ':' && (name + 1 == bytes || line[name + 1] == ' ');
}

/* True if there are bytes that no text has. */
static bool is_binary(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] < 9 || (bytes[i] > 13 && bytes[i] < 27))
            return true;
    return false;
}

/* Called if the first row does not begin as JSON and has no known first bytes. A line that fits no kind here
 * may be a single bad row: the parser reports it. */
static int detect_text(struct ot_source *s) {
    enum { LOOK_BYTES = 4096 };
    const char *line = (const char *)s->buffer + s->begin;
    size_t n = ot_min(s->end - s->begin, LOOK_BYTES);
    const char *end = memchr(line, '\n', n);
    size_t bytes = end ? (size_t)(end - line) : n;
    while (bytes > 0 && is_space((unsigned char)line[bytes - 1]))
        bytes--;
    if (is_binary((const unsigned char *)line, n))
        return ot_fail(OT_E_INPUT,
                       "%s: this is a binary file, not JSON lines; tokens (.bin, .npy) and models of other "
                       "programs are not supported as data; give the text",
                       s->path);
    bool is_text = ot_source_is_named(s->path, "txt"), is_csv = ot_source_is_named(s->path, "csv"),
         is_tsv = ot_source_is_named(s->path, "tsv");
    char separator = ot_source_header_separator(line, bytes);
    if (is_text) {
        s->layout = LAYOUT_TEXT;
        return 0;
    }
    if (separator || is_csv || is_tsv) {
        s->layout = LAYOUT_TABLE;
        return ot_source_table_begin(s, is_tsv ? '\t' : separator ? separator : ',');
    }
    if (is_yaml(line, bytes))
        return ot_fail(OT_E_INPUT,
                       "%s: this is YAML, not JSON lines; --data needs rows; for the options of a run use "
                       "--config with a JSON file",
                       s->path);
    return 0;
}

/* The file does not exist: the name may be a hub's data set, or mistyped. */
static int fail_to_open(const char *path, int error) {
    const char *slash = strchr(path, '/'), *last = strrchr(path, '/');
    bool is_url = strstr(path, "://") != NULL;
    bool is_hub_name = !strchr(last ? last : path, '.') && slash == last && *path != '/' && *path != '.';
    if (error == ENOENT && (is_url || is_hub_name))
        return ot_fail(
            OT_E_INPUT,
            "%s: no such file; data sets are not downloaded from a hub or the web: download it and give "
            "its .jsonl file ('hf download --repo-type dataset', datasets: to_json)",
            path);
    return ot_fail_errno(OT_E_IO, error, "%s: cannot open the data", path);
}

/* Skips white space and counts lines. */
static int skip_space(struct ot_source *s, int *byte) {
    for (;;) {
        OT_TRY(ot_source_peek(s, byte));
        if (!is_space(*byte))
            return 0;
        s->line += *byte == '\n';
        s->begin++;
    }
}

static int open_file(struct ot_source *s) {
    struct stat info;
    bool is_input = strcmp(s->path, OT_SOURCE_STANDARD_INPUT) == 0;
    s->fd = is_input ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return fail_to_open(s->path, errno);
    if (is_input && isatty(s->fd))
        return ot_fail(OT_E_INPUT, "--data -: standard input is a terminal; pipe the rows into the program");
    if (fstat(s->fd, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the file's size", s->path);
    if (S_ISDIR(info.st_mode))
        return ot_fail(OT_E_INPUT, "%s: this is a directory; give a file in it", s->path);
    s->total = S_ISREG(info.st_mode) ? (int64_t)info.st_size : 0;
    bool small = S_ISREG(info.st_mode) && info.st_size <= SMALL_BUFFER_BYTES;
    s->buffer_bytes = small ? SMALL_BUFFER_BYTES : BUFFER_BYTES;
    s->buffer = malloc(s->buffer_bytes);
    return s->buffer ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory to read the data", s->path);
}

/* Examines the beginning of the file: other kinds of files, a byte order mark, an array or lines. */
static int detect_layout(struct ot_source *s) {
    int byte;
    OT_TRY(ot_source_bytes_begin(s));
    if (s->end >= 4 && memcmp(s->buffer, "PAR1", 4) == 0) {
        s->layout = LAYOUT_PARQUET;
        return ot_source_parquet_begin(s);
    }
    OT_TRY(refuse_other_magic(s));
    if (s->end >= 3 && memcmp(s->buffer, "\xef\xbb\xbf", 3) == 0)
        s->begin = 3;
    OT_TRY(skip_space(s, &byte));
    if (byte < 0)
        return ot_fail(OT_E_INPUT,
                       "%s: the file is empty; each line should be a row such as {\"text\": \"...\"}",
                       s->path);
    s->layout = byte == '[' ? LAYOUT_ARRAY : LAYOUT_LINES;
    return byte == '[' || byte == '{' ? 0 : detect_text(s);
}

int ot_source_open(const char *path, enum ot_text_by text_by, struct ot_source **out) {
    *out = NULL;
    struct ot_source *s = calloc(1, sizeof *s);
    int rc = 0;
    if (s)
        s->fd = -1;
    if (!s || !(s->path = strdup(path))) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to read the data", path);
        goto out;
    }
    s->line = 1;
    s->text_by = text_by;
    OT_TRY_GOTO(open_file(s), rc, out);
    OT_TRY_GOTO(detect_layout(s), rc, out);
    *out = s;
    s = NULL;
out:
    ot_source_close(s);
    return rc;
}

void ot_source_close(struct ot_source *s) {
    if (!s)
        return;
    ot_source_bytes_end(s);
    ot_source_parquet_end(s);
    ot_source_table_end(s);
    if (s->fd >= 0)
        close(s->fd);
    free(s->row);
    free(s->path);
    free(s);
}

/* ---- rows ---- */

/* Adds the rest of the present line to the row and consumes the line end. */
static int take_line(struct ot_source *s) {
    int64_t line = s->line;
    for (;;) {
        int byte;
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0)
            break;
        const unsigned char *start = s->buffer + s->begin;
        const unsigned char *end = memchr(start, '\n', s->end - s->begin);
        size_t n = end ? (size_t)(end - start) : s->end - s->begin;
        OT_TRY(ot_source_append(s, line, start, n));
        s->begin += n;
        if (end) {
            s->begin++;
            s->line++;
            break;
        }
    }
    while (s->row_bytes > 0 && is_space((unsigned char)s->row[s->row_bytes - 1]))
        s->row_bytes--;
    return 0;
}

/* State of the scan through one element of an array: enough JSON to find its end. */
struct walk {
    int depth;
    bool in_string, escaped, done;
};

static void walk_byte(struct walk *w, unsigned char byte) {
    if (w->in_string) {
        if (w->escaped)
            w->escaped = false;
        else if (byte == '\\')
            w->escaped = true;
        else if (byte == '"')
            w->in_string = false;
    } else if (byte == '"') {
        w->in_string = true;
    } else if (byte == '{' || byte == '[') {
        w->depth++;
    } else if (byte == '}' || byte == ']') {
        w->done = --w->depth == 0;
    }
}

/* Adds the present object to the row and counts the line ends in it. */
static int take_object(struct ot_source *s) {
    int64_t line = s->line;
    struct walk w = {0};
    while (!w.done) {
        int byte;
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0)
            return ot_fail(OT_E_INPUT,
                           "%s:%lld: the file ends inside this row; the file is truncated, copy it again",
                           s->path, (long long)line);
        size_t i = s->begin;
        for (; i < s->end && !w.done; i++) {
            walk_byte(&w, s->buffer[i]);
            s->line += s->buffer[i] == '\n';
        }
        OT_TRY(ot_source_append(s, line, s->buffer + s->begin, i - s->begin));
        s->begin = i;
    }
    return 0;
}

static int unexpected(const struct ot_source *s, const char *wanted) {
    return ot_fail(OT_E_INPUT, "%s:%lld: expected %s in the array of rows", s->path, (long long)s->line,
                   wanted);
}

/* Called before '[' or after a row. Moves to the next row's '{' and returns 1, or 0 after ']'. */
static int next_element(struct ot_source *s) {
    int byte;
    bool first = !s->in_array;
    OT_TRY(skip_space(s, &byte));
    if (first || byte == ',') {
        s->in_array = true;
        s->begin++;
        OT_TRY(skip_space(s, &byte));
        if (byte == '{')
            return 1;
        if (!first || byte != ']')
            return unexpected(s, "a row {...}");
    }
    if (byte != ']')
        return unexpected(s, byte < 0 ? "']' before the end of the file (is it truncated?)" : "',' or ']'");
    s->begin++;
    s->ended = true;
    OT_TRY(skip_space(s, &byte));
    return byte < 0 ? 0
                    : ot_fail(OT_E_INPUT,
                              "%s:%lld: there is more text after the end of the array of rows; remove it",
                              s->path, (long long)s->line);
}

int ot_source_next(struct ot_source *s, const char **text, size_t *bytes, int64_t *line) {
    s->row_bytes = 0;
    if (s->ended)
        return 0;
    if (s->layout == LAYOUT_ARRAY) {
        int rc = next_element(s);
        if (rc <= 0)
            return rc;
        *line = s->line;
        OT_TRY(take_object(s));
    } else if (s->layout == LAYOUT_PARQUET) {
        int rc = ot_source_take_parquet(s);
        if (rc <= 0)
            return rc;
        *line = s->line;
    } else if (s->layout == LAYOUT_TABLE || s->layout == LAYOUT_TEXT) {
        bool is_table = s->layout == LAYOUT_TABLE;
        int rc = is_table ? ot_source_take_record(s, line) : ot_source_take_text(s, line);
        if (rc <= 0)
            return rc;
    } else {
        int byte;
        OT_TRY(skip_space(s, &byte)); /* also skips empty lines */
        if (byte < 0) {
            s->ended = true;
            return 0;
        }
        *line = s->line;
        OT_TRY(take_line(s));
    }
    *text = s->row;
    *bytes = s->row_bytes;
    return 1;
}

bool ot_source_is_text(const struct ot_source *s) {
    return s->layout == LAYOUT_TEXT;
}

int64_t ot_source_bytes_total(const struct ot_source *s) {
    return s->total;
}
