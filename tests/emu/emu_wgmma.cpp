/* Products of a warpgroup (ptx_hopper_emu.h). Each warp computes its own 16 rows, at its wait. So the four
 * warps need not meet. That they execute the same products is checked by a log of the warpgroup.
 *
 * Whether a register was written since the last wgmma.fence is a question of time: a shadow of each thread's
 * stack holds the time of the last write to each word. Time is the number of fences so far. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/emu_runtime.h"
#include "tests/emu/ptx_hopper_emu.h"

namespace ot_emu {

/* Warps of a warpgroup; elements of a sum; rows of a warp; the most columns of b. */
enum { WARPS = 4, DEPTH = 16, ROWS = 16, COLUMNS = 256 };
enum Kind { PRODUCT, FENCE, COMMIT, WAIT, REGISTERS };

const char *name_of_wgmma(int kind) {
    static const char *const names[] = {"wgmma", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group",
                                        "setmaxnreg"};
    return names[kind];
}

/* Lanes that meet for such an instruction. */
static void meet_as(Kind kind, ot_emu_site site, void (*combine)(Warp *)) {
    if (card().compute_capability != 90)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "%s on a card of compute capability %d.%d: only 9.0 has it",
                    name_of_wgmma(kind), card().compute_capability / 10, card().compute_capability % 10);
    current->kind = kind;
    meet(WarpOp::WGMMA, 0xffffffffu, site, combine);
}

static int number_of(const Warp *warp) {
    return (int)(warp - block.warps);
}

/* ---- operands in shared memory ---- */

/* Columns of b. Of a, its rows. */
struct Operand {
    size_t start, leading, stride;
    bool transposed;

    Operand(uint64_t descriptor, bool transposed_)
        : start((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4), transposed(transposed_) {}

    /* Address of an element in shared memory. */
    size_t at(int k, int column) const {
        size_t n = (size_t)column, row = (size_t)k;
        size_t plain = transposed ? start + n / 64 * leading + n % 64 * 2 + row / 8 * stride + row % 8 * 128
                                  : start + n / 8 * stride + n % 8 * 128 + row * 2;
        return plain ^ (plain >> 7 & 7) << 4;
    }
    const char *place(int k, int column) const { return block.shared + at(k, column) - SHARED_ADDRESS; }
};

static void check_descriptor(uint64_t descriptor, bool transposed, ot_emu_site site) {
    Operand operand(descriptor, transposed);
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        OT_EMU_FAIL(
            cudaErrorLaunchFailure, site,
            "wgmma with the descriptor 0x%016llx: only the swizzle of 128 bytes without a base offset is "
            "emulated",
            (unsigned long long)descriptor);
    if ((operand.start >> 7 & 7) != 0)
        OT_EMU_FAIL(
            cudaErrorMisalignedAddress, site,
            "wgmma with an operand at the address %zu of shared memory: its panel does not begin at a "
            "multiple of 1024 bytes",
            operand.start);
    if (operand.start % 128 > (transposed ? 0u : 128u - 2 * DEPTH))
        OT_EMU_FAIL(
            cudaErrorMisalignedAddress, site,
            "wgmma with an operand at the address %zu of shared memory: it leaves the rows of its panel",
            operand.start);
}

/* The warp reads columns [first, end) of the operand. */
static void check_columns(Warp *warp, const Operand &operand, int first, int end, ot_emu_site site) {
    for (int k = 0; k < DEPTH; k += operand.transposed ? 1 : 8)
        for (int column = first; column < end; column += operand.transposed ? 8 : 1) {
            const char *at = operand.place(k, column);
            if (at < block.shared || at + 16 > block.shared + block.shared_bytes)
                OT_EMU_FAIL(cudaErrorIllegalAddress, site,
                            "wgmma of offset %lld of shared memory, which has %zu bytes",
                            (long long)(at - block.shared), block.shared_bytes);
            check_async_read(&warp->threads[0], at, 16, site);
        }
}

/* Checks that the operands may be read: b once for the warpgroup, in the name of its first warp. */
static void check_operands(Warp *warp, const ot_emu_wgmma &w) {
    int number = number_of(warp) % WARPS;
    if (!w.a)
        check_columns(warp, Operand(w.a_shared, w.a_transposed), number * ROWS, (number + 1) * ROWS, w.site);
    if (number == 0)
        check_columns(warp, Operand(w.b, w.transposed), 0, 8 * w.n8, w.site);
}

/* ---- registers ---- */

static constexpr size_t STACK_WORDS = (512 << 10) / 4; /* at least a fiber's stack */

/* The time of the last write to a word of the thread's stack. */
static uint32_t *time_of_write(const Thread *thread, const void *at) {
    static uint32_t *times;
    if (!times) {
        void *p = mmap(nullptr, MAX_THREADS * STACK_WORDS * sizeof *times, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            perror("tests/emu: no addresses for the shadow of registers");
            abort();
        }
        times = (uint32_t *)p;
    }
    size_t word = (size_t)((const char *)at - thread->fiber->low) / 4;
    return word < STACK_WORDS ? times + (size_t)thread->number * STACK_WORDS + word : nullptr;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

const char *wgmma_touch(Thread *thread, Access access, const void *at, size_t bytes) {
    for (const Product &p : thread->warp->products) {
        const ot_emu_wgmma &w = p.lanes[thread->lane];
        if (overlap(at, bytes, w.c, (size_t)w.n8 * sizeof *w.c))
            return "sums of a wgmma";
        if (access != Access::READ && w.a && overlap(at, bytes, w.a, sizeof p.a[0]))
            return "registers of A of a wgmma";
    }
    if (access != Access::READ)
        for (size_t i = 0; i < bytes; i += 4)
            if (uint32_t *time = time_of_write(thread, (const char *)at + i))
                *time = fence_time;
    return nullptr;
}

static void check_fenced(const Thread *thread, const void *at, size_t bytes, const char *what,
                         ot_emu_site site) {
    if (!thread->wgmma_fence)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "wgmma before the first wgmma.fence");
    for (size_t i = 0; i < bytes; i += 4) {
        const uint32_t *time = time_of_write(thread, (const char *)at + i);
        if (time && *time >= thread->wgmma_fence)
            OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                        "wgmma: %s of %s were written after the last wgmma.fence", what,
                        name_of(thread).c_str());
    }
}

