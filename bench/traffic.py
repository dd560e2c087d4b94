#!/usr/bin/env python3
"""The traffic table: what each CUDA kernel moves, and what ptxas says of it.

    bench/traffic.py [BUILD] > bench/results/traffic-ops.md     BUILD: build/release

bench_traffic counts sectors and wavefronts from the PTX on small shapes; ptxas gives registers, spills and
shared memory for sm_90a. A spill, or a defect that the emulator reports, is exit 1."""
import json
import re
import subprocess
import sys
from pathlib import Path

# Of a multiprocessor of compute capability 9.0 (CUDA programming guide, table of technical specifications).
THREADS, BLOCKS, REGISTERS, SHARED = 2048, 32, 65536, 228 << 10
SHARED_OF_SYSTEM = 1 << 10  # per block


def ptxas(folder):
    """Symbol of each kernel -> registers, spilled bytes, static shared memory."""
    found = {}
    for ptx in sorted(folder.glob("*.ptx")):
        text = subprocess.run(["ptxas", "-arch=sm_90a", "-v", str(ptx), "-o", "/dev/null"], check=True,
                              capture_output=True, text=True).stderr
        for part in text.split("Compiling entry function '")[1:]:
            number = lambda pattern: int((re.findall(pattern, part) or [0])[0])
            found[part.split("'")[0]] = {
                "registers": number(r"Used (\d+) registers"),
                "spills": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                "shared": number(r"(\d+) bytes smem"),
            }
    return found


def occupancy(threads, registers, shared):
    """Share of a multiprocessor's threads that can be resident."""
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256  # given out in units of 256
    by_registers = REGISTERS // per_warp // warps
    by_shared = SHARED // (shared + SHARED_OF_SYSTEM)
    return min(BLOCKS, THREADS // threads, by_registers, by_shared) * threads / THREADS


def short(symbol):
    """Name and template arguments."""
    text = subprocess.run(["c++filt", symbol], check=True, capture_output=True, text=True).stdout.strip()
    depth, out = 0, ""
    for c in re.sub(r"^void ", "", text):
        if c == "(" and depth == 0:
            break
        depth += (c == "<") - (c == ">")
        out += c
    return out.replace("(bool)", "").replace("(int)", "")


def ratio(a, b):
    return f"{a / b:.2f}" if b else "-"


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    folder = build / "kernels/cuda/ptx"
    counted = subprocess.run([str(build / "bench_traffic"), str(folder)], stdout=subprocess.PIPE, text=True)
    if counted.returncode:
        return 1
    compiled = ptxas(folder)
    print(__doc__.split("\n")[0] + "\n\nMade by `bench/traffic.py`, bf16, sm_90a, small shapes with rows of whole "
          "16-byte chunks (`bench/bench_traffic.c`).\nNothing here was measured on a GPU.\n")
    print("- **loads, stores**: 32-byte sectors that the requests of warps ask for, over the different ones each "
          "launch touches.\n  Above 1 are lines read again, which caches may serve, or sectors used in part.\n"
          "- **shared**: wavefronts over those without bank conflicts. **mma**: tensor-core instructions.\n"
          "- **regs, spill, smem, occ**: registers of a thread, spilled bytes, shared memory of a block, resident "
          "threads of 2048.\n")
    print("| op | kernel | loads | ratio | stores | ratio | shared | ratio | mma | regs | spill | smem | occ |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for line in counted.stdout.splitlines():
        k = json.loads(line)
        c = compiled[k["kernel"]]
        shared = c["shared"] + k["dynamic_bytes"]
        print(f"| {k['op']} | {short(k['kernel'])} | {k['load_sectors']} | "
              f"{ratio(k['load_sectors'], k['load_least'])} | {k['store_sectors']} | "
              f"{ratio(k['store_sectors'], k['store_least'])} | {k['wavefronts']} | "
              f"{ratio(k['wavefronts'], k['ideal'])} | {k['mma']} | {c['registers']} | {c['spills']} | {shared} | "
              f"{occupancy(k['threads'], c['registers'], shared):.0%} |")
    spilled = [s for s, c in compiled.items() if c["spills"]]
    for symbol in spilled:
        print(f"{short(symbol)}: {compiled[symbol]['spills']} bytes spilled", file=sys.stderr)
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
