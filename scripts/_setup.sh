# Shared by the scripts in this folder, which source it: finds Python, keeps a virtual environment, installs
# what is needed.
#
# setup dev    everything for checks, tests and benchmarks
# setup run    only what the store itself needs
# setup NAME   that, and the extra of that name in pyproject.toml
#
# The environment is .venv in the repository, or the folder that TIERLOG_VENV names. It is installed into only
# when the parts of pyproject.toml that matter for it changed, so that a second run needs no network. Sets
# ROOT and PYTHON; changes to ROOT. INSTALL_FAILED, if it is set, is what to say when an installation fails.

set -eu

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd -- "$ROOT"
VENV=${TIERLOG_VENV:-$ROOT/.venv}
case $VENV in
    /*) ;;
    *) VENV=$ROOT/$VENV ;;
esac
PYTHON=$VENV/bin/python

fail() {
    printf '%s: %s\n' "$(basename -- "$0")" "$1" >&2
    exit 1
}

# Ctrl-C ends the script when the running command has ended.
trap 'exit 130' INT

# Runs a program that takes a moment; on Ctrl-C it would print a traceback.
helper() {
    (
        trap '' INT
        exec "$@"
    )
}

# Prints what a command prints only if it fails, and not on Ctrl-C.
quietly() {
    lines=$("$@" 2>&1) || {
        printf '%s\n' "$lines" >&2
        return 1
    }
}

# Prints the first Python that is new enough and can make environments.
find_python() {
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no suitable Python found. Tried python3, python3.13, python3.12, python3.11, python3.14 and python \
on PATH: one of them must be Python 3.11 or newer with its venv and ensurepip modules (on Debian and Ubuntu: \
the package python3-venv)."
}

has_python() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the environment's Python; before there is one, another that is new enough.
any_python() {
    if has_python; then printf '%s\n' "$PYTHON"; else find_python; fi
}

make_environment() {
    ! has_python || return 0
    if [ -e "$VENV" ] && [ ! -f "$VENV/pyvenv.cfg" ] && [ -n "$(ls -A -- "$VENV" 2>/dev/null)" ]; then
        fail "$VENV exists and is no virtual environment; remove it or name another folder with TIERLOG_VENV."
    fi
    base=$(find_python)
    printf 'making the environment %s\n' "$VENV"
    quietly "$base" -m venv --clear "$VENV" ||
        fail "$base could not make a virtual environment in $VENV; the lines above say why."
}

# What an installation depends on: when this text changes, it is done again.
fingerprint() {
    helper "$PYTHON" -c '
import json, sys, tomllib
with open("pyproject.toml", "rb") as stream:
    tables = tomllib.load(stream)
print(json.dumps([sys.argv[1:], sys.version, tables["build-system"], tables["project"], tables["tool"]["setuptools"]]))
' "$ROOT" "$1"
}

pip() {
    "$PYTHON" -m pip --disable-pip-version-check "$@"
}

# Editable installs from pyproject.toml alone need pip 21.3.
check_pip() {
    pip --version >/dev/null 2>&1 || quietly "$PYTHON" -m ensurepip ||
        fail "$VENV has no pip and none could be added to it."
    new_enough='import pip, sys; sys.exit(tuple(int(part) for part in pip.__version__.split(".")[:2]) < (21, 3))'
    "$PYTHON" -c "$new_enough" || quietly pip install --quiet --upgrade 'pip>=21.3' ||
        fail "the pip in $VENV is older than 21.3 and could not be upgraded."
}

install() {
    check_pip
    printf 'installing tierlog (%s) into %s\n' "$1" "$VENV"
    target=.
    [ "$1" = run ] || target=".[$1]"
    # With a new enough setuptools at hand nothing has to be fetched to build.
    isolation=''
    "$PYTHON" -c 'import setuptools, sys; sys.exit(int(setuptools.__version__.split(".")[0]) < 77)' 2>/dev/null &&
        isolation=--no-build-isolation
    # shellcheck disable=SC2086  # empty means no argument
    quietly pip install --quiet $isolation --editable "$target" ||
        fail "${INSTALL_FAILED:-the installation failed; the lines above say why. It needs a reachable package index, or packages that are \
installed already.}"
}

# Whether the environment holds what the named installation would put there.
current() {
    [ -f "$VENV/.tierlog-$1" ] && [ "$(cat -- "$VENV/.tierlog-$1")" = "$(fingerprint "$1")" ]
}

setup() {
    make_environment
    # An environment for development can do all that one for running can, and every one can run the store.
    current "$1" || current dev || { [ "$1" = run ] && current spark; } || {
        install "$1"
        fingerprint "$1" >"$VENV/.tierlog-$1"
    }
    list_for_spark
}

# Spark lists the folders of the path to find data sources; it does not see packages that an editable
# installation imports by a hook.
list_for_spark() {
    packages=$(helper "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    [ -e "$packages/pyspark_tierlog.pth" ] ||
        printf '%s\n' "$ROOT/spark_bridge/discovery" >"$packages/pyspark_tierlog.pth"
}

# Type checkers find the package `tierlog`, which is the repository's root folder, through this link.
link_for_type_checkers() {
    mkdir -p .typecheck
    [ -e .typecheck/tierlog ] || ln -s .. .typecheck/tierlog
}
