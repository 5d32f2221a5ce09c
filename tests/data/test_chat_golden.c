/* The built-in chat templates against Jinja's rendering of the templates that models publish
 * (scripts/golden/chat.py), and the Jinja templates that this program writes itself.
 *
 *   test_chat_golden         runs the tests
 *   test_chat_golden FOLDER  writes those templates to FOLDER/NAME.jinja, for scripts/golden/chat.py */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/file_io.h"
#include "src/base/json.h"
#include "tests/data/data_support.h"

enum { MOST_TURNS = 8, MOST_BYTES = 1 << 20 };

static const char *need_text(const struct ot_json *object, const char *key, size_t *bytes) {
    const char *text = ot_json_string(ot_json_get(object, key), bytes);
    assert_non_null(text);
    return text;
}

static size_t read_turns(const struct ot_json *list, struct ot_message turns[MOST_TURNS]) {
    size_t n = ot_json_length(list), bytes;
    assert_in_range(n, 1, MOST_TURNS);
    for (size_t i = 0; i < n; i++) {
        const struct ot_json *item = ot_json_at(list, i);
        const char *role = need_text(item, "role", &bytes);
        turns[i] = (struct ot_message){.role = strcmp(role, "system") == 0 ? OT_ROLE_SYSTEM
                                               : strcmp(role, "user") == 0 ? OT_ROLE_USER
                                                                           : OT_ROLE_ASSISTANT};
        turns[i].text = need_text(item, "content", &turns[i].bytes);
    }
    return n;
}

/* Finds the last trained stretch. The text before it is what a server would send to the model. */
static size_t find_answer(const struct ot_rendered *r) {
    size_t i = r->n_spans;
    while (i > 0 && !r->spans[i - 1].trained)
        i--;
    while (i > 0 && r->spans[i - 1].trained)
        i--;
    return i > 0 ? r->spans[i - 1].end : 0;
}

/* want NULL: the template must refuse the conversation. */
static void check_row(const struct ot_chat_template *t, const struct ot_json *conversation,
                      const struct ot_json *want, const struct ot_chat_marks *marks) {
    struct ot_message turns[MOST_TURNS];
    struct ot_rendered r = {0};
    size_t n = read_turns(conversation, turns), bytes;
    int rc = render_builtin(t->name, turns, n, marks, &r);
    if (ot_json_type(want) != OT_JSON_OBJECT) {
        assert_int_equal(rc, -OT_E_INPUT);
    } else {
        const char *text = need_text(want, "text", &bytes);
        check_ok(rc);
        ot_rendered_append(&r, "", 1, false, false); /* a NUL, so that the assertion can print the text */
        assert_string_equal(r.text, text);
        assert_int_equal(r.bytes - 1, bytes);
        const char *head = ot_json_string(ot_json_get(want, "head"), &bytes);
        const struct ot_message *last = &turns[n - 1];
        bool answers = last->role == OT_ROLE_ASSISTANT && n > 1 && turns[n - 2].role == OT_ROLE_USER;
        if (head && answers && !ot_text_is_blank(last->text, last->bytes))
            assert_int_equal(find_answer(&r), bytes);
    }
    ot_rendered_free(&r);
}

static void open_golden(struct ot_json **golden) {
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/chat/templates.json", MOST_BYTES, golden));
}

static void test_rendered_as_published(void **state) {
    (void)state;
    struct ot_json *golden, *entry;
    struct ot_chat_marks marks = {{.id = -1}, {.id = -1}};
    const struct ot_chat_template *t;
    int rows = 0;
    open_golden(&golden);
    marks.bos.text = need_text(golden, "bos", &marks.bos.bytes);
    marks.eos.text = need_text(golden, "eos", &marks.eos.bytes);
    const struct ot_json *conversations = ot_json_get(golden, "conversations");
    for (int i = 0; (t = ot_chat_template_at(i)); i++) {
        entry = ot_json_get(ot_json_get(golden, "templates"), t->name);
        assert_non_null(entry);
        const struct ot_json *wanted = ot_json_get(entry, "rows");
        assert_int_equal(ot_json_length(wanted), ot_json_length(conversations));
        for (size_t k = 0; k < ot_json_length(wanted); k++, rows++)
            check_row(t, ot_json_at(conversations, k), ot_json_at(wanted, k), &marks);
    }
    assert_in_range(rows, 400, 1000);
    ot_json_free(golden);
}

