/* The Jinja engine: its golden cases (scripts/golden/jinja.py), its refusals, and templates that want to do
 * harm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/jinja/jinja.h"
#include "tests/support/check.h"

enum { MOST_VARIABLES = 64, MOST_BYTES = 1 << 20 };

static const struct ot_jinja_date day = {2024, 7, 26};

/* ---- golden cases ---- */

/* Later variables replace earlier ones, so a case's own come last. */
static size_t read_variables(const struct ot_json *object, struct ot_jinja_variable *out, size_t n) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    while (n < MOST_VARIABLES && ot_json_next(object, &cursor, &name, &value))
        out[n++] = (struct ot_jinja_variable){.name = name, .value = value};
    return n;
}

static int render_case(const struct ot_json *shared, const struct ot_json *item, struct ot_jinja_text *text) {
    struct ot_jinja_variable variables[MOST_VARIABLES];
    struct ot_jinja *jinja;
    size_t bytes;
    const char *source = ot_json_string(ot_json_get(item, "template"), &bytes);
    size_t n =
        read_variables(ot_json_get(item, "variables"), variables, read_variables(shared, variables, 0));
    OT_TRY(ot_jinja_open(source, bytes, "the template", &jinja));
    int rc = ot_jinja_render(jinja, variables, n, day, text);
    ot_jinja_close(jinja);
    return rc;
}

static bool has_spans(const struct ot_json *want, const struct ot_jinja_text *text) {
    if (ot_json_length(want) != text->n_spans)
        return false;
    for (size_t i = 0; i < text->n_spans; i++)
        if (ot_json_int(ot_json_at(ot_json_at(want, i), 0), -1) != (int64_t)text->spans[i].begin ||
            ot_json_int(ot_json_at(ot_json_at(want, i), 1), -1) != (int64_t)text->spans[i].end)
            return false;
    return true;
}

/* Returns 1 and says it if the case differs. */
static int check_case(const char *group, const struct ot_json *shared, const struct ot_json *item) {
    struct ot_jinja_text text = {0};
    size_t bytes;
    const char *want = ot_json_string(ot_json_get(item, "text"), &bytes);
    int rc = render_case(shared, item, &text);
    bool good = want ? rc == 0 && text.bytes == bytes && memcmp(text.text, want, bytes) == 0 &&
                           has_spans(ot_json_get(item, "spans"), &text)
                     : rc == -OT_E_INPUT && strstr(ot_error_text(), "the template, line ");
    if (!good)
        print_message("%s: %s\n  want %s\n  got  %s\n", group,
                      ot_json_string(ot_json_get(item, "template"), NULL), want ? want : "(an error)",
                      rc == 0 ? text.text : ot_error_text());
    ot_jinja_text_free(&text);
    return !good;
}

static void test_golden_cases(void **state) {
    (void)state;
    struct ot_json *golden;
    int bad = 0, n = 0;
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/jinja/cases.json", MOST_BYTES, &golden));
    const struct ot_json *groups = ot_json_get(golden, "groups");
    for (size_t i = 0; i < ot_json_length(groups); i++) {
        const struct ot_json *group = ot_json_at(groups, i), *cases = ot_json_get(group, "cases");
        for (size_t k = 0; k < ot_json_length(cases); k++, n++)
            bad += check_case(ot_json_string(ot_json_get(group, "name"), NULL), ot_json_get(golden, "shared"),
                              ot_json_at(cases, k));
    }
    assert_int_equal(bad, 0);
    assert_in_range(n, 1200, 10000);
    ot_json_free(golden);
}

/* ---- one template ---- */

static int render(const char *source, struct ot_jinja_text *text) {
    struct ot_jinja *jinja;
    OT_TRY(ot_jinja_open(source, strlen(source), "own", &jinja));
    int rc = ot_jinja_render(jinja, NULL, 0, day, text);
    ot_jinja_close(jinja);
    return rc;
}

static void check_refused(const char *source, const char *words) {
    struct ot_jinja_text text = {0};
    check_fails(render(source, &text), OT_E_INPUT, words);
    ot_jinja_text_free(&text);
}

/* Copies the pattern with the word in place of each @. */
static void put_word(char *out, size_t bytes, const char *pattern, const char *word) {
    size_t n = 0;
    for (; *pattern && n < bytes; pattern++)
        n += (size_t)snprintf(out + n, bytes - n, "%.*s", *pattern == '@' ? (int)strlen(word) : 1,
                              *pattern == '@' ? word : pattern);
    assert_true(n < bytes);
}

/* The template and the name of what is refused, each with @ for the word. */
static void check_unsupported(const char *source, const char *what, const char *word) {
    char text[200], name[100], words[200];
    put_word(text, sizeof text, source, word);
    put_word(name, sizeof name, what, word);
    snprintf(words, sizeof words, "own, line 1: %s is not supported in chat templates", name);
    check_refused(text, words);
}

static void check_text(const char *source, const char *want) {
    struct ot_jinja_text text = {0};
    check_ok(render(source, &text));
    assert_string_equal(text.text, want);
    ot_jinja_text_free(&text);
}

/* loop.last reads one item ahead; the counts that are asked afterwards include that item. */
static void test_loops_look_ahead(void **state) {
    (void)state;
    check_text(
        "{% for i in [1, 2, 3] %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} "
        "{% endfor %}",
        "False332 False321 True310 ");
    check_text(
        "{% for i in [1, 2, 3] if i != 2 %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}",
        "False22 True21 ");
    check_text("{% for i in [1, 2, 3] %}{{ loop.nextitem }}{{ loop.length }} {% endfor %}", "23 33 3 ");
}

/* An error names the template, the line and the construct. */
static void test_errors_name_the_place(void **state) {
    (void)state;
    check_refused("a\nb\n{{ 1 / 0 }}", "own, line 3: division by zero");
    check_refused("{{ x.y }}", "own, line 1: 'x' is undefined");
    check_refused("\n{{ {}.a.b }}", "own, line 2: 'a' is undefined");
    check_refused("\n\n{% if true %}\n{{ raise_exception('No\nway') }}{% endif %}",
                  "own, line 4: the template refuses its input: No way");
    check_refused("{% if true %}\n\n", "own, line 2: the template ends where {% endif %} is expected");
    check_refused("{{ 'a' }\n}", "own, line 1: unexpected '}'");
    check_refused("{% macro m(a) %}{% endmacro %}\n{{ m(1,\n2) }}",
                  "line 2: the macro m takes at most 1 arguments");
    check_refused("\n{{ [].append(1) }}", "line 2: 'append (which would change a list)' is undefined");
    check_refused("\xff", "own, line 1: the template is not UTF-8");
}

