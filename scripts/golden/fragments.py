"""Golden layouts of the operands of tensor cores, by CuTe, the library of layouts in NVIDIA's CUTLASS. Written to
tests/golden/fragments.bin.

An element of a product is a number: row + rows * k of A[row][k], column + columns * k of B[k][column], row + rows *
column of C[row][column]. For 16-bit values, two values make a register.

    mma_a, mma_b, mma_c       [lane][value]: the element; mma.sync of 16x8x16, fp32 sums
    ldmatrix, ldmatrix_trans  [lane][value]: 8 * the lane whose row it comes from + its place in that row; four matrices
    wgmma_a                   [thread][value]: the element; wgmma of 64 rows with A in registers
    wgmma_c_N                 the same of the sums, for N columns

Operands of wgmma in shared memory, with the swizzle of 128 bytes. NAME: a_k, a_mn (128 rows), b_k_N, b_mn_N. The sum
runs along the rows in memory (k), or across them (mn). Operands begin at the address 1024:

    NAME_places       [row in memory][chunk of 8 elements]: its distance from the operand's start, in 16 bytes
    NAME_descriptors  [64 rows of A; 1 for B][step of 16 along the sum]: the descriptor

The program fragments.cpp prints them. It needs a C++ compiler ($CXX, or c++), and the headers of the CUDA toolkit
($CUDA_HOME, or /usr/local/cuda).

Run: python scripts/golden/fragments.py (needs nvidia-cutlass, which may be installed with --no-deps, and numpy)
"""

import importlib.util
import os
import subprocess
import tempfile

import numpy as np

import goldenfile

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "../../tests/golden/fragments.bin")


def compile_program(program):
    cutlass = os.path.dirname(importlib.util.find_spec("cutlass_library").origin)
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    folders = [os.path.join(cutlass, "source", "include"), toolkit, os.path.join(toolkit, "cccl")]
    includes = [part for folder in folders for part in ("-isystem", folder)]
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", *includes, os.path.join(HERE, "fragments.cpp"), "-o",
                    program], check=True)


def read_tables(text):
    tables = {}
    for line in text.splitlines():
        name, dims, *values = line.split()
        kind = np.int64 if name.endswith("_descriptors") else np.int32
        tables[name] = np.array([int(x) for x in values], kind).reshape([int(x) for x in dims.split("x")])
    return tables


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "fragments")
        compile_program(program)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    goldenfile.write(OUT, read_tables(printed))


if __name__ == "__main__":
    main()
