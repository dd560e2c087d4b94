#!/bin/sh
# What is to be known on the first day with a GPU: that the CUDA device is right, then how fast it is.
#
#     tools/gpu_check.sh                  builds with nvcc, then every part; about 5 minutes, at most 8
#     tools/gpu_check.sh --plan           the parts with their deadlines, and nothing else
#     tools/gpu_check.sh --device cpu     another device; cpu and simt try out the script itself
#
# Each part has a deadline, so that one that hangs costs its own time only. Output of the parts, JSON lines of the benchmarks
# and the table stay in build/gpu_check/. Exit status: 0 all passed, 1 a part failed, 77 no such device here.
#
# shellcheck disable=SC2317 # parts are called by name
set -eu
cd "$(dirname "$0")/.."
build=build/release
out=build/gpu_check
device=cuda:0
small="repeats=1 flush_mb=0 n=40 leaves=3 prefix=20 v=500 r=30 top_k=5" # shapes for slow tools

# name, seconds, what it shows
parts() {
    cat <<'PARTS'
build      190 every source compiles for sm_80 and sm_90a, no register spills
ops         50 the op tests on the GPU: against fp64, bit for bit between batches, and pages against trees
memcheck    25 compute-sanitizer, every kernel on small shapes: bounds and misaligned accesses
racecheck   35 compute-sanitizer: shared memory without a barrier
initcheck   25 compute-sanitizer: memory read before it is written
exact       50 training twice from one seed: parity exactly 0, the same trees to the last byte
ceilings    20 PyTorch's copy and bf16 product on this GPU, what the others are measured against
kernels     40 each op of kernels/ops.h, checked, then timed with cold caches
decode      30 tokens per second of a 135M model: single paths, batches, leaves of one prefix
step        15 one training step of a 135M model, on a tree of eight leaves
PARTS
}

case ${1:-} in
--plan)
    parts
    parts | awk '{ sum += $2 } END { print "at most " sum " seconds" }'
    exit 0
    ;;
--device) device=${2:?usage: tools/gpu_check.sh --device NAME} ;;
'') ;;
*)
    echo "usage: tools/gpu_check.sh [--plan | --device NAME]" >&2
    exit 1
    ;;
esac

# ---- the parts ---------------------------------------------------------------------------------------

part_build() {
    cmake --preset release -DGR_WERROR=ON -DGR_CUDA=ON
    cmake --build --preset release --target all benches
}

part_ops() {
    for t in device ops attention head; do
        "$build/cuda_$t" || return $?
    done
}

# What compute-sanitizer finds becomes its exit status.
sanitize() {
    command -v compute-sanitizer || return 77
    # shellcheck disable=SC2086 # the words of $small
    compute-sanitizer --tool "$1" --error-exitcode 3 "$build/bench" op all device="$device" dtype=bf16 $small
}
part_memcheck() { sanitize memcheck; }
part_racecheck() { sanitize racecheck; }
part_initcheck() { sanitize initcheck; }

part_exact() {
    for name in one two; do
        "$build/grove" train configs/frozenlake_flat.json device.name="$device" model.dtype=bf16 \
            run.dir="$out/runs" run.name="$name" run.steps=2 run.resume=false warmstart.steps=5 \
            warmstart.batch=8 eval.tasks=4 budget.turns=0 budget.tokens=0 rollout.tokens_per_step=0 \
            rollout.groups_per_step=4 loss.count_idle_groups=true log.trees_every=1 || return $?
    done
    cmp "$out/runs/one/trees.jsonl" "$out/runs/two/trees.jsonl" || return 1
    python3 - "$out/runs/one/metrics.jsonl" <<'PYTHON'
import json
import sys

key = "parity/max_abs_dlogp"
parity = [step[key] for step in map(json.loads, open(sys.argv[1])) if step.get(key) is not None]
print("parity:", parity)
sys.exit(not parity or any(parity))
PYTHON
}

# Medians by the GPU's own clock, on random data.
part_ceilings() {
    python3 - >"$out/ceilings.json" <<'PYTHON'
import json
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    sys.exit(77)


def median(run, repeats=20):
    times = []
    for i in range(repeats + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[repeats // 2]


x = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
copy = 2 * x.numel() * 2 / median(lambda: y.copy_(x))
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
product = 2 * 8192**3 / median(lambda: torch.matmul(a, b))
print(json.dumps({"bench": "ceilings", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                  "copy_gb_s": round(copy * 1e-9, 1), "matmul_tflop_s": round(product * 1e-12, 1)}))
PYTHON
}

part_kernels() { "$build/bench" op all device="$device" dtype=bf16 >"$out/kernels.json"; }
part_decode() { "$build/bench" decode device="$device" dtype=bf16 >"$out/decode.json"; }
part_step() { "$build/bench" step device="$device" dtype=bf16 fork=500 >"$out/step.json"; }

# ---- one after another -------------------------------------------------------------------------------

# A part as a program of its own, so that `timeout` can end it.
if [ -n "${GPU_CHECK_PART:-}" ]; then
    "part_$GPU_CHECK_PART"
    exit
fi

case $device in
cuda:*)
    if [ ! -e /dev/nvidiactl ] && ! command -v nvidia-smi >/dev/null; then
        echo "tools/gpu_check.sh: this machine has no NVIDIA driver" >&2
        exit 77
    fi
    ;;
esac
rm -rf "$out"
mkdir -p "$out"
failed=0
: >"$out/table"
while read -r name seconds what; do
    begin=$(date +%s)
    status=0
    GPU_CHECK_PART=$name timeout -k 5 "$seconds" "$0" --device "$device" >"$out/$name.log" 2>&1 </dev/null || status=$?
    case $status in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result=late ;;
    *) result=failed ;;
    esac
    [ $result = passed ] || [ $result = skipped ] || failed=1
    printf '%-10s %-8s %4d s  %s\n' "$name" $result $(($(date +%s) - begin)) "$what" | tee -a "$out/table"
    if [ $result = failed ] || [ $result = late ]; then tail -n 3 "$out/$name.log" | sed 's/^/    /'; fi
    [ "$name" != build ] || [ $result = passed ] || exit 1
    # Without the device nothing else can run; grove's own line says what is missing.
    if [ "$name" = build ] && ! "$build/grove" train configs/frozenlake_flat.json --dry-run \
        device.name="$device" >"$out/device.log" 2>&1; then
        tail -n 1 "$out/device.log" >&2
        exit 77
    fi
done <<PARTS
$(parts)
PARTS
cat "$out"/*.json 2>/dev/null || true
exit $failed
