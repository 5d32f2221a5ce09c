/* A libdnnl.so.3 whose products fail. OT_TEST_ONEDNN=throw:N makes the N-th product (from 1) and all after it
 * throw, as oneDNN does when memory is short. status:N makes them return the same error as a status. none: it
 * supports no product on this CPU. */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {
std::atomic<long> calls;

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, UNIMPLEMENTED = 3 };

int meet() {
    const char *wish = getenv("OT_TEST_ONEDNN");
    char action[16] = "";
    long at = 0, number = ++calls;
    if (!wish || sscanf(wish, "%15[^:]:%ld", action, &at) < 1)
        return SUCCESS;
    if (!strcmp(action, "none"))
        return UNIMPLEMENTED;
    if (number < at)
        return SUCCESS;
    if (!strcmp(action, "throw"))
        throw std::bad_alloc();
    return OUT_OF_MEMORY;
}
} // namespace

extern "C" int dnnl_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                          int64_t ldc) {
    int status = meet();
    if (status != SUCCESS)
        return status;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += (trans_a == 'T' ? a[l * lda + i] : a[i * lda + l]) *
                       (trans_b == 'T' ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = alpha * sum + (beta != 0 ? beta * c[i * ldc + j] : 0);
        }
    return SUCCESS;
}
