/* The judge: which answers are right, what hostile queries come to, and whether the contents tell queries
 * apart. Runs under the address sanitizer too. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/judge/contents.h"
#include "src/judge/judge.h"
#include "src/judge/tokens.h"
#include "tests/support/check.h"

static const char singers[] = "CREATE TABLE singer (id INT, name VARCHAR, country VARCHAR, age INT);"
                              "CREATE TABLE concert (singer_id INT, year INT, place VARCHAR)";

static struct ot_verdict judge(const char *context, const char *gold, const char *answer) {
    struct ot_judge *judge;
    struct ot_verdict verdict;
    const struct ot_judged_row row = {.context = context, .gold = gold};
    check_ok(ot_judge_open(NULL, &judge));
    check_ok(ot_judge_answer(judge, &row, answer, &verdict));
    ot_judge_close(judge);
    return verdict;
}

/* ---- right and wrong ---- */

enum expected { RIGHT, WRONG, INVALID };
static const struct {
    enum expected expected;
    const char *gold, *answer;
} cases[] = {
    {RIGHT, "SELECT name FROM singer WHERE age > 30", "select  NAME from singer where 30 < age;"},
    {RIGHT, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer WHERE age >= 31"},
    {WRONG, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer WHERE age >= 30"},
    {WRONG, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer WHERE age > 29"},
    {WRONG, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer"},
    {WRONG, "SELECT name FROM singer WHERE age > 30", "SELECT country FROM singer WHERE age > 30"},
    {WRONG, "SELECT name FROM singer WHERE age > 30", "SELECT name, age FROM singer WHERE age > 30"},
    {INVALID, "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singers WHERE age > 30"},
    {INVALID, "SELECT name FROM singer WHERE age > 30", "SELECT nam FROM singer WHERE age > 30"},
    {INVALID, "SELECT name FROM singer WHERE age > 30", "the singers above 30"},
    {INVALID, "SELECT name FROM singer WHERE age > 30", ""},
    /* the order of columns does not matter, that of rows does if the gold query has an ORDER BY */
    {RIGHT, "SELECT name, age FROM singer", "SELECT age, name FROM singer"},
    {RIGHT, "SELECT name, age FROM singer", "SELECT age, name FROM singer ORDER BY age"},
    {WRONG, "SELECT name, age FROM singer ORDER BY age", "SELECT name, age FROM singer"},
    {WRONG, "SELECT name FROM singer ORDER BY age LIMIT 3",
     "SELECT name FROM singer ORDER BY age DESC LIMIT 3"},
    {RIGHT, "SELECT name FROM (SELECT name FROM singer ORDER BY age)", "SELECT name FROM singer"},
    /* how often a row comes counts */
    {WRONG, "SELECT DISTINCT country FROM singer", "SELECT country FROM singer"},
    {RIGHT, "SELECT DISTINCT country FROM singer", "SELECT country FROM singer GROUP BY country"},
    {WRONG, "SELECT COUNT(*) FROM singer", "SELECT COUNT(DISTINCT country) FROM singer"},
    {WRONG, "SELECT COUNT(*) FROM singer", "SELECT COUNT(age) FROM singer"}, /* NULLs */
    {RIGHT, "SELECT COUNT(*) FROM singer", "SELECT SUM(1) FROM singer"},
    {WRONG, "SELECT MAX(age) FROM singer", "SELECT MIN(age) FROM singer"},
    {WRONG, "SELECT AVG(age) FROM singer", "SELECT SUM(age) FROM singer"},
    {RIGHT, "SELECT age * 1.0 FROM singer", "SELECT age FROM singer"}, /* 2.0 is 2 */
    /* texts of conditions, in both kinds of quotes */
    {RIGHT, "SELECT age FROM singer WHERE country = \"New Jersey\"",
     "SELECT age FROM singer WHERE country = 'New Jersey'"},
    {WRONG, "SELECT age FROM singer WHERE country = \"New Jersey\"",
     "SELECT age FROM singer WHERE country = 'new jersey'"},
    {WRONG, "SELECT age FROM singer WHERE country = 'France' AND name = 'Al'",
     "SELECT age FROM singer WHERE country = 'France'"},
    {WRONG, "SELECT age FROM singer WHERE country = 'France' AND name = 'Al'",
     "SELECT age FROM singer WHERE country = 'France' OR name = 'Al'"},
    {WRONG, "SELECT name FROM singer WHERE name LIKE '%ab%'",
     "SELECT name FROM singer WHERE name LIKE 'ab%'"},
    {WRONG, "SELECT name FROM singer WHERE age BETWEEN 20 AND 40", "SELECT name FROM singer WHERE age > 20"},
    {RIGHT, "SELECT name FROM singer WHERE age BETWEEN 20 AND 40",
     "SELECT name FROM singer WHERE age >= 20 AND age <= 40"},
    {RIGHT, "SELECT name FROM singer WHERE age IN (20, 30)",
     "SELECT name FROM singer WHERE age = 20 OR age = 30"},
    {WRONG, "SELECT name FROM singer WHERE age IN (20, 30)", "SELECT name FROM singer WHERE age = 20"},
    /* joins, groups, nested queries */
    {RIGHT,
     "SELECT T1.name FROM singer AS T1 JOIN concert AS T2 ON T1.id = T2.singer_id WHERE T2.year = 2014",
     "SELECT name FROM concert, singer WHERE id = singer_id AND year = 2014"},
    {WRONG,
     "SELECT T1.name FROM singer AS T1 JOIN concert AS T2 ON T1.id = T2.singer_id WHERE T2.year = 2014",
     "SELECT T1.name FROM singer AS T1 LEFT JOIN concert AS T2 ON T1.id = T2.singer_id"},
    {WRONG, "SELECT T1.name FROM singer AS T1 JOIN concert AS T2 ON T1.id = T2.singer_id",
     "SELECT name FROM singer WHERE id IN (SELECT singer_id FROM concert)"},
    {WRONG, "SELECT country, COUNT(*) FROM singer GROUP BY country HAVING COUNT(*) > 2",
     "SELECT country, COUNT(*) FROM singer GROUP BY country HAVING COUNT(*) >= 2"},
    {RIGHT,
     "SELECT name FROM singer WHERE id NOT IN (SELECT singer_id FROM concert WHERE singer_id NOT NULL)",
     "SELECT name FROM singer WHERE id NOT NULL AND NOT EXISTS (SELECT 1 FROM concert WHERE singer_id = id)"},
    {WRONG, "SELECT country FROM singer WHERE age > 40 INTERSECT SELECT country FROM singer WHERE age < 30",
     "SELECT country FROM singer WHERE age > 40 UNION SELECT country FROM singer WHERE age < 30"},
};

static void right_and_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_verdict v = judge(singers, cases[i].gold, cases[i].answer);
        if (!v.is_judged || v.is_valid != (cases[i].expected != INVALID) ||
            v.is_equal != (cases[i].expected == RIGHT) || (v.why[0] == '\0') != v.is_equal)
            fail_msg("%s\n  for %s\n  judged %d valid %d equal %d: %s", cases[i].answer, cases[i].gold,
                     v.is_judged, v.is_valid, v.is_equal, v.why);
    }
}

/* Columns without types and rows that cannot be judged. */
static void contexts(void **state) {
    (void)state;
    static const char cakes[] = "CREATE TABLE cakes (name, shop, eggs, price)";
    assert_true(
        judge(cakes, "SELECT name FROM cakes WHERE price = 90", "SELECT name FROM cakes WHERE price=90")
            .is_equal);
    assert_false(
        judge(cakes, "SELECT name FROM cakes WHERE price = 90", "SELECT name FROM cakes WHERE eggs = 90")
            .is_equal);
    struct ot_verdict v = judge(NULL, "SELECT 1", "SELECT 1");
    assert_false(v.is_judged || v.is_valid || v.is_equal);
    assert_string_equal(v.why, "the row cannot be judged: it has no context");
    v = judge("CREATE TABLE t (a", "SELECT a FROM t", "SELECT a FROM t");
    assert_false(v.is_judged || v.is_valid || v.is_equal);
    assert_non_null(
        strstr(v.why, "the tables of the context cannot be created: SQLite says: incomplete input"));
    v = judge("CREATE TABLE t (a)", "SELECT b FROM t", "SELECT a FROM t");
    assert_false(v.is_judged || v.is_valid || v.is_equal);
    assert_string_equal(v.why, "the row's own query does not run: SQLite says: no such column: b");
    /* constraints forbid some rows, and not all */
    v = judge("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL, c INT CHECK (c > 0))",
              "SELECT b FROM t WHERE c = 3", "SELECT b FROM t WHERE c = 2");
    assert_true(v.is_judged && v.is_valid && !v.is_equal);
    /* rows that the context brings along */
    v = judge("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 2)", "SELECT a FROM t", "SELECT b FROM t");
    assert_true(v.is_judged && !v.is_equal);
}

static void kinds(void **state) {
    (void)state;
    static const struct {
        const char *sql, *kind;
    } list[] = {{"SELECT a FROM t WHERE b = 'GROUP BY'", "simple"},
                {"SELECT COUNT(*) FROM t", "aggregate"},
                {"SELECT count FROM t", "simple"},
                {"SELECT a FROM t ORDER BY COUNT(a)", "order"},
                {"SELECT a FROM t GROUP BY a ORDER BY a", "group"},
                {"SELECT t.a FROM t JOIN u ON t.a = u.a GROUP BY t.a", "join"},
                {"SELECT t.a FROM t, u WHERE t.a IN (1, 2)", "join"},
                {"SELECT a, b FROM t WHERE c IN (1, 2)", "simple"},
                {"SELECT a FROM t WHERE a = (SELECT MAX(a) FROM t)", "nested"},
                {"SELECT a FROM t /* JOIN */ EXCEPT SELECT b FROM t -- x", "nested"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct ot_sql_tokens tokens;
        check_ok(ot_sql_tokens_make(list[i].sql, &tokens));
        assert_string_equal(ot_sql_kind_name(ot_sql_find_kind(&tokens)), list[i].kind);
        ot_sql_tokens_free(&tokens);
    }
}

/* The contents must tell nearly all variants of common queries from them. */
static void contents_separate(void **state) {
    (void)state;
    int variants = 0, separated = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_verdict v = judge(singers, cases[i].gold, cases[i].gold);
        assert_true(v.is_equal);
        assert_true(v.variants > 0);
        variants += v.variants;
        separated += v.separated;
    }
    assert_true(variants > 300);
    if (separated * 100 < variants * 85)
        fail_msg("%d of %d variants are told apart", separated, variants);
}

/* The variants of a query on the table t (a, b). */
static void check_variants(const char *gold, const char *const *want, int n) {
    struct ot_sandbox *sandbox;
    struct ot_sql_schema schema;
    struct ot_sql_tokens tokens;
    struct ot_variants variants;
    char why[OT_SANDBOX_WHY_BYTES];
    check_ok(ot_sandbox_open(NULL, &sandbox));
    assert_true(ot_sandbox_set_up(sandbox, "CREATE TABLE t (a, b)", why));
    check_ok(ot_sandbox_schema(sandbox, &schema));
    check_ok(ot_sql_tokens_make(gold, &tokens));
    check_ok(ot_variants_make(&tokens, &schema, &variants));
    for (int i = 0; i < variants.n || i < n; i++)
        if (i >= n || i >= variants.n || strcmp(variants.texts[i], want[i]) != 0)
            fail_msg("variant %d of %s: %s", i, gold, i < variants.n ? variants.texts[i] : "missing");
    ot_variants_free(&variants);
    ot_sql_tokens_free(&tokens);
    ot_sql_schema_free(&schema);
    ot_sandbox_close(sandbox);
}
#define CHECK_VARIANTS(gold, ...)                                                                            \
    do {                                                                                                     \
        static const char *const want[] = {__VA_ARGS__};                                                     \
        check_variants(gold, want, sizeof want / sizeof *want);                                              \
    } while (0)

static void variants(void **state) {
    (void)state;
    CHECK_VARIANTS("SELECT COUNT(*) FROM t", " SELECT DISTINCT  COUNT(*) FROM t", "SELECT  MAX (*) FROM t",
                   "SELECT COUNT( \"b\" ) FROM t", "SELECT COUNT( + ) FROM t");
    CHECK_VARIANTS("SELECT a FROM t WHERE b < 1e-5 AND a = \"x y\"",
                   " SELECT DISTINCT  a FROM t WHERE b < 1e-5 AND a = \"x y\"",
                   "SELECT  \"b\"  FROM t WHERE b < 1e-5 AND a = \"x y\"",
                   "SELECT a FROM t WHERE  1  AND a = \"x y\"",
                   "SELECT a FROM t WHERE  \"a\"  < 1e-5 AND a = \"x y\"",
                   "SELECT a FROM t WHERE b  <=  1e-5 AND a = \"x y\"",
                   "SELECT a FROM t WHERE b  >  1e-5 AND a = \"x y\"",
                   "SELECT a FROM t WHERE b <  (1e-5 + 1)  AND a = \"x y\"",
                   "SELECT a FROM t WHERE b <  (1e-5 - 1)  AND a = \"x y\"",
                   "SELECT a FROM t WHERE b < 1e-5   ", "SELECT a FROM t WHERE b < 1e-5  OR  a = \"x y\"",
                   "SELECT a FROM t WHERE b < 1e-5 AND  \"b\"  = \"x y\"",
                   "SELECT a FROM t WHERE b < 1e-5 AND a  <>  \"x y\"",
                   "SELECT a FROM t WHERE b < 1e-5 AND a =  (\"x y\" || 'x') ",
                   "SELECT a FROM t WHERE b < 1e-5 AND a =  upper(\"x y\") ");
    CHECK_VARIANTS("SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   " SELECT DISTINCT  SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT  AVG (a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM (DISTINCT a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM( \"b\" ) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY  \"a\"  HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING  1  ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING  \"a\"  BETWEEN 1 AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN  (1 + 1)  AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN  (1 - 1)  AND 2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1  OR  2 ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND  (2 + 1)  ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND  (2 - 1)  ORDER BY a LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a  DESC LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY  \"b\"  LIMIT 3",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a   ",
                   "SELECT SUM(a) FROM t GROUP BY b HAVING b BETWEEN 1 AND 2 ORDER BY a LIMIT  (3 + 1) ");
}

/* ---- hostile queries ---- */

static const struct {
    const char *answer, *why;
} hostile[] = {
    {"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
     "its result has more than 20000 rows"},
    {"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT MAX(x) FROM c", "steps"},
    {"WITH RECURSIVE c(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM c) SELECT length(x) FROM c", "too big"},
    {"ATTACH '/tmp/ot-judge-hostile.db' AS d", "ATTACH is not allowed"},
    {"SELECT 1; ATTACH '/tmp/ot-judge-hostile.db' AS d", "more than one statement"},
    {"DETACH main", "DETACH is not allowed"},
    {"PRAGMA writable_schema = 1", "PRAGMA is not allowed"},
    {"SELECT * FROM pragma_database_list", "is not allowed"},
    {"INSERT INTO singer VALUES (1, 2, 3, 4)", "INSERT is not allowed"},
    {"DELETE FROM singer", "DELETE is not allowed"},
    {"UPDATE singer SET age = 1", "UPDATE is not allowed"},
    {"DROP TABLE singer", "is not allowed"},
    {"CREATE TABLE x (a)", "is not allowed"},
    {"CREATE TEMP TABLE x (a)", "is not allowed"},
    {"VACUUM INTO '/tmp/ot-judge-hostile.db'", "it is no query"},
    {"BEGIN", "a transaction is not allowed"},
    {"EXPLAIN DELETE FROM singer", "DELETE is not allowed"},
    {"SELECT load_extension('/tmp/x.so')", "load_extension"},
    {"SELECT random()", "random() is not allowed"},
    {"SELECT hex(RANDOMBLOB(10))", "randomblob() is not allowed"},
    {"SELECT zeroblob(1000000000)", "too big"},
    {"SELECT replace(hex(zeroblob(20000)), '0', hex(zeroblob(20000)))", "too big"},
    {"SELECT group_concat(a.name || hex(zeroblob(20000))) FROM singer a, singer b", "too big"},
    {"SELECT COUNT(*) FROM singer a, singer b, singer c, singer d, singer e, singer f, singer g", "steps"},
    {"SELECT ?1", "parameter"},
    {"SELECT a.* FROM singer a, singer b, singer c, singer d, singer e", "rows"},
    {"SELECT name FROM singer WHERE name LIKE replace(hex(zeroblob(20000)), '0', '%')", "LIKE"},
    {"SELECT \"", "unrecognized token"},
    {"\x01\xff\xfe", "unrecognized token"},
    {"SELECT * FROM singer WHERE (SELECT COUNT(*) FROM singer) MATCH 1", "MATCH"},
};

static void hostile_queries_end(void **state) {
    (void)state;
    double started = ot_clock_seconds();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct ot_verdict v = judge(singers, "SELECT name FROM singer", hostile[i].answer);
        if (!v.is_judged || v.is_valid || v.is_equal || !strstr(v.why, hostile[i].why) ||
            strncmp(v.why, "the answer does not run: ", 25) != 0)
            fail_msg("%s: %s (judged %d, valid %d)", hostile[i].answer, v.why, v.is_judged, v.is_valid);
    }
    /* printf gives up by itself: no text, and no error */
    struct ot_verdict v = judge(singers, "SELECT name FROM singer", "SELECT printf('%.*c', 1000000000, 'x')");
    assert_true(v.is_judged && !v.is_equal);
    assert_int_equal(access("/tmp/ot-judge-hostile.db", F_OK), -1);
    assert_true(ot_clock_seconds() - started < 60);
}

/* The longest text that is allowed, and one byte more. */
static void exact_limits(void **state) {
    (void)state;
    struct ot_verdict v;
    char *text = malloc(OT_SANDBOX_SQL_BYTES + 2);
    assert_non_null(text);
    memset(text, ' ', OT_SANDBOX_SQL_BYTES + 1);
    memcpy(text, "SELECT 1", 8);
    text[OT_SANDBOX_SQL_BYTES + 1] = '\0';
    v = judge(singers, "SELECT 1", text);
    assert_false(v.is_valid);
    text[OT_SANDBOX_SQL_BYTES] = '\0';
    v = judge(singers, "SELECT 1", text);
    assert_true(v.is_equal);
    free(text);
}

static char *repeat(const char *begin, const char *part, int times, const char *end) {
    size_t bytes = strlen(begin) + strlen(end) + (size_t)times * strlen(part) + 1;
    char *text = malloc(bytes), *at = text;
    assert_non_null(text);
    at = stpcpy(at, begin);
    for (int i = 0; i < times; i++)
        at = stpcpy(at, part);
    strcpy(at, end);
    return text;
}

/* Long texts: deep expressions, many parts, many tables, as answer, as gold query and as context. */
static void long_texts_end(void **state) {
    (void)state;
    const struct {
        char *text;
        const char *why;
    } list[] = {{repeat("SELECT ", "(", 5000, "1"), "SQLite says"},
                {repeat("SELECT 1", " + 1", 5000, ""), "too large (maximum depth 100)"},
                {repeat("SELECT 1", " UNION ALL SELECT 1", 400, ""), "too many terms in compound SELECT"},
                {repeat("SELECT 1", ", 1", 3000, ""), "too many columns in result set"},
                {repeat("SELECT COUNT(*) FROM singer", ", singer", 63, ""), "steps"},
                {repeat("SELECT '", "x", 1 << 17, "'"), "it has more than 65536 bytes"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct ot_verdict v = judge(singers, "SELECT name FROM singer", list[i].text);
        if (!v.is_judged || v.is_valid || !strstr(v.why, list[i].why))
            fail_msg("case %zu: %s", i, v.why);
        v = judge(singers, list[i].text, "SELECT name FROM singer");
        assert_true(!v.is_judged && !v.is_equal && v.why[0]);
        v = judge(list[i].text, "SELECT 1", "SELECT 1");
        assert_true(i == 2 || !v.is_judged);
        free(list[i].text);
    }
    char *tables = repeat("", "CREATE TABLE t (a INT, b TEXT);", 3, "");
    assert_false(judge(tables, "SELECT a FROM t", "SELECT a FROM t").is_judged); /* it exists already */
    free(tables);
    static const char *const contexts[] = {
        "ATTACH '/tmp/ot-judge-hostile.db' AS d",
        "PRAGMA journal_mode = WAL",
        "VACUUM INTO '/tmp/ot-judge-hostile.db'",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "CREATE TEMP TABLE t (a)",
        "CREATE TABLE t (a); CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE TABLE t AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"};
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        struct ot_verdict v = judge(contexts[i], "SELECT 1", "SELECT 1");
        if (v.is_judged || !strstr(v.why, "the tables of the context cannot be created: "))
            fail_msg("%s: %s", contexts[i], v.why);
    }
    assert_int_equal(access("/tmp/ot-judge-hostile.db", F_OK), -1);
}

/* Any bytes are a query for the tokens and the variants. */
static void broken_texts(void **state) {
    (void)state;
    static const char *const texts[] = {"'",
                                        "\"",
                                        "`",
                                        "[",
                                        "''",
                                        "\"\"",
                                        "'a''",
                                        "/*",
                                        "--",
                                        ")))(",
                                        "1e",
                                        "1e+",
                                        ".",
                                        ".5.5e3",
                                        "SELECT 'a' || ",
                                        "AND",
                                        "WHERE",
                                        "OR (",
                                        "LIMIT",
                                        "BETWEEN 1 AND",
                                        "FROM",
                                        "x = ",
                                        "SELECT * FROM t WHERE \xc3\xa9 = '\xc3'",
                                        "[a]]",
                                        "= <> < > LIKE"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct ot_verdict v = judge("CREATE TABLE t (a, b)", texts[i], texts[i]);
        assert_true(v.why[0] != '\0' && !v.is_equal);
        v = judge("CREATE TABLE t (a, b)", "SELECT a FROM t", texts[i]);
        assert_true(v.is_judged && !v.is_valid);
        char *quoted = repeat("SELECT a FROM t WHERE a = ", texts[i], 1, "");
        judge("CREATE TABLE t (a, b)", quoted, "SELECT a FROM t"); /* must not crash */
        free(quoted);
    }
}

/* ---- database files ---- */

static void write_database(const char *path, const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void databases(void **state) {
    (void)state;
    char folder[] = "/tmp/ot-judge-XXXXXX", path[128];
    struct ot_judge *judge;
    struct ot_verdict v;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/zoo", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/zoo/zoo.sqlite", folder);
    write_database(
        path,
        "CREATE TABLE animal (name TEXT, legs INT); INSERT INTO animal VALUES (\"ant\", 6), (\"cat\", 4);");
    check_fails(ot_judge_open("/nowhere/at/all", &judge), OT_E_USAGE, "--databases /nowhere/at/all");
    check_ok(ot_judge_open(folder, &judge));
    struct ot_judged_row row = {.database = "zoo", .gold = "SELECT name FROM animal WHERE legs = 4"};
    check_ok(ot_judge_answer(judge, &row, "SELECT name FROM animal WHERE legs < 5", &v));
    assert_true(v.is_judged && v.is_valid && v.is_equal);
    check_ok(ot_judge_answer(judge, &row, "SELECT name FROM animal", &v));
    assert_true(v.is_judged && v.is_valid && !v.is_equal);
    assert_string_equal(v.why, "the answer has another result: 2 rows instead of 1");
    check_ok(ot_judge_answer(judge, &row, "DELETE FROM animal", &v));
    assert_true(v.is_judged && !v.is_valid);
    /* a second file tells more apart */
    snprintf(path, sizeof path, "%s/zoo/zoo_2.sqlite", folder);
    write_database(path,
                   "CREATE TABLE animal (name TEXT, legs INT); INSERT INTO animal VALUES (\"duck\", 2);");
    check_ok(ot_judge_answer(judge, &row, "SELECT name FROM animal WHERE legs < 5", &v));
    assert_true(v.is_judged && v.is_valid && !v.is_equal);
    snprintf(path, sizeof path, "%s/zoo/broken.sqlite", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(
        "this is no database, but it is long enough to be read as the header of one: it has 100 bytes......",
        file);
    fclose(file);
    check_ok(ot_judge_answer(judge, &row, "SELECT 1", &v));
    assert_false(v.is_judged);
    assert_non_null(strstr(v.why, "the database cannot be read"));
    static const char *const names[] = {NULL, "", "..", "zoo/../zoo", "/etc", "lion"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        row.database = names[i];
        check_ok(ot_judge_answer(judge, &row, "SELECT 1", &v));
        assert_false(v.is_judged || v.is_valid || v.is_equal);
        assert_non_null(strstr(v.why, i < 5 ? "the row has no database" : "there is no database"));
    }
    ot_judge_close(judge);
    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_and_wrong),
        cmocka_unit_test(contexts),
        cmocka_unit_test(kinds),
        cmocka_unit_test(variants),
        cmocka_unit_test(exact_limits),
        cmocka_unit_test(contents_separate),
        cmocka_unit_test(broken_texts),
        cmocka_unit_test(databases),
        cmocka_unit_test(hostile_queries_end),
        cmocka_unit_test(long_texts_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
