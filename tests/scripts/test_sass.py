"""sass.py finds the errors that it looks for in machine code, and nothing in the code beside them.

Usage: test_sass.py
"""

import os
import re
import stat
import sys
import tempfile
import unittest
from unittest import mock

import sass

# From attention_hopper_backward.cu, pass of queries, heads of 64, fp16, as ptxas of CUDA 13.0 compiled it when dout
# (R124, R148) still lay in registers; of the four steps of each product, the first and the last. The first product of
# the next tile reads what F2FP wrote.
REPLACED = """
                Function : queries
        /*10a0*/                   LDSM.16.M88.4 R120, [R6+-0x2000] ;              /* 0xffe000000678783b */
        /*10d0*/                   LDSM.16.M88.4 R124, [R6+0x2000] ;
        /*1180*/                   LDSM.16.M88.4 R144, [R9+-0x2000] ;
        /*1190*/                   LDSM.16.M88.4 R148, [R9+0x2000] ;
        /*1ab0*/                   ULEA UR9, UR6, UR12, 0x3 ;
        /*1b00*/                   WARPGROUP.ARRIVE ;
        /*1bc0*/                   HGMMA.64x64x16.F32 R56, R120, gdesc[UR12], RZ, !UPT ;
        /*1d20*/                   HGMMA.64x64x16.F32 R56, R144, gdesc[UR20], R56, gsb0 ;
        /*1d30*/                   WARPGROUP.ARRIVE ;
        /*1d60*/                   HGMMA.64x64x16.F32 R24, R124, gdesc[UR20], RZ, !UPT ;
        /*1e10*/                   HGMMA.64x64x16.F32 R24, R148, gdesc[UR20], R24, gsb0 ;
        /*1e20*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*1ee0*/              @!P0 BRA 0x6040 ;
        /*1f70*/                   FMUL R161, R58, R10.reuse ;
        /*6040*/                   FMUL R86, R86, R159 ;
        /*6070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*6080*/                   FFMA R13, R24, UR17, -R7 ;
        /*6480*/                   F2FP.F16.F32.PACK_AB R124, R16, R13 ;
        /*64a0*/                   F2FP.F16.F32.PACK_AB R125, R18, R15 ;
        /*64c0*/                   F2FP.F16.F32.PACK_AB R126, R20, R17 ;
        /*64e0*/                   F2FP.F16.F32.PACK_AB R127, R22, R19 ;
        /*65a0*/                   F2FP.F16.F32.PACK_AB R148, R40, R37 ;
        /*65b0*/                   F2FP.F16.F32.PACK_AB R149, R42, R39 ;
        /*65c0*/                   F2FP.F16.F32.PACK_AB R150, R44, R41 ;
        /*65d0*/                   F2FP.F16.F32.PACK_AB R151, R46, R43 ;
        /*65f0*/                   WARPGROUP.ARRIVE ;
        /*6610*/                   HGMMA.64x64x16.F32 R88, R124, gdesc[UR12].tnspB, R88 ;
        /*6680*/                   HGMMA.64x64x16.F32 R88, R148, gdesc[UR12].tnspB, R88, gsb0 ;
        /*6690*/              @!P1 BRA 0x1ab0 ;
        /*66b0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*6740*/              @!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2+URZ], RZ ;
        /*6770*/                   F2FP.F16.F32.PACK_AB R88, R89, R88 ;
        /*7050*/                   EXIT ;
"""
# The same with ds in registers of its own.
SOUND = re.sub(r"(PACK_AB|R88,) R(12[4-7]|14[89]|15[01]),", lambda m: f"{m[1]} R{int(m[2]) + 40},", REPLACED)

# The two branches of a block, cut short.
BRANCHES = """
                Function : branches
        /*0920*/              @!P0 BRA 0x7060 ;
        /*0930*/                   WARPSYNC.ALL ;
        /*0940*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;
        /*0960*/              @!P0 BRA 0x930 ;
        /*0970*/                   LDS.128 R236, [R4] ;
        /*0980*/                   MOV R16, 0x9a0 ;
        /*0990*/                   CALL.REL.NOINC 0x8200 ;
        /*09a0*/                   EXIT ;
        /*7060*/                   WARPSYNC.ALL ;
        /*7070*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
        /*7080*/                   LDGSTS.E.BYPASS.128 [R14+0x800], desc[UR10][R22.64], !P2 ;
        /*7090*/              @!P0 BRA 0x7080 ;
        /*8110*/                   EXIT ;
        /*8200*/                   MOV R200, R16 ;
        /*8210*/                   RET.REL.NODEC R2 0x0 ;
"""


def read(text):
    (code,) = sass.read_kernels(text).values()
    return code


def one(text):
    return sass.Instruction(0, text)


