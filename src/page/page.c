#include "src/page/page.h"

#include <string.h>

#include "src/page/page_style.h" /* made of page.css by the build */

static void put(struct ot_string_builder *out, const char *html) {
    ot_string_append_text(out, html);
}

static const char *entity(char c) {
    switch (c) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    case '\n':
        return NULL;
    default:
        return (unsigned char)c < 0x20 || c == 0x7f ? " " : NULL;
    }
}

void ot_page_escape(struct ot_string_builder *out, const char *text) {
    for (; *text; text++) {
        const char *as = entity(*text);
        if (as)
            put(out, as);
        else
            ot_string_append(out, text, 1);
    }
}

void ot_page_put(struct ot_string_builder *out, const char *element, const char *text) {
    if (!text)
        return;
    ot_string_append_format(out, "<%s>", element);
    ot_page_escape(out, text);
    ot_string_append_format(out, "</%.*s>\n", (int)strcspn(element, " "), element);
}

void ot_page_begin(struct ot_string_builder *out, const char *subject, const char *command,
                   const char *heading) {
    put(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    ot_page_escape(out, subject);
    ot_string_append_format(out, " · offload-train %s</title>\n<style>\n", command);
    put(out, OT_PAGE_STYLE);
    put(out, "</style>\n</head>\n<body>\n");
    ot_page_put(out, "h1", heading);
}

void ot_page_end(struct ot_string_builder *out, const char *footer) {
    put(out, "<footer>");
    ot_page_put(out, "p", footer);
    put(out, "</footer>\n</body>\n</html>\n");
}

void ot_page_begin_facts(struct ot_string_builder *out) {
    put(out, "<dl>\n");
}

void ot_page_fact(struct ot_string_builder *out, const char *name, const char *value) {
    ot_string_append_format(out, "<dt>%s</dt>", name);
    ot_page_put(out, "dd", value);
}

void ot_page_end_facts(struct ot_string_builder *out) {
    put(out, "</dl>\n");
}

/* ---- tables ---- */

/* The column's name, with a text where it may break, and another one where it breaks behind a dash. */
static void put_column(struct ot_string_builder *out, const char *column, const char *space,
                       const char *dash) {
    for (const char *at = column; *at; at++) {
        const char one[2] = {*at};
        if (*at == '\n')
            put(out, at > column && at[-1] == '-' ? dash : space);
        else
            ot_page_escape(out, one);
    }
}

void ot_page_begin_table(struct ot_string_builder *out, const char *const *columns, int n) {
    put(out, "<div class=\"wide\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for (int c = 0; c < n; c++)
        if (columns[c]) {
            put(out, "<th>");
            put_column(out, columns[c], "<br>", "<br>");
            put(out, "</th>");
        }
    put(out, "</tr></thead>\n<tbody>\n");
}

void ot_page_begin_row(struct ot_string_builder *out, const char *class, const char *name) {
    if (class)
        ot_string_append_format(out, "<tr><td class=\"%s\">", class);
    else
        put(out, "<tr><td>");
    ot_page_escape(out, name);
    put(out, "</td>");
}

void ot_page_cell(struct ot_string_builder *out, const char *column, const char *text) {
    put(out, "<td data-name=\"");
    put_column(out, column, " ", "");
    put(out, "\">");
    ot_page_escape(out, text);
    put(out, "</td>");
}

void ot_page_end_row(struct ot_string_builder *out) {
    put(out, "</tr>\n");
}

void ot_page_end_table(struct ot_string_builder *out) {
    put(out, "</tbody>\n</table>\n</div>\n");
}
