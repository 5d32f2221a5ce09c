"""The compiler's PTX in the objects of kernels: what they read from shared memory, how wide they access global memory, and
what they multiply with. PTX is the compiler's output before ptxas, so no disassembler is needed. ptxas chooses registers and the
order of instructions, but does not change the number of these (scripts/kernel-resources reports its local memory).

Usage: test_kernel_ptx.py SOURCES OBJECTS ARCH    SOURCES: kernels/cuda; OBJECTS: a build's kernels/cuda
"""

import functools
import os
import re
import sys
import unittest

ARCH = sys.argv.pop()
objects = sys.argv.pop()
sources = sys.argv.pop()

ATTENTION = ["attention_forward", "attention_backward_keys", "attention_backward_queries"]
# Kernels that access each array 16 bytes at a time: file, kernel, arrays that it reads, arrays that it writes. An array can
# need several accesses, because its elements are larger than another's.
WIDE = [("attention_backward", "attention_delta", 2, 0), ("activation", "activate", 1, 1),
        ("activation", "activate_backward", 2, 1), ("adamw", "adamw", 4, 3), ("cross_entropy", "loss_rows", 1, 1),
        ("elementwise", "add", 2, 1), ("elementwise", "cast", 1, 1), ("activation", "glu", 2, 1), ("activation", "glu_backward", 3, 2),
        ("norm", "norm_rows", 2, 1), ("norm", "norm_backward_chunk", 3, 1), ("rope", "rope_tokens", 2, 1)]
BF16, MMA, LDMATRIX_BYTES = "13__nv_bfloat16", "mma.sync.aligned.m16n8k16", 512
FEW = 20 # lines of a kernel that only traps, parameters included
SPANS = "ot_attend_spans" # instances for attention over spans (attention_spans.cuh)


@functools.lru_cache(maxsize=None)
def kernels(name):
    """The lines of each kernel of a file, by its mangled name. Without those that only trap: other GPUs run them
    (ot_trap_unless_75)."""
    with open(os.path.join(objects, name + ".cu.o"), encoding="latin-1", newline="") as file:
        bodies = re.finditer(r"\.entry (\S+?)\((.*?)\n}\n", file.read(), re.DOTALL)
    found = {body[1]: [line.strip() for line in body[2].split("\n")] for body in bodies}
    return {mangled: lines for mangled, lines in found.items() if not (count("trap;", lines) and len(lines) < FEW)}


def instances(name, kernel):
    """The kernels of a file that are instances of this template."""
    found = {mangled: lines for mangled, lines in kernels(name).items() if f"{len(kernel)}{kernel}I" in mangled}
    if not found:
        raise AssertionError(f"{name}.cu has no kernel {kernel}")
    return found


def count(pattern, lines):
    return sum(re.search(rf"(?:^|\s){pattern}", line) is not None for line in lines)


