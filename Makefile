# make demo    a short tour on generated inputs
# make test    the tests; make test TESTS="tests/cell tests/test_fit.py" runs some files
#              only; make test PYTEST_ARGS="-m slow" passes arguments to pytest, which
#              then runs once; WORKERS is the number of processes (default: one per
#              core, at most 4), OF_PROGRAMS the files that are searched for tests of
#              XLA's programs (default: TESTS)
# make lint    ruff and mypy
# make docs    the documentation site in build/docs; broken links or references fail
# make clean   remove the environment, builds and caches
#
# Each target creates the environment that it needs. VENV names another folder for
# it, PYTHON the interpreter to create it with.

VENV ?= .venv
PYTHON ?=
TESTS ?=
PYTEST_ARGS ?=
OF_PROGRAMS ?= $(or $(TESTS),tests)
WORKERS ?= auto
DEMO_ARGS ?=

BIN := $(VENV)/bin
# Newer than pyproject.toml once the dependencies in that file are installed, and than
# the sources of the extension modules once they are built.
STAMP := $(VENV)/.edbatch-installed
EXTENSIONS := setup.py $(wildcard edbatch/*/*.pyx)
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
TYPING := build/typing

DOCS_STAMP := $(VENV)/.edbatch-docs-installed

.PHONY: demo test lint typing-tree docs clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/edbatch demo $(DEMO_ARGS)

# -P keeps this folder out of the import path, so the installed package is tested.
# One process per core, at most 4; each takes whole files, because the tests of a file
# share compiled programs. The longest files come first, see tests/longest_files.py.
# Without PYTEST_ARGS there are three runs: the tests whose programs XLA compiles with
# fewer optimizations, the tests of XLA's programs themselves, and the tests that need
# two devices (skipped if TESTS is set). All three run, even if one fails; status 5
# means that a run had no tests.
PYTEST = $(BIN)/python -P -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile \
    --no-loadscope-reorder --timeout 600 --timeout-method thread --durations 25
# XLA's newer CPU emitters take most of its compile time, and LLVM's optimizations most
# of the rest; splitting a small program for LLVM's threads costs more than it saves.
# A flag unknown to XLA would end the process. Recording the Python lines that each
# operation came from takes 4 % of a session's time.
HASTE := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
OTHERS := not slow and not gpu and not devices

test: $(STAMP)
ifeq ($(strip $(PYTEST_ARGS)),)
	@failed=; haste="$$XLA_FLAGS"; \
	for flag in $(HASTE); do \
	    if XLA_FLAGS="$$flag" $(BIN)/python -c 'import jax; jax.devices()' 2>/dev/null; \
	    then haste="$$haste $$flag"; fi; \
	done; \
	of_programs="$$(grep -rl --include='test_*.py' default_flags \
	    $(OF_PROGRAMS))"; \
	of_devices="$$(grep -rl --include='test_*.py' mark.devices tests)"; \
	set -x; \
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0 \
	    XLA_FLAGS="$$haste" $(PYTEST) -m "$(OTHERS) and not default_flags" $(TESTS) \
	    || test $$? = 5 || failed=1; \
	test -z "$$of_programs" \
	    || $(PYTEST) -m "$(OTHERS) and default_flags" $$of_programs \
	    || test $$? = 5 || failed=1; \
	test -n "$(TESTS)" || JAX_NUM_CPU_DEVICES=2 \
	    JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0 \
	    XLA_FLAGS="$$haste" $(PYTEST) -m devices $$of_devices || failed=1; \
	test -z "$$failed"
else
	$(PYTEST) $(PYTEST_ARGS)
endif

lint: $(STAMP) typing-tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(TYPING) && "$(abspath $(BIN))/mypy" --config-file "$(CURDIR)/pyproject.toml" \
	    --cache-dir "$(CURDIR)/.mypy_cache" -p edbatch

# mypy does not follow [tool.setuptools.package-dir], so it gets a folder of links in
# which every package is at its import path.
typing-tree:
	@rm -rf $(TYPING)
	@mkdir -p $(TYPING)/edbatch
	@ln -s "$(CURDIR)"/edbatch/* "$(CURDIR)/envs" "$(CURDIR)/memory_planner" \
	    "$(CURDIR)/policies" $(TYPING)/edbatch/

# Built from scratch each time, so that files of an older build are not used by mistake.
docs: $(DOCS_STAMP)
	@rm -rf build/docs build/doctrees
	$(BIN)/python -P -m sphinx --builder html --fail-on-warning --keep-going --quiet \
	    --jobs auto --doctree-dir build/doctrees docs build/docs
	@echo "The site is in build/docs; open build/docs/index.html"

$(DOCS_STAMP): $(STAMP) pyproject.toml
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch "$@"

$(STAMP): pyproject.toml $(EXTENSIONS)
	@found=; if [ ! -x "$(BIN)/python" ]; then \
	    for candidate in $(CANDIDATES); do \
	        if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	            2>/dev/null; then found="$$candidate"; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "edbatch needs Python 3.11 or newer; tried: $(CANDIDATES)." >&2; \
	        echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$found"; \
	    "$$found" -m venv "$(VENV)"; \
	fi
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(BIN)/python" -m ensurepip
	@echo "Installing edbatch and its dependencies into $(VENV); this can take minutes"
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch "$@"

clean:
	rm -f edbatch/*/*.so $(patsubst %.pyx,%.c,$(wildcard edbatch/*/*.pyx))
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
