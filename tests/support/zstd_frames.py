"""Frames of zstd (RFC 8878) without compression, for tests: Python's standard library writes none."""

import struct

BLOCK_BYTES = 1 << 17
RAW, RUN = 0, 1


def block(kind, size, content, is_last):
    return struct.pack("<I", is_last | kind << 1 | size << 3)[:3] + content


def frame(blocks):
    """blocks: (kind, size, content). The frame has a window of 128 KiB, and neither a size nor a checksum."""
    head = b"\x28\xb5\x2f\xfd\x00\x38"
    return head + b"".join(block(*each, i + 1 == len(blocks)) for i, each in enumerate(blocks))


def pack(data):
    parts = [data[at:at + BLOCK_BYTES] for at in range(0, max(len(data), 1), BLOCK_BYTES)]
    return frame([(RAW, len(part), part) for part in parts])


def run_of(byte, count):
    """Unpacks to count times BLOCK_BYTES of this byte."""
    return frame([(RUN, BLOCK_BYTES, byte)] * count)
