# Everything runs in .venv, made here by the first target that needs it.

BIN := .venv/bin
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.11; do \
	$$p -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	2>/dev/null && echo $$p && break; done)

.PHONY: train test check bench clean

train: .venv/train.stamp
	$(BIN)/robo-rl train quick

test: .venv/dev.stamp
	$(BIN)/pytest -m "not slow and not gpu and not isaac"

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/train.stamp
	$(BIN)/robo-rl bench throughput

clean:
	rm -rf .venv build dist *.egg-info .*_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "robo_rl needs Python 3.11, 3.12 or 3.13 with venv and pip; none of" \
	"python3, python3.11, python3.12, python3.13 is one. On Debian: apt-get install python3 python3-venv." \
	"Elsewhere: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/train.stamp: pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "installing into .venv; on a first run this takes some minutes"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[mujoco,export]"
	touch $@

.venv/dev.stamp: pyproject.toml setup.py constraints.txt | $(BIN)/python
	@echo "installing into .venv; on a first run this takes some minutes"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all,dev]"
	touch .venv/train.stamp $@
