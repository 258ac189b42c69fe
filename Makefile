# Every target sets up what it needs. The set-up is cached under the hash of the files that define it,
# so a second run starts at once.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
SETUP_KEY := $(shell cat pyproject.toml requirements/*.txt | sha256sum | cut -c1-16)
STAMP  := $(VENV)/.ready-$(SETUP_KEY)

# The demo needs a third of that: an environment of its own, unless the whole one is there.
DEMO   := $(if $(wildcard $(STAMP)),$(VENV),.venv-demo)
DEMO_STAMP := $(DEMO)/.ready-$(SETUP_KEY)

# A second, small environment with the newest JAX, where this machine has a Python that gets it.
NEXT   := .venv-next
NEXT_STAMP := $(NEXT)/.ready-$(SETUP_KEY)
export CHAINRULE_PYTHON_NEXT ?= $(abspath $(NEXT)/bin/python)

# And the oldest JAX, in a folder that stands before the environment's packages.
OLDEST := .jax-oldest
OLDEST_STAMP := $(OLDEST)/.ready-$(SETUP_KEY)
export CHAINRULE_JAX_OLDEST ?= $(abspath $(OLDEST))

.PHONY: help demo test test-device lint format bench docs outputs setup clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Create the virtual environment

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	@echo "Installing Chainrule and its development tools into $(VENV) (a few minutes, once)…"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -c requirements/constraints.txt -e '.[dev]' -r requirements/peers.txt
	@# pcx pins an old JAX but runs on ours: a peer to measure and to compare with, not a dependency.
	@$(BIN)/python -m pip install --quiet --no-deps pcx==0.6.3 || true
	@rm -f $(VENV)/.ready-*
	@touch $@

$(NEXT_STAMP): $(STAMP)
	@python="$$(scripts/next_python.sh)"; if [ -n "$$python" ]; then \
	    echo "Installing the newest JAX into $(NEXT) with $$python…"; \
	    { test -x $(NEXT)/bin/python || "$$python" -m venv $(NEXT); } \
	    && $(NEXT)/bin/python -m pip install --quiet -e '.[jax]' pytest hypothesis \
	    || echo "not available here; the tests on the newest JAX are skipped"; fi
	@mkdir -p $(NEXT) && rm -f $(NEXT)/.ready-* && touch $@

$(OLDEST_STAMP): $(STAMP)
	@echo "Installing the oldest JAX into $(OLDEST)…"
	@rm -rf $(OLDEST)
	@$(BIN)/python -m pip install --quiet --no-deps --target $(OLDEST) -r requirements/oldest-jax.txt \
	    || echo "not available here; the tests on the oldest JAX are skipped"
	@mkdir -p $(OLDEST) && touch $@

ifneq ($(DEMO),$(VENV))
$(DEMO_STAMP): pyproject.toml requirements/constraints.txt
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO) || python3 -m venv $(DEMO)
	@echo "Installing Chainrule, JAX, SciPy and matplotlib into $(DEMO), once: 250 MB to download, one to three minutes…"
	@$(DEMO)/bin/python -m pip install --disable-pip-version-check -c requirements/constraints.txt \
	    -e '.[jax,serve,sparse,view]' | grep --line-buffered -oE '^(Collecting|Building|Installing) [^ (<>=~!]+'
	@$(DEMO)/bin/python -c 'import chainrule, jax, matplotlib, optax, scipy, uvicorn'  # grep hid how pip ended
	@rm -f $(DEMO)/.ready-* && touch $@
endif

demo: $(DEMO_STAMP)  ## Run a gradient through several programs; leaves a plot and a report in demo-output/
	@$(DEMO)/bin/python -m examples.demo

# By file: the blocks of a docs page share a namespace, and what one test compiled serves the next.
test: $(STAMP) $(NEXT_STAMP) $(OLDEST_STAMP)  ## Run all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=15

# On a machine with a GPU, with its own Python: what that lacks is in .device-packages, made by
# scripts/device_packages.sh where a package index can be reached.
test-device:  ## Run the tests that need a GPU, and measure
	@scripts/test_device.sh

lint: $(STAMP)  ## Lint, format check, types, floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

format: $(STAMP)  ## Apply the formatter and the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## Run every benchmark: us, the peer and the floor side by side
	@$(BIN)/python -m benchmarks

docs: $(STAMP)  ## Build the documentation in strict mode into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html; for the search box serve it: $(BIN)/python -m http.server --directory site 8080"

outputs: $(STAMP)  ## Run the pages of the docs and write what their blocks print into them
	@CHAINRULE_WRITE_OUTPUTS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile docs README.md

clean:  ## Remove the environment and everything generated
	rm -rf $(VENV) .venv-demo $(NEXT) $(OLDEST) site demo-output test-artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
