#include "src/view/screen.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"

enum { BRAILLE = 0x2800, MIDDLE_DOT = 0xb7 };

const char ot_screen_enter[] = "\033[?1049h\033[?25l\033[?7l\033[2J";
const char ot_screen_leave[] = "\033[0m\033[?7h\033[?25h\033[?1049l";

int ot_screen_open(struct ot_screen *screen, int rows, int columns, bool is_ascii) {
    free(screen->cells);
    *screen = (struct ot_screen){.rows = rows, .columns = columns, .is_ascii = is_ascii};
    screen->cells = calloc((size_t)rows * (size_t)columns, sizeof *screen->cells);
    if (!screen->cells)
        return ot_fail(OT_E_BUDGET, "no memory for a picture of %d x %d characters", columns, rows);
    for (int i = 0; i < rows * columns; i++)
        screen->cells[i].character = ' ';
    return 0;
}

void ot_screen_close(struct ot_screen *screen) {
    free(screen->cells);
    *screen = (struct ot_screen){0};
}

static struct ot_cell *cell_at(const struct ot_screen *s, int row, int column) {
    return &s->cells[row * s->columns + column];
}

/* Takes the first character of the text. Returns its bytes; a byte that is no UTF-8 counts as '?'. */
static size_t take_character(const char *text, uint32_t *character) {
    utf8proc_int32_t code = -1;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &code);
    *character = n > 0 && code >= 0 ? (uint32_t)code : '?';
    return n > 0 ? (size_t)n : 1;
}

static int width_of(uint32_t character) {
    return utf8proc_charwidth((utf8proc_int32_t)character);
}

int ot_screen_width(const char *text) {
    int width = 0;
    uint32_t character;
    for (; *text; text += take_character(text, &character))
        width += (take_character(text, &character), width_of(character));
    return width;
}

int ot_screen_put(struct ot_screen *s, int row, int column, int most, enum ot_style style, const char *text) {
    int end = ot_min(s->columns, column + most);
    uint32_t character;
    if (row < 0 || row >= s->rows || column < 0)
        return column;
    while (*text) {
        text += take_character(text, &character);
        int width = width_of(character);
        if (s->is_ascii && character >= 0x7f)
            character = character == MIDDLE_DOT ? '|' : '?';
        if (column + width > end)
            break;
        for (int i = 0; i < width; i++)
            *cell_at(s, row, column++) = (struct ot_cell){i && !s->is_ascii ? 0 : character, style};
    }
    return column;
}

/* ---- curves ---- */

int ot_dots_across(const struct ot_dots *d) {
    return d->screen->is_ascii ? d->columns : 2 * d->columns;
}

int ot_dots_down(const struct ot_dots *d) {
    return d->screen->is_ascii ? d->rows : 4 * d->rows;
}

/* The bit of a dot in the block "Braille Patterns" of Unicode. */
static uint32_t braille_bit(int x, int y) {
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    return bits[y][x];
}

static void put_dot(const struct ot_dots *d, int x, int y, enum ot_style style) {
    bool ascii = d->screen->is_ascii;
    int row = d->row + (ascii ? y : y / 4), column = d->column + (ascii ? x : x / 2);
    if (row < 0 || row >= d->screen->rows || column < 0 || column >= d->screen->columns)
        return;
    struct ot_cell *cell = cell_at(d->screen, row, column);
    bool has_dots = cell->character >= BRAILLE && cell->character < BRAILLE + 256;
    cell->style = style;
    cell->character = ascii      ? '*'
                      : has_dots ? cell->character | braille_bit(x % 2, y % 4)
                                 : BRAILLE | braille_bit(x % 2, y % 4);
}

void ot_dots_put(const struct ot_dots *d, int x, int y1, int y2, enum ot_style style) {
    for (int y = ot_min(y1, y2); y <= ot_max(y1, y2); y++)
        if (y >= 0 && y < ot_dots_down(d) && x >= 0 && x < ot_dots_across(d))
            put_dot(d, x, y, style);
}

/* ---- output ---- */

/* The columns of a row without the spaces at its end. */
static int used_columns(const struct ot_screen *s, int row) {
    int n = s->columns;
    while (n > 0 && cell_at(s, row, n - 1)->character == ' ')
        n--;
    return n;
}

static void put_cell(const struct ot_cell *cell, struct ot_string_builder *out) {
    char bytes[4];
    if (cell->character)
        ot_string_append(out, bytes, ot_utf8_encode(cell->character, bytes));
}

void ot_screen_put_text(const struct ot_screen *s, struct ot_string_builder *out) {
    int rows = s->rows;
    while (rows > 0 && used_columns(s, rows - 1) == 0)
        rows--;
    for (int row = 0; row < rows; row++) {
        for (int column = 0, n = used_columns(s, row); column < n; column++)
            put_cell(cell_at(s, row, column), out);
        ot_string_append(out, "\n", 1);
    }
}

static void put_style(enum ot_style style, bool with_colours, struct ot_string_builder *out) {
    static const char *const codes[] = {
        [OT_STYLE_PLAIN] = "0",  [OT_STYLE_BOLD] = "0;1",   [OT_STYLE_DIM] = "0;2",  [OT_STYLE_GOOD] = "0;32",
        [OT_STYLE_BAD] = "0;31", [OT_STYLE_CURVE] = "0;36", [OT_STYLE_MARK] = "0;33"};
    bool is_colour = style >= OT_STYLE_GOOD;
    ot_string_append_format(out, "\033[%sm", is_colour && !with_colours ? "0" : codes[style]);
}

static bool is_same_row(const struct ot_screen *s, const struct ot_screen *before, int row) {
    return memcmp(cell_at(s, row, 0), cell_at(before, row, 0), (size_t)s->columns * sizeof *s->cells) == 0;
}

void ot_screen_put_changes(const struct ot_screen *s, const struct ot_screen *before, bool with_colours,
                           struct ot_string_builder *out) {
    bool has_before = before && before->cells && before->rows == s->rows && before->columns == s->columns;
    if (!has_before)
        ot_string_append_text(out, "\033[2J");
    for (int row = 0; row < s->rows; row++) {
        enum ot_style style = OT_STYLE_PLAIN;
        if (has_before && is_same_row(s, before, row))
            continue;
        ot_string_append_format(out, "\033[%d;1H\033[K", row + 1);
        for (int column = 0, n = used_columns(s, row); column < n; column++) {
            const struct ot_cell *cell = cell_at(s, row, column);
            if (cell->style != style && cell->character != ' ')
                put_style(style = cell->style, with_colours, out);
            put_cell(cell, out);
        }
        if (style != OT_STYLE_PLAIN)
            put_style(OT_STYLE_PLAIN, with_colours, out);
    }
}
