"""Writes golden vectors in the format that tests/support/golden.h reads."""

import numpy as np

DTYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8"}


def write(path, arrays):
    """arrays: {name: numpy array, torch tensor or text}; names without spaces. A text becomes its bytes (u8)."""
    lines, chunks, offset = ["OTGOLD1"], [], 0
    for name, value in arrays.items():
        if isinstance(value, str):
            value = np.frombuffer(value.encode(), dtype=np.uint8)
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        value = np.ascontiguousarray(value)
        dims = "x".join(str(d) for d in value.shape) or "1"
        lines.append(f"{name} {DTYPES[value.dtype.name]} {dims} {offset}")
        data = value.tobytes()
        data += b"\0" * (-len(data) % 8)
        chunks.append(data)
        offset += len(data)
    with open(path, "wb") as file:
        file.write(("\n".join(lines) + "\n\n").encode())
        file.write(b"".join(chunks))
