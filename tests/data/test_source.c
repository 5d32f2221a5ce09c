/* Every layout of a file gives the same rows, and a damaged file ends with a one-line error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>
#ifdef OT_TEST_ZSTD
#include <zstd.h>
#endif

#include "src/data/data_files.h"
#include "src/data/source.h"
#include "tests/support/check.h"

static char *folder;
static char path[512];
static enum ot_text_by text_by;

static int open_folder(void **state) {
    (void)state;
    folder = make_folder();
    return 0;
}

static int close_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static void put(const char *name, const void *bytes, size_t n) {
    write_file(folder, name, bytes, n);
    snprintf(path, sizeof path, "%s/%s", folder, name);
}

static void put_gz(const char *name, const char *text, size_t n) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)n), n);
    assert_int_equal(gzclose(file), Z_OK);
}

#ifdef OT_TEST_ZSTD
enum { PACKED_BYTES = 1 << 17 };
static unsigned char packed_zst[PACKED_BYTES]; /* what zst_frame wrote last */

/* Appends a frame with a checksum behind `at`. Returns its end. window_log 0: 2 MB. */
static size_t zst_frame(size_t at, const char *text, size_t n, int window_log) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_inBuffer in = {text, n, 0};
    ZSTD_outBuffer out = {packed_zst, PACKED_BYTES, at};
    assert_non_null(context);
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log)));
    while (in.pos < in.size)
        assert_false(ZSTD_isError(ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue)));
    assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
    ZSTD_freeCCtx(context);
    return out.pos;
}

static void put_zst(const char *name, const char *text, size_t n) {
    put(name, packed_zst, zst_frame(0, text, n, 0));
}
#endif

/* Reads all rows into one text: "LINE:ROW|" for each. Returns the code with which reading ended. */
static int read_all(char *out, size_t capacity) {
    struct ot_source *source;
    const char *text;
    size_t bytes, at = 0;
    int64_t line;
    out[0] = '\0';
    int rc = ot_source_open(path, text_by, &source);
    if (rc < 0)
        return rc;
    while ((rc = ot_source_next(source, &text, &bytes, &line)) == 1)
        at += (size_t)snprintf(out + at, capacity - at, "%lld:%.*s|", (long long)line, (int)bytes, text);
    ot_source_close(source);
    return rc;
}

static void check_rows(const char *file, const char *want) {
    char got[1024];
    put("a", file, strlen(file));
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, want);
    put_gz("a.gz", file, strlen(file));
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, want);
#ifdef OT_TEST_ZSTD
    put_zst("a.zst", file, strlen(file));
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, want);
#endif
}

static void check_refused(const char *file, const char *words) {
    char got[1024];
    put("a", file, strlen(file));
    check_fails(read_all(got, sizeof got), OT_E_INPUT, words);
}

static void test_lines(void **state) {
    (void)state;
    check_rows("{\"a\":1}\n{\"b\":2}\n", "1:{\"a\":1}|2:{\"b\":2}|");
    check_rows("{\"a\":1}\n{\"b\":2}", "1:{\"a\":1}|2:{\"b\":2}|");
    check_rows("\n\n {\"a\":1} \t\n   \n{\"b\":2}\n\n", "3:{\"a\":1}|5:{\"b\":2}|");
    check_rows("{\"a\":1}\r\n\r\n{\"b\":2}\r\n", "1:{\"a\":1}|3:{\"b\":2}|");
    check_rows("\xef\xbb\xbf{\"a\":1}\n", "1:{\"a\":1}|");
}

static void test_array(void **state) {
    (void)state;
    check_rows("[]", "");
    check_rows(" \n[ ]\n", "");
    check_rows("[{\"a\":1},\n {\"b\":[{}, \"]}\\\"\"]}\n]\n", "1:{\"a\":1}|2:{\"b\":[{}, \"]}\\\"\"]}|");
    check_rows("\xef\xbb\xbf[\n{\n\"a\":\n1}\n,{\"b\":2}]", "2:{\n\"a\":\n1}|5:{\"b\":2}|");
    check_refused("[{\"a\":1} {\"b\":2}]", ":1: expected ',' or ']'");
    check_refused("[{\"a\":1},]", ":1: expected a row {...}");
    check_refused("[1]", ":1: expected a row {...}");
    check_refused("[{\"a\":1},\n{\"b\":2}", ":2: expected ']' before the end of the file");
    check_refused("[{\"a\":1},\n\n{\"b\":", ":3: the file ends inside this row");
    check_refused("[{\"a\":1}]\n{}", ":2: there is more text after the end");
    check_refused("[", ":1: expected a row {...}");
}

