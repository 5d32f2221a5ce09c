/* Judged answers: which spellings of an answer are the same, and the scores for people. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/train/answers.h"
#include "tests/support/check.h"

static void texts_are_normalised(void **state) {
    (void)state;
    static const struct {
        const char *text, *normal;
    } cases[] = {
        {"", ""},
        {" ", ""},
        {";", ""},
        {"a", "a"},
        {"SELECT  Name\n FROM\tt ;", "select name from t"},
        {"SELECT COUNT ( * ) FROM t;;", "select count(*)from t"},
        {"select count(*) from t", "select count(*)from t"},
        {"WHERE a>=1 AND b <> 2", "where a>=1 and b<>2"},
        {"a , b = 'X  Y' AND c", "a,b='X  Y' and c"},
        {"b = \"New Jersey\" ; ", "b=\"New Jersey\""},
        {"`A b` = 'It''s'", "`A b`='It''s'"},
        {"'open  Quote ;", "'open  Quote"},
        {"\xc3\x89T\xc3\x89", "\xc3\x89t\xc3\x89"},
        {"a  b   c", "a b c"},
        {"x + 1 * 2 / 3 ! y", "x+1*2/3!y"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *normal = ot_answer_normalise(cases[i].text);
        assert_non_null(normal);
        assert_string_equal(normal, cases[i].normal);
        free(normal);
    }
}

static void scores_are_told(void **state) {
    (void)state;
    char text[OT_ANSWERS_TEXT_BYTES];
    struct ot_answer_score score = {.rows = 8, .exact = 1, .normalised = 2};
    assert_string_equal(ot_answers_summary(&score, text), "exact 12.5 % · normalised 25.0 %");
    assert_true(ot_answer_match(&score) == 0.25 && isnan(ot_answer_execution(&score)));
    score.executes = true;
    score.kinds[OT_SQL_JOIN] = (struct ot_kind_score){4, 3, 1};
    score.kinds[OT_SQL_SIMPLE] = (struct ot_kind_score){1, 1, 1};
    assert_string_equal(ot_answers_summary(&score, text),
                        "exact 12.5 % · normalised 25.0 % · equal results 40.0 %, valid SQL 80.0 %");
    assert_true(ot_answer_execution(&score) == 0.4);
    assert_true(isnan(ot_answer_match(&(struct ot_answer_score){0})));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_normalised),
        cmocka_unit_test(scores_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
