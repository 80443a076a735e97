# make demo    install, fetch a 135M-parameter model, answer a prompt speculatively
# make test    install with the test extras, run the fast tests
# make check   lint, formatting, types, layers
# make slow    tests with a real model and long statistics

VENV := .venv
BIN := $(VENV)/bin

# PYTHON=... chooses the interpreter of a new $(VENV); the default is the first that is new enough.
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.11 python3.12 python3.13 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
endif

define DEMO_PROMPT
Correct the spelling of this passage and repeat all of it, changing nothing else:

Speculative decoding drafts several tokens with a cheap proposer and checks them with the target \
model in one pass. Every token that agres with the target is kept, and the first one that does not \
is replaced by the target's own. The text is therfore the same as without drafting, it only \
arrives sooner.
endef
export DEMO_PROMPT

.PHONY: demo test check slow bench-smoke clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/specjax generate "$$DEMO_PROMPT" --stream
	$(BIN)/specjax generate "$$DEMO_PROMPT" --compare

test: $(VENV)/installed-test
	$(BIN)/pytest

slow: $(VENV)/installed-test
	$(BIN)/pytest -m slow

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --pythonpath $(BIN)/python

bench-smoke: $(VENV)/installed-test
	$(BIN)/specjax bench --smoke

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache

# Installed again only when the dependencies may have changed; sources are used where they lie.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[test,bench]'
	touch $@ $(VENV)/installed

$(BIN)/python:
	$(if $(PYTHON),,$(error Python 3.11 or newer is needed: make PYTHON=/path/to/python))
	$(PYTHON) -m venv $(VENV)
