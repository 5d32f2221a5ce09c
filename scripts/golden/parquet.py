#!/usr/bin/env python3
"""Parquet files as pyarrow writes them, and their rows as JSON lines: tests/golden/parquet.

Run: python scripts/golden/parquet.py (needs pyarrow)
"""

import gzip
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
    "raw": pa.array([[b"\xff\xfe", b"ab\xff", "\u00e4b".encode()][i % 3] + bytes([i % 26 + 97]) for i in range(90)], pa.binary()),
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

SINGLE = pa.table({"text": pa.array([f"row {i}" for i in range(200)] + ["the same"] * 100)})  # indexes of 8 bits, and a long run

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
    "single": (SINGLE, dict(compression="none")),
    "empty": (REQUIRED.slice(0, 0), PLAIN),
    "delta": (REQUIRED, dict(PLAIN, column_encoding={"question": "DELTA_BYTE_ARRAY", "id": "PLAIN"})),
    "brotli": (REQUIRED, dict(PLAIN, compression="brotli")),
    "seed_flat": (FLAT.select(["question", "answer", "good"]).slice(0, 4), dict(compression="none", write_statistics=False)),
    "seed_nested": (NESTED.select(["messages", "tags"]).slice(1, 4), PLAIN),
    "seed_second": (NESTED.select(["messages", "n"]).slice(1, 4), dict(PLAIN, data_page_version="2.0")),
}



