# The book in two commands: `make book` and `make test`. Both need Python 3.11 or newer, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY  := $(VENV)/.installed
MODELS := $(VENV)/.fetched
PY     := $(BIN)/python
PEERS  := .venv-benchmarks
PEERPY := $(PEERS)/$(notdir $(BIN))/python

.PHONY: help book chapter serve notebooks screenshots gpt2-mini test mutants browser benchmark lint format lock clean distclean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(READY) $(MODELS)  ## build the whole site, every figure recomputed where something changed
	@$(PY) -m attnorm.book build

chapter: $(READY)  ## build one chapter alone: make chapter C=9 (number or file name)
	@test -n "$(C)" || { echo "say which chapter: make chapter C=9"; exit 2; }
	@$(PY) -m attnorm.book chapter "$(C)"

serve: $(READY)  ## serve the built pages on this machine
	@$(PY) -m attnorm.book serve

notebooks: $(READY)  ## write the chapters as .ipynb for Jupyter and Colab
	@$(PY) -m attnorm.book notebooks

screenshots: $(READY)  ## pictures of every page (light, dark, wide, narrow) in _build/screenshots
	@$(PY) -m attnorm.book screenshots

gpt2-mini: $(READY)  ## train the model that the book ships, or go on where it was stopped (about an hour)
	@$(PY) -m attnorm.gpt2_mini

test: $(READY)  ## the test suite
	@$(PY) -m pytest -n 2 --dist loadgroup --ignore=tests/browser

browser: $(READY)  ## the built pages in headless Chromium
	@$(PY) -m pytest tests/browser

mutants: $(READY)  ## wrong formulas on purpose: a test must notice each (minutes)
	@$(PY) tests/mutants.py

benchmark: $(PEERS)/.installed  ## time and memory next to named peers: make benchmark B=capture ARGS=--small
	@for name in $(or $(B),dynamics capacity capture); do \
	    PYTHONPATH=lib $(PEERPY) -m benchmarks.$$name $(ARGS) || exit 1; echo; done

lint: $(READY)  ## style, format, citation file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/cffconvert --validate -i CITATION.cff

format: $(READY)  ## apply style and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# One name, then its sources: a build label such as +cpu names a wheel that only one machine has.
PINS = import pathlib, sys; lock, *sources = sys.argv[1:]; file = pathlib.Path(lock); \
    pins = [line.split('+')[0] for line in file.read_text().splitlines() if '==' in line]; \
    file.write_text('\n'.join(['\# Made by make lock from ' + ' and '.join(sources) + '.', *sorted(pins), '']))
RESOLVE = $(BIN)/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: $(READY)  ## resolve the ranges of pyproject.toml and of the benchmarks again into the two lock files
	@$(RESOLVE) --all-extras --output-file requirements.lock pyproject.toml
	@$(PY) -c "$(PINS)" requirements.lock pyproject.toml
	@# the peers run with the versions that the book has
	@$(RESOLVE) --constraint requirements.lock --output-file benchmarks/requirements.lock \
	    pyproject.toml benchmarks/requirements.in
	@$(PY) -c "$(PINS)" benchmarks/requirements.lock pyproject.toml benchmarks/requirements.in

clean:  ## remove what was built, keep the environment
	@rm -rf _build

distclean: clean  ## remove the environment too
	@rm -rf $(VENV) $(PEERS)

# The environment is made again whenever the lock file or the package's own metadata is newer than it.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
	    echo "Name another one: make book PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "This Python lacks the venv module. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock lists into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The book itself is read from lib; only what it needs and its peers are installed here.
$(PEERS)/.installed: benchmarks/requirements.lock | $(READY)
	@test -x $(PEERPY) || $(PY) -m venv $(PEERS)
	@echo "installing what benchmarks/requirements.lock lists into $(PEERS)"
	@$(PEERPY) -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.lock
	@touch $@

# Once, so that no chapter spends its time on a download; without a network the chapters take what is at hand.
$(MODELS): | $(READY)
	@$(PY) -m attnorm.models fetch || true
	@touch $@
