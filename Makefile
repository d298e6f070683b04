# `make demo` and `make test` do all set-up themselves. `make help` lists the rest.
SHELL := /bin/bash
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE ?=

.PHONY: demo start stop status dev lab lab-stop test test-long check bench openapi lock clean help

demo: ## set everything up, start it, train the example model, print where the dashboard is
	@lab/setup.sh runtime
	@$(PY) -m lab.embedded start
	@$(PY) -m lab.embedded manage demo

start: ## set up and start, without the example
	@lab/setup.sh runtime
	@$(PY) -m lab.embedded start

stop: ## end it all: jobs, web, workers, services
	@if [ -x $(PY) ]; then $(PY) -m lab.embedded stop; else echo "Switchyard is not set up here."; fi

status: ## what runs
	@$(PY) -m lab.embedded status

dev: ## run in the foreground with debug pages, until Ctrl-C
	@lab/setup.sh dev
	@SWITCHYARD_DEBUG=on $(PY) -m lab.embedded run

lab: ## bring up a real Slurm on this machine (as root): 16 nodes with 8 fake GPUs each
	@lab/setup.sh runtime
	@$(PY) -m lab.slurm up

lab-stop: ## end the lab's Slurm and its jobs; `make lab` goes on from there
	@if [ -x $(PY) ]; then $(PY) -m lab.slurm down; fi

test: ## set up and run the tests
	@lab/setup.sh system
	@$(PY) -m pytest -m "not long and not bench" $(ARGS)

test-long: ## the tests that take long
	@lab/setup.sh system
	@$(PY) -m pytest -m "long" $(ARGS)

check: ## the quick checks: lint, types, floors, migrations, templates
	@lab/setup.sh dev
	@$(PY) -m ruff check . && $(PY) -m ruff format --check -q .
	@$(PY) -m mypy --no-error-summary apps/core/errors.py apps/core/units.py apps/core/permissions.py apps/jobs/states.py apps/jobs/spec.py apps/jobs/folder.py apps/jobs/logtext.py apps/jobs/metricsfile.py apps/inventory/manifest.py apps/web/figures apps/jobs/schedulers lab/embedded lab/slurm
	@.venv/bin/lint-imports --no-logo
	@$(PY) -m lab.checks

bench: ## measure, as ratios
	@lab/setup.sh dev
	@$(PY) -m pytest -m bench -s -q --timeout=1800 tests/benchmarks $(ARGS)

openapi: ## write docs/openapi.yaml anew
	@lab/setup.sh dev
	@$(PY) -m lab.checks openapi

lock: ## resolve the lock files anew (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -o requirements.lock
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -o requirements-dev.lock

clean: stop ## remove what set-up and runs have made, but for the data in var/
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14
