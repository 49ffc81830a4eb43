# One command each: make run (clone to report), make test, make check. Needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
GPU    ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo 1)
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# PyTorch's own index of CPU wheels: a plain `pip install torch` would bring several GB of CUDA.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
export DS_BUILD_OPS := 0
# What an executed notebook carries and a master must not; the same words as in .pre-commit-config.yaml.
STRIPPED := metadata.papermill cell.metadata.papermill metadata.widgets metadata.runbook metadata.language_info.version cell.metadata.execution

.PHONY: help setup run test check format sites bench docs screenshots lock clean

help:  ## show the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(VENV)/.installed  ## create .venv and install what requirements.lock pins

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(GPU),1)
	$(PIP) install -q "$$(grep -o '^torch==[0-9.]*' requirements.lock)"
else
	$(PIP) install -q --no-deps --retries 0 --timeout 10 --index-url $(TORCH_CPU_INDEX) "$$(grep -o '^torch==[0-9.]*' requirements.lock)" 2>/dev/null \
	  || $(PIP) install -q --no-deps "$$(grep -o '^torch==[0-9.]*' requirements.lock)"
endif
	$(PIP) install -q --no-deps -r requirements.lock
	$(PIP) install -q --no-deps -e .
	touch $@

run: setup  ## every phase of params/local.yaml: six notebooks, a card and a report
	$(BIN)/runbook run local

check: setup  ## formatting, lint, types, import walls
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/nbstripout --verify --keep-id --extra-keys "$(STRIPPED)" notebooks/*.ipynb
	$(BIN)/python tools/lint_notebooks.py
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check  ## check, then the whole test suite
	$(BIN)/pytest

sites: setup  ## the five documents' run files, rehearsed here and on a Slurm of two nodes (root, Debian's slurm)
	$(BIN)/pytest --timeout=1200 tests/sites/rehearse_sites.py

drills: setup  ## break a small training in twenty ways, fifty kills; 15,000 broken files of each kind
	$(BIN)/runbook drill --again --page docs/drills.md
	FUZZ_INPUTS=10000 $(BIN)/pytest tests/fuzz

bench: setup  ## what is measured: predicted speeds against published ones, tokenizing against Hugging Face's
	$(BIN)/python -m benchmarks.predict_cross_validation
	$(BIN)/python -m benchmarks.data_tokenize
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.training_vs_plain
	$(BIN)/python -m benchmarks.training_runs scaling
	$(BIN)/python -m benchmarks.training_runs saving
	$(BIN)/python -m benchmarks.analysis_logs
	$(BIN)/python -m benchmarks.notebooks_overhead

lock: setup  ## pin requirements.lock anew (needs uv)
	bash tools/lock.sh

docs: setup  ## the docs site in build/site, with runs/local where it was run; needs no network
	$(BIN)/python tools/build_docs.py

screenshots: setup  ## docs/pictures for the README, from a small run in a real JupyterLab; needs chromium
	$(BIN)/python tools/screenshots.py

clean:  ## remove the environment and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
