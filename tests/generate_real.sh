#!/bin/sh
# What SmolLM2-135M-Instruct says through `grove generate`, as text to continue and as an answer in its own
# chat format; greedy, so always the same.
#
#     GR_PARITY=FOLDER tests/generate_real.sh GROVE     FOLDER holds the model (tools/get_model.sh, or
#                                                       tools/golden/parity.py); without it: 77, skipped
set -eu
if [ -z "${GR_PARITY:-}" ]; then
    echo "skipped: GR_PARITY names no folder with SmolLM2-135M-Instruct"
    exit 77
fi

expect() { # expect WANTED WORD..: the words' output has the line WANTED
    wanted=$1
    shift
    said=$("$@" --greedy --tokens 16)
    printf '%s\n' "$said" | grep -qxF -- "$wanted" && return
    printf 'wanted the line `%s` in\n%s\n' "$wanted" "$said" >&2
    exit 1
}
expect ' Paris.' "$1" generate "$GR_PARITY" -p 'The capital of France is'
expect 'The capital of France is Paris.<|im_end|>' \
    "$1" generate "$GR_PARITY" model.chat=auto -p 'What is the capital of France?'
