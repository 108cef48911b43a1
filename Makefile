# Frequent targets, which `make help` prints. Each sets .venv up by itself.
# make demo    inspect three sample checkpoints, without torch
# make test    run the tests, but for the slow ones, with the pinned torch
# make check   run ruff and mypy
# make docs    write the outputs and pictures in the docs again, and the map in CONTRIBUTING.md
# make site    build README.md and docs/ as a site that needs no server: site/index.html
# make bench   print a table of every job beside its peer, in 20 minutes; ARGS=--quick takes small files
# The other targets stand below, each with its comment.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-slow test-thorough test-pythons test-oldest test-typer test-without test-frameworks compare kills check format samples docs site man bench bench-check fuzz lock release-check mutants clean
.DEFAULT_GOAL := demo

# A half-made .venv is made again: one without pip, of a Python that has gone, or of one that is too old.
WORKS := $(shell $(BIN)/python -c "import sys, pip; sys.exit(sys.version_info < (3, 10))" 2>/dev/null && echo yes)
ifndef WORKS
$(shell rm -f .venv/.base .venv/.dev .venv/.fuzz)
endif

help:
	@sed -n 's/^# make /make /p' $(firstword $(MAKEFILE_LIST))

demo: .venv/.base
	@for file in ddp_after.pth train_cuda.pth whole_model.pth; do \
		echo "$$ ckpt inspect $$file"; (cd sample_checkpoints && ../$(BIN)/ckpt inspect $$file) || exit $$?; echo; \
	done

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.dev
	$(BIN)/python tools/refresh.py
	$(BIN)/python tests/lib/house.py
	if command -v chromium >/dev/null; then $(BIN)/python tools/screens.py; fi

site: .site/.made .venv/.base
	@.site/bin/python tools/website.py

.site/.made: tools/site.lock
	rm -rf .site
	$(PYTHON) -m venv .site
	.site/bin/python -m pip install --quiet --require-hashes -r tools/site.lock
	@touch $@

bench: .venv/.dev
	@$(BIN)/python -m benchmarks $(ARGS)

# --- rarely needed ---

# The rest of the tests: all executors, clusters, live models, thousands of files, browsers.
test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

# Many more random checkpoints than `make test` has time for, and the rooms of paths with each path at either side.
# The longest test takes minutes, and Python crashes where it is asked for the stack of a thread at a bad time.
THOROUGH := CKPT_TEST_THOROUGH=1 $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=1800 $(ARGS)
test-thorough: .venv/.dev
	$(THOROUGH)
	CKPT_TEST_PATHS=fast $(THOROUGH) tests/tree tests/evidence tests/commands tests/ext tests/formats tests/pickle
	CKPT_TEST_PATHS=slow $(THOROUGH) tests/tree tests/evidence tests/commands tests/ext tests/formats tests/pickle

# The suite on every Python that is there. The tests pin the torch of .venv, which must have a build for each.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
test-pythons:
	@for version in $(PYTHONS); do \
		python$$version -c "" 2>/dev/null || { echo "python$$version is not there: skipped"; continue; }; \
		echo "python$$version"; \
		python$$version -m venv .pythons/$$version && \
		.pythons/$$version/bin/python -m pip install --quiet --editable . && \
		.pythons/$$version/bin/python tools/groups.py dev > .pythons/$$version/dev.txt && \
		.pythons/$$version/bin/python -m pip install --quiet -r .pythons/$$version/dev.txt && \
		.pythons/$$version/bin/python -m pytest -n 2 $(ARGS) || exit $$?; \
	done

# Live models with the oldest torch that the extra promises.
test-oldest:
	test -x .pythons/torch-2.0/bin/python || $(PYTHON) -m venv .pythons/torch-2.0
	.pythons/torch-2.0/bin/python -m pip install --quiet --editable . torch==2.0.1 'numpy<2' pytest hypothesis
	.pythons/torch-2.0/bin/python -m pytest tests/ext/live $(ARGS)

# The command line with the lowest and the newest typer that pip may choose; the lowest uses what click deprecates.
# All else is that of .venv.
LOWEST_TYPER := $(shell sed -n 's/^ *"typer>=\([0-9.]*\)".*/\1/p' pyproject.toml)
test-typer: .venv/.dev
	@for typer in typer==$(LOWEST_TYPER).0 typer; do \
		folder=.pythons/$$typer; echo "$$typer"; \
		$(BIN)/python -m venv --clear $$folder && \
		$$folder/bin/python -m pip install --quiet $$typer && \
		$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$(echo $$folder/lib/python*/site-packages)/others.pth" && \
		$$folder/bin/python -m pytest -W ignore::DeprecationWarning tests/surface/cli $(ARGS) || exit $$?; \
	done

