# Two commands set everything up: `make demo` (no torch) and `make test` (with the pinned torch).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-pythons test-oldest test-frameworks kills check format samples docs man bench fuzz lock release-check clean
.DEFAULT_GOAL := demo

demo: .venv/.base
	@for file in ddp_after.pth train_cuda.pth whole_model.pth; do \
		echo "$$ ckpt inspect $$file"; (cd sample_checkpoints && ../$(BIN)/ckpt inspect $$file) || exit $$?; echo; \
	done

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 $(ARGS)

# The suite on every Python that is there. The tests pin the torch of .venv, which must have a build for each.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
test-pythons:
	@for version in $(PYTHONS); do \
		python$$version -c "" 2>/dev/null || { echo "python$$version is not there: skipped"; continue; }; \
		echo "python$$version"; \
		python$$version -m venv .pythons/$$version && \
		.pythons/$$version/bin/python -m pip install --quiet --editable '.[dev]' && \
		.pythons/$$version/bin/python -m pytest -n 2 $(ARGS) || exit $$?; \
	done

# Live models with the oldest torch that the extra promises.
test-oldest:
	test -x .pythons/torch-2.0/bin/python || $(PYTHON) -m venv .pythons/torch-2.0
	.pythons/torch-2.0/bin/python -m pip install --quiet --editable . torch==2.0.1 'numpy<2' pytest hypothesis
	.pythons/torch-2.0/bin/python -m pytest tests/live $(ARGS)

# Checkpoints that real frameworks write, against the truth by torch: docs/frameworks.md.
test-frameworks:
	test -x .frameworks/bin/python || $(PYTHON) -m venv .frameworks
	.frameworks/bin/python tests/frameworks/install.py .frameworks/bin/python
	.frameworks/bin/python -m pip install --quiet --editable . pytest==9.2.0 hypothesis==6.170.15
	.frameworks/bin/python -m pytest tests/frameworks/suite.py $(ARGS)

kills: .venv/.dev
	$(BIN)/python -m pytest tests/safety/kills.py -n 0 $(ARGS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: .venv/.dev
	$(BIN)/python sample_checkpoints/make_samples.py

docs: .venv/.dev
	$(BIN)/python tools/refresh.py
	$(BIN)/python tests/lib/house.py

# man/ckpt.1 and one page for each command, made of the help: `man -l man/ckpt.1`.
man: .venv/.base
	$(BIN)/python tools/man.py man

bench: .venv/.dev
	$(BIN)/python -m benchmarks.inspect
	$(BIN)/python -m benchmarks.diff
	$(BIN)/python -m benchmarks.rewrite

# One target after the other: `make fuzz TIME=600 TARGETS='zip legacy'`. A crash ends it, with the input below .fuzz/.
TIME ?= 60
fuzz: .venv/.fuzz
	@for target in $${TARGETS:-$$($(BIN)/python tests/fuzz/fuzz.py --list)}; do \
		$(BIN)/python tests/fuzz/fuzz.py $$target -max_total_time=$(TIME) || exit $$?; \
	done

lock: .venv/.dev
	$(BIN)/python tools/lock.py

release-check: .venv/.base
	$(BIN)/python tools/release.py

.venv/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/.base

.venv/.fuzz: .venv/.dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,fuzz]'
	@touch $@

clean:
	rm -rf .venv .pythons .frameworks .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis
