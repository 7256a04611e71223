PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
RUN := $(VENV)/bin/python

.PHONY: compare test tests test-slow test-robustness test-kills test-families lint types bench bench-training bench-generation bench-peers clean

# The main job: from which length each attention pays on this machine, in about two minutes.
compare: $(VENV)/installed
	$(VENV)/bin/subquad compare

test: $(VENV)/installed
	$(MAKE) --no-print-directory -j 3 lint types tests

tests: $(VENV)/installed
	$(RUN) -m pytest -n auto --dist worksteal -m "not slow and not robustness and not kills"

test-slow: $(VENV)/installed
	$(RUN) -m pytest -n auto -m slow

# 200 kills at random moments: every run, resumed, comes to the same end, and no process is left. About 17 minutes on two busy
# cores.
test-kills: $(VENV)/installed
	$(RUN) -m pytest -s -m kills tests/runs/test_kills.py

# 2,000 strange command lines, damaged run folders and hostile models, each in a process of its own, in less than ten
# minutes on two cores. `python -m tests.robustness` runs all there are, about 8,500.
test-robustness: $(VENV)/installed
	$(RUN) -m pytest -s -m robustness tests/robustness

# Every family of the installed transformers, built small: what works with another attention. Writes docs/families.md in
# about 20 minutes on two cores. `make test-families RESUME=--resume` goes on with a run that was stopped.
test-families: $(VENV)/installed
	$(RUN) -m tests.families $(RESUME)

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/installed
	$(VENV)/bin/mypy

# The same with more lengths and more time, on one thread: the figures of the README.
bench: $(VENV)/installed
	$(VENV)/bin/subquad compare --threads 1 --lengths 128..16384 192 384 768 --budget 900 --run-limit 120

# What accumulation, recomputing and bfloat16 save in training, and what they cost.
bench-training: $(VENV)/installed
	$(RUN) benchmarks/training_memory.py

# Whether generating from a state takes as long for the last tokens as for the first.
bench-generation: $(VENV)/installed
	$(RUN) benchmarks/generation.py

# The neighbours, in an environment of their own.
bench-peers: $(PEERS)/installed
	$(PEERS)/bin/python benchmarks/peers.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[hub,data,dev]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet -c constraints.txt -e . -r benchmarks/peers-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS)