def loops(lines):
    """Pairs of a label's line and the last branch back to it."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\$L\w+:", line)}
    ends = {}
    for i, line in enumerate(lines):
        if (branch := re.search(r"\bbra(?:\.uni)?\s+(\$L\w+)", line)) and labels[branch[1]] < i:
            ends[labels[branch[1]]] = i
    return sorted(ends.items())


def product_loop(lines):
    """The innermost loop with products, without the loops in it."""
    with_products = [loop for loop in loops(lines) if count(MMA, lines[slice(*loop)])]
    first, last = min(with_products, key=lambda loop: loop[1] - loop[0])
    inner = [loop for loop in loops(lines) if first < loop[0] and loop[1] < last]
    return [line for i, line in enumerate(lines[first:last], first) if not any(a <= i <= b for a, b in inner)]


def wide(access, lines):
    return count(access + r"\.global(?:\.\w+)*\.(?:v4\.[busf]32|v2\.[busf]64)", lines)


def row(title):
    """Numbers of a row of the tables in attention_backward.cuh, by head_dim."""
    with open(os.path.join(sources, "attention_backward.cuh"), encoding="utf-8") as file:
        header = file.read()
    dims = [int(dim) for dim in re.search(r"head_dim +(64 .*)", header)[1].split()]
    numbers = re.search(rf" {re.escape(title)}  +([\d. *]+)\n", header)[1].split()
    return dict(zip(dims, [float(number) for number in numbers], strict=True))


def shapes(kernel):
    """Of each bf16 instance for causal attention: the numbers among its template arguments, and its lines. fp16 has shapes
    for sm_75 too."""
    for mangled, lines in instances(kernel, kernel).items():
        if BF16 in mangled and SPANS not in mangled:
            yield [int(number) for number in re.findall(r"L[ib](\d+)E", mangled)], lines


class BackwardCounts(unittest.TestCase):
    """The tables of attention_backward.cuh. All products have the same number of mmas."""

    def check_fragments(self, kernel, products, title):
        want = row(title)
        for (dim, *_), lines in shapes(kernel):
            loop = product_loop(lines)
            self.assertEqual(count(MMA, loop), count(MMA, lines), f"{kernel}, {dim}: mmas outside of the loop")
            read = LDMATRIX_BYTES * count(r"ldmatrix\.sync\.aligned\.m8n8\.x4", loop) / count(MMA, loop)
            self.assertEqual(round(products * read), want.pop(dim), f"{kernel}, head_dim {dim}")
        self.assertEqual(want, {})

    def test_ldmatrix_of_queries(self):
        self.check_fragments("attention_backward_queries", 3, "scores + dout.v + dq")

    def test_ldmatrix_of_keys(self):
        """A warp has two of the four products; the other warp of its team runs the same code."""
        self.check_fragments("attention_backward_keys", 4, "scores + dout.v + dk + dv")

    def test_exchange(self):
        want = row("p from warp to warp")
        for (dim, *_), lines in shapes("attention_backward_keys"):
            loop = product_loop(lines)
            moved = 16 * 32 * (count(r"st\.shared\.v4\.f32", loop) + count(r"ld\.shared\.v4\.f32", loop))
            self.assertEqual(count(r"(?:ld|st)\.shared", loop) * 16 * 32, moved, "another access to shared memory")
            self.assertEqual(round(moved / (count(MMA, loop) / 2)), want.pop(dim), f"head_dim {dim}")
        self.assertEqual(want, {})

    def test_copies_and_clocks(self):
        queries = {dim: warps * 16 * m for (dim, m, _, warps, *_), _ in shapes("attention_backward_queries")}
        keys = {dim: warps // 2 * 16 * m for (dim, m, warps, *_), _ in shapes("attention_backward_keys")}
        for dim, copies in row("copies").items():
            self.assertEqual(copies, round(8192 / queries[dim] + 8192 / keys[dim]))
            both = sum(row(title)[dim] for title in ("scores + dout.v + dq", "scores + dout.v + dk + dv", "p from warp to warp"))
            self.assertEqual(row("both passes")[dim], both)
            self.assertAlmostEqual(row("shared memory")[dim], (both + copies) / 128, delta=0.05)


class Accesses(unittest.TestCase):
    def test_attention_multiplies_on_tensor_cores(self):
        for name in ATTENTION:
            for mangled, lines in instances(name, name).items():
                dtype = "bf16" if BF16 in mangled else "f16"
                self.assertGreater(count(MMA + rf"\.row\.col\.f32\.{dtype}\.{dtype}\.f32", lines), 0, mangled)

    def test_attention_copies_16_bytes(self):
        """cp.async.cg copies 16 bytes. Forward also stores an fp32 lse for each query, and that over spans the two numbers of
        its softmax. The pass of the queries over spans stores sums of dbias, and the other pass of the keys sums of a section."""
        for name in ATTENTION:
            for mangled, lines in instances(name, name).items():
                self.assertGreater(count(r"cp\.async\.cg\.shared\.global", lines), 0, mangled)
                self.assertEqual(count(r"cp\.async\.ca", lines), 0, mangled)
                others = count(r"st\.global", lines) - wide("st", lines)
                spans = SPANS in mangled
                has_sums = name == "attention_forward" or name == f"attention_backward_{'queries' if spans else 'keys'}"
                self.assertEqual(others, count(r"st\.global\.(?:v2\.)?f32", lines) if has_sums else 0, mangled)

    def test_wide_accesses(self):
        """A kernel's first bool argument, if it has one, is false in the version for rows that 16-byte accesses cannot
        reach."""
        for name, kernel, reads, writes in WIDE:
            for mangled, lines in instances(name, kernel).items():
                found = wide("ld", lines), wide("st", lines)
                if re.findall(r"Lb[01]E", mangled)[:1] == ["Lb0E"]:
                    self.assertEqual(found, (0, 0), mangled)
                else:
                    self.assertGreaterEqual(found[0], reads, mangled)
                    self.assertGreaterEqual(found[1], writes, mangled)

    def test_no_local_memory(self):
        """An array whose index is known only at run time would lie there."""
        for name in ATTENTION + sorted({name for name, *_ in WIDE}):
            for mangled, lines in kernels(name).items():
                self.assertEqual(count(r"\.local\b|(?:ld|st)\.local\b", lines), 0, mangled)


if __name__ == "__main__":
    if int(ARCH[3:]) < 80:
        print(f"SKIP: {ARCH} has no mma of bf16")
        sys.exit(77)
    unittest.main()
