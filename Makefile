# Every target sets up what it needs, on a machine with nothing but python3, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORES  := $(shell nproc 2>/dev/null || echo 2)
DOCS   := .venv-docs

.PHONY: help demo test kernels test-long mutants reliability check format bench speed docs sbom licences lock floors clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.user: pyproject.toml supply/compile.py src/polycentric/learn/cpu/steps.c
	@$(PYTHON) -c 'import sys; sys.exit("polycentric needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.user
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(VENV)/.user ## install, and see what this is about in a minute
	$(BIN)/polycentric demo

test: $(VENV)/.dev ## the test suite, in parallel over the cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(CORES) --dist loadgroup -m "not long"

.triton/.made: $(VENV)/.dev
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target .triton "triton>=3.2,<3.10"
	@touch $@

kernels: .triton/.made ## the laws of our GPU kernels, on a processor: in Triton's interpreter, which is put in a folder of its own
	OMP_NUM_THREADS=1 PYTHONPATH=.triton $(BIN)/python -m pytest -n $(CORES) tests/learn/gpu

test-long: $(VENV)/.dev ## checks that take minutes
	$(BIN)/python -m pytest -m long

mutants: $(VENV)/.dev ## change one operator of an equation at a time, and say which changes no test notices; minutes
	$(BIN)/python tests/mutants.py

reliability: $(VENV)/.dev ## kill, damage, forge, cut the power, attack; count what goes wrong; docs/reliability.md, 90 minutes at most
	$(BIN)/python tests/reliability/report.py

check: $(VENV)/.dev ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.user ## one round against a plain PyTorch loop and against the limit, one core
	OMP_NUM_THREADS=1 $(BIN)/polycentric bench

peers/.made: ## pfl, FedJAX and Flower, each in an environment of its own, to be measured against
	for name in pfl fedjax flower; do $(PYTHON) -m venv peers/$$name; done
	peers/pfl/bin/python -m pip install -q torch==2.13.0 "pfl==0.6.*"
	peers/fedjax/bin/python -m pip install -q fedjax==0.0.17 jax
	peers/flower/bin/python -m pip install -q torch==2.13.0 "flwr[simulation]>=1.41,<2"
	@touch $@

speed: $(VENV)/.user peers/.made ## every figure of docs/speed.md that needs no GPU; half an hour of an idle machine
	OMP_NUM_THREADS=1 PYTHON=$(BIN)/python sh benchmarks/speed.sh peers

$(DOCS)/.made: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/needed.txt
	$(DOCS)/bin/python -m pip install -q --disable-pip-version-check -r $(DOCS)/needed.txt
	@touch $@

docs: $(DOCS)/.made ## the documentation as a site, links and reference checked: site/built/index.html
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build -q -f site/mkdocs.yml

sbom: $(VENV)/.dev ## a bill of materials of what is installed, CycloneDX JSON on standard output
	@$(BIN)/python supply/bill.py sbom

licences: $(VENV)/.dev ## docs/licences.md, from the metadata of what is installed
	$(BIN)/python supply/bill.py licences

lock: $(VENV)/.dev ## supply/lock.txt: every version that is installed, with the digest of its file
	$(BIN)/python supply/bill.py lock

floors: $(VENV)/.dev ## install the lowest versions that are allowed, in an environment of their own, and run there; some GB
	$(PYTHON) -m venv .floors
	.floors/bin/python -m pip install -q --disable-pip-version-check $$($(BIN)/python supply/bill.py floors) -e .
	.floors/bin/python supply/smoke.py

clean: ## remove what the targets made
	rm -rf $(VENV) $(DOCS) .triton site/built polycentric-demo.html .floors .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist peers