# The tests of what is left without an extension, of the last commit: `make test-without NAMES='prune values'`.
test-without: .venv/.dev
	@for name in $(NAMES); do \
		folder=$$(mktemp -d) && git archive HEAD | tar -x -C $$folder && \
		rm -r $$folder/ckpt/ext/$$name $$folder/tests/ext/$$name && \
		(cd $$folder && PYTHONPATH=$$folder $(CURDIR)/$(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)) || exit 1; \
		rm -r $$folder; \
	done

# Checkpoints that real frameworks write, against the truth by torch: docs/frameworks.md.
test-frameworks:
	test -x .frameworks/bin/python || $(PYTHON) -m venv .frameworks
	.frameworks/bin/python tests/frameworks/install.py .frameworks/bin/python
	.frameworks/bin/python -m pip install --quiet --editable . pytest==9.2.0 hypothesis==6.170.15
	.frameworks/bin/python -m pytest tests/frameworks/suite.py tests/frameworks/merges.py tests/frameworks/warmstarts.py tests/frameworks/orders.py tests/frameworks/layouts.py tests/frameworks/names_of_gguf.py tests/frameworks/quantised.py tests/frameworks/resume_deepspeed.py $(ARGS)

# Compare the answers of another checkout with ours: `make compare OTHER=../before`.
compare: .venv/.dev
	PYTHONPATH=tests/lib $(BIN)/python tools/compare.py $(OTHER) $(ARGS)

# Kill each way of writing 200 times, and look whether the old or the new file is whole.
kills: .venv/.dev
	$(BIN)/python -m pytest tests/safety/kills.py -n 0 $(ARGS)

# Mend what `make check` says about the format.
format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Write sample_checkpoints/ again.
samples: .venv/.dev
	$(BIN)/python sample_checkpoints/make_samples.py

# man/ckpt.1 and one page for each command, made of the help: `man -l man/ckpt.1`.
man: .venv/.base
	$(BIN)/python tools/man.py man

# Fails when a job takes 20 % more CPU time beside its peer than is stored; ARGS=--update stores. No part of `make check`.
bench-check: .venv/.dev
	@$(BIN)/python -m benchmarks.check $(ARGS)

# One target after the other: `make fuzz TIME=600 TARGETS='zip legacy'`. A crash ends it, with the input below .fuzz/.
TIME ?= 60
fuzz: .venv/.fuzz
	@for target in $${TARGETS:-$$($(BIN)/python tests/fuzz/fuzz.py --list)}; do \
		$(BIN)/python tests/fuzz/fuzz.py $$target -max_total_time=$(TIME) || exit $$?; \
	done

# Resolve the pins again: tools/dev.lock and tools/site.lock.
lock: .venv/.dev
	$(BIN)/python tools/lock.py

# Build the wheel and the sdist twice, compare them, and write an SBOM to dist/.
release-check: .venv/.base
	$(BIN)/python tools/release.py

# Small changes of the code that no test notices: `make mutants ARGS='--count 40 --only ckpt/bytes'` takes 15 minutes.
mutants: .venv/.dev
	$(BIN)/python tools/mutants.py $(ARGS)

# Remove the environments, the site and the caches.
clean:
	rm -rf .venv .pythons .frameworks .fuzz .site site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- environments ---

.venv/.base: pyproject.toml
	$(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# `pip install --group` needs pip 25.1, and Python brings an older one: tools/groups.py reads the group.
.venv/.dev: .venv/.base tools/groups.py
	$(BIN)/python tools/groups.py dev > .venv/dev.txt
	$(BIN)/python -m pip install --quiet -r .venv/dev.txt
	@touch $@

.venv/.fuzz: .venv/.dev
	$(BIN)/python tools/groups.py fuzz > .venv/fuzz.txt
	$(BIN)/python -m pip install --quiet -r .venv/fuzz.txt
	@touch $@

define VENV
@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || \
	{ echo "$(PYTHON) is older than Python 3.10, or is not there: make PYTHON=python3.12" >&2; exit 2; }
@test "$(WORKS)" || { rm -rf .venv && $(PYTHON) -m venv .venv; } || \
	{ echo "$(PYTHON) cannot make .venv: its package venv or ensurepip is missing (Debian: apt install python3-venv)" >&2; rm -rf .venv; exit 2; }
endef
