/* Loaded before libc (LD_PRELOAD). Makes an allocation of the program, of a library or of libc itself fail.
 * Allocations before main() do not count: CUDA's static runtime crashes if one of its own fails there, and
 * the program cannot prevent that.
 *
 * OT_TEST_NO_MEMORY=N            the N-th allocation (from 1) fails; N+: this one and all after it
 * OT_TEST_NO_MEMORY_COUNT=FILE   FILE gets the number of allocations when the program ends */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* glibc's own functions, under names that this file does not replace. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic long long calls;
static long long fails_at; /* 0: no allocation fails */
static bool goes_on, in_main;

__attribute__((constructor)) static void read_wish(void) {
    const char *text = getenv("OT_TEST_NO_MEMORY");
    fails_at = text ? atoll(text) : 0;
    goes_on = text && strchr(text, '+');
}

/* ---- counting begins at main ---- */

typedef int main_fn(int argc, char **argv, char **environment);
static main_fn *own_main;

static int counted_main(int argc, char **argv, char **environment) {
    in_main = true;
    return own_main(argc, argv, environment);
}

int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack);
int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack) {
    __typeof__(&__libc_start_main) next = (__typeof__(next))dlsym(RTLD_NEXT, "__libc_start_main");
    own_main = main;
    return next(counted_main, argc, argv, init, fini, end, stack);
}

__attribute__((destructor)) static void write_count(void) {
    const char *path = getenv("OT_TEST_NO_MEMORY_COUNT");
    char line[32];
    int n = snprintf(line, sizeof line, "%lld\n", atomic_load(&calls));
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        return;
    if (write(fd, line, (size_t)n) != n)
        unlink(path);
    close(fd);
}

static bool fails(void) {
    long long number = in_main ? atomic_fetch_add(&calls, 1) + 1 : 0;
    if (!in_main || fails_at == 0 || (goes_on ? number < fails_at : number != fails_at))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    return fails() ? NULL : __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    void *memory = fails() ? NULL : __libc_memalign(alignment, bytes);
    if (!memory)
        return ENOMEM;
    *out = memory;
    return 0;
}
