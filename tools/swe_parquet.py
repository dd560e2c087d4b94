#!/usr/bin/env python3
"""Turns a Parquet file of SWE-bench, SWE-Gym or SWE-smith into the JSON lines that grove reads.

    tools/swe_parquet.py data/test-00000-of-00001.parquet > test.jsonl

One object per row, all columns kept; what JSON has no form for (times, bytes) becomes text. Needs pyarrow
(`pip install pyarrow`), which Debian 12 does not package; nothing else in grove does.
"""
import json
import sys


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: swe_parquet.py FILE.parquet > FILE.jsonl", file=sys.stderr)
        return 1
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        print("swe_parquet.py: needs pyarrow: pip install pyarrow", file=sys.stderr)
        return 1
    try:
        table = parquet.ParquetFile(sys.argv[1])
        for batch in table.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                print(json.dumps(row, default=str, ensure_ascii=False))
    except (OSError, ValueError) as error:
        print(f"swe_parquet.py: {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