static void test_other_files(void **state) {
    char got[64];
    (void)state;
    check_refused("", "the file is empty");
    check_refused("\xef\xbb\xbf \r\n", "the file is empty");
    check_refused("\xff\xfe{", "UTF-16");
    check_refused("GGUF\3\0\0\0", "a GGUF model");
    check_refused("- question: a\n  answer: b\n", "this is YAML");
    check_refused("---\nlr: 1\n", "this is YAML");
    check_refused("model: llama\nlr: 1\n", "this is YAML");
    check_refused("\x10\x27\x05\x02\x11\x01", "this is a binary file, not JSON lines; tokens (.bin, .npy)");
    check_refused("ARROW1..", "an Arrow file");
    check_rows("no row, but a line\n{\"a\":1}\n", "1:no row, but a line|2:{\"a\":1}|"); /* with --skip-bad */
    snprintf(path, sizeof path, "b-mc2/sql-create-context");
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "data sets are not downloaded from a hub or the web");
    snprintf(path, sizeof path, "https://example.com/rows.jsonl");
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "from a hub or the web: download it");
    snprintf(path, sizeof path, "%s", folder);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "this is a directory");
    snprintf(path, sizeof path, "%s/absent.jsonl", folder);
    check_fails(read_all(got, sizeof got), OT_E_IO, "absent.jsonl: cannot open the data: No such file");
}

static void check_named(const char *name, const char *file, const char *want) {
    char got[1024];
    put(name, file, strlen(file));
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, want);
}

static void test_tables(void **state) {
    (void)state;
    check_rows("question,answer\na,b\n\nc,\n",
               "2:{\"question\":\"a\",\"answer\":\"b\"}|4:{\"question\":\"c\",\"answer\":\"\"}|");
    check_rows("\xef\xbb\xbf\"a\"\t\"b c\"\r\n1\t2,3\r\n\r\n\"x\"\ty",
               "2:{\"a\":\"1\",\"b c\":\"2,3\"}|4:{\"a\":\"x\",\"b c\":\"y\"}|");
    check_rows("a;b\n1;2,5\n", "2:{\"a\":\"1\",\"b\":\"2,5\"}|");
    /* quotes: separators, line ends and doubled quotes inside; a quote in a plain field is itself */
    check_rows(
        "a,b\n\"x,\"\"y\"\"\n\\z\",5\" disk\n1,\"\"\n",
        "2:{\"a\":\"x,\\u0022y\\u0022\\u000a\\u005cz\",\"b\":\"5\\u0022 disk\"}|4:{\"a\":\"1\",\"b\":\"\"}|");
    check_rows("a,b\n", "");
    check_refused("a,b\n1\n", ":2: a record with fewer fields than the header's 2");
    check_refused("a,b\n1,2\n1,2,3\n", ":3: a record with more fields than the header's 2");
    check_refused("a,b\n\"x\"y,2\n", ":2: text follows a closing quote");
    check_refused("a,b\n1,2\n1,\"2\n\n",
                  ":3: a quoted field has no closing quote before the end of the file");
    check_refused("a,b,a\n", ":1: the header has two columns 'a'");
    check_refused("a,a\n", ":1: the header has two columns 'a'");
    check_refused("a,,b\n", ":1: column 2 of the header has no name");
    check_rows("aAzZ_09,b\n1,2\n", "2:{\"aAzZ_09\":\"1\",\"b\":\"2\"}|");
    char got[256], header[6 * 1025 + 1];
    size_t at = 0;
    for (int i = 0; i < 1025; i++)
        at += (size_t)sprintf(header + at, "c%d%c", i, i < 1024 ? ',' : '\n');
    put("wide", header, at);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, ":1: the header has more than 1024 columns");
    char *last = strstr(header, ",c1024");
    memcpy(last, "\n", 1);
    put("wide", header, (size_t)(last + 1 - header));
    check_ok(read_all(got, sizeof got));
}

