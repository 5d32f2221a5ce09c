#!/usr/bin/env python3
"""Golden files of torch.save: tests/golden/torch_files.bin. Of each case that torch.load(weights_only=True) reads as a dict of
tensors: the file, the names, and the values in fp32 of the tensors that can be trained. Of the others, the file alone.
Run: python scripts/golden/torch_files.py (needs torch)
"""

import collections
import io
import os

import torch

from goldenfile import write

arrays = {}
READABLE = (torch.float32, torch.bfloat16, torch.float16)


def save(case, value, **options):
    # The name of the file decides the folder in the archive.
    path = os.path.join("/tmp", f"{case}.bin")
    torch.save(value, path, **options)
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    arrays[f"{case}.file"] = data
    return data


def accept(case, tensors):
    found = torch.load(io.BytesIO(save(case, tensors)), weights_only=True)
    assert list(found) == list(tensors)
    arrays[f"{case}.names"] = "\n".join(sorted(found))
    for name, tensor in found.items():
        if tensor.dtype in READABLE and tensor.is_contiguous():
            arrays[f"{case}/{name}"] = tensor.detach().float()


def main():
    torch.manual_seed(1)
    x = torch.randn(4, 6)
    accept("plain", {"f32": x, "bf16": x.bfloat16(), "f16": x.half(), "scalar": torch.tensor(2.5), "empty": x[:0]})
    accept("tied", collections.OrderedDict([("embed.weight", x), ("lm_head.weight", x), ("same.storage", x.view(6, 4))]))
    accept("views", {"rows": x[1:3], "row": x[2], "unit": x[:1, :].transpose(0, 1)[:, :1].t(), "columns": x[:, 1:3],
                     "turned": x.t(), "expanded": x[0].expand(3, 6), "part": x.view(-1)[5:9]})
    accept("parameters", {"p": torch.nn.Parameter(x), "frozen": torch.nn.Parameter(x.half(), requires_grad=False)})
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.BatchNorm1d(2))
    accept("module", module.state_dict())
    accept("kinds", {str(dtype)[6:]: torch.ones(3, dtype=dtype) for dtype in (
        torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64)})
    save("legacy", {"a": x}, _use_new_zipfile_serialization=False)
    save("protocol4", {"a": x}, pickle_protocol=4)
    save("nested", {"model": {"a": x}, "step": 3})
    save("object", module[0])
    save("negated", {"n": torch.complex(x, x).conj().imag})
    save("float8", {"a": x.to(torch.float8_e4m3fn)})

    class Code:
        def __reduce__(self):
            return print, ("this must not be printed",)
    save("code", {"a": x, "b": Code()})
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), script)
    arrays["script.file"] = script.getvalue()
    write(os.path.join(os.path.dirname(__file__), "../../tests/golden/torch_files.bin"),
          {name: value if torch.is_tensor(value) or isinstance(value, str) else torch.frombuffer(
              bytearray(value), dtype=torch.uint8) for name, value in arrays.items()})


if __name__ == "__main__":
    main()