/* The published templates belong to other people and are not in this repository, but their hashes are. */
static void test_known_texts_have_their_names(void **state) {
    (void)state;
    struct ot_json *golden, *entry;
    void *cursor = NULL;
    const char *name;
    int n = 0;
    open_golden(&golden);
    while (ot_json_next(ot_json_get(golden, "templates"), &cursor, &name, &entry)) {
        const struct ot_json *list = ot_json_get(entry, "published");
        for (size_t i = 0; i < ot_json_length(list); i++, n++) {
            const struct ot_json *item = ot_json_at(list, i);
            uint64_t hash = strtoull(ot_json_string(ot_json_get(item, "hash"), NULL), NULL, 16);
            const char *found = ot_chat_known_name((size_t)ot_json_int(ot_json_get(item, "bytes"), 0), hash);
            assert_non_null(found);
            assert_string_equal(found, name);
        }
    }
    assert_in_range(n, 15, 100);
    ot_json_free(golden);
}

/* The program writes exactly the templates that Jinja rendered for the golden file. It recognises them, also
 * with other line ends, but not with other text. */
static void test_own_texts(void **state) {
    (void)state;
    const struct ot_chat_template *t, *found;
    for (int i = 0; (t = ot_chat_template_at(i)); i++) {
        char *own, *asked, path[512];
        size_t own_bytes, asked_bytes;
        snprintf(path, sizeof path, OT_TEST_GOLDEN "/chat/%s.jinja", t->name);
        check_ok(ot_chat_template_write(t, false, &own, &own_bytes));
        check_ok(ot_read_file(path, MOST_BYTES, &asked, &asked_bytes));
        assert_int_equal(asked_bytes, own_bytes);
        assert_memory_equal(asked, own, own_bytes);
        check_ok(ot_chat_template_recognize(own, own_bytes, &found));
        assert_ptr_equal(found, t);
        own[own_bytes / 2] ^= 1;
        check_ok(ot_chat_template_recognize(own, own_bytes, &found));
        assert_null(found);
        free(own);
        free(asked);
        /* With the BOS that a tokenizer adds. */
        check_ok(ot_chat_template_write(t, true, &own, &own_bytes));
        const char *written = strstr(own, "bos_token");
        assert_non_null(written);
        assert_null(strstr(written + 1, "bos_token")); /* never twice */
        check_ok(ot_chat_template_recognize(own, own_bytes, &found));
        assert_ptr_equal(found, t);
        free(own);
    }
}

/* Llama 2's template was once saved with a second BOS. Models that have it keep their template's name. */
static void test_doubled_bos(void **state) {
    (void)state;
    const struct ot_chat_template *found;
    struct ot_string_builder doubled = {0};
    char *text;
    size_t bytes;
    check_ok(ot_read_file(OT_TEST_GOLDEN "/chat/llama-2.jinja", MOST_BYTES, &text, &bytes));
    size_t head = (size_t)(strstr(text, "%}") - text) + 2;
    ot_string_append(&doubled, text, head);
    ot_string_append_text(&doubled, "{{ '' + bos_token | default('', true) + '' }}");
    ot_string_append(&doubled, text + head, bytes - head);
    check_ok(ot_chat_template_recognize(doubled.text, doubled.bytes, &found));
    assert_ptr_equal(found, ot_chat_template_find("llama-2"));
    free(doubled.text);
    free(text);
}

static void test_line_ends(void **state) {
    (void)state;
    size_t a_bytes, b_bytes;
    uint64_t a = ot_chat_hash_text("a\nb\n\nc", 6, &a_bytes);
    static const char *const same[] = {"a\nb\n\nc\n", "a\r\nb\r\n\r\nc\r\n", "a\rb\r\rc\r"};
    static const char *const other[] = {"a\nb\n\nc\n\n", "a\nb\nc", "\na\nb\n\nc", "a\nb\n\nc "};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_true(ot_chat_hash_text(same[i], strlen(same[i]), &b_bytes) == a);
        assert_int_equal(b_bytes, a_bytes);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(ot_chat_hash_text(other[i], strlen(other[i]), &b_bytes) == a);
}

static int write_texts(const char *folder) {
    const struct ot_chat_template *t;
    for (int i = 0; (t = ot_chat_template_at(i)); i++) {
        char *text, path[512];
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s.jinja", folder, t->name);
        FILE *file = ot_chat_template_write(t, false, &text, &bytes) == 0 ? fopen(path, "w") : NULL;
        if (!file || fwrite(text, 1, bytes, file) != bytes || fclose(file) != 0)
            return 1;
        free(text);
    }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendered_as_published),
        cmocka_unit_test(test_known_texts_have_their_names),
        cmocka_unit_test(test_own_texts),
        cmocka_unit_test(test_doubled_bos),
        cmocka_unit_test(test_line_ends),
    };
    if (argc > 1)
        return write_texts(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
