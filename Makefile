# make demo    install, fetch a 135M-parameter model, answer a prompt speculatively
# make test    install with the test extras, run the fast tests
# make check   lint, formatting, types, layers
# make slow    tests with a real model and long statistics; PROMPTS=file.jsonl chooses prompts
# make bench-smoke   speed promises, as ratios

VENV := .venv
BIN := $(VENV)/bin

# PYTHON=... chooses the interpreter of a new $(VENV); the default is the first that is new enough.
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.11 python3.12 python3.13 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
endif

# An edit quotes most of its input: that is where n-gram drafts are at home.
define DEMO_PROMPT
Add the missing commas to this text:

The old lighthouse stands at the end of the pier. Every evening the keeper climbs the stairs and \
lights the lamp, so that the ships can find their way home. In winter the wind is so strong that \
he has to hold on to the railing with both hands. On clear nights the light can be seen from the \
villages on the other side of the bay.
endef
export DEMO_PROMPT

.PHONY: demo test check slow bench-smoke clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/specjax generate "$$DEMO_PROMPT" --draft-length 8 --stream --compare

# A file stays in one process, where its tests share compiled programs.
test: $(VENV)/installed-test
	$(BIN)/pytest -n auto --dist loadfile

slow: $(VENV)/installed-test
	$(BIN)/pytest -m slow -rP $(if $(PROMPTS),--prompts $(PROMPTS))

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --pythonpath $(BIN)/python

bench-smoke: $(VENV)/installed-test
	$(BIN)/python -m specjax.bench.smoke "$$DEMO_PROMPT"

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