/* What no published template uses is refused by name, and only when it is executed. */
static void test_what_is_unsupported_has_a_name(void **state) {
    (void)state;
    static const char *const filters[] = {
        "xmlattr", "abs",      "attr",      "batch",  "center", "format", "groupby",     "round",    "slice",
        "sum",     "truncate", "wordcount", "random", "urlize", "pprint", "forceescape", "from_json"};
    static const char *const tests[] = {"nope",  "callable", "escaped", "lower",
                                        "upper", "filter",   "test",    "sameas"};
    static const char *const methods[] = {"casefold",    "center",    "count",        "encode",  "expandtabs",
                                          "format_map",  "index",     "isalnum",      "isalpha", "isascii",
                                          "isdecimal",   "isdigit",   "isidentifier", "islower", "isnumeric",
                                          "isprintable", "isspace",   "istitle",      "isupper", "ljust",
                                          "maketrans",   "partition", "rfind",        "rindex",  "rjust",
                                          "rpartition",  "swapcase",  "translate",    "zfill"};
    static const char *const tags[] = {"include", "import", "from",       "extends", "block",
                                       "call",    "with",   "autoescape", "do"};
    static const char *const names[] = {"varargs", "kwargs", "joiner", "cycler", "lipsum"};
    static const char *const loops[] = {"cycle", "changed", "depth", "depth0"};
    static const struct {
        const char *source, *what;
    } others[] = {
        {"{{ 2 ** 3 }}", "the operator **"},
        {"{{ 2.5 ** 3 }}", "the operator **"},
        {"{{ '%s' % 1 }}", "the operator % of a string"},
        {"{{ [0] * 3 }}", "the operator * of a list"},
        {"{{ 'ff' | int(0, 16) }}", "the filter int with a base"},
        {"{{ [{'a': 1}] | sort(attribute='a,b') }}", "the filter sort by several attributes"},
        {"{{ 'a b'.rsplit() }}", "rsplit() without a separator"},
        {"{{ '{0:x}'.format(1) }}", "the field {0:x} of format()"},
        {"{{ 'ab'.find('b', 1) }}", "find() with a start"},
        {"{{ 'ab'.startswith('b', 1) }}", "startswith() or endswith() with a start"},
        {"{{ [1].index(1) }}", "the method index() of a list"},
        {"{{ (1, 2).count(1) }}", "the method count() of a tuple"},
        {"{{ {}.copy() }}", "the method copy() of a dict"},
        {"{{ range(3) }}", "the text of a range"},
        {"{{ namespace(a=1) }}", "the text of a namespace"},
        {"{{ [1] | map('string') }}", "the text of a generator"},
        {"{{ 9223372036854775807 + 1 }}", "an integer of more than 64 bits"},
        {"{{ 9223372036854775808 }}", "the integer 9223372036854775808 of more than 64 bits"},
        {"{% for x in y recursive %}{% endfor %}", "a recursive loop"},
        {"{% set x %}{% generation %}{% endgeneration %}{% endset %}",
         "{% generation %} inside of a macro or of another block"},
    };
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        check_unsupported("{{ 'a' | @ }}", "the filter '@'", filters[i]);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        check_unsupported("{{ 'a' is @ }}", "the test '@'", tests[i]);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        check_unsupported("{{ 'a'.@('b') }}", "the method @() of a string", methods[i]);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        check_unsupported("{% @ x %}", "{% @ %}", tags[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_unsupported("{{ @ }}", "'@'", names[i]);
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++)
        check_unsupported("{% for i in [1] %}{{ loop.@ }}{% endfor %}", "loop.@", loops[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_unsupported(others[i].source, others[i].what, "");
    check_refused("{{ 'a' | xmlattr }}", "supported: capitalize count default");
    check_refused("{{ 'a' is nope }}", "supported: boolean defined");
    check_refused("{% do x %}", "supported: if for set macro");
    check_refused("{{ dict(**1) }}", "** needs a dict, not an integer");
    check_text(
        "{% if false %}{{ 'a' | xmlattr }}{{ 'a' is nope }}{{ 'a'.encode() }}{{ cycler() }}{% endif %}ok",
        "ok");
}

/* ---- harm ---- */

static char *repeat(const char *before, const char *text, int n, const char *after) {
    struct ot_string_builder b = {0};
    ot_string_append_text(&b, before);
    for (int i = 0; i < n; i++)
        ot_string_append_text(&b, text);
    ot_string_append_text(&b, after);
    assert_false(b.failed);
    return b.text;
}

static void check_repeat_refused(const char *before, const char *text, int n, const char *after,
                                 const char *words) {
    char *source = repeat(before, text, n, after);
    check_refused(source, words);
    free(source);
}

static void test_deep_templates(void **state) {
    (void)state;
    check_repeat_refused("{{ ", "(", 100000, "1", "nested more than");
    check_repeat_refused("{{ ", "[", 60, "", "a tag is not closed");
    check_repeat_refused("{{ ", "-", 100000, "1 }}", "nested more than");
    check_repeat_refused("{{ ", "not ", 100000, "1 }}", "nested more than");
    check_repeat_refused("{{ 1", " if 1 else 1", 1000, " }}", "nested more than");
    check_repeat_refused("{{ 1", " + 1", 100000, " }}", "more than 240 operators");
    check_repeat_refused("{{ a", ".a", 100000, " }}", "more than 240 parts");
    check_repeat_refused("{{ a", "|e", 100000, " }}", "more than 60 filters");
    check_repeat_refused("", "{% if 1 %}", 1000, "", "nested more than");
    check_repeat_refused("", "{% for a in b %}", 1000, "", "nested more than");
    check_repeat_refused("", "{{ a }}{{ b }}{# c #}  ", 60000, "", "the template has more than 1024 KiB");
    char *flat = repeat("{% if 1 %}1", "{% elif 1 %}2", 1000, "{% endif %}");
    check_text(flat, "1");
    free(flat);
    flat = repeat("{{ 'a'", " ~ 'a'", 5000, " }}");
    struct ot_jinja_text text = {0};
    check_ok(render(flat, &text));
    assert_int_equal(text.bytes, 5001);
    ot_jinja_text_free(&text);
    free(flat);
}

static void test_endless_templates(void **state) {
    (void)state;
    check_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                  "calls itself more than 500 levels deep");
    check_refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
                  "levels deep");
    check_refused("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                  "the template ");
    check_refused(
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "more than 256 MiB of memory");
    check_refused("{% for a in range(100000) %}{{ 'a' * 100000 }}{% endfor %}", "the te");
    check_refused("{{ 'a' * 1000000000 }}", "longer than 64 MiB");
    check_refused("{{ 'a' | indent(9999999999) }}", "more than 256 MiB of memory");
    check_refused("{{ ('a\n' * 1000) | indent(1000000) }}", "indent makes a text too long");
    check_refused("{{ range(9999999) }}", "more than 100000 items");
    check_refused("{{ 99999999999 * 99999999999 }}", "an integer of more than 64 bits");
    check_refused("{{ ('a' * 1000000).replace('a', 'b' * 1000) }}", "too long");
}

/* Values that refer to one value many times are small in memory and huge when they are walked. */
static void test_shared_values(void **state) {
    (void)state;
    static const char grow[] =
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    static const char *const uses[] = {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.y }}",
                                       "{{ ns.x < ns.y }}", "{{ ns.x in [ns.y] }}"};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i += tests_are_few() ? 2 : 1)
        check_repeat_refused(grow, uses[i], 1, "", "the template");
    check_repeat_refused(
        "{% set ns = namespace(x=1) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "", 1, "", "nested more than 100 deep");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cases),          cmocka_unit_test(test_loops_look_ahead),
        cmocka_unit_test(test_errors_name_the_place), cmocka_unit_test(test_what_is_unsupported_has_a_name),
        cmocka_unit_test(test_deep_templates),        cmocka_unit_test(test_endless_templates),
        cmocka_unit_test(test_shared_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