class Instructions(unittest.TestCase):
    def check(self, text, writes, reads):
        x = one(text)
        self.assertEqual((sorted(x.writes), sorted(x.reads)), (writes, reads), text)

    def test_registers(self):
        self.check("FFMA R13, R24.reuse, UR17, -R7", [13], [7, 24])
        self.check("FMUL R58, |R161|, 2.8853900432586669922", [58], [161])
        self.check("@!P2 IADD3 R16, P1, R16, R3, RZ", [16], [3, 16])
        self.check("SHFL.BFLY PT, R5, R6, 0x1, 0x1f", [5], [6])
        self.check("LOP3.LUT P1, RZ, R0, 0x1f, RZ, 0xc0, !PT", [], [0])
        self.check("ISETP.GE.AND P0, PT, R7, R8, PT", [], [7, 8])
        self.check("R2UR UR4, R9", [], [9])
        self.check("IMAD.WIDE.U32 R4, R6, UR5, R8", [4, 5], [6, 8, 9])
        self.check("CS2R R24, SRZ", [24, 25], [])
        self.check("F2I.U64.TRUNC R4, R6", [4, 5], [6])
        self.check("I2F.U64.RP R4, R6", [4], [6, 7])
        self.check("LDC.64 R2, c[0x0][0x210]", [2, 3], [])
        self.check("LDG.E.U16 R2, desc[UR4][R6.64+0x8]", [2], [6, 7])
        self.check("LDS.128 R8, [R4+0x10]", [8, 9, 10, 11], [4])
        self.check("LDSM.16.MT88.4 R8, [R4]", [8, 9, 10, 11], [4])
        self.check("LDSM.16.M88.2 R8, [R4]", [8, 9], [4])
        self.check("STG.E.128 desc[UR4][R6.64], R8", [], [6, 7, 8, 9, 10, 11])
        self.check("STS [R4+0x10], R8", [], [4, 8])
        self.check("LDGSTS.E.BYPASS.128 [R14+0x800], desc[UR10][R22.64], !P2", [], [14, 22, 23])
        self.check("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2+URZ], RZ", [], [2])

    def test_products(self):
        x = one("HGMMA.64x128x16.F32.BF16 R24, R184, gdesc[UR12].tnspB, R24, gsb0")
        self.assertEqual((sorted(x.sums), sorted(x.a)), (list(range(24, 88)), [184, 185, 186, 187]))
        x = one("HGMMA.64x256x16.F32 R24, gdesc[UR8].tnspA.tnspB, R24")
        self.assertEqual((len(x.sums), len(x.a), x.registers), (128, 0, x.sums))

    def test_kernels(self):
        kernels = sass.read_kernels(REPLACED + BRANCHES)
        self.assertEqual({name: len(code) for name, code in kernels.items()}, {"queries": 33, "branches": 15})
        self.assertTrue(kernels["queries"][12].guarded)
        self.assertEqual(str(kernels["queries"][12]), "1ee0: BRA 0x6040")


class EarlyAccesses(unittest.TestCase):
    def test_sound_code(self):
        self.assertEqual(sass.find_early_accesses(read(SOUND)), [])

    def check(self, old, new, *errors):
        self.assertEqual(SOUND.count(old), 1, old)
        self.assertEqual(sass.find_early_accesses(read(SOUND.replace(old, new))), list(errors))

    def test_sums_are_read(self):
        """58 is one of the first product, which has ended; 26 one of the second."""
        self.check("FMUL R161, R58,", "FMUL R161, R26,",
                   *(f"1f70: FMUL R161, R26, R10.reuse touches sums of {x}" for x in (
                       "1d60: HGMMA.64x64x16.F32 R24, R124, gdesc[UR20], RZ, !UPT",
                       "1e10: HGMMA.64x64x16.F32 R24, R148, gdesc[UR20], R24, gsb0")))

    def test_a_is_written(self):
        self.check("FMUL R86, R86,", "FMUL R150, R86,", "6040: FMUL R150, R86, R159 writes registers of A of "
                   "1e10: HGMMA.64x64x16.F32 R24, R148, gdesc[UR20], R24, gsb0")
        self.check("FMUL R86, R86,", "FMUL R86, R150,")  # it may be read

    def test_loop_goes_on(self):
        """The last product of a tile still runs at the start of the next."""
        self.check("ULEA UR9, UR6, UR12, 0x3", "F2FP.F16.F32.PACK_AB R190, R1, R2",
                   "1ab0: F2FP.F16.F32.PACK_AB R190, R1, R2 writes registers of A of "
                   "6680: HGMMA.64x64x16.F32 R88, R188, gdesc[UR12].tnspB, R88, gsb0")

    def test_lost_wait(self):
        code = read(SOUND.replace("DEPBAR.LE gsb0, 0x1", "DEPBAR.LE gsb0, 0x2"))
        self.assertRegex(sass.find_early_accesses(code)[0], r"^1f70: FMUL R161, R58, .* touches sums of 1bc0: HGMMA")
        code = read(re.sub("WARPGROUP.DEPBAR.*;", "NOP ;", SOUND))
        self.assertIn("have not been waited for", "\n".join(sass.find_early_accesses(code)))

    def test_products_collide(self):
        self.check("R24, R124,", "R24, R56,", *(
            f"1d60: HGMMA.64x64x16.F32 R24, R56, gdesc[UR20], RZ, !UPT takes A from sums of {x}" for x in (
                "1bc0: HGMMA.64x64x16.F32 R56, R120, gdesc[UR12], RZ, !UPT",
                "1d20: HGMMA.64x64x16.F32 R56, R144, gdesc[UR20], R56, gsb0")))
        code = read(SOUND.replace("HGMMA.64x64x16.F32 R24", "HGMMA.64x64x16.F32 R32"))
        self.assertIn("has sums in registers of", sass.find_early_accesses(code)[0])


