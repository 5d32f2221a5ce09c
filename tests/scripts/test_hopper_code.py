"""The machine code of attention_hopper.cu, attention_hopper_backward.cu and gemm_groups_hopper.cu: products are those of a
warpgroup and run asynchronously, nobody touches their registers before the wait, nothing lies in local memory, and the
accesses that count have 16 bytes.

Usage: test_hopper_code.py FOLDER    the folder of the build with the objects and the compiler's reports

The first part reads the compiler's reports. The second needs cuobjdump and nvdisasm: beside nvcc, in PATH, or of the
Python packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

import functools
import glob
import os
import re
import subprocess
import sys
import unittest

import sass

folder = sys.argv.pop()
FORWARD, BACKWARD, GROUPS = "attention_hopper.cu", "attention_hopper_backward.cu", "gemm_groups_hopper.cu"
# For each file: two dtypes, two head sizes; in backward, two passes. Of products: two dtypes, two dtypes of the result, three
# forms, arrays at 16-byte borders and off them.
KERNELS = {FORWARD: 4, BACKWARD: 8, GROUPS: 24}
VARIANTS = {64: "64x64x16", 128: "64x128x16"}  # head size: the shape of the product with the values
KEYS = 1  # of enum gradient_pass


@functools.cache
def read_kernels(name):
    command = [sass.find_cuobjdump(), "-sass", os.path.join(folder, name + ".o")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sass.read_kernels(done.stdout)


def disassemble(name):
    """The instructions of each kernel, without their guards."""
    return {kernel: [x.text for x in code] for kernel, code in read_kernels(name).items()}


NO_CUOBJDUMP = ("no cuobjdump with nvdisasm in CUDA_HOME, in PATH or in Python's packages: python3 -m pip install "
                "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
needs_cuobjdump = unittest.skipUnless(sass.find_cuobjdump(), NO_CUOBJDUMP)


def place_of(code, pattern, start=0):
    return next(i for i, x in enumerate(code[start:], start) if re.match(pattern, x))


def count(code, pattern):
    return sum(bool(re.match(pattern, x)) for x in code)


def shape_of(name):
    """Of a kernel of backward: head size and pass."""
    return (int(x) for x in re.search(r"gradient_shapeILi(\d+)EL\d+gradient_pass(\d)E", name).groups())


def flags_of(name):
    """Of a kernel of products: a result of four bytes, the form SUMS, B transposed, arrays at 16-byte borders."""
    wide, *flags = re.search(r"groups_hopperI\S*?(f)?Lb(\d)ELb(\d)ELb(\d)E", name).groups()
    return bool(wide), *(flag == "1" for flag in flags)


WAIT_FOR_ALL_BUT_ONE, WAIT_FOR_ALL = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"


class HopperCode(unittest.TestCase):
    def test_products_run_asynchronously(self):
        """ptxas waits for each product, or fences again, where it cannot prove that the registers are left alone."""
        for name, kernels in KERNELS.items():
            with open(os.path.join(folder, name + ".ptxas"), encoding="utf-8") as file:
                report = file.read()
            self.assertEqual(report.count("Compiling entry function"), kernels)
            self.assertEqual(report.count("sm_90a"), kernels)
            self.assertNotRegex(report, "serialized|injected|setmaxnreg")
            self.assertEqual(report.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), kernels)

    def test_all_kernels_of_compute_capability_9_0_are_known(self):
        names = []
        for path in glob.glob(os.path.join(glob.escape(folder), "*.ptxas")):
            with open(path, encoding="utf-8") as file:
                if "sm_90a" in file.read():
                    names.append(os.path.basename(path).removesuffix(".ptxas"))
        self.assertEqual(sorted(names), sorted(KERNELS))

    def check_all(self, find):
        """No kernel has an error that find(instructions) finds."""
        for name in KERNELS:
            for kernel, code in read_kernels(name).items():
                self.assertEqual(find(code)[:4], [], kernel)

    @needs_cuobjdump
    def test_products_run_undisturbed(self):
        self.check_all(sass.find_early_accesses)

    @needs_cuobjdump
    def test_operands_stay_in_their_registers(self):
        """If ptxas takes them for another value too soon: keep the operand in shared memory, or compile by another ptxas."""
        self.check_all(sass.find_replaced_operands)

    @needs_cuobjdump
    def test_registers_suffice(self):
        """One branch gives registers back, the other takes them."""
        self.check_all(sass.find_excess_registers)
        for name in KERNELS:
            for kernel, code in read_kernels(name).items():
                changes = sorted(x.op.split(".")[1] for x in code if x.kind == "USETMAXREG")
                self.assertEqual(changes, ["DEALLOC", "TRY_ALLOC"], kernel)

    def check_accesses(self, name, code):
        self.assertFalse([x for x in code if re.match(r"LDL|STL|HMMA", x)], name)
        copies = [x for x in code if x.startswith("LDGSTS")]
        self.assertTrue(copies and all(x.startswith("LDGSTS.E.BYPASS.128") for x in copies), name)

    @needs_cuobjdump
    def test_instructions_of_forward(self):
        kernels = disassemble(FORWARD)
        self.assertEqual(len(kernels), KERNELS[FORWARD])
        for name, code in kernels.items():
            dim = int(re.search(r"hopper_shapeILi(\d+)E", name)[1])
            products = [x for x in code if x.startswith("HGMMA")]
            # q K^T: dim / 16, before the loop and in it. p V: 128 keys / 16, in the loop and after it.
            self.assertEqual(len(products), 2 * (dim // 16 + 8), name)
            self.assertEqual(sum(VARIANTS[dim] in x for x in products), 2 * 8 + (2 * dim // 16 if dim == 128 else 0))
            self.check_accesses(name, code)

    @needs_cuobjdump
    def test_softmax_runs_beside_products(self):
        """In the loop, the 64 exponentials of a lane lie between the wait for q K^T and the wait for p V. The compiler would
        move the second wait up if it could."""
        for name, code in disassemble(FORWARD).items():
            first = place_of(code, WAIT_FOR_ALL_BUT_ONE)
            between = code[first:place_of(code, WAIT_FOR_ALL, first)]
            self.assertGreaterEqual(count(between, "MUFU.EX2"), 64, name)
            self.assertEqual(count(between, "HGMMA"), 0, name)

    @needs_cuobjdump
    def test_instructions_of_backward(self):
        kernels = disassemble(BACKWARD)
        self.assertEqual(len(kernels), KERNELS[BACKWARD])
        for name, code in kernels.items():
            dim, which = shape_of(name)
            products = [x for x in code if x.startswith("HGMMA")]
            # scores and dout V^T: dim / 16 each. One or two sums over a tile of 64 tokens: 64 / 16 each.
            sums = (2 if which == KEYS else 1) * 4
            self.assertEqual(len(products), 2 * dim // 16 + sums, name)
            self.assertEqual(sum(VARIANTS[dim] in x for x in products), sums + (2 * dim // 16 if dim == 64 else 0), name)
            self.check_accesses(name, code)

    @needs_cuobjdump
    def test_gradients_of_scores_run_beside_products(self):
        """A lane has 32 elements of a tile. In the pass of queries, its exponentials lie before the wait for dout V^T: one for
        each element, and one for the softcap. In the pass of keys, ds is computed before the wait for the sum of dv: one FFMA
        for each element, and two for the softcap."""
        for name, code in disassemble(BACKWARD).items():
            _, which = shape_of(name)
            first = place_of(code, WAIT_FOR_ALL_BUT_ONE)
            if which == KEYS:
                first = place_of(code, WAIT_FOR_ALL_BUT_ONE, first + 1)
            between = code[first:place_of(code, WAIT_FOR_ALL, first)]
            self.assertEqual(count(between, "HGMMA"), 0, name)
            if which == KEYS:
                self.assertGreaterEqual(count(between, "FFMA"), 3 * 32, name)
            else:
                self.assertGreaterEqual(count(between, "MUFU.EX2"), 2 * 32, name)

    @needs_cuobjdump
    def test_instructions_of_products(self):
        """A step has four products of 64 x 256 x 16. It is waited for only when the next step's have been started. A lane has
        128 sums: one exchange each, and stores of 16 bytes."""
        kernels = disassemble(GROUPS)
        self.assertEqual(len(kernels), KERNELS[GROUPS])
        self.assertEqual(len({flags_of(name) for name in kernels}), KERNELS[GROUPS] / 2)
        for name, code in kernels.items():
            wide, sums, trans_b, aligned = flags_of(name)
            products = [x for x in code if x.startswith("HGMMA")]
            self.assertEqual(len(products), 4, name)
            for product in products:
                self.assertIn("64x256x16", product)
                self.assertEqual(("tnspA" in product, "tnspB" in product), (sums, not trans_b), name)
            step = code[place_of(code, "HGMMA"):place_of(code, WAIT_FOR_ALL_BUT_ONE)]
            self.assertEqual(count(step, "HGMMA"), 4, name)
            if not aligned:
                self.assertFalse([x for x in code if re.match(r"LDL|STL|HMMA|LDGSTS", x)], name)
                continue
            self.check_accesses(name, code)
            self.assertEqual(count(code, "LDGSTS"), 24, name)
            self.assertEqual(count(code, r"STG\.E\.128"), 32 if wide else 16, name)
            self.assertEqual(count(code, "STG"), 32 if wide else 16, name)

    @needs_cuobjdump
    def test_waits_end(self):
        """A wait for an mbarrier is two tries with a sleep between them, in a loop that ends in a trap if arrivals are lost."""
        for name in KERNELS:
            for kernel, code in disassemble(name).items():
                tries = count(code, "SYNCS.PHASECHK")
                self.assertGreater(tries, 0, kernel)
                self.assertGreaterEqual(count(code, "BPT.TRAP"), tries / 2, kernel)


if __name__ == "__main__":
    passed = unittest.main(exit=False).result.wasSuccessful()
    if passed and not sass.find_cuobjdump():
        print("SKIP: the machine code is not checked:", NO_CUOBJDUMP)
        sys.exit(77)
    sys.exit(not passed)
