# Two commands on a fresh machine: `make run` and `make test`. Everything they need goes into .cache/ and .venv/.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

export HF_HUB_OFFLINE ?= 1
export HARBOR_TELEMETRY := 0
export LITELLM_LOCAL_MODEL_COST_MAP := True
export RAY_USAGE_STATS_ENABLED := 0
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1
# Where bytecode may not be written, every one of a run's processes compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

# A shim of a version manager may be on PATH and still not run: take the first one that does.
PYTHON := $(shell for p in python3.12 python3.13 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12.*/bin/python3; do \
	"$$p" -c "" 2>/dev/null && command -v "$$p" && break; done)
ANY_PYTHON := $(or $(PYTHON),$(shell command -v python3))
UV_VERSION := 0.13.9
UV := $(or $(shell command -v uv),.cache/uv/bin/uv)
MEMBERS := api sandbox_runtime rollout_worker trainer operator cli
STAMP := .venv/.installed
# Each does all that shares a cluster, or computes: tests/conftest.py. Much of that is waiting, so that three fill two cores.
PYTEST_PROCESSES ?= 3

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.cache/uv/bin/uv:
	$(ANY_PYTHON) -m venv .cache/uv
	.cache/uv/bin/pip install --quiet uv==$(UV_VERSION)

$(STAMP): requirements.lock $(MEMBERS:%=%/pyproject.toml) | $(filter .cache/%,$(UV))
	$(UV) venv --quiet --clear --python $(or $(PYTHON),3.12) .venv
	$(UV) pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python .venv/bin/python --no-deps $(MEMBERS:%=-e ./%)
	touch $@

.PHONY: install
install: $(STAMP) ## Create .venv with everything, hash-locked

COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python $(or $(PYTHON),3.12) \
	$(foreach m,seatrial-api seatrial-sandbox seatrial-rollout seatrial-trainer seatrial-operator seatrial,--no-emit-package $(m))
IMAGES := build operator sandbox-runtime harnesses ray-cpu ray-gpu
LOCKED_build := images/build/requirements.in
LOCKED_operator := operator/pyproject.toml
LOCKED_sandbox-runtime := sandbox_runtime/pyproject.toml
LOCKED_harnesses := images/harnesses/requirements.in
LOCKED_ray-cpu := trainer/pyproject.toml
LOCKED_ray-gpu := trainer/pyproject.toml images/ray-gpu/requirements.in --override images/ray-gpu/overrides.txt

.PHONY: lock
lock: | $(filter .cache/%,$(UV)) ## Resolve requirements.lock anew, then the part of it that each image holds
	$(COMPILE) --group dev pyproject.toml -o requirements.lock
	$(MAKE) lock-images

.PHONY: lock-images
lock-images: $(IMAGES:%=images/%/requirements.lock)
images/%/requirements.lock: FORCE | $(filter .cache/%,$(UV))
	cp requirements.lock $@    # versions that are already chosen are kept
	$(COMPILE) $(LOCKED_$*) -o $@

.PHONY: FORCE
FORCE:

HARNESSES := .cache/harnesses/.installed

.PHONY: harnesses
harnesses: $(HARNESSES) ## Install the agents of others that are tested behind the proxy
$(HARNESSES): hack/install_harnesses.py $(wildcard images/harnesses/*) | $(STAMP) $(filter .cache/%,$(UV))
	PATH="$(abspath $(dir $(UV))):$$PATH" .venv/bin/python hack/install_harnesses.py $(@D)
	touch $@

.PHONY: run
run: $(STAMP) examples/quickstart/tasks ## Train the quickstart agent end to end, in about five minutes
	.venv/bin/seatrial run examples/quickstart/run.yaml

examples/quickstart/tasks: $(STAMP) $(wildcard examples/quickstart/*.py examples/quickstart/office/*.py examples/quickstart/office/graders/*.sh)
	.venv/bin/python examples/quickstart/make_tasks.py $@
	touch $@

.PHONY: tasks
tasks: examples/quickstart/tasks ## Generate the quickstart's tasks

.PHONY: policy
policy: $(STAMP) ## Make the quickstart's policy anew (about five minutes)
	OMP_NUM_THREADS=1 .venv/bin/python examples/quickstart/make_policy.py

.PHONY: generate
generate: $(STAMP) ## Write the CRDs and the reference pages from the models
	.venv/bin/python hack/generate.py

.PHONY: lint
lint: $(STAMP) ## ruff, mypy, import contracts, spelling, generated files, links of the pages
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/codespell
	.venv/bin/python hack/generate.py --check
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir .cache/site

.PHONY: test
test: $(STAMP) ## Lint, then every test
	@$(MAKE) --no-print-directory --jobs 2 lint examples/quickstart/tasks test-tools
	OMP_NUM_THREADS=1 .venv/bin/pytest --numprocesses $(PYTEST_PROCESSES) --dist loadscope --no-loadscope-reorder $(PYTEST_OPTIONS)

BENCHES := async_vs_sync simulated_driver sandbox_start trial_cost trial_folders gateway_overhead "rollout_loop loop" \
	"rollout_loop trials" engine_share proxy_overhead "trainer_tokens --rounds 1" megatron_backend broker_claims operator_scale judge_verdicts \
	replay_cost "run_storage_s3 --gigabytes 1"

.PHONY: bench
bench: $(STAMP) ## Measure everything in bench/ (the better part of an hour on a quiet machine)
	for bench in $(BENCHES); do OMP_NUM_THREADS=1 .venv/bin/python -m bench.$$bench; done

include hack/cluster/cluster.mk

.PHONY: docs
docs: $(STAMP) ## Build the documentation into site/
	.venv/bin/mkdocs build --strict

.PHONY: clean
clean: ## Remove what was built, keep the download cache
	rm -rf .venv runs site examples/quickstart/tasks .mypy_cache .pytest_cache .ruff_cache .hypothesis
