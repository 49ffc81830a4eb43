# One command each: make run (clone to report), make test, make check. Needs make and Python 3.11, 3.12 or 3.13.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# An environment that is there decides about its Python.
INSTALLER := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
# What is seen here: nvidia, rocm, else cpu. GPU=1 also brings Transformer Engine, GPU=0 takes PyTorch for the CPU.
SEEN   := $(shell if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then echo nvidia; \
  elif { rocminfo; rocm-smi --showproductname; } 2>/dev/null | grep -Eq 'Name: +gfx|^GPU\['; then echo rocm; else echo cpu; fi)
GPU    ?=
KIND   := $(if $(filter 0,$(GPU)),cpu,$(if $(filter nvidia rocm,$(GPU)),$(GPU),$(if $(filter 1cpu,$(GPU)$(SEEN)),nvidia,$(SEEN))))
# PyTorch's own indexes: of CPU wheels (a plain `pip install torch` would bring several GB of CUDA), and one for each version
# of ROCm or CUDA, which TORCH_INDEX names: always for ROCm; for NVIDIA where the driver is too old for PyPI's build.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
ROCM   := $(shell grep -o '^[0-9]*\.[0-9]*' /opt/rocm/.info/version 2>/dev/null || echo X.Y)
NO_ROCM := an AMD GPU is meant, and PyPI has no PyTorch for ROCm. Name the index of your ROCm (https://pytorch.org/get-started): \
  make setup GPU=rocm TORCH_INDEX=https://download.pytorch.org/whl/rocm$(ROCM)
ifeq ($(KIND)$(TORCH_INDEX),rocm)
$(if $(GPU),$(error $(NO_ROCM)))
KIND   := cpu
endif
# A mark for each kind of PyTorch, so that GPU=1 after a set-up without it does something.
READY  := $(VENV)/.installed-$(KIND)$(if $(filter nvidia1,$(KIND)$(GPU)),-engine)
export DS_BUILD_OPS := 0
# What an executed notebook carries and a master must not; the same words as in .pre-commit-config.yaml.
STRIPPED := metadata.papermill cell.metadata.papermill metadata.widgets metadata.runbook metadata.language_info.version cell.metadata.execution

.PHONY: help setup run test test-all check format sites pythons bench docs screenshots lock clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: $(READY)  ## create .venv, install what requirements.lock pins; GPU=1: also Transformer Engine

$(READY): requirements.lock pyproject.toml
	@$(INSTALLER) tools/find_python.py
	@$(INSTALLER) tools/set_up.py --venv $(VENV) --kind $(KIND) --cpu-index $(TORCH_CPU_INDEX) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))
ifeq ($(KIND)$(GPU),nvidia1)
	bash tools/transformer_engine.sh $(BIN)/python
endif
	touch $@

run: setup  ## every phase of params/local.yaml, on the CPU: seven notebooks, a card and a report
	$(BIN)/runbook run local
	@echo 'To type runbook in this shell: source $(BIN)/activate'
ifeq ($(SEEN)$(KIND),rocmcpu)
	@echo 'Site local hides the GPUs of this machine. To use them: $(NO_ROCM)'
else ifneq ($(SEEN),cpu)
	@echo 'Site local hides the GPUs of this machine. To use them: runbook run local --set site=local-gpu --as gpu'
endif

check: setup  ## formatting, lint, types, import walls
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/nbstripout --verify --keep-id --extra-keys "$(STRIPPED)" notebooks/*.ipynb
	$(BIN)/python tools/build_notebooks.py --check
	$(BIN)/python tools/lint_notebooks.py
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check  ## check, then the test suite in two lanes; of expensive families a part, the next commit the next part
	$(BIN)/python tools/run_tests.py

test-all: check  ## check, then every test
	$(BIN)/python tools/run_tests.py --all

sites: setup  ## the five documents' run files, rehearsed here and on a Slurm of two nodes (root, Debian's slurm)
	$(BIN)/pytest --timeout=1200 tests/sites/rehearse_sites.py

# all, rotate (one of them, by the commit) or one such as 3.13; in environments of their own in build/pythons.
PYTHONS ?= all

pythons: setup  ## the trainer and all phases on each other supported Python: some GB each
	PYTHONS=$(PYTHONS) $(BIN)/pytest -s tests/pythons/run_on_pythons.py

# How many broken files of each kind, and random layouts.
FUZZ_INPUTS   ?= 10000
FUZZ_LAYOUTS  ?= 100

drills: setup  ## break a small training in twenty ways, fifty kills; 15,000 broken files of each kind
	$(BIN)/runbook drill --again --page docs/measurements/drills.md
	FUZZ_INPUTS=$(FUZZ_INPUTS) FUZZ_LAYOUTS=$(FUZZ_LAYOUTS) $(BIN)/pytest tests/fuzz

KILLS ?= 20
kills: setup  ## kill ranks, nodes, daemons and scripts of a chain of jobs, on a Slurm of this machine (root)
	PYTHONPATH=tests/slurm $(BIN)/python tests/slurm/random_kills.py --kills $(KILLS)

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
