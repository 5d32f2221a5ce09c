"""Reads machine code of compute capability 9.0 (SASS, as cuobjdump prints it) and finds instructions that break the
rules of asynchronous products.

A wgmma is an HGMMA. It runs after its issue: it reads the registers of A and changes its SUMS (accumulators) until a
WARPGROUP.DEPBAR that waits for its GROUP. An HGMMA with the operand gsb0 ends a group. `DEPBAR.LE gsb0, N` waits for all
groups but the N newest. The hardware does not check any of this, and ptxas has been wrong: see find_replaced_operands.

Each find_... function gets the instructions of one kernel and returns a list of sentences, one for each error. They
follow all branches, also those that no run takes together.
"""

import glob
import os
import re
import shutil
import sys


def find_cuobjdump(toolkit="/usr/local/cuda"):
    """The program of the toolkit, of PATH, or of the Python package nvidia-cuda-cuobjdump. It starts nvdisasm, which is a
    Python package of its own; so it counts only with nvdisasm beside it. None if there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + [toolkit]
    folders = [os.path.join(home, "bin") for home in homes if home] + os.environ.get("PATH", "").split(os.pathsep)
    for place in filter(None, sys.path):
        folders += sorted(glob.glob(os.path.join(glob.escape(place), "nvidia", "*", "bin")))
    found = (shutil.which("cuobjdump", path=folder) for folder in folders if folder and shutil.which("nvdisasm", path=folder))
    return next(filter(None, found), None)


# ---- instructions ----

# The first operand of these is no register that they write.
WITHOUT_RESULT = re.compile(r"ST|RED|LDGSTS|LDGDEPBAR|[A-Z]*SETP|R2UR|R2P|BRA|BSSY|BSYNC|CALL|RET|EXIT|BAR|BPT|NOP|"
                            r"DEPBAR|WARP|SYNCS|NANOSLEEP|MEMBAR|FENCE|END|USETMAXREG|YIELD")


def several(first, count):
    return frozenset(range(first, first + count))


class Instruction:
    """reads, writes: numbers of registers of a thread. An HGMMA has `sums` and `a` instead."""

    def __init__(self, address, text):
        guard, self.text = re.fullmatch(r"(@!?U?P\w+ )?\s*(.*)", text).groups()
        self.address, self.guarded = address, bool(guard)
        self.op, _, rest = self.text.partition(" ")
        self.operands = [x.strip() for x in rest.split(",")] if rest else []
        self.sums = self.a = self.reads = self.writes = frozenset()
        if self.kind == "HGMMA":
            columns = int(re.match(r"HGMMA\.64x(\d+)x16\.F32", self.op)[1])
            self.sums = several(self.register(0), columns // 2)
            if self.register(1) is not None:
                self.a = several(self.register(1), 4)
            return
        result = self.result()
        if result is not None:
            self.writes = several(self.register(result), self.width(result))
        self.reads = frozenset().union(*(self.read(i) for i in range(len(self.operands)) if i != result))

    @property
    def kind(self):
        return self.op.split(".")[0]

    @property
    def registers(self):
        return self.reads | self.writes | self.sums | self.a

    def register(self, i):
        match = re.match(r"R(\d+)\b", self.operands[i])
        return int(match[1]) if match else None

    def result(self):
        """The operand that the instruction writes: the first one that is no predicate."""
        i = next((i for i, x in enumerate(self.operands) if not re.fullmatch(r"U?P[0-9T]", x)), None)
        if i is None or WITHOUT_RESULT.match(self.op) or self.register(i) is None:
            return None
        return i

    def width(self, i):
        """How many registers the operand has."""
        if matrices := re.match(r"LDSM\.\S*MT?88(?:\.(\d))?$", self.op):
            return int(matrices[1] or 1)
        if size := re.match(r"(?:LD|ST|ATOM)\w*\.(?:\S*\.)?(64|128)\b", self.op):
            return int(size[1]) // 32
        is_result = i == self.result()
        pair = {"IMAD.WIDE": is_result or i == len(self.operands) - 1, "CS2R": is_result and self.op != "CS2R.32",
                "I2F.U64": not is_result, "I2F.S64": not is_result, "F2I.U64": is_result, "F2I.S64": is_result}
        return 2 if any(value for op, value in pair.items() if self.op.startswith(op)) else 1

    def read(self, i):
        """The registers of an operand: the address or the value."""
        found = frozenset()
        for first, pair in re.findall(r"(?<!\w)R(\d+)\b(\.64)?", self.operands[i]):
            is_address = "[" in self.operands[i]
            found |= several(int(first), 2 if pair else 1 if is_address else self.width(i))
        return found

    def __str__(self):
        return f"{self.address:04x}: {self.text}"


def read_kernels(sass):
    """The instructions of each kernel, by its name."""
    found = {}
    for line in sass.split("\n"):
        if match := re.search(r"Function : (\S+)", line):
            code = found.setdefault(match[1], [])
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+([^;]*);", line):
            code.append(Instruction(int(match[1], 16), match[2].strip()))
    return found


# ---- the ways through a kernel ----

def find_successors(code):
    """For each instruction, the places of those that may follow. A return goes to all calls of its function."""
    place = {x.address: i for i, x in enumerate(code)}
    successors, calls = [], {}
    for i, x in enumerate(code):
        following = [i + 1] if i + 1 < len(code) else []
        if x.kind in ("BRA", "CALL"):
            to = place[int(x.operands[-1], 16)]
            is_conditional = x.guarded or len(x.operands) > 1
            if x.kind == "CALL":
                calls.setdefault(to, []).append(i + 1)
            following = [to] + (following if is_conditional else [])
        elif x.kind in ("EXIT", "RET") and not x.guarded:
            following = []
        successors.append(following)
    for function, sites in calls.items():
        body = reach([function], lambda i: [i + 1] if code[i].kind == "CALL" else successors[i])
        for i in body:
            if code[i].kind == "RET":
                successors[i] = successors[i] + sites
    return successors


def reach(starts, successors):
    """Everything that successors(x) leads to, and the starts."""
    seen, left = set(starts), list(starts)
    while left:
        for other in successors(left.pop()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return seen


# ---- no access before the wait ----

MOST_GROUPS = 8  # in flight: more means that a loop never waits


def complain(x, running):
    """What an instruction does wrong while an HGMMA runs, or None."""
    if x.kind != "HGMMA":
        if (x.reads | x.writes) & running.sums:
            return f"{x} touches sums of {running}"
        return f"{x} writes registers of A of {running}" if x.writes & running.a else None
    if x.a & running.sums:
        return f"{x} takes A from sums of {running}"
    if x.sums & running.a or (x.sums & running.sums and x.sums != running.sums):
        return f"{x} has sums in registers of {running}"
    return None


def find_early_accesses(code):
    """Between an HGMMA and the wait for its group, nobody but other HGMMAs may touch its sums, and nobody may write its
    registers of A. A loop is walked again with the HGMMAs that run at its end."""
    errors = set()

    def follow(state):
        i, groups, newest = state
        x = code[i]
        for running in frozenset().union(newest, *groups):
            if error := complain(x, code[running]):
                errors.add(error)
        if x.kind == "HGMMA":
            newest |= {i}
            if "gsb0" in x.operands:
                groups, newest = groups + (newest,), frozenset()
        elif x.op == "WARPGROUP.DEPBAR.LE":
            unfinished = int(x.operands[1], 16)
            groups = groups[-unfinished:] if unfinished else ()
        if len(groups) > MOST_GROUPS:
            errors.add(f"{x} is the end of a group while {MOST_GROUPS} others have not been waited for")
            return []
        return [(following, groups, newest) for following in successors[i]]

    successors = find_successors(code)
    reach([(0, (), frozenset())], follow)
    return sorted(errors)


# ---- operands that outlive their use ----

def find_replaced_operands(code):
    """An HGMMA whose registers of A were written by instructions of different kinds, depending on the way to it.

    ptxas of CUDA 13.0 put the rounded ds (F2FP) of attention's backward pass into registers of dout (LDSM), which the
    HGMMA of the next tile still read. So its first tile was right and all others were wrong. Registers that pass values
    from tile to tile legitimately, such as the weights of the forward pass, are written by the same kind of instruction
    before the loop and in it. LIMIT: the same error with two instructions of one kind is not found."""
    facts = {}  # (register, kind) -> a bit

    def bit(register, kind):
        return 1 << facts.setdefault((register, kind), len(facts))

    operands = frozenset().union(*(x.a for x in code))
    made = [{r: bit(r, x.kind) for r in (x.writes | x.sums) & operands} for x in code]
    of_register = {r: sum(1 << n for (other, _), n in facts.items() if other == r) for r in operands}
    before, successors, left = [None] * len(code), find_successors(code), [0]
    before[0] = 0
    while left:
        i = left.pop()
        known = before[i]
        for r, fact in made[i].items():
            known = (known if code[i].guarded else known & ~of_register[r]) | fact
        for following in successors[i]:
            if before[following] is None or known & ~before[following]:
                before[following] = (before[following] or 0) | known
                left.append(following)
    errors = []
    for i, x in enumerate(code):
        for r in sorted(x.a) if before[i] is not None else []:
            kinds = sorted(kind for (other, kind), n in facts.items() if other == r and before[i] >> n & 1)
            if len(kinds) > 1:
                errors.append(f"{x} takes A from R{r}, which {' and '.join(kinds)} write")
    return errors


# ---- registers ----

def find_excess_registers(code):
    """After a USETMAXREG, a thread has as many registers as it says."""
    errors, successors = [], find_successors(code)
    for start, change in enumerate(code):
        if change.kind != "USETMAXREG":
            continue
        limit = int(change.operands[-1], 16)
        for i in sorted(reach([start], successors.__getitem__)):
            if max(code[i].registers, default=0) >= limit:
                errors.append(f"{code[i]} uses R{max(code[i].registers)} after {change}")
    return errors
