# setup: environment and default model · demo: both services, one prompt · test: everything · check: format, lint, types
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin

.PHONY: setup kernels dev demo test check format protos clean

setup: .venv/.installed kernels .venv/.model

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Baton needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || { echo "Making a Python environment in .venv"; "$(PYTHON)" -m venv .venv; }
	@echo "Installing packages into .venv: a minute or two where they have to be downloaded"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# Looks each time: what it makes lies in the cache, which may have been cleared, and a compiler may have come since.
kernels: .venv/.installed
	@$(BIN)/python -m shared.engine.kernels.build

.venv/.model: .venv/.installed
	@echo "Fetching and converting the default model, once"
	@$(BIN)/baton model import smollm2-135m-instruct
	@touch $@

dev: setup .venv/.dev

.venv/.dev: .venv/.installed
	@echo "Installing the tools for development into .venv"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# PROMPT goes to the program as it is written, with no second look at its `$`.
demo: override export PROMPT := $(value PROMPT)
demo: setup
	@$(BIN)/python -m cli.demo

test: dev
	$(BIN)/python -m pytest

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python protos/generate.py --check
	$(BIN)/python protos/document.py --check

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write

protos: .venv/.dev
	$(BIN)/python protos/generate.py
	$(BIN)/python protos/document.py

clean:
	rm -rf .venv build *.egg-info