def plain(value):
    """A row as the reader gives it: bytes that are no text are null."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value


# ---- files that pyarrow does not write ----


def varint(n):
    return bytes([n & 127 | (128 if n > 127 else 0)]) + (varint(n >> 7) if n > 127 else b"")


class Long(int):
    """An i64."""


def thrift(value):
    """The type of a value of the compact protocol, and its bytes: int (i32), Long, str, list, or a struct {id: value}."""
    if isinstance(value, int):
        return 6 if isinstance(value, Long) else 5, varint(value << 1)
    if isinstance(value, str):
        return 8, varint(len(value)) + value.encode()
    if isinstance(value, list):
        return 9, bytes([min(len(value), 15) << 4 | thrift(value[0])[0]]) + (varint(len(value)) if len(value) > 14 else b"") + b"".join(thrift(v)[1] for v in value)
    fields = b""
    for key, field in value.items():
        kind, data = thrift(field)
        fields += bytes([kind]) + varint(key << 1) + data
    return 12, fields + b"\0"


def runs(levels, width):
    """Levels of version 1: runs of one value each, or the given bytes, behind their length."""
    data = levels if isinstance(levels, bytes) else b"".join(b"\x02" + bytes([level]) for level in levels) if width else b""
    return len(data).to_bytes(4, "little") + data if width else b""


def paths_of(schema):
    """The names above and of each column."""
    def walk(fields, above):
        field = next(fields)
        path = above + [field[4]]
        if 5 not in field:
            return [path]
        return [p for _ in range(field[5]) for p in walk(fields, path)]
    return [path[1:] for path in walk(iter(schema), [])]


def write_by_hand(name, schema, columns, rows, page_bytes=0):
    """schema: fields of SchemaElement. columns: (repetitions, definitions, texts, greatest levels). rows: as JSON."""
    data, chunks = b"PAR1", []
    for path, (repetitions, definitions, texts, most) in zip(paths_of(schema), columns):
        page = runs(repetitions, most[0]) + runs(definitions, most[1])
        page += b"".join(len(t).to_bytes(4, "little") + t.encode() for t in texts)
        packed = gzip.compress(page, mtime=0) if name.startswith("long") else page
        values = len(rows) if isinstance(definitions, bytes) else len(definitions)
        head = thrift({1: 0, 2: page_bytes or len(page), 3: len(packed), 5: {1: values, 2: 0, 3: 3, 4: 3}})[1]
        size = Long(len(head + packed))
        chunks.append({2: Long(len(data)), 3: {1: 6, 2: [0, 3], 3: path, 4: 2 if packed is not page else 0, 5: Long(values), 6: size, 7: size, 9: Long(len(data))}})
        data += head + packed
    footer = thrift({1: 1, 2: schema, 3: Long(len(rows)), 4: [{1: chunks, 2: Long(len(data)), 3: Long(len(rows))}]})[1]
    with open(os.path.join(FOLDER, name + ".parquet"), "wb") as file:
        file.write(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    if not name.startswith(("bad", "long")):
        write_rows(name, rows)
    if name.startswith("hand"):
        assert pq.read_table(file.name).to_pylist() == rows, name


def write_rows(name, rows):
    with open(os.path.join(FOLDER, name + ".jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def by_hand():
    optional, repeated, logical_list, logical_text = 1, 2, {3: {}}, {1: {}}
    lists = [["a", "b"], [], ["c"]]
    levels = ([0, 1, 0, 0], [1, 1, 0, 1], ["a", "b", "c"], (1, 1))
    deeper = ([0, 1, 0, 0], [2, 2, 1, 2], ["a", "b", "c"], (1, 2))
    text = {1: 6, 6: 0}
    # a repeated column, and a repeated struct, that no list stands for
    write_by_hand("hand_repeated", [{4: "root", 5: 2}, {**text, 3: repeated, 4: "t"}, {3: repeated, 4: "s", 5: 1}, {**text, 3: 0, 4: "u"}],
                  [levels, levels], [{"t": row, "s": [{"u": t} for t in row]} for row in lists])
    # lists of two levels: of a column; of structs, by the names that say that they are no wrappers, or by their two fields
    for name, child in (("hand_array", "array"), ("hand_tuple", "l_tuple")):
        write_by_hand(name, [{4: "root", 5: 2}, {3: optional, 4: "k", 5: 1, 6: 3}, {**text, 3: repeated, 4: "x"},
                             {3: optional, 4: "l", 5: 1, 10: logical_list}, {3: repeated, 4: child, 5: 1}, {1: 6, 3: 0, 4: "u", 10: logical_text}],
                      [deeper, deeper], [{"k": row, "l": [{"u": t} for t in row]} for row in lists])
    write_by_hand("hand_wrapper", [{4: "root", 5: 1}, {3: optional, 4: "l", 5: 1, 10: logical_list}, {3: repeated, 4: "bag", 5: 1},
                                   {**text, 3: 0, 4: "u"}], [deeper], [{"l": row} for row in lists])
    write_by_hand("hand_pairs", [{3: repeated, 4: "root", 5: 1}, {3: optional, 4: "l", 5: 1, 6: 3}, {3: repeated, 4: "list", 5: 2}, {**text, 3: 0, 4: "u"},
                                 {**text, 3: 0, 4: "v"}], [deeper, deeper], [{"l": [{"u": t, "v": t} for t in row]} for row in lists])
    # a group that says list, but whose child is not repeated, is a struct; pyarrow refuses it
    write_by_hand("odd_struct", [{4: "root", 5: 1}, {3: optional, 4: "l", 5: 1, 6: 3}, {**text, 3: optional, 4: "u"}],
                  [([0] * 3, [2, 1, 0], ["a"], (0, 2))], [{"l": {"u": "a"}}, {"l": {"u": None}}, {"l": None}])
    write_by_hand("long_text", [{4: "root", 5: 1}, {**text, 3: optional, 4: "t"}], [([], [1, 1], ["y" * 70000, "z"], (0, 1))], [0, 1])
    write_by_hand("bad_packed", [{4: "root", 5: 1}, {**text, 3: optional, 4: "u"}], [([], b"\x03", [], (0, 1))], [0, 1])
    # refused: a page of more than 256 MB; columns that disagree, in the number of rows, of elements, and of values
    write_by_hand("bad_size", [{4: "root", 5: 1}, {**text, 3: 0, 4: "u"}], [([], [0], ["y"], (0, 0))], [0], (1 << 28) + 1)
    pair = [{4: "root", 5: 1}, {3: repeated, 4: "s", 5: 2}, {**text, 3: 0, 4: "u"}, {**text, 3: 0, 4: "v"}]
    write_by_hand("bad_elements", pair, [levels, ([0, 0, 0], [1, 0, 1], ["a", "c"], (1, 1))], lists)
    write_by_hand("bad_absent", pair, [levels, ([0, 1, 0, 0], [1, 1, 1, 1], ["a", "b", "x", "c"], (1, 1))], lists)
    write_by_hand("bad_values", pair, [levels, ([0, 1, 0, 0], [1, 0, 0, 1], ["a", "c"], (1, 1))], lists)
    write_by_hand("bad_rows", pair, [levels, levels], lists[:2])
    write_by_hand("bad_fewer", pair, [levels, levels], lists + lists)
    write_by_hand("bad_texts", pair, [levels, (*levels[:2], ["a", "b"], (1, 1))], lists)
    write_by_hand("bad_level", pair, [levels, ([0, 3, 0, 0], *levels[1:])], lists)
    write_by_hand("bad_definition", pair, [(levels[0], [1, 2, 0, 1], *levels[2:]), levels], lists)


os.makedirs(FOLDER, exist_ok=True)
by_hand()
for name, (table, how) in FILES.items():
    table = table.replace_schema_metadata(None)
    pq.write_table(table, os.path.join(FOLDER, name + ".parquet"), store_schema=False, **how)
for name, table in {"flat": FLAT, "nested": NESTED, "required": REQUIRED, "single": SINGLE,
                    **{name: FILES[name][0] for name in FILES if name.startswith("seed")}}.items():
    write_rows(name, [{key: plain(value) for key, value in row.items()} for row in table.to_pylist()])
