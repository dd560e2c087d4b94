#!/bin/sh
# Every test that tests/invariants.md names is one that its program runs. Prints what is missing, exits 1 then.
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
named=$(grep -oE '[a-z_]+: [a-z0-9]+(_[a-z0-9]+)+' tests/invariants.md | tr -d ' ')
[ -n "$named" ] || { echo "tests/invariants.md: names no test"; exit 1; }
bad=0
for n in $named; do
    program=tests/test_${n%%:*}.c
    grep -qs "cmocka_unit_test(${n#*:})" "$program" && continue
    echo "tests/invariants.md: $program runs no ${n#*:}"
    bad=1
done
exit $bad
