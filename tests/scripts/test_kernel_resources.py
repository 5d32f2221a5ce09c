"""scripts/kernel-resources: no kernel of ours spills registers or uses local memory, and a kernel that does is
reported.

Usage: test_kernel_resources.py SCRIPT ARCHS REPORTS
"""

import os
import subprocess
import sys
import tempfile
import unittest

reports = sys.argv.pop()
archs = sys.argv.pop()
script = sys.argv.pop()

# An array whose index is known only at run time cannot lie in registers.
LOCAL_MEMORY = """
__global__ void indexed(int *out, int i) {
    int room[64];
    for (int j = 0; j < 64; j++)
        room[j] = out[j];
    room[i] = 1;
    for (int j = 0; j < 64; j++)
        out[j] = room[(j + i) % 64];
}
"""
# More live values than registers under these launch bounds.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) crowded(float *out) {
    float x[64];
#pragma unroll
    for (int j = 0; j < 64; j++)
        x[j] = out[j * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 64; j++)
        out[j * 1024 + threadIdx.x + 1] = x[63 - j] * x[j];
}
"""


def run(*arguments):
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False)


class KernelResources(unittest.TestCase):
    def check_found(self, source, name, what):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bad.cu")
            with open(path, "w", encoding="utf-8") as file:
                file.write(source)
            done = run("--arch", archs.split(",")[0], path)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, rf"bad.cu: {name} on sm_\d+: {what}")

    def test_local_memory_is_found(self):
        self.check_found(LOCAL_MEMORY, "indexed", r"256 bytes of local memory, 0 bytes of spills")

    def test_spills_are_found(self):
        self.check_found(SPILLS, "crowded", r"\d+ bytes of local memory, [1-9]\d* bytes of spills")

    def test_our_kernels_have_neither(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.md")
            done = run("--arch", archs, "--reports", reports, "--markdown", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                table = file.read()
        for family in ["adamw", "glu", "norm_rows"]:
            self.assertRegex(table, rf"\| `{family}` \(\w+\.cu\) \| \d+ \| 0, 0 \|")

    def test_reports_that_are_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("--reports", folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no kernels in", done.stderr)

    def test_unknown_architectures_are_refused(self):
        self.assertEqual(run("--arch", "sm_42").returncode, 2)


if __name__ == "__main__":
    unittest.main()
