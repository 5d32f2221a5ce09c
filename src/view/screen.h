/* A picture of characters, for a terminal or as plain text. Nothing wraps: text that does not fit is cut.
 * Wide characters take two columns; characters without a width are left out. One thread.
 */
#ifndef OT_VIEW_SCREEN_H
#define OT_VIEW_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/text.h"

enum ot_style {
    OT_STYLE_PLAIN,
    OT_STYLE_BOLD,
    OT_STYLE_DIM,
    OT_STYLE_GOOD,
    OT_STYLE_BAD,
    OT_STYLE_CURVE,
    OT_STYLE_MARK
};

struct ot_cell {
    uint32_t character; /* 0: the second column of a wide one */
    enum ot_style style;
};

struct ot_screen {
    int rows, columns;
    bool is_ascii; /* the terminal has no UTF-8: other characters are replaced */
    struct ot_cell *cells;
};

/* Makes a blank picture; the old one, if any, is freed. Zero the struct first. Errors: OT_E_BUDGET. */
int ot_screen_open(struct ot_screen *screen, int rows, int columns, bool is_ascii);
void ot_screen_close(struct ot_screen *screen);

/* The columns that a text takes. */
int ot_screen_width(const char *text);
/* Puts the UTF-8 text, at most `most` columns of it. Returns the column after it. Places outside the picture
 * are ignored. */
int ot_screen_put(struct ot_screen *screen, int row, int column, int most, enum ot_style style,
                  const char *text);

/* ---- curves ---- */

/* An area of dots, 2 x 4 in each character (Braille), or one with ASCII. */
struct ot_dots {
    struct ot_screen *screen;
    int row, column, rows, columns; /* in characters */
};
int ot_dots_across(const struct ot_dots *dots);
int ot_dots_down(const struct ot_dots *dots);
/* A vertical line of dots from y1 to y2; y 0 is the top. */
void ot_dots_put(const struct ot_dots *dots, int x, int y1, int y2, enum ot_style style);

/* ---- output ---- */

/* Appends the lines, without spaces at their ends and without empty lines at the end. */
void ot_screen_put_text(const struct ot_screen *screen, struct ot_string_builder *out);
/* Appends what turns a terminal that shows `before` into this picture: the rows that differ. NULL, or another
 * size: all rows. with_colours: false: only bold and dim. */
void ot_screen_put_changes(const struct ot_screen *screen, const struct ot_screen *before, bool with_colours,
                           struct ot_string_builder *out);
/* Texts for a terminal before the first picture and after the last one: the other screen, no cursor, no
 * wrapping. */
extern const char ot_screen_enter[], ot_screen_leave[];

#endif