/* Where bytes cannot tell, the name does. */
static void test_named_kinds(void **state) {
    (void)state;
    check_named("one.csv", "text\n\"a, b\"\n", "2:{\"text\":\"a, b\"}|");
    check_named("one.TSV", "text\nsaid \"yes\"\n", "2:{\"text\":\"said \\u0022yes\\u0022\"}|");
    check_named("tabs.tsv", "a,b\tc\n1\t2\n", "2:{\"a,b\":\"1\",\"c\":\"2\"}|");
    check_named("book.txt", "One, two\n\n\"three\"\n",
                "1:{\"text\":\"One, two\\u000a\\u000a\\u0022three\\u0022\\u000a\"}|");
    check_named("rows.txt", "{\"a\":1}\n", "1:{\"a\":1}|");
    put_gz("book.txt.gz", "one, two", 8);
    char got[64];
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{\"text\":\"one, two\"}|");
    put_gz("twice.gz", "\x28\xb5\x2f\xfd", 4);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "this is a zstd file inside a gzip file");
}

/* A text as paragraphs and as lines; other files have no texts. */
static void test_texts(void **state) {
    static const char text[] = "\n one\ntwo \n \t\r\n\nthree\\\r\n\r\nfour\r\n\"five\"";
    (void)state;
    text_by = OT_TEXT_BY_PARAGRAPH;
    check_named("a.txt", text,
                "2:{\"text\":\"one\\u000atwo \"}|6:{\"text\":\"three\\u005c\"}|"
                "8:{\"text\":\"four\\u000a\\u0022five\\u0022\"}|");
    check_named("a.txt", "one\n\n\n  two\n   three\n\n \n",
                "1:{\"text\":\"one\"}|4:{\"text\":\"  two\\u000a   three\"}|");
    check_named("a.txt", "one\r", "1:{\"text\":\"one\"}|");
    check_named("a.jsonl", "{\"a\":1}\n\n{\"b\":2}\n", "1:{\"a\":1}|3:{\"b\":2}|");
    check_named("a.csv", "a\nx\n\ny\n", "2:{\"a\":\"x\"}|4:{\"a\":\"y\"}|");
    text_by = OT_TEXT_BY_LINE;
    check_named("a.txt", text,
                "2:{\"text\":\"one\"}|3:{\"text\":\"two \"}|6:{\"text\":\"three\\u005c\"}|"
                "8:{\"text\":\"four\"}|9:{\"text\":\"\\u0022five\\u0022\"}|");
    char late[5000], got[6000];
    memset(late, 'a', sizeof late);
    memcpy(late + sizeof late - 5, "\n\0\n.\n", 5); /* only white space is blank */
    put("nul.txt", late, sizeof late);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(strchr(got, '|'), "|2:{\"text\":\"\\u0000\"}|3:{\"text\":\".\"}|");
    text_by = OT_TEXT_BY_DOCUMENT;
}

/* Lines and paragraphs around the size of the buffer: its borders do not show. */
static void test_long_lines(void **state) {
    static const size_t sizes[] = {4095, 4096, 262143, 262144, 262145, 700000};
    enum { N = sizeof sizes / sizeof *sizes };
    (void)state;
    snprintf(path, sizeof path, "%s/long.txt", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; k < sizes[i]; k++)
            fputc('a' + i, file);
        fputs("\n\n", file);
    }
    fclose(file);
    for (text_by = OT_TEXT_BY_PARAGRAPH; text_by <= OT_TEXT_BY_LINE; text_by++) {
        struct ot_source *source;
        const char *row;
        size_t bytes;
        int64_t line;
        check_ok(ot_source_open(path, text_by, &source));
        assert_true(ot_source_is_text(source));
        for (int i = 0; i < N; i++) {
            assert_int_equal(ot_source_next(source, &row, &bytes, &line), 1);
            assert_int_equal(bytes, sizes[i] + strlen("{\"text\":\"\"}"));
            assert_int_equal(line, 2 * i + 1);
            assert_memory_equal(row + bytes - 4, ((char[]){(char)('a' + i), (char)('a' + i), '"', '}'}), 4);
        }
        assert_int_equal(ot_source_next(source, &row, &bytes, &line), 0);
        ot_source_close(source);
    }
    text_by = OT_TEXT_BY_DOCUMENT;
}

static void check_files(const char *given, const char *want) {
    struct ot_data_files files = {0};
    char got[512] = "", full[300];
    snprintf(full, sizeof full, "%s%s", folder, given);
    check_ok(ot_data_files_open(full, &files));
    for (size_t i = 0; i < files.n; i++) {
        assert_memory_equal(files.paths[i], folder, strlen(folder));
        strcat(strcat(got, files.paths[i] + strlen(folder) + 1), "|");
    }
    ot_data_files_close(&files);
    assert_string_equal(got, want);
}

