"""Writes files as torch.save does. Uses the standard library only."""

import io
import struct
import zipfile

CLASSES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage"}
BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def rebuilt(kind, key, shape, count):
    """A tensor that is its storage."""
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.insert(0, strides[0] * dim)
    dims = [b"(" + b"".join(number(n) for n in numbers) + b"t" for numbers in (shape, strides[:len(shape)])]
    storage = b"(" + text("storage") + b"ctorch\n" + CLASSES[kind].encode() + b"\n" + text(key) + text("cpu") + number(count) + b"tQ"
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + dims[0] + dims[1] + b"\x89" +
            b"ccollections\nOrderedDict\n)RtR")


def pickle_of(tensors):
    """tensors: {name: (dtype, shape, bytes)}; equal bytes objects are one storage."""
    keys, parts = {}, []
    for name, (kind, shape, data) in tensors.items():
        key = keys.setdefault(id(data), str(len(keys)))
        parts.append(text(name) + rebuilt(kind, key, shape, len(data) // BYTES[kind]))
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + b"".join(parts) + b"u}" + text("_metadata") + b"}sb."


def archive_of(pickle, storages):
    """storages: {key: bytes}"""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        def add(name, data):
            archive.writestr(zipfile.ZipInfo("archive/" + name, (1980, 1, 1, 0, 0, 0)), data)
        add("data.pkl", pickle)
        add("byteorder", "little")
        for key, data in storages.items():
            add(f"data/{key}", data)
        add("version", "3\n")
    return file.getvalue()


def torch_file(tensors):
    storages = {id(data): data for _, _, data in tensors.values()}
    return archive_of(pickle_of(tensors), dict(enumerate(storages.values())))