class ReplacedOperands(unittest.TestCase):
    def test_rounded_values_in_registers_of_dout(self):
        self.assertEqual(sass.find_early_accesses(read(REPLACED)), [])
        errors = sass.find_replaced_operands(read(REPLACED))
        self.assertEqual(errors[0], "1d60: HGMMA.64x64x16.F32 R24, R124, gdesc[UR20], RZ, !UPT takes A from R124, "
                                    "which F2FP and LDSM write")
        self.assertEqual([re.search(r"from R(\d+)", x)[1] for x in errors], "124 125 126 127 148 149 150 151".split())

    def test_sound_code(self):
        self.assertEqual(sass.find_replaced_operands(read(SOUND)), [])

    def test_weights_go_from_tile_to_tile(self):
        """As in the forward pass: F2FP writes them before the loop and in it."""
        rounded = re.sub(r"LDSM\S+ R(\d+), .*;", lambda m: "\n".join(
            f"/*{0x100 + int(m[1]) + i:04x}*/ F2FP.F16.F32.PACK_AB R{int(m[1]) + i}, R1, R2 ;" for i in range(4)), REPLACED)
        self.assertEqual(sass.find_replaced_operands(read(rounded.replace("PACK_AB R124, R16", "PACK_AB R124, R3"))), [])

    def test_guarded_writer_leaves_the_value(self):
        self.assertEqual(sass.find_replaced_operands(read(SOUND.replace("PACK_AB R164,", "PACK_AB R124,"))),
                         ["1d60: HGMMA.64x64x16.F32 R24, R124, gdesc[UR20], RZ, !UPT takes A from R124, which F2FP "
                          "and LDSM write"])
        always = SOUND.replace("ULEA UR9, UR6, UR12, 0x3", "MOV R124, R3")
        self.assertEqual(sass.find_replaced_operands(read(always)), [])
        self.assertEqual(len(sass.find_replaced_operands(read(always.replace("MOV", "@P1 MOV")))), 1)


class ExcessRegisters(unittest.TestCase):
    def check(self, text, *errors):
        self.assertEqual(sass.find_excess_registers(read(text)), list(errors))

    def test_branches(self):
        self.check(BRANCHES)
        self.check(BRANCHES.replace("R22.64", "R23.64"),
                   "7080: LDGSTS.E.BYPASS.128 [R14+0x800], desc[UR10][R23.64], !P2 uses R24 after "
                   "7070: USETMAXREG.DEALLOC.CTAPOOL 0x18")
        self.check(BRANCHES.replace("R236", "R237"),
                   "0970: LDS.128 R237, [R4] uses R240 after 0940: USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0")

    def test_functions_and_what_follows_them(self):
        limit = "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0"
        self.check(BRANCHES.replace("R200", "R240"), f"8200: MOV R240, R16 uses R240 after 0940: {limit}")
        self.check(BRANCHES.replace("/*09a0*/ ", "/*09a0*/ MOV R241, R1 ;\n/*09b0*/ "),
                   f"09a0: MOV R241, R1 uses R241 after 0940: {limit}")


class Cuobjdump(unittest.TestCase):
    def test_python_package(self):
        with tempfile.TemporaryDirectory() as place:
            folder = os.path.join(place, "nvidia", "cu13", "bin")
            program, disassembler = os.path.join(folder, "cuobjdump"), os.path.join(folder, "nvdisasm")
            os.makedirs(folder)
            for path in (program, disassembler):
                with open(path, "w", encoding="utf-8"):
                    pass
                os.chmod(path, stat.S_IRWXU)
            with mock.patch.dict(os.environ, {"PATH": "/nowhere"}, clear=True), mock.patch.object(sys, "path", [place]):
                self.assertEqual(sass.find_cuobjdump(toolkit="/nowhere"), program)
                os.remove(disassembler)
                self.assertIsNone(sass.find_cuobjdump(toolkit="/nowhere"))


if __name__ == "__main__":
    unittest.main()