static void test_bytes_of_files(void **state) {
    struct ot_data_files files = {0};
    char full[300];
    (void)state;
    put("b1.jsonl", "123", 3);
    put("b2.jsonl", "12345", 5);
    snprintf(full, sizeof full, "%s/b[12].jsonl", folder);
    check_ok(ot_data_files_open(full, &files));
    assert_int_equal(ot_data_files_bytes(&files), 8);
    check_ok(ot_data_files_open("/dev/null", &files));
    assert_int_equal(ot_data_files_bytes(&files), 0); /* no regular file */
    ot_data_files_close(&files);
}

static void check_no_files(const char *given, const char *words) {
    struct ot_data_files files = {0};
    char full[300];
    snprintf(full, sizeof full, "%s%s", folder, given);
    check_fails(ot_data_files_open(full, &files), OT_E_INPUT, words);
    ot_data_files_close(&files);
}

static void test_files_of_a_directory(void **state) {
    static const char *const names[] = {"d/b.jsonl",       "d/a.csv.gz",  "d/t.txt.zst",
                                        "d/.hidden.jsonl", "d/readme.md", "d/B.json",
                                        "d/.txt",          "d/[x].jsonl", "d/C.CSV"};
    char at[300];
    (void)state;
    snprintf(at, sizeof at, "%s/d", folder);
    assert_int_equal(mkdir(at, 0700), 0);
    snprintf(at, sizeof at, "%s/d/sub.jsonl", folder);
    assert_int_equal(mkdir(at, 0700), 0);
    check_no_files("/d", "/d: the directory has no file of rows (.jsonl");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put(names[i], "{}", 2);
    check_files("/d", "d/B.json|d/C.CSV|d/[x].jsonl|d/a.csv.gz|d/b.jsonl|d/t.txt.zst|");
    check_files("/d/", "d/B.json|d/C.CSV|d/[x].jsonl|d/a.csv.gz|d/b.jsonl|d/t.txt.zst|");
    check_files("/d/*.json*", "d/B.json|d/[x].jsonl|d/b.jsonl|d/sub.jsonl|");
    check_files("/d/[ab].*", "d/a.csv.gz|d/b.jsonl|");
    check_files("/d/[x].jsonl", "d/[x].jsonl|"); /* exists, so it is no pattern */
    check_files("/d/absent.jsonl", "d/absent.jsonl|");
    check_no_files("/d/*.parquet", "/d/*.parquet: no file matches this pattern");
}

/* A file of several gzip members, as log rotation makes them, is read as one text. */
static void test_gzip_members(void **state) {
    char got[64];
    (void)state;
    put_gz("two.gz", "{}\n", 3);
    gzFile file = gzopen(path, "ab");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, "[]\n", 3), 3);
    gzclose(file);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{}|2:[]|");
}

/* Rows that do not compress, so that every cut falls into compressed data. */
static size_t make_noise(char *text, int rows) {
    size_t at = 0;
    uint32_t seed = 1;
    for (int i = 0; i < rows; i++) {
        text[at++] = '{';
        for (int k = 0; k < 60; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[at++] = (char)('A' + (seed >> 27));
        }
        text[at++] = '\n';
    }
    return at;
}

static size_t read_file(unsigned char *to, size_t capacity) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(to, 1, capacity, file);
    fclose(file);
    return n;
}

/* Data after the first member is read or refused, never ignored. Zeros that pad the file are ignored. */
static void test_damaged_second_member(void **state) {
    (void)state;
    unsigned char packed[256] = {0};
    char got[1024];
    put_gz("two.gz", "{}\n", 3);
    size_t first = read_file(packed, sizeof packed);
    memcpy(packed + first, packed, first);
    put("padded.gz", packed, 2 * first + 100);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{}|2:{}|");
    for (size_t cut = 1; cut < first; cut++) {
        put("cut.gz", packed, first + cut);
        check_fails(read_all(got, sizeof got), OT_E_INPUT,
                    "cut.gz: the gzip stream ends too early, after line ");
    }
    for (size_t at = 0; at < first; at++) {
        if (at >= 4 && at < 10) /* time, level and system in the gzip header */
            continue;
        packed[first + at] ^= 0x55;
        put("bad.gz", packed, 2 * first);
        int rc = read_all(got, sizeof got);
        if (rc != -OT_E_INPUT)
            fail_msg("with byte %zu of the second member changed, reading returned %d and \"%s\"", at, rc,
                     got);
        packed[first + at] ^= 0x55;
    }
}

