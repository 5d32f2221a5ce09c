#!/usr/bin/env python3
"""Parquet files as pyarrow writes them, and their rows as JSON lines: tests/golden/parquet/NAME.parquet and NAME.jsonl.

Run: python scripts/golden/parquet.py (needs pyarrow)
"""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/parquet")
WORDS = ["robot", "labor\u00e4", "\U0001f600", "a \"b\"\\\n", "", "watts"]


def text(i):
    return WORDS[i % len(WORDS)] * (1 + i % 3) + str(i // 7)


FLAT = pa.table({
    "question": pa.array([text(i) for i in range(90)]),
    "answer": pa.array([None if i % 5 == 3 else text(i % 11) for i in range(90)]),
    "id": pa.array(range(-5, 85), pa.int64()),
    "small": pa.array([i * 7 - 300 for i in range(90)], pa.int32()),
    "score": pa.array([None if i % 9 == 4 else i / 7 + 0.01 for i in range(90)], pa.float64()),
    "half": pa.array([(2 * i + 1) / 16 for i in range(90)], pa.float32()),
    "good": pa.array([None if i % 7 == 2 else i % 3 == 0 for i in range(90)], pa.bool_()),
    "nothing": pa.array([None] * 90, pa.string()),
    "raw": pa.array([b"\xff\xfe" + bytes([i]) for i in range(90)], pa.binary()),
})
TURN = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int32())])


def turns(i):
    if i % 8 == 5:
        return None
    return [None if (i + k) % 13 == 7 else {"role": ["user", "assistant"][k % 2], "content": None if (i * k) % 7 == 6 else text(i + k),
                                           "weight": None if k % 3 else k} for k in range(i % 5)]


NESTED = pa.table({
    "messages": pa.array([turns(i) for i in range(60)], pa.list_(TURN)),
    "tags": pa.array([None if i % 6 == 4 else [None if k == 1 else text(k) for k in range(i % 4)] for i in range(60)], pa.list_(pa.string())),
    "grid": pa.array([[[j for j in range(k)] if k % 3 else None for k in range(i % 4)] for i in range(60)], pa.list_(pa.list_(pa.int64()))),
    "source": pa.array([None if i % 4 == 1 else {"name": text(i), "turn": None if i % 3 else {"role": "a", "content": "b", "weight": i}}
                        for i in range(60)], pa.struct([("name", pa.string()), ("turn", TURN)])),
    "n": pa.array(range(60), pa.int64()),
})
REQUIRED = FLAT.select(["question", "id"]).slice(0, 20).cast(
    pa.schema([pa.field("question", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False)]))

PLAIN = dict(use_dictionary=False, compression="none", write_statistics=False)
FILES = {
    "plain": (FLAT, PLAIN),
    "dictionary": (FLAT, dict(compression="none", row_group_size=40, write_page_checksum=True)),
    "snappy": (FLAT, dict(compression="snappy", data_page_size=64, write_batch_size=8, dictionary_pagesize_limit=300)),
    "gzip": (FLAT, dict(compression="gzip", data_page_version="2.0", row_group_size=50)),
    "zstd": (FLAT, dict(compression="zstd", data_page_version="2.0", data_page_size=64, write_batch_size=8, use_dictionary=False,
                        write_page_checksum=True)),
    "nested": (NESTED, dict(compression="none", row_group_size=25)),
    "nested_pages": (NESTED, dict(compression="snappy", data_page_size=64, write_batch_size=8, data_page_version="2.0")),
    "nested_old": (NESTED, dict(PLAIN, use_compliant_nested_type=False)),
    "required": (REQUIRED, PLAIN),
    "empty": (REQUIRED.slice(0, 0), PLAIN),
    "delta": (REQUIRED, dict(PLAIN, column_encoding={"question": "DELTA_BYTE_ARRAY", "id": "PLAIN"})),
    "brotli": (REQUIRED, dict(PLAIN, compression="brotli")),
    "seed_flat": (FLAT.select(["question", "answer", "good"]).slice(0, 4), dict(compression="none", write_statistics=False)),
    "seed_nested": (NESTED.select(["messages", "tags"]).slice(1, 4), PLAIN),
    "seed_second": (NESTED.select(["messages", "n"]).slice(1, 4), dict(PLAIN, data_page_version="2.0")),
}

os.makedirs(FOLDER, exist_ok=True)
for name, (table, how) in FILES.items():
    table = table.replace_schema_metadata(None)
    pq.write_table(table, os.path.join(FOLDER, name + ".parquet"), store_schema=False, **how)
    with open(os.path.join(FOLDER, name + ".jsonl"), "w", encoding="utf-8") as file:
        for row in table.to_pylist():
            file.write(json.dumps({key: None if isinstance(value, bytes) else value for key, value in row.items()}) + "\n")
