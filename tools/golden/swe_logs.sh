#!/bin/sh
# Makes tests/golden/swe_logs/: what the test runners of SWE-bench's repositories really print.
#
#   tools/golden/swe_logs.sh SRC PYTHON
#
# SRC holds unpacked source archives from PyPI (Django-3.2.25, sympy-1.11.1, requests-2.31.0, seaborn-0.12.2);
# PYTHON is an interpreter with pytest, matplotlib with its tests, seaborn's and requests' needs, mpmath, asgiref,
# pytz and sqlparse. Debian's pytest 7.2.1 makes the pytest logs. Times and paths of the machine are taken out.
set -eu
src=$(realpath "$1") python=$(command -v "$2")
out=$(realpath "$(dirname "$0")/../../tests/golden/swe_logs")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$out/shapes.py" "$work/test_shapes.py"
export PYTHONDONTWRITEBYTECODE=1 COLUMNS=80
clean() { # the machine's own paths and times; a runner's exit status does not matter here
    sed -e "s|$src|/src|g" -e "s|$work|/work|g" -e "s|$(dirname "$(dirname "$python")")|/venv|g" \
        -e 's/in [0-9.]*s/in 0.10s/; s/in [0-9.]* seconds/in 0.10 seconds/; s/ [0-9.]*s =/ 0.10s =/'
}

cd "$work"
{ /usr/bin/python3 -m pytest -rA -p no:cacheprovider test_shapes.py || true; } | clean >"$out/pytest.txt"
{ /usr/bin/python3 -m pytest -v --color=yes -o console_output_style=classic -p no:cacheprovider test_shapes.py ||
    true; } | clean >"$out/pytest_v2.txt"

cd "$src/requests-2.31.0"
{ "$python" -m pytest -rA -p no:cacheprovider tests/test_utils.py -k 'zipped or is_ipv4 or get_auth' || true; } |
    clean >"$out/pytest_options.txt"

cd "$src/seaborn-0.12.2"
{ "$python" -m pytest --no-header -rA -p no:cacheprovider -W ignore tests/test_rcmod.py tests/test_docstrings.py || true; } |
    clean >"$out/seaborn.txt"

cd "$work"
tests=$("$python" -c 'import os, matplotlib; print(os.path.dirname(matplotlib.__file__))')/tests
cp "$tests/test_backend_bases.py" "$out/test_shapes_matplotlib.py" .
{ "$python" -m pytest -rA -p no:cacheprovider -W ignore test_backend_bases.py test_shapes_matplotlib.py \
    -k 'test_button or non_gui' || true; } | clean >"$out/matplotlib.txt"

cd "$src/sympy-1.11.1"
cp "$out/test_shapes_sympy.py" sympy/utilities/tests/test_shapes.py
# What bin/test -C --verbose calls; the archive has no bin/test.
{ "$python" -c 'import sympy; sympy.test("sympy/utilities/tests/test_source.py",
    "sympy/utilities/tests/test_shapes.py", verbose=True, colors=False, subprocess=False)' || true; } 2>&1 | clean | sed '/^cache:/d; /^random seed/d; /^hash random/d' >"$out/sympy.txt"
rm sympy/utilities/tests/test_shapes.py

cd "$src/Django-3.2.25/tests"
mkdir -p shapes
touch shapes/__init__.py
cp "$out/test_shapes_django.py" shapes/tests.py
{ PYTHONPATH=.. "$python" ./runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 shapes version || true; } 2>&1 |
    clean >"$out/django.txt"
rm -r shapes
