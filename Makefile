# make demo   set up .venv and train 100 clients on the embedded digits
# make test   set up .venv, check style and types, run the tests
# make bench  milliseconds a round on this machine, loop against local

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check bench clean

demo: $(VENV)/.ready
	$(BIN)/fedloom run fedavg --data digits --partition dirichlet --set partition.alpha=0.1 --clients 100 --rounds 100

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready
	$(BIN)/fedloom bench --engine local,loop

# torch first and pinned, so that no second build is pulled in by a package that asks for any torch
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedloom needs Python 3.11 or newer; try make PYTHON=python3.11"; exit 1; }
	@echo "Setting up $(VENV): a few minutes the first time, nothing afterwards"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
