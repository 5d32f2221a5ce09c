/* Touching memory makes it resident: all of it, still zero, on old kernels too. If the system has less memory
 * than asked for, the error says how far it got, and no signal ends the process. */
#include "tests/support/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include "src/base/thread.h"

enum { MIB = 1 << 20 };

static char *map(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static size_t count_resident(char *memory, size_t bytes) {
    static unsigned char pages[1 << 20];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page, resident = 0;
    assert_true(n <= sizeof pages);
    assert_int_equal(mincore(memory, bytes, pages), 0);
    for (size_t i = 0; i < n; i++)
        resident += pages[i] & 1;
    return resident;
}

static void test_all_is_resident_and_zero(void **state) {
    (void)state;
    static const size_t sizes[] = {4096, 20 * MIB + 4096, (size_t)OT_TOUCH_PIECE + 12288};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            char *memory = map(sizes[i]);
            assert_int_equal(count_resident(memory, sizes[i]), 0);
            check_ok(ot_touch_memory(memory, sizes[i], &(struct ot_touch_config){.threads = threads}));
            assert_int_equal(count_resident(memory, sizes[i]), sizes[i] / 4096);
            for (size_t at = 0; at < sizes[i]; at += 511)
                assert_int_equal(memory[at], 0);
            munmap(memory, sizes[i]);
        }
}

/* The memory that the system reports. */
struct system_memory {
    int64_t free_bytes, grows_by; /* grows_by: added at each call */
    int asked;
};

static int64_t ask(void *context) {
    struct system_memory *memory = context;
    memory->asked++;
    memory->free_bytes += memory->grows_by;
    return memory->free_bytes;
}

static void test_too_little(void **state) {
    (void)state;
    struct system_memory has = {.free_bytes = OT_TOUCH_RESERVE + 100 * MIB};
    struct ot_touch_config config = {
        .threads = 1, .free_bytes = ask, .context = &has, .patience_seconds = 0.1};
    char *memory = map(200 * MIB);
    check_fails(ot_touch_memory(memory, 200 * MIB, &config), OT_E_BUDGET,
                "the system has no free memory left after 0.0 of 0.2 GiB");
    assert_true(has.asked >= 2); /* the code waited and asked again */
    assert_int_equal(count_resident(memory, 200 * MIB), 0);
    has.grows_by = 50 * MIB; /* now memory becomes free */
    check_ok(ot_touch_memory(memory, 200 * MIB, &config));
    assert_int_equal(count_resident(memory, 200 * MIB), 200 * 256);
    munmap(memory, 200 * MIB);
}

/* Memory that the system refuses: the end of the range is not mapped. */
static void test_refused(void **state) {
    (void)state;
    char *memory = map(4 * MIB);
    munmap(memory + 3 * MIB, MIB);
    if (madvise(memory, 4096, 23) !=
        0) /* an old kernel lacks the call, and writing to the range would be a fault */
        skip();
    check_fails(ot_touch_memory(memory, 4 * MIB, &(struct ot_touch_config){.threads = 1}), OT_E_BUDGET,
                "the system refused memory after 0.0 of 0.0 GiB: ");
    munmap(memory, 3 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_resident_and_zero),
        cmocka_unit_test(test_too_little),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("touch", tests, NULL, NULL);
}
