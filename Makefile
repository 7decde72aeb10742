# The two commands of the README. Everything happens in a virtual environment of its own, .venv.
PYTHON ?= python3
VENV ?= .venv
# Any torch from 2.6 will do, CUDA and ROCm builds too: set TORCH to what you want, or VENV to an environment that has one.
TORCH ?= torch==2.13.0
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: demo test lint clean
.DEFAULT_GOAL = demo

$(VENV)/.torch:
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -c 'import torch' 2>/dev/null || $(PIP) install --quiet '$(TORCH)'
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml $(shell find kernels -type f)
	$(PIP) install --quiet --editable '.[examples,dev,mpi]'
	@touch $@

demo: $(VENV)/.installed
	$(VENV)/bin/mpcpipe train examples/digits.toml

test: $(VENV)/.installed lint
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.installed
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy

clean:
	rm -rf $(VENV) build runs *.egg-info
