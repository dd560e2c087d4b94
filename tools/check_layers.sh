#!/bin/sh
# Includes point down only, and some calls have one place each. Prints every offence as file:line: reason and
# exits 1 if there was one. An argument names another tree to check.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
if git rev-parse --git-dir >/dev/null 2>&1; then
    all=$(git ls-files -co --exclude-standard)
else
    all=$(find . -type f -not -path './build/*' | sed 's|^\./||')
fi
all=$(for f in $all; do [ -f "$f" ] && printf '%s\n' "$f"; done)
source=$(printf '%s\n' "$all" | grep -E '^(host|kernels|model|envs)/.*\.(c|h|cu|cuh)$')
[ -n "$source" ] || { echo "$PWD: no sources here"; exit 2; }
bad=0

# ---- levels ------------------------------------------------------------------------------------------
# A header of this table includes strictly lower ones; a half level is a header that builds on another of the
# same level. Other headers are private: only files of their folder, or of the one around it, include them.
# Private headers and .c files include their own level and below; without a header of the same name, the
# second table has their level.
# shellcheck disable=SC2086
awk '
BEGIN {
    split("host/base.h 0  host/arena.h 0.5  host/setting.h 0.5  host/hiper.h 0.6  host/json.h 0.5  host/durable.h 0.5 " \
          "kernels/device.h 1  kernels/backend.h 1.5  envs/env.h 1  envs/protocol.h 1.5  envs/sandbox/sandbox.h 1.5  host/config.h 1  host/comm.h 1 " \
          "model/tokenizer.h 1  model/chat.h 1.5  model/half.h 0.5  model/map.h 0.5  model/quant.h 0.5  model/gguf.h 0.7 " \
          "kernels/ops.h 2  kernels/cuda/port.cuh 2  model/config.h 2.2  model/batch.h 2 " \
          "model/weights.h 2.5  model/safetensors.h 2.5  model/folder.h 2.6  model/gguf_weights.h 2.6  model/vocabulary.h 2.7 " \
          "model/transformer.h 3  model/value.h 3  model/objective.h 3.5  model/optimizer.h 3  model/kv.h 3 " \
          "model/engine.h 4  host/tree.h 4.5  host/dialog.h 4.5 " \
          "host/strategy/strategy.h 5  host/scorer/scorer.h 5  host/advantage/advantage.h 5 " \
          "host/strategy/proceed.h 5.3  host/scorer/answer.h 5.1  host/scorer/judge.h 5.2  host/pack.h 5.5 " \
          "host/rollout.h 6  host/critic.h 6  host/demo.h 6  host/record.h 6  host/judge_model.h 6.5  host/train.h 7  host/gpu_plan.h 7  host/command/command.h 9", word, " +")
    for (i = 1; i in word; i += 2) level[word[i]] = word[i + 1]
    n_rules = split("kernels/ 2  envs/ 1  model/engine 4  model/gguf_vocab 1  model/tokenizer/ 1  model/chat/ 1 " \
          "host/config_ 1  host/strategy/ 5  host/scorer/ 5  host/advantage/ 5 " \
          "host/checkpoint 6  host/model_config 6  host/export 6  host/metrics 6  host/run_log 6  host/tree_log 6 " \
          "host/rollout 6  host/run. 7  host/train. 7  host/step. 7  host/describe. 7  host/warmstart. 7 " \
          "host/evaluate. 7  host/progress. 7  host/watchdog. 7  host/command/ 9", rule, " +") / 2
    see["kernels"] = "^(host/(base|arena)\\.h|kernels/)"
    see["model"] = "^(host/(base|arena|json)\\.h|kernels/|model/)"
    see["envs"] = "^(host/(base|arena|setting|json)\\.h|envs/)"
}
function offence(text) { print FILENAME ":" FNR ": " text; bad = 1 }
function folder(f) { sub(/\/[^\/]*$/, "", f); return f }
function own_level(f,   h, i) {
    h = f; sub(/\.[a-z]+$/, ".h", h)
    if (h in level) return int(level[h]) + 0.9
    for (i = 1; i <= n_rules; i++) {
        if (index(f, rule[2 * i - 1]) == 1) return rule[2 * i] + 0.9
    }
    return -1
}
FNR == 1 && !(FILENAME in level) && own_level(FILENAME) < 0 {
    offence("has no level: give it one in tools/check_layers.sh")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, q, "\""); h = q[2]; room = FILENAME; sub(/\/.*/, "", room)
    if (h !~ /\//) offence(h ": includes are written from the root")
    else if ((room in see) && h !~ see[room]) offence(h " is none of the headers that " room "/ may see")
    else if (!(h in level)) {
        if (index(folder(h) "/", folder(FILENAME) "/") != 1) offence(h " is private to " folder(h) "/")
    } else if (FILENAME in level) {
        if (level[h] + 0 >= level[FILENAME] + 0) offence(h " is not below this header")
    } else if (level[h] + 0 > own_level(FILENAME)) offence(h " is above this file")
}
END { exit bad }' $source || bad=1