static void test_damaged_gzip(void **state) {
    static char text[1 << 16], got[1 << 17];
    unsigned char packed[1 << 16];
    (void)state;
    size_t n = make_noise(text, 500);
    put_gz("noise.gz", text, n);
    size_t bytes = read_file(packed, sizeof packed);
    check_ok(read_all(got, sizeof got));
    for (size_t cut = 20; cut < bytes; cut += bytes / 7) {
        put("cut.gz", packed, cut);
        check_fails(read_all(got, sizeof got), OT_E_INPUT, "truncated");
    }
    packed[bytes / 2] ^= 0x55;
    put("bad.gz", packed, bytes);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "damaged");
    assert_null(strstr(ot_error_text(), "<fd"));
}

#ifdef OT_TEST_ZSTD
/* Several frames are one text. Frames that are skippable or empty add nothing. */
static void test_zstd_frames(void **state) {
    static const unsigned char skippable[] = {0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, '{', '}', '\n'};
    char got[256];
    (void)state;
    memcpy(packed_zst, skippable, sizeof skippable);
    size_t at = zst_frame(sizeof skippable, "{}\n{\"a\"", 7, 0);
    at = zst_frame(at, "", 0, 0);
    memcpy(packed_zst + at, skippable, sizeof skippable);
    at = zst_frame(at + sizeof skippable, ":1}\n", 4, 0);
    memcpy(packed_zst + at, skippable, sizeof skippable);
    put("frames.zst", packed_zst, at + sizeof skippable);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{}|2:{\"a\":1}|");
    at = zst_frame(zst_frame(0, "{", 1, 0), "}\n", 2, 0);
    put("bytes.zst", packed_zst, at);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{}|");
    put("skippable.zst", skippable, sizeof skippable);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "skippable.zst: the file is empty");
    put("skippable", "P*M", 3); /* too short */
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:P*M|");
    put("q", "`*M\x18", 4); /* not skippable */
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "q: this is a binary file");
    put_zst("rows.txt.zst", "one, two", 8);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{\"text\":\"one, two\"}|");
    put_zst("twice.zst", "\x1f\x8b", 2);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "this is a gzip file inside a zstd file");
    put_zst("rows.csv.zst.zst", "a\nb\n", 4); /* one ending is left, so the name says nothing */
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:a|2:b|");
}

/* The reader reads or refuses the bytes behind the first frame, and never ignores them. */
static void test_damaged_zstd(void **state) {
    char got[1024];
    (void)state;
    size_t first = zst_frame(0, "{}\n", 3, 0), both = zst_frame(first, "[1, 2, 3]\n", 10, 0);
    for (size_t cut = first + 1; cut < both; cut++) {
        put("cut.zst", packed_zst, cut);
        check_fails(read_all(got, sizeof got), OT_E_INPUT,
                    "cut.zst: the zstd stream ends too early, after line ");
    }
    for (size_t at = first; at < both; at++) {
        if (at == first + 5) /* the size of the window */
            continue;
        packed_zst[at] ^= 0x55;
        put("bad.zst", packed_zst, both);
        int rc = read_all(got, sizeof got);
        if (rc != -OT_E_INPUT)
            fail_msg("with byte %zu changed, reading returned %d and \"%s\"", at, rc, got);
        packed_zst[at] ^= 0x55;
    }
    memset(packed_zst + both, 0, 8);
    put("padded.zst", packed_zst, both + 8);
    check_fails(read_all(got, sizeof got), OT_E_INPUT,
                "padded.zst: the zstd stream is damaged after line 3 (");
}

/* Rows of several buffers, packed and unpacked. */
static void test_long_zstd(void **state) {
    static char text[1 << 16], got[1 << 17], packed_got[1 << 17];
    (void)state;
    size_t n = make_noise(text, 500);
    put("noise", text, n);
    check_ok(read_all(got, sizeof got));
    size_t bytes = zst_frame(0, text, n, 0);
    put("noise.zst", packed_zst, bytes);
    check_ok(read_all(packed_got, sizeof packed_got));
    assert_string_equal(packed_got, got);
    packed_zst[bytes / 2] ^= 0x55;
    put("bad.zst", packed_zst, bytes);
    check_fails(read_all(got, sizeof got), OT_E_INPUT, "bad.zst: the zstd stream is damaged after line ");
    struct ot_source *source;
    const char *row;
    char *same = malloc(1 << 20);
    int64_t line;
    assert_non_null(same);
    memset(same, 'a', 1 << 20); /* 1 MB in some bytes: the buffer is full many times before more is read */
    put_zst("same.zst", same, 1 << 20);
    check_ok(ot_source_open(path, OT_TEXT_BY_DOCUMENT, &source));
    assert_int_equal(ot_source_next(source, &row, &bytes, &line), 1);
    assert_int_equal(bytes, 1 << 20);
    assert_in_range(ot_source_bytes_read(source), 1, ot_source_bytes_total(source));
    assert_int_equal(ot_source_next(source, &row, &bytes, &line), 0);
    assert_int_equal(ot_source_bytes_read(source), ot_source_bytes_total(source));
    ot_source_close(source);
    free(same);
}

/* The last byte of the file is read by itself. */
static void test_last_byte_of_zstd(void **state) {
    char got[64];
    (void)state;
    size_t n = zst_frame(0, "{}\n", 3, 0), size = (1 << 18) + 1, skipped = size - n;
    unsigned char *file = calloc(1, size);
    assert_non_null(file);
    memcpy(file, "\x50\x2a\x4d\x18", 4);
    for (int i = 0; i < 4; i++)
        file[4 + i] = (unsigned char)((skipped - 8) >> (8 * i));
    memcpy(file + skipped, packed_zst, n);
    put("one.zst", file, size);
    check_ok(read_all(got, sizeof got));
    assert_string_equal(got, "1:{}|");
    free(file);
}

static void test_refused_zstd(void **state) {
    char got[64];
    (void)state;
    put("far.zst", packed_zst, zst_frame(0, "{}\n", 3, 27));
    check_ok(read_all(got, sizeof got));
    put("farther.zst", packed_zst, zst_frame(0, "{}\n", 3, 28));
    check_fails(read_all(got, sizeof got), OT_E_INPUT,
                "farther.zst: the zstd stream has a window of more than 128 MB");
    put("dictionary.zst", "\x28\xb5\x2f\xfd\x21\x07\x03\x19\x00\x00{}\n", 13);
    check_fails(read_all(got, sizeof got), OT_E_INPUT,
                "dictionary.zst: the file was packed with a dictionary");
}
#else
static void test_no_zstd(void **state) {
    (void)state;
    char got[64];
    put("rows.zst", "\x28\xb5\x2f\xfd...", 7);
    check_fails(read_all(got, sizeof got), OT_E_USAGE,
                "rows.zst: the file is packed with zstd, and this build has no libzstd");
}
#endif

/* Rows longer than any buffer, with sizes around powers of two: the borders between reads do not show. */
static void test_long_rows(void **state) {
    (void)state;
    const size_t sizes[] = {1, 4095, 4096, 4097, 262142, 262143, 262144, 262145, 700000, 50u << 20};
    enum { N = sizeof sizes / sizeof *sizes };
    snprintf(path, sizeof path, "%s/long", folder);
    FILE *file = fopen(path, "wb");
    char *row = malloc(sizes[N - 1]);
    assert_non_null(file);
    assert_non_null(row);
    for (int i = 0; i < N; i++) {
        memset(row, 'a' + i, sizes[i]);
        assert_int_equal(fwrite(row, 1, sizes[i], file), sizes[i]);
        fputc('\n', file);
    }
    fclose(file);
    struct ot_source *source;
    check_ok(ot_source_open(path, OT_TEXT_BY_DOCUMENT, &source));
    for (int i = 0; i < N; i++) {
        const char *text;
        size_t bytes;
        int64_t line;
        assert_int_equal(ot_source_next(source, &text, &bytes, &line), 1);
        assert_int_equal(bytes, sizes[i]);
        assert_int_equal(line, i + 1);
        for (size_t k = 0; k < bytes; k++)
            if (text[k] != 'a' + i)
                fail_msg("row %d: byte %zu is wrong", i, k);
    }
    assert_int_equal(ot_source_bytes_read(source), ot_source_bytes_total(source));
    ot_source_close(source);
    free(row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_array),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_gzip_members),
        cmocka_unit_test(test_damaged_gzip),
        cmocka_unit_test(test_damaged_second_member),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_named_kinds),
        cmocka_unit_test(test_files_of_a_directory),
        cmocka_unit_test(test_bytes_of_files),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_long_lines),
#ifdef OT_TEST_ZSTD
        cmocka_unit_test(test_zstd_frames),
        cmocka_unit_test(test_damaged_zstd),
        cmocka_unit_test(test_long_zstd),
        cmocka_unit_test(test_refused_zstd),
        cmocka_unit_test(test_last_byte_of_zstd),
#else
        cmocka_unit_test(test_no_zstd),
#endif
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
