#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"

static void test_pieces_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    enum { PIECES = 3000 };
    static unsigned char *pieces[PIECES];
    struct ot_arena *arena;
    check_ok(ot_arena_open(&arena));
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = (size_t)(i * 37 % 500) + (i % 100 == 0 ? 100000 : 0);
        pieces[i] = ot_arena_alloc(arena, bytes, 1);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(pieces[i][b], 0);
        memset(pieces[i], i % 255 + 1, bytes);
    }
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = (size_t)(i * 37 % 500) + (i % 100 == 0 ? 100000 : 0);
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(pieces[i][b], i % 255 + 1);
    }
    ot_arena_close(arena);
    ot_arena_close(NULL);
}

static void test_overhead_is_small(void **state) {
    (void)state;
    struct ot_arena *arena;
    check_ok(ot_arena_open(&arena));
    assert_int_equal(ot_arena_bytes(arena), 0);
    for (int i = 0; i < 100000; i++)
        assert_non_null(ot_arena_alloc(arena, 4, 12));
    assert_in_range(ot_arena_bytes(arena), 4800000, 4800000 * 5 / 4);
    size_t before = ot_arena_bytes(arena);
    /* Larger than a block, so it gets a block of its own. */
    assert_non_null(ot_arena_alloc(arena, 10 << 20, 1));
    assert_in_range(ot_arena_bytes(arena) - before, 10 << 20, (10 << 20) + 4096);
    ot_arena_close(arena);
}

static void test_strdup(void **state) {
    (void)state;
    struct ot_arena *arena;
    check_ok(ot_arena_open(&arena));
    char *copy = ot_arena_strdup(arena, "a\0bcd", 4);
    assert_memory_equal(copy, "a\0bc", 5); /* including the NUL */
    assert_string_equal(ot_arena_strdup(arena, "", 0), "");
    ot_arena_close(arena);
}

/* Writes to `pieces` pieces of `bytes`, which must be zero, and returns the memory of the arena. */
static size_t fill(struct ot_arena *arena, int pieces, size_t bytes) {
    static const unsigned char zeros[1 << 16];
    for (int i = 0; i < pieces; i++) {
        unsigned char *piece = ot_arena_alloc(arena, bytes, 1);
        assert_memory_equal(piece, zeros, bytes);
        assert_int_equal((uintptr_t)piece % 16, 0);
        memset(piece, 0xff, bytes);
    }
    return ot_arena_bytes(arena);
}

static void test_clear(void **state) {
    (void)state;
    struct ot_arena *arena;
    check_ok(ot_arena_open(&arena));
    ot_arena_clear(arena); /* nothing */
    static const struct {
        int pieces;
        size_t bytes;
    } documents[] = {{3, 100}, {50, 100}, {2, 5000}, {700, 33}, {1, 60000}, {1, 1}};
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        size_t kept = 0;
        for (int again = 0; again < 4; again++) {
            size_t bytes = fill(arena, documents[i].pieces, documents[i].bytes);
            if (again == 1)
                kept = bytes;
            ot_arena_clear(arena);
            if (again >= 1) { /* a document of the same size is in the memory that was kept */
                assert_int_equal(bytes, kept);
                assert_int_equal(ot_arena_bytes(arena), kept);
            }
        }
    }
    assert_non_null(ot_arena_alloc(arena, 10 << 20, 1));
    ot_arena_clear(arena);
    assert_int_equal(ot_arena_bytes(arena), 0); /* large memory is given back */
    ot_arena_close(arena);
}

static void test_impossible_sizes(void **state) {
    (void)state;
    struct ot_arena *arena;
    check_ok(ot_arena_open(&arena));
    assert_null(ot_arena_alloc(arena, SIZE_MAX / 2, 3)); /* the size would overflow */
    assert_non_null(strstr(ot_error_text(), "no memory for"));
    assert_null(ot_arena_alloc(arena, SIZE_MAX, 1));
    assert_non_null(ot_arena_alloc(arena, 0, SIZE_MAX));
    assert_non_null(ot_arena_alloc(arena, 1, 1)); /* the arena still works */
    ot_arena_close(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_overhead_is_small),
        cmocka_unit_test(test_strdup),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_impossible_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
