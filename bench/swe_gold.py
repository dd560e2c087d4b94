"""Gold and useless patches on real instances, each in an environment made for it.

    python bench/swe_gold.py INSTANCES.jsonl MIRRORS PYTHONS ENVIRONMENTS [PART_OF_AN_ID ...] > rows.md

Needs a release build with the target test_swe_gold, and PyPI. MIRRORS holds repositories as owner__name; PYTHONS an interpreter per version, as
pyenv's folder `versions` does; ENVIRONMENTS keeps what is installed: what the official images have where these name
versions, else, for each instance, what the repository itself asks for at that commit. Sandboxes have no network, so the repository is not installed there: its
sources are on PYTHONPATH, and `egg_info` writes the metadata that an installation would.

Prints the rows of test_swe_gold. What cannot be had or made is said on stderr, and the next instance goes on.
"""
import json
import os
import subprocess
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PYTEST_4 = "setuptools_scm<7 iniconfig==2.0.0 toml==0.10.2 atomicwrites==1.4.1 attrs==23.1.0 more-itertools==10.1.0 py==1.11.0 six==1.16.0 wcwidth==0.2.6 packaging==23.1 importlib_metadata==6.8.0"
FLASK = "pytest<8 itsdangerous==2.1.2 Werkzeug==2.3.7"
PLOTS = "pytest matplotlib==3.7.2 numpy==1.25.2 scipy==1.11.2 pytz==2023.3.post1 "

# (repository, versions from, to): Python, packages, and what of the repository's own requirements is wanted: "." or ".[extra]"
RECIPES = [
    ("pallets/flask", "2.0", "2.0", "3.9", FLASK + " Jinja2==3.0.1 click==8.0.1 MarkupSafe==2.1.3", ""),
    ("pallets/flask", "2.1", "2.1", "3.10", FLASK + " Jinja2==3.1.2 click==8.1.3 MarkupSafe==2.1.1", ""),
    ("pallets/flask", "2.2", "9", "3.11", FLASK + " Jinja2==3.1.2 click==8.1.3 MarkupSafe==2.1.1 blinker", ""),
    ("pytest-dev/pytest", "4.4", "4.4", "3.9", PYTEST_4 + " pluggy==0.13.1", ""),
    ("pytest-dev/pytest", "4.5", "4.5", "3.9", PYTEST_4 + " pluggy==0.11.0", ""),
    ("pytest-dev/pytest", "4.6", "5.4", "3.9", PYTEST_4 + " pluggy==0.13.1", ""),
    ("pytest-dev/pytest", "6.0", "7.0", "3.9",
     "setuptools_scm<7 attrs==23.1.0 iniconfig==2.0.0 more-itertools==10.1.0 packaging==23.1 pluggy==0.13.1 py==1.11.0 toml==0.10.2", ""),
    ("pytest-dev/pytest", "7.1", "7.2", "3.9",
     "setuptools_scm<7 attrs==23.1.0 iniconfig==2.0.0 packaging==23.1 pluggy==0.13.1 py==1.11.0 tomli==2.0.1 exceptiongroup==1.1.3", ""),
    ("pytest-dev/pytest", "7.4", "9", "3.9", "setuptools_scm<8 iniconfig==2.0.0 packaging==23.1 pluggy==1.3.0 exceptiongroup==1.1.3 tomli==2.0.1", ""),
    ("marshmallow-code/marshmallow", "2", "3.99", "3.9", "pytest<8 simplejson pytz python-dateutil", ""),
    ("sympy/sympy", "0", "2", "3.9", "mpmath==1.3.0", ""),
    ("psf/requests", "0", "9", "3.9", "pytest<8 pytest-httpbin pytest-mock PySocks httpbin", "."),
    ("mwaskom/seaborn", "0.11", "0.11", "3.9", PLOTS + "pandas==1.3.5", ""),
    ("mwaskom/seaborn", "0.12", "9", "3.9", PLOTS + "pandas==2.0.0 statsmodels", ""),
    ("pylint-dev/pylint", "2", "2.99", "3.9", "pytest<8 pytest-benchmark GitPython", "."),
    ("pylint-dev/pylint", "3", "9", "3.9", "pytest<8 pytest-benchmark GitPython astroid==3.0.0a6", "."),
    ("pylint-dev/astroid", "2", "9", "3.9", "pytest<8", "."),
    ("sqlfluff/sqlfluff", "0", "9", "3.9", "pytest<8 hypothesis oyaml", "."),
    ("pvlib/pvlib-python", "0", "9", "3.9", "pytest<8 pytest-mock pytest-timeout pytest-rerunfailures pytest-remotedata requests-mock", ".[all]"),
    ("pydicom/pydicom", "1.0", "1.3", "3.6", "pytest numpy", ""),
    ("pydicom/pydicom", "1.4", "2.0", "3.8", "pytest<8 numpy", ""),
    ("pydicom/pydicom", "2.1", "2.2", "3.9", "pytest<8 numpy<2", ""),
    ("pydicom/pydicom", "2.3", "2.3", "3.10", "pytest<8 numpy<2", ""),
    ("pydata/xarray", "0", "2025", "3.10",
     "numpy==1.23.0 packaging==23.1 pandas==1.5.3 pytest==7.4.0 python-dateutil==2.8.2 pytz==2023.3 scipy==1.11.1 dask==2022.8.1", ""),
]


