# make demo   run the main job end to end on generated data
# make test   run the test suite
# make soak   run the tests that are long by nature, which make test leaves out
# make lint   formatting, lint and types
# make bench  time everything against the peers, each in an environment of its own under .bench (half an hour)

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test soak lint bench clean
.DELETE_ON_ERROR:

.venv/base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/test: .venv/base
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $@

demo: .venv/base
	$(BIN)/kunita demo --out demo --overwrite

test: .venv/test
	$(BIN)/python -m pytest $(ARGS)

soak: .venv/test
	$(BIN)/python -m pytest -m soak $(ARGS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test
	$(BIN)/python benchmarks/bench.py $(ARGS)

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache
