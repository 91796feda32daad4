# make demo    superoptimize one program and print the result
# make test    the default, notebook and browser tests      make test-gpu, make test-slow   the other groups
# make test-fast   two minutes of the default tests, for every save
# make docs    the pages, in docs/_build/html               make lint    ruff and mypy
# make clean   remove .venv and caches
#
# PYTHON       the interpreter that .venv is made from (3.11 or newer)
# TORCH        the torch requirement; on machines without nvidia-smi its CPU build is installed
# CPU_INDEX    where pip looks for that build when the configured indexes do not have it

PYTHON    ?= python3
TORCH     ?= torch==2.13.0
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
CXX_NAME   = $(or $(MIRAGE_NB_CXX),g++)

VENV   := .venv
BIN    := $(VENV)/bin
# Python compiles what is imported, in the processes that run side by side; pip would compile all of it one by one.
# Quiet twice: the newest pip shows what setuptools says of folders that hold data; mistakes are shown all the same.
PIP    := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile
PYTEST := $(BIN)/python -m pytest

# Workers and commands start in half the time where bytecode is kept; `clean` removes it.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: demo docs test test-fast test-default test-notebook test-browser test-gpu test-slow lint clean install needs-cxx needs-chromium

demo: install needs-cxx
	$(BIN)/python -m mirage_nb superoptimize --workload rmsnorm_fig3

# One group after the other, also under make -j: timings and memory limits assume it.
test: install
	$(MAKE) --no-print-directory test-default
	$(MAKE) --no-print-directory test-notebook
	$(MAKE) --no-print-directory test-browser

# A file's tests stay together: they share what they made. One that hangs fails and says where; none takes a tenth of
# that time.
SIDE_BY_SIDE = --numprocesses 2 --dist loadfile --no-loadscope-reorder --timeout 600

test-default: install needs-cxx
	$(PYTEST) $(SIDE_BY_SIDE)

test-fast: install needs-cxx
	$(PYTEST) $(SIDE_BY_SIDE) --fast

# Those that take half of the time begin first.
LONG = $(patsubst %,notebooks/%.ipynb,05_flash_attention 08_scale_out 02_search)
NOTEBOOKS = $(LONG) $(filter-out $(LONG),$(wildcard notebooks/*.ipynb))

test-notebook: install needs-cxx
	$(PYTEST) -p nbval $(SIDE_BY_SIDE) \
		--nbval-lax --nbval-current-env --nbval-sanitize-with notebooks/sanitize.cfg $(NOTEBOOKS)

test-browser: install needs-cxx needs-chromium
	$(PYTEST) $(SIDE_BY_SIDE) -m "browser and not gpu and not slow" tests/browser

test-gpu: install
	$(PYTEST) -m gpu

test-slow: install needs-cxx
	$(PYTEST) --hypothesis-profile whole -m "(slow or hypothesis) and not gpu"

# Runs every notebook; what did not change since the last build is taken from its cache.
docs: $(VENV)/docs needs-cxx
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

lint: install
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist docs/_build docs/notebooks docs/gallery.md *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: three stamps, each newer than what it was made from ---

install: $(VENV)/installed

# The pip that comes with an interpreter takes three times as long as the newest to decide what to install.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { echo "venv is missing; Debian package: python3-venv" >&2; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@touch $@

# torch comes first and by itself, so that nothing later replaces it with the CUDA build of several gigabytes.
# The local version +cpu exists only on indexes that carry CPU builds, so asking for it costs nothing elsewhere.
$(VENV)/torch: $(VENV)/created
	@if command -v nvidia-smi >/dev/null; then \
		$(PIP) "$(TORCH)"; \
	elif ! $(PIP) "$(TORCH)+cpu" 2>/dev/null; then \
		echo "no CPU build of $(TORCH) on the configured indexes; trying $(CPU_INDEX)"; \
		$(PIP) --index-url $(CPU_INDEX) "$(TORCH)" || { \
			echo "no CPU build of torch within reach; name an index that has one: make CPU_INDEX=URL" >&2; exit 1; }; \
	fi
	@touch $@

# Meanwhile the other core compiles what the tests import of torch: half of all that they import.
$(VENV)/installed: pyproject.toml $(VENV)/torch
	@$(BIN)/python -c 'import torch._dynamo, torch._inductor.compile_fx' >/dev/null 2>&1 & \
		$(PIP) --editable '.[dev,torch]'; made=$$?; wait; exit $$made
	@touch $@

$(VENV)/docs: $(VENV)/installed
	$(PIP) --editable '.[docs]'
	@touch $@

# --- what pip cannot install ---

needs-cxx:
	@command -v $(CXX_NAME) >/dev/null || \
		{ echo "$(CXX_NAME) is missing, and the tests run generated kernels with it; Debian package: g++" >&2; exit 1; }

needs-chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ echo "no Chromium, and the browser tests drive it; Debian package: chromium" >&2; exit 1; }
