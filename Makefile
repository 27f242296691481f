# Two commands on a fresh machine: `make test` and `make reproduce`. Both build their environment in .venv first.
#   PYTHON=python3.12   the interpreter the environment is made from
#   TORCH=torch==2.12.0 another torch than the pinned one
#   SCALE=small         how much `make reproduce` runs; small and paper want DATA=folder as well
PYTHON ?= python3
TORCH  ?= torch==2.13.0
SCALE  ?= smoke
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help census test test-slow test-gpu lint reproduce figures bench demo docs clean
help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

# torch comes first and by its exact version, so that a CPU build is taken where one is at hand.
TORCH_STAMP := $(VENV)/.has-$(TORCH)
$(TORCH_STAMP):
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	@rm -f $(VENV)/.has-* && touch '$@'

# A stamp per set of extras: made again when torch, the metadata or the constraints change.
$(VENV)/.made-%: pyproject.toml constraints.txt $(TORCH_STAMP)
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(PIP) --constraint $(VENV)/constraints.txt --editable '.[$(subst -,$(comma),$*)]'
	@touch $@
comma := ,

# Two BLAS pools on two cores fight; one thread each is faster and repeatable. The small networks of `smoke` gain nothing
# from a second one.
test test-slow census bench: export OMP_NUM_THREADS ?= 1
ifeq ($(SCALE),smoke)
reproduce: export OMP_NUM_THREADS ?= 1
endif

EVERYTHING := $(VENV)/.made-dev-all

lint: $(EVERYTHING) ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint and the default suite, under 10 minutes with the install
	$(BIN)/pytest --numprocesses auto --dist worksteal --durations=10

test-slow: $(EVERYTHING) ## large files, faults, long accuracy runs
	$(BIN)/pytest -m slow --timeout=1200 --durations=10

census: $(EVERYTHING) ## docs/families.md again: every model type of transformers against its own attention
	PYTHONHASHSEED=0 $(BIN)/python -W ignore -m tools.census

test-gpu: ## needs a CUDA device; uses the interpreter at hand (PYTHON=...), installs nothing
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu -p no:cacheprovider

reproduce: $(VENV)/.made-demo-report ## runs, figures, claims and report: minutes on two cores, no data, no GPU
	$(BIN)/rankrise reproduce --scale $(SCALE) $(if $(DATA),--data $(DATA))

# Pictures of the README and of docs/reproduce.md; tests/test_results.py compares them with results/runs.
FIGURES := $(BIN)/rankrise figure --runs results/runs --out docs/figures --format png
figures: $(VENV)/.made-demo-report ## docs/figures and the verdicts of docs/reproduce.md again, from results/runs
	$(FIGURES) toy_scales toy_stages toy_robustness matrix_stages adam_phases > /dev/null
	$(FIGURES) components_by_scale stable_rank_by_scale --experiment vit-cifar10 > /dev/null
	$(FIGURES) spectrum_over_training perturbation_vs_init stable_rank_over_training --experiment vit-cifar10 > /dev/null
	for name in vit-cifar10-scale-1 vit-cifar100 vit-tiny-imagenet gpt2-wikitext2; do \
		$(FIGURES) stable_rank_over_training --experiment $$name > /dev/null || exit 1; \
	done
	$(BIN)/python tools/write_verdicts.py

bench: $(VENV)/.made-bench ## benchmarks against peers; results go to benchmarks/results
	$(PIP) --constraint $(VENV)/constraints.txt transformer_lens==4.3.0
	$(BIN)/python benchmarks/bench_linalg_delta.py --out benchmarks/results
	$(BIN)/python benchmarks/bench_theory_flow.py --out benchmarks/results
	$(BIN)/python benchmarks/bench_theory_matrix.py --out benchmarks/results

demo: $(VENV)/.made-demo-report ## docs/demo/index.html again, from results/runs
	$(BIN)/python tools/write_demo.py docs/demo/index.html --runs results/runs

docs: $(VENV)/.made-docs ## the documentation as a site in ./site
	$(BIN)/python -m zensical build --clean # `-m`, so that zensical finds tools/mathml.py

clean: ## remove the environment and what was built
	rm -rf $(VENV) site report build dist