/* ---- one product ---- */

/* Compares with the product that the other warps of the warpgroup executed at this turn. */
static void check_warpgroup(Warp *warp, const ot_emu_wgmma &w) {
    int number = number_of(warp), first = number / WARPS * WARPS;
    if (first + WARPS > block.n_warps || block.warps[first + WARPS - 1].n_threads < WARP)
        OT_EMU_FAIL(cudaErrorLaunchFailure, w.site,
                    "wgmma by a block whose last warpgroup has no four warps");
    std::vector<Product::Shared> &log = block.warpgroups[first / WARPS];
    Product::Shared mine = {w.a_shared, w.b, w.n8, w.type, w.transposed, w.a_transposed, w.add, w.site.line};
    size_t turn = warp->n_products++;
    if (turn == log.size())
        log.push_back(mine);
    const Product::Shared &theirs = log[turn];
    if (mine.a != theirs.a || mine.b != theirs.b || mine.n8 != theirs.n8 || mine.type != theirs.type ||
        mine.transposed != theirs.transposed || mine.a_transposed != theirs.a_transposed ||
        mine.add != theirs.add || mine.line != theirs.line)
        OT_EMU_FAIL(
            cudaErrorLaunchFailure, w.site,
            "divergent warpgroup: warp %d executes another wgmma here than warps before it, which were "
            "at line %d",
            number, theirs.line);
}

static bool is_in_flight(const Warp *warp, const float (*c)[4]) {
    for (const Product &p : warp->products)
        if (p.lanes[0].c == c)
            return true;
    return false;
}

static void combine_issue(Warp *warp) {
    const ot_emu_wgmma &w = *(const ot_emu_wgmma *)warp->threads[0].in;
    check_descriptor(w.b, w.transposed, w.site);
    if (!w.a)
        check_descriptor(w.a_shared, w.a_transposed, w.site);
    check_warpgroup(warp, w);
    Product p = {};
    p.group = warp->n_groups;
    bool follows = is_in_flight(warp, w.c);
    for (int lane = 0; lane < WARP; lane++) {
        const Thread *thread = &warp->threads[lane];
        const ot_emu_wgmma &mine = p.lanes[lane] = *(const ot_emu_wgmma *)thread->in;
        if (mine.b != w.b || mine.a_shared != w.a_shared)
            OT_EMU_FAIL(cudaErrorLaunchFailure, w.site, "wgmma: the lanes of a warp pass different operands");
        size_t bytes = (size_t)mine.n8 * sizeof *mine.c;
        check_fenced(thread, mine.c, bytes, "sums", w.site);
        if (mine.a) {
            check_fenced(thread, mine.a, sizeof p.a[lane], "registers of A", w.site);
            memcpy(p.a[lane], mine.a, sizeof p.a[lane]);
        }
        if (!follows)
            memcpy(p.c[lane], mine.c, bytes);
        memset(mine.c, POISON, bytes);
    }
    check_operands(warp, w);
    warp->products.push_back(p);
}

/* The sums before the product. */
static void gather(const Product &p, float (&c)[ROWS][COLUMNS]) {
    for (int lane = 0; lane < WARP; lane++)
        for (int n = 0; n < p.lanes[0].n8; n++)
            for (int i = 0; i < 4; i++)
                c[lane / 4 + i / 2 * 8][8 * n + 2 * (lane % 4) + i % 2] =
                    p.lanes[0].add ? p.c[lane][n][i] : 0.0f;
}

static float element(const Operand &operand, int k, int column, int type) {
    uint16_t bits;
    float value, unused;
    memcpy(&bits, operand.place(k, column), sizeof bits);
    unpack_two(type, bits, &value, &unused);
    return value;
}

