# The few commands that contributors and CI share. `make` alone lists them.
#
# PYTHON=/path/to/python3.12 on the command line names the Python of .venv; otherwise the machine's best.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
MODEL := .cache/models/SmolLM2-135M-Instruct
CODE := $(wildcard tabletune profiler plugin operator tools tests benchmarks charts e2e)

# Any Python may run the set-up; it looks for the right one itself.
ANY_PYTHON = $(firstword $(shell command -v python3 $(PYTHON) python3.13 python3.12 python3.11))

export PYTHON
export UV_PYTHON_DOWNLOADS := never
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
# Without byte code every start of the engine compiles vLLM's modules again: 15 s of import instead of 7.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' \
	  $(firstword $(MAKEFILE_LIST))

##@ Use

# vLLM's CPU build takes nearly all memory for its KV cache unless told how many GiB.
DEMO_MEMORY = VLLM_CPU_KVCACHE_SPACE=1
DEMO_ARGUMENTS = --max-num-seqs 16 --max-model-len 1024 \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'

.PHONY: demo
demo: model ## Profile the bundled small model on this machine's CPU and print its table
	@mkdir -p demo
	$(DEMO_MEMORY) $(BIN)/tabletune profile --output demo/table.json --plot -- $(MODEL) $(DEMO_ARGUMENTS)
	@$(BIN)/tabletune show demo/table.json
	@echo "The document: demo/table.json   The picture: demo/table.png (and .svg)"

.PHONY: serve
serve: model ## Serve the demo's model with the plugin and its table: API on port 8000, metrics on 9410
	@test -f demo/table.json || $(MAKE) --no-print-directory demo
	TABLETUNE_TABLE=demo/table.json TABLETUNE_MODE=adapt $(DEMO_MEMORY) $(BIN)/python -m vllm.entrypoints.openai.api_server \
	  --model $(MODEL) $(DEMO_ARGUMENTS)

.PHONY: demo-cluster
demo-cluster: model ## Show the whole on a Kubernetes cluster that it starts on this machine (as root; needs Go)
	$(BIN)/python -m e2e demo

.PHONY: images
images: setup ## Build the images of operator, profiler and plugin
	$(BIN)/python -m e2e images

.PHONY: cluster-down
cluster-down: setup ## End that cluster and leave nothing of it running
	$(BIN)/python -m e2e down

.PHONY: setup
setup: $(READY) ## Make .venv with the pinned packages (demo and test do it themselves)

.PHONY: model
model: $(MODEL) ## Make the bundled small model ready (demo and test do it themselves)

.PHONY: clean
clean: ## Remove everything that these commands made, .venv and the model too
	rm -rf $(VENV) .cache demo dist build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Develop

# Most of their time the tests on a control plane wait; each worker has a control plane of its own.
PARALLEL = --numprocesses 3 --dist loadfile

.PHONY: test
test: lint check-lock test-core model controlplane ## What CI runs but the scenarios: lint, pins, core alone, all tests (the engine's last)
	$(BIN)/pytest -m cluster $(PARALLEL)
	$(BIN)/pytest -m "not cluster"

.PHONY: test-fast
test-fast: setup ## Run the tests that start neither an engine nor a control plane
	$(BIN)/pytest -m "not engine and not cluster"

.PHONY: controlplane
controlplane: setup ## Build etcd and Kubernetes' control plane for the operator's tests (minutes, the first time; needs Go)
	@$(BIN)/python tools/controlplane/building.py

.PHONY: test-cluster
test-cluster: controlplane ## Run the tests on a real etcd and kube-apiserver
	$(BIN)/pytest -m cluster $(PARALLEL)

.PHONY: test-engine
test-engine: model ## Run the tests on the real engine
	$(BIN)/pytest -m engine

.PHONY: cluster-up
cluster-up: model ## Bring up the end-to-end cluster with TableTune's images (as root; needs Go)
	$(BIN)/python -m e2e up

.PHONY: e2e
e2e: cluster-up ## Run all scenarios on the end-to-end cluster, then leave it up; ARGUMENTS='-k quota' chooses
	$(BIN)/python -m e2e run $(ARGUMENTS)

.PHONY: e2e-ci
e2e-ci: model ## Run the quick scenarios as CI does, on a cluster that is ended before and after
	$(BIN)/python -m e2e ci

.PHONY: test-core
test-core: setup ## Test core and plugin alone, as they are beside a user's own vLLM, on the newest Python
	bash tools/test-core.sh

.PHONY: lint
lint: setup ## Check style, types, the layers' contracts and the generated pages
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_reference.py --check
	$(BIN)/python tools/generate_api.py --check
	$(BIN)/python tools/generate_chart.py --check

.PHONY: format
format: setup ## Format the code and fix what can be fixed by itself
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: docs
docs: setup ## Build the documentation as a site in site/; a broken link ends it (make test checks that, too)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: benchmark
benchmark: model ## Run the benchmarks; results go to benchmarks/results
	@for script in benchmarks/*/measure.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

##@ Keep what is generated true

.PHONY: generate
generate: setup ## Regenerate what is made from the code: references, schemas, CRD, the chart's tables, the dashboard
	$(BIN)/python tools/generate_reference.py
	$(BIN)/python tools/generate_api.py
	$(BIN)/python tools/generate_chart.py

# Pins stay as they are unless the project's needs changed; `make lock UPGRADE=--upgrade` takes the newest.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command 'make lock' $(UPGRADE)

.PHONY: lock
lock: setup ## Pin the requirements with hashes; UPGRADE=--upgrade takes the newest versions
	$(COMPILE) pyproject.toml --all-extras --group engine --group docs --output-file requirements/engine.txt
	$(COMPILE) pyproject.toml --extra plugin --extra test --constraints requirements/engine.txt \
	  --output-file requirements/core.txt
	$(COMPILE) requirements/uv.in --constraints requirements/engine.txt --output-file requirements/uv.txt
	$(COMPILE) requirements/images.in --constraints requirements/engine.txt --output-file requirements/images.txt
	for extra in operator profiler; do $(COMPILE) pyproject.toml --extra $$extra --constraints requirements/engine.txt \
	  --output-file requirements/$$extra.txt || exit 1; done

.PHONY: check-lock
check-lock: setup ## Fail where `make lock` would change a pin; the difference is then there to commit
	@rm -rf .cache/requirements && mkdir -p .cache && cp -r requirements .cache/requirements
	@$(MAKE) --no-print-directory lock
	@diff -r .cache/requirements requirements \
	  || { echo "requirements/ was out of date and is now regenerated: commit the difference."; exit 1; }

# What the above stand on.

# With PYTHON given, the set-up checks each time whether .venv is of that Python.
$(READY): pyproject.toml requirements/engine.txt requirements/uv.txt tools/bootstrapping.py tools/pythons.py \
  $(if $(PYTHON),always)
	@$(or $(ANY_PYTHON),$(error No python3 on the PATH. TableTune needs Python 3.11, 3.12 or 3.13)) tools/bootstrapping.py
	@touch $@

$(MODEL): | $(READY)
	$(BIN)/python tools/preparing_model.py $@

.PHONY: always
always:
