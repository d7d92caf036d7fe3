# The verbs of the project. `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DOCUMENTED := $(VENV)/.documented
SINCE ?= HEAD
# One process a core. Each gets a stretch of the tests, so that the fixtures of a file are made once, and takes over half
# of another's when it is done.
PARALLEL := -n auto --dist worksteal

# The other distributions, and all code.
OTHERS := experiments downstream
CODE := src tests benchmarks $(OTHERS:%=%/src) $(OTHERS:%=%/tests)

# What has examples. Pytest imports every module it is given; these need nothing that is optional.
# Not the copies of pages that are there while the documentation is built.
EXAMPLES = $(shell grep -rlE '^ *>>> ' src docs $(OTHERS:%=%/src) $(OTHERS:%=%/docs) --include='*.py' --include='*.md' \
	| grep -v $(OTHERS:%=-e ^docs/%/))

# Only files with slow tests, or with properties, are imported.
SLOW = $(shell grep -rlE 'mark\.slow|from probe_conformance' tests $(OTHERS:%=%/tests) --include='test_*.py')
PROPERTIES = $(shell grep -rlE '@given' tests $(OTHERS:%=%/tests) --include='test_*.py')

# What docs/speed.md shows, and what the pages of methods cite.
SPEED := neural_persistence point_clouds intrinsic_dimension loops dowker gradients curvature whole_model models hidden_states checkpoints \
	whole_commands study population population_measuring training memory monitor activations gpu
CALIBRATION := forecast forecast_odd_runs running_forecasts scaling_laws downstream downstream_losses decision \
	decision_few_points false_alarms doctor verdicts

# Compiled Python is kept: tests start many processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lines demo test test-slow properties coverage doctest wheel extras lowest newest check format bench calibrate compare docs clean

help:  ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Made anew when the dependencies change.
$(INSTALLED): pyproject.toml $(OTHERS:%=%/pyproject.toml) constraints.txt
	@echo "setting up $(VENV): a virtual environment, with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): PyTorch and toposcope, one to three minutes"
	@$(PIP) -e '.[torch]' $(OTHERS:%=-e %)
	@touch $(INSTALLED)

$(READY): $(INSTALLED)
	@echo "setting up $(VENV): what the tests and checks need, one to three minutes"
	@$(PIP) -e '.[dev]' $(OTHERS:%=-e %)
	@touch $(READY)

$(DOCUMENTED): $(READY)
	@echo "setting up $(VENV): what builds the documentation, a minute"
	@$(PIP) -e '.[docs]'
	@touch $(DOCUMENTED)

demo: $(INSTALLED)  ## set up, train a small family, measure it, write a report (two minutes)
	$(BIN)/toposcope demo --out toposcope-demo

test: $(READY)  ## set up and run the tests (minutes)
	$(BIN)/pytest $(PARALLEL) -m 'not slow'

# On the study of the demo, which the examples read too.
test-slow: $(READY) toposcope-demo  ## the slow tests: browsers, trainings, kills, whole studies
	TOPOSCOPE_DEMO=$(CURDIR)/toposcope-demo $(BIN)/pytest $(PARALLEL) -m slow $(SLOW)

properties: $(READY)  ## the quick properties on all their examples, three times as many as in `make test`
	PROPERTY_EXAMPLES=all $(BIN)/pytest $(PARALLEL) -m 'hypothesis and not slow' $(PROPERTIES)

coverage: $(READY)  ## the tests of `make test`, with branch coverage; fails below the floor in pyproject.toml
	$(BIN)/pytest $(PARALLEL) -m 'not slow' --cov

doctest: $(READY) toposcope-demo  ## the examples of docstrings and pages
	$(BIN)/pytest --doctest-modules --doctest-glob='*.md' $(EXAMPLES)

# Pages read the study of the demo.
toposcope-demo: | $(READY)
	$(BIN)/toposcope demo --out $@

wheel: $(READY)  ## build sdists and wheels twice, and try the wheels in an empty environment, without extras
	.ci/wheel $(BIN)/python

extras: $(READY)  ## the tests of each extra, as if no other were installed
	.ci/extras $(BIN)/python

lowest:  ## the tests of `make test`, or TESTS, with the lowest allowed versions of all but PyTorch
newest:  ## the same with the newest
lowest newest: $(READY)
	.ci/versions $@ $(BIN)/python $(TESTS)

check: $(READY)  ## format, lint, types, import rules, public names
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/cli/test_surface.py experiments/tests/test_experiment_commands.py downstream/tests/test_downstream_surface.py

lines:  ## count lines and words; fails where there are more than there may be
	$(PYTHON) .ci/lines --check

format: $(READY)  ## format the code in place
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# Those that cannot run here, for want of published data or a library, stop no other; Ctrl-C stops all.
define measure
trap 'exit 130' INT; missed=; for name in $(1); do $(BIN)/python benchmarks/$$name.py || missed="$$missed $$name"; done; \
	test -z "$$missed" || { echo "not measured:$$missed"; exit 1; }
endef

bench: $(READY)  ## measure speed beside other tools, which it installs; writes benchmarks/results/ (2 to 3 hours on 2 cores)
	$(BIN)/python benchmarks/other_tools.py
	$(call measure,$(SPEED) plot)

calibrate: $(READY)  ## measure errors of forecasts, decisions, alerts and the doctor; writes benchmarks/results/ (hours)
	$(call measure,$(CALIBRATION))

compare: $(READY)  ## benchmark results here beside those of a commit, SINCE=HEAD: what changed by more than its spread
	$(BIN)/python benchmarks/compare.py $(SINCE) benchmarks/results

# It holds the report of the demo.
docs: $(DOCUMENTED) toposcope-demo  ## build the documentation into docs/_build
	$(BIN)/sphinx-build -W -b html docs docs/_build

clean:  ## remove what the other verbs made
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage docs/_build dist toposcope-demo
	rm -f $(addprefix src/toposcope/kernels/__pycache__/,*.nb[ic] *.lock *.uses monitor.*)
	rm -f $(addprefix experiments/src/toposcope_experiments/*/__pycache__/,*.nb[ic] *.lock)
