PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
RUN := $(VENV)/bin/python

.PHONY: compare test test-slow lint types bench bench-peers clean

# The main job: how each attention compares with PyTorch's own on this machine.
compare: $(VENV)/installed
	$(RUN) benchmarks/attention.py --lengths 128 256 512 1024 2048 4096 --threads 1 --seconds 0.5 --memory-lengths 4096

test: lint types $(VENV)/installed
	$(RUN) -m pytest -n auto -m "not slow"

test-slow: $(VENV)/installed
	$(RUN) -m pytest -n auto -m slow

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/installed
	$(VENV)/bin/mypy

bench: $(VENV)/installed
	$(RUN) benchmarks/attention.py

# The neighbours, in an environment of their own.
bench-peers: $(PEERS)/installed
	$(PEERS)/bin/python benchmarks/peers.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[hub,dev]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet -c constraints.txt -e . -r benchmarks/peers-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS)
