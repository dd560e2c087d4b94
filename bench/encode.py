"""Encoding speed of one thread beside the library `tokenizers`, in one run.

    python bench/encode.py build/release/bench_tokenize VOCABULARIES [ROUNDS]

VOCABULARIES is what tools/golden/tokenizer.py real makes. Texts: the licences of a Debian system (prose), the C
sources of this repository (code), and the strings of the tokenizer tests (many scripts, odd white space). The two
alternate and are measured in processor time. The best round of each counts: of grove its second pass over the texts,
whose words it remembers, and beside it the first. Token counts are compared.
"""
import glob
import json
import os
import subprocess
import sys
import time
import urllib.parse

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

HERE = os.path.join(os.path.dirname(__file__), "..")


def documents():
    def read(paths):
        texts = [open(p, errors="ignore").read().replace("\0", "") for p in sorted(paths)]
        return [t[i:i + 4096] for t in texts for i in range(0, len(t), 4096)]

    with open(os.path.join(HERE, "tests/golden/tokenizer/strings.txt")) as f:
        lines = [urllib.parse.unquote(s, errors="ignore").replace("\0", "") for s in f.read().split("\n")]
    scripts = ["".join(lines[i:i + 40]) for i in range(0, len(lines), 40)]
    return {
        "prose": read(glob.glob("/usr/share/common-licenses/*")) * 2,
        "code": read(glob.glob(os.path.join(HERE, "*/*.c")) + glob.glob(os.path.join(HERE, "*/*/*.c"))),
        "scripts": [s for s in scripts if s] * 4,
    }


def main(program, folder, rounds):
    print("| vocabulary | text | MB | tokenizers MB/s | grove MB/s | ratio | grove's first round MB/s |")
    print("|---|---|---|---|---|---|---|")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "tokenizer.json")
        t = Tokenizer.from_file(path)
        for kind, docs in documents().items():
            with open("/tmp/bench_tokenize.bin", "wb") as f:
                f.writelines(d.encode() + b"\0" for d in docs)
            size = sum(len(d.encode()) for d in docs) / 1e6
            theirs, ours, first = [], [], []
            for _ in range(rounds):
                begin = time.process_time()
                n = sum(len(t.encode(d, add_special_tokens=False).ids) for d in docs)
                theirs.append(time.process_time() - begin)
                out = subprocess.run([program, path, "/tmp/bench_tokenize.bin", "2"], capture_output=True, check=True)
                got = [json.loads(s) for s in out.stdout.splitlines()]
                if got[0]["tokens"] != n:
                    sys.exit(f"{name}, {kind}: {got[0]['tokens']} tokens, the library has {n}")
                first.append(got[0]["seconds"])
                ours.append(got[1]["seconds"])
            a, b, c = size / min(theirs), size / min(ours), size / min(first)
            print(f"| {name} | {kind} | {size:.2f} | {a:.2f} | {b:.1f} | {b / a:.1f} | {c:.1f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 5)
