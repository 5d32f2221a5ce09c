/* Pages for a browser: one HTML file each, without scripts and without other files, for screens, phones and
 * paper, in light and dark. `bench` and `report` write them. Pictures: plot.h.
 *
 * Text from outside (names, reasons, samples) is escaped by every function here. Memory: as the string
 * builder, whose `failed` the caller checks at the end.
 */
#ifndef OT_PAGE_PAGE_H
#define OT_PAGE_PAGE_H

#include "src/base/text.h"

/* Writes <, >, &, " and ' as entities, and control characters, which HTML does not allow, as spaces. Newlines
 * stay. */
void ot_page_escape(struct ot_string_builder *out, const char *text);
/* An element with the text: "p", "li", "dd". NULL: nothing is written. */
void ot_page_put(struct ot_string_builder *out, const char *element, const char *text);

/* subject: the name that the window's title begins with. command: of this program, which makes the page. */
void ot_page_begin(struct ot_string_builder *out, const char *subject, const char *command,
                   const char *heading);
void ot_page_end(struct ot_string_builder *out, const char *footer);

/* A list of facts, each with its name. */
void ot_page_begin_facts(struct ot_string_builder *out);
void ot_page_fact(struct ot_string_builder *out, const char *name, const char *value);
void ot_page_end_facts(struct ot_string_builder *out);

/* A table. A narrow screen shows each row as a block, with the column's name above each cell. A name has a
 * newline where the heading may break ("tokens\na step"). NULL among the columns: left out. A row begins with
 * its name; class: NULL, or its class in page.css. */
void ot_page_begin_table(struct ot_string_builder *out, const char *const *columns, int n);
void ot_page_begin_row(struct ot_string_builder *out, const char *class, const char *name);
void ot_page_cell(struct ot_string_builder *out, const char *column, const char *text);
void ot_page_end_row(struct ot_string_builder *out);
void ot_page_end_table(struct ot_string_builder *out);

#endif
