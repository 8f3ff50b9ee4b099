# terrace: `make serve` to talk to a model, `make test` to check everything that needs no GPU.
VENV ?= .venv
PYTHON ?= python3
RUN := $(VENV)/bin/python
PORT ?= 8080

.PHONY: serve test bench clean

serve: $(VENV)/.installed
	$(RUN) -m gateway --port $(PORT)

test: $(VENV)/.installed-dev
	$(RUN) -m packs.default
	$(RUN) -m pytest tests

bench: $(VENV)/.installed-dev
	$(RUN) -m tools.bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info
