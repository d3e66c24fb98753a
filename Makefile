# The book in two commands: `make book` and `make test`. Both need Python 3.11 or newer, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY  := $(VENV)/.installed
MODELS := $(VENV)/.fetched
PY     := $(BIN)/python

.PHONY: help book chapter serve notebooks screenshots gpt2-mini test mutants browser lint format lock clean distclean
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

lint: $(READY)  ## style, format, citation file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/cffconvert --validate -i CITATION.cff

format: $(READY)  ## apply style and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(READY)  ## resolve the ranges of pyproject.toml again into requirements.lock
	@$(BIN)/pip-compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe --no-header \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-annotate \
	    --output-file requirements.lock pyproject.toml
	@# a build label such as +cpu names a wheel that only one machine has
	@$(PY) -c "import pathlib; lock = pathlib.Path('requirements.lock'); \
	    pins = [line.split('+')[0] for line in lock.read_text().splitlines() if '==' in line]; \
	    lock.write_text('\n'.join(['# Made by make lock from pyproject.toml.', *sorted(pins), '']))"

clean:  ## remove what was built, keep the environment
	@rm -rf _build

distclean: clean  ## remove the environment too
	@rm -rf $(VENV)

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

# Once, so that no chapter spends its time on a download; without a network the chapters take what is at hand.
$(MODELS): | $(READY)
	@$(PY) -m attnorm.models fetch || true
	@touch $@
