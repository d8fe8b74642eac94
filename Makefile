# make demo   set up .venv and train 100 clients on the embedded digits
# make test   set up .venv, check style, types and the law of imports, run the tests
# make test-newest   the same tests on the newest torch and flwr (NEWEST_TORCH, NEWEST_FLWR), in .venv-newest
# make docs   build the documentation into docs/_build/html (a test does the same)
# make reference   write the tables of the reference pages anew (a test says when)
# make bench  milliseconds a round on this machine, loop against local
# make fuzz   let atheris loose on both decoders, SECONDS each (make fuzz RUNS=1000000 counts runs instead)
# make lock   write requirements.lock anew (needs uv);  make audit  look for known flaws in it (needs pip-audit)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-newest check docs reference bench fuzz lock audit clean

demo: $(VENV)/.ready
	$(BIN)/fedloom run fedavg --data digits --partition dirichlet --set partition.alpha=0.1 --clients 100 --rounds 100

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

# torch first, so that nothing brings another; then all else as new as it comes, and fedloom without its own bounds
NEWEST_TORCH ?= 2.15.0
NEWEST_FLWR ?= 1.42.0
NEWEST_PYTHON ?= $(PYTHON)
NEWEST := .venv-newest/bin/python
test-newest:
	test -x $(NEWEST) || $(NEWEST_PYTHON) -m venv .venv-newest
	$(NEWEST) -m pip install --quiet torch==$(NEWEST_TORCH)
	$(NEWEST) -m pip install --quiet --upgrade $$($(NEWEST) benchmarks/dev_requirements.py) \
	  torch==$(NEWEST_TORCH) flwr==$(NEWEST_FLWR)
	$(NEWEST) -m pip install --quiet --no-deps --no-build-isolation --editable .
	OMP_NUM_THREADS=1 $(NEWEST) -m pytest -n 2 -m "not slow"

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.ready
	$(BIN)/python -m sphinx -W -E -a -q -b html -d docs/_build/doctrees docs docs/_build/html

# the tables of the reference pages, for those who read them without the site
reference: $(VENV)/.ready
	$(BIN)/python docs/_site/generated.py

bench: $(VENV)/.ready
	$(BIN)/fedloom bench --engine local,loop

SECONDS ?= 60
FUZZ = $(if $(RUNS),-runs=$(RUNS),-max_total_time=$(SECONDS)) -rss_limit_mb=2048
fuzz: $(VENV)/.ready
	cd fuzz && OMP_NUM_THREADS=1 ../$(BIN)/python decode_payload.py $(FUZZ)
	cd fuzz && OMP_NUM_THREADS=1 ../$(BIN)/python read_checkpoint.py $(FUZZ)

# torch and what only torch brings, of which there is another set for every kind of device; triton is locked, in the
# version that torch for CUDA asks for, since tests interpret our kernels with it where torch brings none
UNLOCKED := torch cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-, cublas cuda-cupti cuda-nvrtc \
	cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
lock:
	{ grep '^#' requirements.lock; uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --quiet \
	  --generate-hashes --no-annotate --no-header --no-config --default-index https://pypi.org/simple \
	  $(addprefix --no-emit-package , $(UNLOCKED)); } > requirements.new
	mv requirements.new requirements.lock

audit:
	pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

# the lock first, whole and alone, since torchmetrics would pull in a torch of its own choice; then torch, pinned; then
# fedloom, which finds all it needs, its build tool as well
$(VENV)/.ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedloom needs Python 3.11 or newer; try make PYTHON=python3.11"; exit 1; }
	@echo "Setting up $(VENV): a few minutes the first time, nothing afterwards"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