# ---- calls that have their place -----------------------------------------------------------------------
code=$(mktemp) || exit 2
trap 'rm -f "$code"' EXIT
# shellcheck disable=SC2086
awk '{ sub(/\/\*.*\*\//, ""); sub(/^ \*.*/, ""); sub(/\/\/.*/, ""); print FILENAME ":" FNR ":" $0 }' \
    $source >"$code"
deny() { # deny ROOMS CALL REASON [EXCEPT]; all but REASON are regular expressions
    hits=$(grep -E "^($1)/[^:]*:[0-9]+:(.*[^_A-Za-z])?$2" "$code" | grep -vE "^(${4:-none}):")
    [ -z "$hits" ] && return
    printf '%s\n' "$hits" | sed "s|\$|   <- $3|"
    bad=1
}
any='host|kernels|model|envs'
deny "$any" 'assert\(' 'GR_ASSERT: assert and what it calls vanish under NDEBUG'
# Buffers of files, opened devices and libraries, and the self-check of the page pool are no part of a step.
deny 'kernels|model' '(malloc|calloc|realloc|aligned_alloc)\(' 'memory comes from gr_arena, gr_dev_alloc' \
    '(kernels/cpu/device|kernels/cuda/device|kernels/cpu/onednn|model/safetensors|model/gguf|model/gguf_vocab|model/gguf_weights|model/folder|model/vocabulary|model/weights|model/kv|model/(tokenizer|chat)/[a-z]+)\.cu?'
deny "$any" '(rand|srand|random|drand48|time)\(' 'randomness is gr_philox, the clock gr_now_s'
deny "$any" '(exit|abort)\(' 'errors travel as gr_status, bugs stop at GR_ASSERT' \
    'host/base\.c|host/command/[a-z]+\.c'
deny "$any" '(strcpy|strcat|sprintf|vsprintf|gets)\(' 'writes without a bound'
deny "$any" '#[ \t]*pragma[ \t]+omp.*(atomic|reduction)' 'no sum crosses threads'
deny 'host|model|envs' '#[ \t]*include[ \t]*<(cuda|cublas|nccl)' 'CUDA belongs to kernels/'

# ---- text ------------------------------------------------------------------------------------------------
text=$(printf '%s\n' "$all" | grep -E '\.(c|h|cu|cuh|sh|py|md|txt|json)$' | grep -vE '^tests/(golden|corpus)/')
for f in $text; do
    grep -nwE 'TO''DO|FIX''ME|X''XX' "$f" | sed "s|^|$f:|; s|\$|   <- finish it or file it|"
done | grep . && bad=1
for f in $text; do
    lines=$(wc -l <"$f")
    [ "$lines" -le 900 ] || { echo "$f:900: $lines lines, at most 900"; bad=1; }
done
exit $bad