/* The warp's rows of A. */
static void gather_a(const Warp *warp, const Product &p, float (&a)[ROWS][DEPTH]) {
    const ot_emu_wgmma &w = p.lanes[0];
    if (w.a) {
        for (int lane = 0; lane < WARP; lane++)
            for (int i = 0; i < 4; i++) {
                float *to = &a[lane / 4 + i % 2 * 8][2 * (lane % 4) + i / 2 * 8];
                unpack_two(w.type, p.a[lane][i], to, to + 1);
            }
        return;
    }
    Operand operand(w.a_shared, w.a_transposed);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++)
            a[row][k] = element(operand, k, number_of(warp) % WARPS * ROWS + row, w.type);
}

/* Where the sums after product `number` go: to the next product in flight that adds to them, whose registers
 * stay poisoned, or to the registers. */
static Product *next_of(Warp *warp, size_t number) {
    for (size_t i = number + 1; i < warp->products.size(); i++)
        if (warp->products[i].lanes[0].c == warp->products[number].lanes[0].c)
            return &warp->products[i];
    return nullptr;
}

static void finish(Warp *warp, size_t number) {
    const Product &p = warp->products[number];
    const ot_emu_wgmma &w = p.lanes[0];
    Product *next = next_of(warp, number);
    Operand operand(w.b, w.transposed);
    int columns = 8 * w.n8;
    float a[ROWS][DEPTH], b[DEPTH][COLUMNS], c[ROWS][COLUMNS];
    check_operands(warp, w);
    gather_a(warp, p, a);
    for (int k = 0; k < DEPTH; k++)
        for (int n = 0; n < columns; n++)
            b[k][n] = element(operand, k, n, w.type);
    gather(p, c);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++)
            for (int n = 0; n < columns; n++)
                c[row][n] += a[row][k] * b[k][n];
    for (int lane = 0; lane < WARP; lane++)
        for (int n = 0; n < w.n8; n++)
            for (int i = 0; i < 4; i++)
                (next ? next->c[lane] : p.lanes[lane].c)[n][i] =
                    c[lane / 4 + i / 2 * 8][8 * n + 2 * (lane % 4) + i % 2];
}

/* ---- groups ---- */

static void combine_fence(Warp *warp) {
    fence_time++;
    for (int lane = 0; lane < WARP; lane++)
        warp->threads[lane].wgmma_fence = fence_time;
}

static void combine_commit(Warp *warp) {
    warp->n_groups++;
}

static void combine_wait(Warp *warp) {
    int left = (int)warp->threads[0].value;
    size_t done = 0;
    for (; done < warp->products.size() && warp->products[done].group < warp->n_groups - left; done++)
        finish(warp, done);
    warp->products.erase(warp->products.begin(), warp->products.begin() + (ptrdiff_t)done);
}

static void combine_nothing(Warp *) {}

void wgmma_begin_block() {
    block.has_proxy_fence = false;
    for (int i = 0; i < block.n_warps; i++) {
        block.warps[i].products.clear();
        block.warps[i].n_products = 0;
        block.warps[i].n_groups = 0;
        block.warpgroups[i / WARPS].clear();
    }
    for (int i = 0; i < block.n_threads; i++)
        block.threads[i].wgmma_fence = block.threads[i].proxy_fence = 0;
}

void wgmma_end_block() {
    for (int i = 0; i < block.n_warps; i++) {
        const std::vector<Product::Shared> &log = block.warpgroups[i / WARPS];
        if (block.warps[i].n_products < log.size()) {
            record_failure(
                cudaErrorLaunchFailure, block.warps[i].threads, {},
                "divergent warpgroup: warp %d ends after %zu wgmmas, another warp of its warpgroup "
                "after %zu",
                i, block.warps[i].n_products, log.size());
            return;
        }
    }
}

} // namespace ot_emu

using namespace ot_emu;

uint32_t ot_emu_shared_address(const void *p, ot_emu_site site) {
    const char *at = (const char *)p;
    if (at < block.shared || at > block.shared + block.shared_bytes)
        OT_EMU_FAIL(cudaErrorIllegalAddress, site, "%p is not in shared memory", p);
    return (uint32_t)(at - block.shared) + SHARED_ADDRESS;
}

void ot_emu_fence_proxy_async() {
    current->proxy_fence = ++fence_time;
    block.has_proxy_fence = true;
}

void ot_emu_wgmma_fence(ot_emu_site site) {
    meet_as(FENCE, site, combine_fence);
}

void ot_emu_wgmma_commit(ot_emu_site site) {
    meet_as(COMMIT, site, combine_commit);
}

void ot_emu_wgmma_wait(int groups, ot_emu_site site) {
    current->value = (uint64_t)groups;
    meet_as(WAIT, site, combine_wait);
}

void ot_emu_wgmma_start(const ot_emu_wgmma *product) {
    current->in = product;
    meet_as(PRODUCT, product->site, combine_issue);
}

void ot_emu_registers(int count, ot_emu_site site) {
    if (count < 24 || count > 256 || count % 8 != 0)
        OT_EMU_FAIL(cudaErrorLaunchFailure, site, "setmaxnreg of %d registers: 24, 32, ... 256 are allowed",
                    count);
    meet_as(REGISTERS, site, combine_nothing);
}
