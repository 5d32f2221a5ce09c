"""The machine code of attention_hopper.cu: products are those of a warpgroup and run asynchronously, nothing lies in local
memory, and the accesses that count have 16 bytes.

Usage: test_hopper_code.py FOLDER    the folder of the build with the object and the compiler's report

The first part reads the compiler's report. The second needs cuobjdump: beside nvcc, or in PATH.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

folder = sys.argv.pop()
NAME = "attention_hopper.cu"
VARIANTS = {64: "64x64x16", 128: "64x128x16"}  # head size: the shape of the product with the values


def cuobjdump():
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    path = os.pathsep.join([os.path.join(home, "bin") for home in homes if home] + [os.environ.get("PATH", "")])
    return shutil.which("cuobjdump", path=path)


def functions(sass):
    """The instructions of each kernel, by its name."""
    found = {}
    for line in sass.split("\n"):
        if match := re.search(r"Function : (\S+)", line):
            code = found.setdefault(match[1], [])
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([^;]*);", line):
            code.append(match[1].strip())
    return found


class HopperCode(unittest.TestCase):
    def test_products_run_asynchronously(self):
        """ptxas waits for each product, or fences again, where it cannot prove that the registers are left alone."""
        with open(os.path.join(folder, NAME + ".ptxas"), encoding="utf-8") as file:
            report = file.read()
        self.assertEqual(report.count("Compiling entry function"), 4)
        self.assertEqual(report.count("sm_90a"), 4)
        self.assertNotRegex(report, "serialized|injected")
        self.assertEqual(report.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), 4)

    def disassemble(self):
        done = subprocess.run([cuobjdump(), "-sass", os.path.join(folder, NAME + ".o")], capture_output=True, text=True,
                              check=True)
        return done.stdout

    @unittest.skipUnless(cuobjdump(), "no cuobjdump in CUDA_HOME and PATH")
    def test_instructions(self):
        kernels = functions(self.disassemble())
        self.assertEqual(len(kernels), 4)
        for name, code in kernels.items():
            dim = int(re.search(r"hopper_shapeILi(\d+)E", name)[1])
            products = [x for x in code if x.startswith("HGMMA")]
            # q K^T: dim / 16, before the loop and in it. p V: 128 keys / 16, in the loop and after it.
            self.assertEqual(len(products), 2 * (dim // 16 + 8), name)
            self.assertEqual(sum(VARIANTS[dim] in x for x in products), 2 * 8 + (2 * dim // 16 if dim == 128 else 0))
            self.assertFalse([x for x in code if re.match(r"LDL|STL|HMMA", x)], name)
            copies = [x for x in code if x.startswith("LDGSTS")]
            self.assertTrue(copies and all(x.startswith("LDGSTS.E.BYPASS.128") for x in copies), name)

    @unittest.skipUnless(cuobjdump(), "no cuobjdump in CUDA_HOME and PATH")
    def test_softmax_runs_beside_products(self):
        """In the loop, the 64 exponentials of a lane lie between the wait for q K^T and the wait for p V. The compiler would
        move the second wait up if it could."""
        for name, code in functions(self.disassemble()).items():
            first = next(i for i, x in enumerate(code) if re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x1", x))
            second = next(i for i, x in enumerate(code[first:], first) if re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x0", x))
            between = code[first:second]
            self.assertGreaterEqual(sum(x.startswith("MUFU.EX2") for x in between), 64, name)
            self.assertFalse([x for x in between if x.startswith("HGMMA")], name)


if __name__ == "__main__":
    unittest.main()
