/* offload-train report: reads the logs of one run or several, and writes a page about them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/view/run_page.h"

struct report {
    struct ot_history *runs[OT_TEXTS_MAX];
    int n;
    struct ot_string_builder page;
    char *path;
};

static int read_run(const char *dir, struct ot_history **out) {
    OT_TRY(ot_history_open(dir, false, out));
    OT_TRY(ot_history_read(*out, INT64_MAX));
    return (*out)->fd >= 0 || (*out)->config
               ? 0
               : ot_fail(OT_E_INPUT, "%s: has neither log.jsonl nor run.json, so it is no output of a run",
                         dir);
}

/* Refuses to replace a file that this program did not write. */
static int check_file(const char *path) {
    char head[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int64_t n = fd >= 0 ? ot_read_at(fd, head, sizeof head, 0) : 0;
    if (fd >= 0)
        close(fd);
    if (n == 0 || (n > 0 && memmem(head, (size_t)n, " · offload-train ", strlen(" · offload-train "))))
        return 0;
    return ot_fail(OT_E_INPUT, "%s exists and is no page of this program; choose another name with --out",
                   path);
}

static int print(const struct report *r, bool json) {
    char size[OT_TEXT_BYTES];
    if (!json) {
        printf("%s · %s, %d run%s\n", r->path, ot_text_bytes((int64_t)r->page.bytes, size), r->n,
               ot_plural(r->n));
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "file", r->path);
    ot_json_put_int(&w, "bytes", (int64_t)r->page.bytes);
    ot_json_put_int(&w, "runs", r->n);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

static int make(const struct ot_options *o, struct report *r) {
    for (; r->n < o->runs.n; r->n++)
        OT_TRY(read_run(o->runs.items[r->n], &r->runs[r->n]));
    OT_TRY(o->out ? ot_string_format(&r->path, "%s", o->out)
                  : ot_string_format(&r->path, "%s/report.html", o->runs.items[0]));
    OT_TRY(check_file(r->path));
    ot_run_page_put(r->runs, r->n, &r->page);
    if (r->page.failed)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the page", r->path);
    OT_TRY(ot_replace_file(r->path, r->page.text, r->page.bytes));
    return print(r, o->json);
}

int ot_command_report(const struct ot_options *options) {
    struct report r = {0};
    int rc = make(options, &r);
    for (int i = 0; i < OT_TEXTS_MAX; i++)
        ot_history_close(r.runs[i]);
    free(r.page.text);
    free(r.path);
    return rc;
}
