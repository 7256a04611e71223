PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
WHEELS := .venv-wheels
INSTALLED_WHEEL := .venv-installed-wheel
PLATFORMS := linux-x86_64 linux-aarch64 macos-arm64 windows-x86_64
RUN := $(VENV)/bin/python
# One worker more than cores: some tests wait for processes that they have started.
WORKERS := $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

.PHONY: compare test tests test-slow test-robustness test-kills test-families test-cluster test-sanitized wheels test-wheels lint types \
	bench bench-training bench-training-speed bench-decoding bench-kernels bench-targets bench-generation \
	bench-growth bench-choose bench-cluster bench-peers clean

# The main job: from which length each attention pays on this machine, in about two minutes.
compare: $(VENV)/kernels
	$(VENV)/bin/subquad compare

test: $(VENV)/kernels
	$(MAKE) --no-print-directory -j 3 lint types tests

# Compiled modules are kept, for the processes that tests start.
tests: $(VENV)/kernels
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n $(WORKERS) --dist worksteal \
		-m "not slow and not robustness and not kills and not sanitized and not wheels"

test-slow: $(VENV)/kernels
	$(RUN) -m pytest -n auto -m slow

# 200 kills at random moments: every run, resumed, comes to the same end, and no process is left. About 17 minutes on two busy
# cores.
test-kills: $(VENV)/kernels
	$(RUN) -m pytest -s -m kills tests/runs/test_kills.py

# 2,000 strange command lines, damaged run folders and hostile models, each in a process of its own, in less than ten
# minutes on two cores. `python -m tests.robustness` runs all there are, about 8,500.
test-robustness: $(VENV)/kernels
	$(RUN) -m pytest -s -m robustness tests/robustness

# Every family of the installed transformers, built small: what works with another attention. Writes docs/families.md in
# about 20 minutes on two cores. `make test-families RESUME=--resume` goes on with a run that was stopped.
test-families: $(VENV)/kernels
	$(RUN) -m tests.families $(RESUME)

# Two Ray nodes on the loopback address, one of which is killed half-way: the same numbers as without Ray.
test-cluster: $(VENV)/kernels $(VENV)/cluster
	$(RUN) -m pytest -m slow tests/places/test_cluster.py

# The native kernels with AddressSanitizer and UndefinedBehaviorSanitizer, which come with gcc.
test-sanitized: $(VENV)/kernels
	$(RUN) -m pytest -m sanitized tests/native

# Wheels for all platforms, in dist. The compiler is that of the package ziglang, in an environment of its own.
wheels: $(WHEELS)/installed
	for platform in $(PLATFORMS); do \
		SUBQUAD_WHEEL_FOR=$$platform $(WHEELS)/bin/python -m hatchling build -t wheel -d dist || exit 1; \
	done

# What is in the wheels, the kernels in them on emulated processors, and the contract suite on the wheel for Linux on x86-64,
# in a new environment that finds no compiler.
test-wheels: wheels $(VENV)/kernels
	$(RUN) -m pytest -m wheels tests/native
	$(PYTHON) -m venv --clear $(INSTALLED_WHEEL)
	$(INSTALLED_WHEEL)/bin/python -m pip install --quiet -c constraints.txt "$$(ls dist/*manylinux*x86_64.whl)[dev]"
	env -u CC -u PYTHONPATH PATH=$(CURDIR)/$(INSTALLED_WHEEL)/bin $(INSTALLED_WHEEL)/bin/python -m pytest \
		-m "not slow" tests/attention/test_contract*.py tests/ops/test_forms.py tests/native/test_values.py

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/installed
	$(VENV)/bin/mypy

# The same with more lengths and more time, on one thread.
bench: $(VENV)/kernels
	$(VENV)/bin/subquad compare --threads 1 --lengths 128..16384 192 384 768 --budget 900 --run-limit 120

# What accumulation, recomputing and bfloat16 save in training, and what they cost.
bench-training: $(VENV)/kernels
	$(RUN) benchmarks/training_memory.py

# How many times as fast training steps are with native kernels.
bench-training-speed: $(VENV)/kernels
	$(RUN) benchmarks/training_speed.py

# What native kernels reach: rates, threads, growth.
bench-kernels: $(VENV)/kernels
	$(RUN) benchmarks/kernels.py

# All targets of native kernels, beside what is reached: about a quarter of an hour on an idle machine.
bench-targets: $(VENV)/kernels
	$(RUN) benchmarks/targets.py

# How the time of each mechanism grows from 4096 to 65536 tokens.
bench-growth: $(VENV)/kernels
	$(RUN) benchmarks/growth.py

# How far a token of a whole decoder is from reading its weights once.
bench-decoding: $(VENV)/kernels
	$(RUN) benchmarks/decoding.py

# Whether generating from a state takes as long for the last tokens as for the first.
bench-generation: $(VENV)/kernels
	$(RUN) benchmarks/generation.py

# Races whose answer is planted, ten seeds each: about three hours.
bench-choose: $(VENV)/kernels
	$(RUN) benchmarks/choose_planted.py

# How much faster two Ray nodes with one CPU each do equal trainings than one of them: about three minutes.
bench-cluster: $(VENV)/kernels $(VENV)/cluster
	$(RUN) benchmarks/cluster.py

# The neighbours, in an environment of their own.
bench-peers: $(PEERS)/installed
	$(PEERS)/bin/python benchmarks/peers.py

# Compiles the kernels again after a change; without a compiler it says so, and everything runs on PyTorch alone.
$(VENV)/kernels: $(VENV)/installed $(wildcard src/subquad/native/*.[ch]) src/subquad/native/build.py
	$(RUN) -m subquad.native --if-needed || true
	touch $@

# Modules are compiled on all cores, which pip does on one; those that are left out are compiled when they are imported.
$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --no-compile -c constraints.txt -e '.[hub,data,images,speech,choose,dev]'
	-$(RUN) -m compileall -qq -j 0 -x '/tests?/|transformers/models/|torch/testing/' $(VENV)/lib
	touch $@

$(VENV)/cluster: $(VENV)/installed
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[cluster]'
	touch $@

$(PEERS)/installed: pyproject.toml constraints.txt benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet -c constraints.txt -e . -r benchmarks/peers-requirements.txt
	touch $@

$(WHEELS)/installed: pyproject.toml
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/python -m pip install --quiet hatchling ziglang
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(WHEELS) $(INSTALLED_WHEEL) dist
	rm -f src/subquad/native/kernels.so src/subquad/native/kernels.dylib src/subquad/native/kernels.dll