def number(version):
    return tuple(int(part) for part in version.split("."))


def recipe_of(x):
    """Its environment's name, Python, packages, and what is wanted of its own requirements."""
    for repo, first, last, python, packages, own in RECIPES:
        if x["repo"] == repo and number(first) <= number(x["version"]) <= number(last):
            return x["instance_id"] if own else f"{repo.replace('/', '__')}-{first}", python, packages, own
    raise LookupError(f"no recipe for {x['repo']} {x['version']}")


def python_of(pythons, version):
    found = [name for name in os.listdir(pythons) if name.startswith(version + ".")]
    if not found:
        raise LookupError(f"no Python {version} in {pythons}")
    return os.path.join(pythons, found[0], "bin", "python" + version)


def run(*command, **more):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)


def make_environment(x, where, mirrors, pythons):
    """A Python with what the instance needs; the file `whole` in it says that it was made to the end."""
    _, version, packages, own = recipe_of(x)
    if os.path.exists(os.path.join(where, "whole")):
        return
    run(python_of(pythons, version), "-m", "venv", "--clear", where)
    pip = [os.path.join(where, "bin", "pip"), "install", "-q", "--disable-pip-version-check"]
    run(*pip, "setuptools==59.6.0" if number(version) < (3, 7) else "setuptools==68.0.0", "wheel")
    if own:  # its requirements, not itself
        sources = os.path.join(where, "sources")
        os.mkdir(sources)
        archive = subprocess.Popen(["git", "-C", os.path.join(mirrors, x["repo"].replace("/", "__")), "archive", x["base_commit"]],
                                   stdout=subprocess.PIPE)
        run("tar", "-x", "-C", sources, stdin=archive.stdout)
        if archive.wait() != 0:
            raise LookupError(f"no commit {x['base_commit']}")
        run(*pip, own.replace(".", sources, 1), *packages.split(), env={**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": x["version"] + ".0"})
        run(os.path.join(where, "bin", "pip"), "uninstall", "-q", "-y", x["repo"].split("/")[1])
    elif packages:
        run(*pip, *packages.split())
    if not os.path.exists(os.path.join(where, "bin", "pytest")):  # pytest's own sources: what an installation of them would put there
        with open(os.path.join(where, "bin", "pytest"), "w") as script:
            script.write('#!/bin/sh\nexec python -m pytest "$@"\n')
        os.chmod(script.name, 0o755)
    open(os.path.join(where, "whole"), "w").close()


# Tests of requests talk to a server; sandboxes have none but what they start themselves.
SERVER = """
export HTTPBIN_URL=http://127.0.0.1:8123/
python -c 'import sys; sys.path[:] = [p for p in sys.path if not p.startswith("/testbed")]; import httpbin; httpbin.app.run(port=8123)' \\
    </dev/null >/dev/null 2>&1 &
for i in $(seq 100); do (: </dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.1; done
"""


def setup_of(x, where):
    """Shell lines before the tests: this Python first, the sources in place of an installation."""
    plot = "export MPLBACKEND=agg MPLCONFIGDIR=/tmp\n" if "seaborn" in x["repo"] else ""
    return (f"{plot}export PATH={where}/bin:$PATH PYTHONPATH=$PWD/src:$PWD SETUPTOOLS_SCM_PRETEND_VERSION={x['version']}.0\n"
            "if [ -f setup.py ]; then python setup.py -q egg_info; else python -c 'import setuptools; setuptools.setup()' -q egg_info; fi "
            "</dev/null >/dev/null 2>&1" + (SERVER if x["repo"] == "psf/requests" else ""))


def main():
    path, mirrors, pythons, environments, *parts = sys.argv[1:]
    instances = {x["instance_id"]: x for x in map(json.loads, open(path))}
    for id_, x in instances.items():
        if parts and not any(part in id_ for part in parts):
            continue
        try:
            where = os.path.join(os.path.abspath(environments), recipe_of(x)[0])
            make_environment(x, where, mirrors, pythons)
        except (LookupError, OSError, subprocess.CalledProcessError) as error:
            print(f"{id_}: {error}", file=sys.stderr)
            continue
        out = subprocess.run(["build/release/test_swe_gold"], cwd=HERE, capture_output=True, text=True, env={
            **os.environ, "GROVE_SWE_INSTANCES": os.path.abspath(path), "GROVE_SWE_MIRRORS": os.path.abspath(mirrors), "GROVE_SWE_ONLY": id_,
            "GROVE_SWE_READ": f"{where} {os.path.abspath(pythons)}", "GROVE_SWE_SETUP": setup_of(x, where)})
        rows = [line for line in out.stdout.splitlines() if line.startswith(f"| {id_} ")]
        print(*rows or [f"| {id_} | not run: {out.stderr.strip() or out.stdout.strip()} |"], sep="\n", flush=True)


if __name__ == "__main__":
    main()
