# Everything needs `.venv`, which is made from pyproject.toml where it is missing or older. The demo needs only the package itself.
PYTHON ?= python3
# uv installs without compiling. If the environment forbids Python to keep what it compiles, as images often do, each of some thousand
# processes would compile its modules again: twice the processor time of a daemon's start. Empty is as good as unset.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cdfd
UV := $(CACHE)/uv-0.13.9/bin/uv
# Crates take minutes to compile. Compiled crates are kept outside the clone, for all clones. Optimising across crates makes kernels faster by a
# tenth, and takes three minutes after each change: wheels and benchmarks have it, tests do not.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/cdfd/cargo
export CARGO_PROFILE_RELEASE_LTO ?= off
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS ?= 16
# mypy's cache is kept there too. mypy compares contents, so a second clone takes 2 seconds instead of 18.
export MYPY_CACHE_DIR ?= $(HOME)/.cache/cdfd/mypy
RUST := $(shell sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' native/Cargo.toml)
# Empty without a cargo of that version or a newer one.
CARGO = $(shell printf '%s\n' 'cargo $(RUST)' "$$(cargo --version 2> /dev/null)" | sort -VC && echo cargo)
NATIVE := $(shell find .cargo/config.toml native/Cargo.toml native/Cargo.lock native/pyproject.toml native/src native/python -type f -not -name '*.pyc')
PYTEST = $(BIN)/python -m pytest -n 2
PACKAGE := .venv/.package
MARK := .venv/.installed

.PHONY: help demo demo-kafka demo-s3 quick test pytest integration overnight programs pythons flakes coverage mutants fuzz fuzz-native chaos upgrade cluster soak simulate oracle \
  oracle-preview connect producer s3-server numpy lint lock helm docs page changelog site bench bench-quick kafka spark clean
.DEFAULT_GOAL := help

help:  ## The targets of this Makefile
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 22

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The versions are those of the image, and cdfd-native is not among them: the demo works without. pip would compile every module of every
# dependency. A process compiles those that it imports, and keeps them.
$(PACKAGE): pyproject.toml docker/requirements/base.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement docker/requirements/base.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --editable .
	touch $@

# uv makes an environment and fills it from its cache in three seconds, where venv and pip take half a minute.
$(UV):
	$(PYTHON) -m venv $(CACHE)/uv-0.13.9
	$(CACHE)/uv-0.13.9/bin/python -m pip install --quiet 'uv==0.13.9'

# The versions are those of uv.lock. uv does not read pip's settings, so if it cannot install, pip does.
# PySpark comes as a source, and compressing a wheel of it takes longer than all the rest.
SYNC = $(UV) sync --quiet --locked --inexact --python $(BIN)/python --extra dev
PIP = $(BIN)/python -m pip install --quiet
# The wheel of cdfd-native is kept for clones with the same sources: cargo compiles it again for each folder.
WHEEL = $(CACHE)/native/$(shell cat $(sort $(NATIVE)) | $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
$(MARK): export DIST_EXTRA_CONFIG = $(CURDIR)/.ci/wheels.cfg
$(MARK): pyproject.toml uv.lock $(NATIVE) | $(UV)
	@$(if $(CARGO),:,echo 'There is no cargo $(RUST) or newer: cdfd works without cdfd-native, more slowly.')
	test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) .venv || $(PYTHON) -m venv --clear .venv
	$(SYNC) --no-install-package cdfd-native \
	  || { $(UV) export --quiet --frozen --extra dev --no-hashes --no-emit-local --output-file .venv/requirements.txt > /dev/null \
	  && $(PIP) --requirement .venv/requirements.txt && $(PIP) --no-deps --editable .; }
	$(if $(CARGO),wheel=$(WHEEL) && { test -e $$wheel || { $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $$wheel.new ./native && mv $$wheel.new $$wheel; }; } \
	  && $(UV) pip install --quiet --python $(BIN)/python --reinstall --no-deps $$wheel/*.whl)
	touch $(PACKAGE) $@

demo: $(PACKAGE)  ## A table that changes, and every change as it is delivered
	$(BIN)/cdfd demo

demo-kafka: $(MARK)  ## The same into a topic of a real Kafka broker, with a consumer (needs Java and Maven)
	$(BIN)/python -m tests.support.kafka.demo

demo-s3: $(MARK)  ## The same with the table and the ledger on S3, served by a process of this machine
	$(BIN)/python -m tests.support.s3.demo

# With another configuration of PyO3 than maturin's, each would have the other's scripts and a dozen crates compiled again.
PYO3 = $(firstword $(shell ls $(CARGO_TARGET_DIR)/maturin/pyo3-config-*-abi3.txt 2> /dev/null))
CLIPPY = PYO3_BUILD_EXTENSION_MODULE=1 $(if $(PYO3),PYO3_CONFIG_FILE=$(PYO3),PYO3_NO_PYTHON=1) cargo clippy --quiet --locked --release -- -D warnings
lint: $(MARK)  ## ruff, mypy, import walls, words, proselint; rustfmt and clippy if there is cargo
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.docs.words
	$(if $(CARGO),cd native && cargo fmt --check && $(CLIPPY))

quick: $(MARK)  ## Tests for while you work: pure units, golden tables, a hundred simulated lives (3 minutes)
	$(PYTEST) tests/quick

# With `--jobs`, the tests run beside lint: otherwise mypy would keep one core busy and leave the other one idle.
test: lint pytest  ## Lint and all tests that a push needs: quick, one broker, one Spark session, one S3 server, the command (12 minutes)
pytest: prepared-test
	$(PYTEST) tests/quick tests/standard

integration: prepared-integration  ## Tests against everything else, or ONLY=kafka|s3|spark|consumers|docs|image|browser|telemetry|trevni|helm|cli|upgrade|simulation|sweeps|next-spark
	$(if $(filter-out sweeps next-spark,$(or $(ONLY),all)),$(PYTEST) $(if $(ONLY),$(addprefix tests/integration/,$(filter-out sweeps next-spark,$(ONLY))),tests/integration))
	$(if $(filter sweeps,$(or $(ONLY),sweeps)),CDFD_TEST_CASES=all $(PYTEST) $(SWEEPS))
	$(if $(filter next-spark,$(or $(ONLY),next-spark)),$(NEXT_SPARK))

# The tests of Spark with PySpark 4.2. Each tier has a session of its own, and a process has one session at a time.
NEXT_SPARK = python=$$($(BIN)/python -m tests.support.spark.environments) && for tier in standard integration; do \
	  PYTHONPATH=$(CURDIR) $$python -m pytest -n 2 tests/$$tier/spark || exit 1; done

# Modules of which `make test` runs a sample of the cases, and `make integration` all. Commands are not forked there.
SWEEPS = $(shell grep --recursive --files-with-matches --include='test_*.py' --extended-regexp \
  'tests.support.(sampling|commands|kafka.daemon_process) import' tests/quick tests/standard)

# The long forms, each a target of its own.
OVERNIGHT := chaos upgrade cluster oracle oracle-preview connect producer s3-server numpy pythons fuzz fuzz-native simulate soak mutants
overnight: prepared-overnight  ## The tests that take hours, or those of ONLY=chaos|upgrade|cluster|oracle|oracle-preview|connect|producer|s3-server|numpy|pythons|fuzz|fuzz-native|simulate|soak|mutants
	$(MAKE) --keep-going $(or $(ONLY),$(OVERNIGHT))

# Tools that tests fetch or build where they are missing, beside the installation and lint: those keep one core busy. Tests say what fails here.
programs:
	-$(PYTHON) -m tests.support.prepare programs

prepared-%: programs $(MARK)
	-$(BIN)/python -m tests.support.prepare $*

flakes: $(MARK)  ## Run PATHS (those of `make test`) N times (20) under load, and list the tests that failed once
	$(BIN)/python -m tests.support.flakes $(or $(N),20) $(PATHS)

pythons: $(MARK)  ## The quick tests on Python 3.13 and 3.14, or on ONLY=3.13|3.14
	@for version in $(or $(filter 3.%,$(ONLY)),3.13 3.14); do \
	  python=$$($(BIN)/python -m tests.support.pythons $$version) && test -n "$$python" || exit 1; \
	  export UV_PROJECT_ENVIRONMENT=.cache/python-$$version; \
	  $(UV) sync --quiet --locked --python $$python --extra dev && $$UV_PROJECT_ENVIRONMENT/bin/python -m pytest -n 2 tests/quick || exit 1; done

coverage: $(MARK)  ## Lines and branches that tests (of PATHS) reach, by room, and the floors of the rooms that decide about rows
	$(BIN)/python -m tests.support.coverage $(PATHS)

fuzz: $(MARK)  ## Hostile tables and answers for SECONDS (600), or MUTANTS of them; of SEED (1), of one TARGET; keeps what it finds
	$(BIN)/python -m tests.support.fuzz.run --keep --seed $(or $(SEED),1) $(if $(TARGET),--target $(TARGET)) \
	  $(if $(MUTANTS),--mutants $(MUTANTS),--seconds $(or $(SECONDS),600))

# RUSTC_BOOTSTRAP lets stable Rust build with a sanitizer. A crash, 10 seconds or 700 MB for one input end the run, and leave the input.
FUZZING = -max_total_time=$$(($(or $(SECONDS),900) / 3)) -timeout=10 -rss_limit_mb=700 -malloc_limit_mb=600
fuzz-native: export CARGO_TARGET_DIR := $(CARGO_TARGET_DIR)/fuzz
fuzz-native: export ASAN_OPTIONS := quarantine_size_mb=16:detect_leaks=0
fuzz-native: $(MARK)  ## Hostile Parquet files for SECONDS (900), by libFuzzer with an address sanitizer (needs Rust and a C++ compiler)
	cargo fuzz --version || cargo install --locked cargo-fuzz
	$(BIN)/python -m tests.support.fuzz.native_seeds .cache/fuzz-native/seeds
	cd native && for target in file column lengths; do \
	  mkdir -p ../.cache/fuzz-native/corpus/$$target && \
	  RUSTC_BOOTSTRAP=1 nice -n 10 cargo fuzz run --release $$target ../.cache/fuzz-native/corpus/$$target ../.cache/fuzz-native/seeds/$$target \
	    -- $(FUZZING) || exit 1; done

mutants: $(MARK)  ## Small changes of the code that tests must notice: N of each room (100), or of ONLY=delta|plan|trevni|ledger|sinks; all of PATHS (needs Java)
	nice -n 10 $(BIN)/python -m tests.support.mutants --seed $(or $(SEED),1) $(if $(filter-out mutants,$(ONLY)),--only $(ONLY)) \
	  $(if $(N),--count $(N)) $(PATHS)

chaos: $(MARK)  ## CDFD_CHAOS faults (1000): daemons, brokers, connections, tables, disks, clocks, while a writer commits (needs Java)
	CDFD_CHAOS=$${CDFD_CHAOS:-1000} $(BIN)/python -m pytest -s tests/overnight/chaos/test_kafka.py tests/overnight/chaos/test_cluster.py \
		tests/overnight/chaos/test_standby.py tests/overnight/chaos/test_tables.py tests/overnight/chaos/test_backlog.py \
		tests/overnight/cluster/test_engines.py \
		tests/standard/cli/test_delta_sink.py::test_every_change_once_whenever_it_is_killed \
		tests/integration/cli/test_mirror.py::test_a_mirror_is_the_source_at_a_version_whenever_it_is_killed

upgrade: $(MARK)  ## CDFD_UPGRADES pipelines (8) of each kind, from a daemon of CDFD_UPGRADE_FROM (the golden copies') to this one (needs Java)
	CDFD_UPGRADES=$${CDFD_UPGRADES:-8} $(BIN)/python -m pytest -s tests/overnight/upgrade

cluster: $(MARK)  ## A standalone cluster of Spark, applications on it, and processes of it that die (needs Java and Maven)
	$(BIN)/python -m pytest tests/overnight/cluster

soak: $(MARK)  ## A day of the daemon in CDFD_SOAK minutes (15): its memory, threads and sockets must not grow (needs Java)
	CDFD_SOAK=$${CDFD_SOAK:-15} $(BIN)/python -m pytest -s tests/overnight/chaos/test_soak.py

simulate: $(MARK)  ## SEEDS random lives (10000) of a daemon in virtual time, with faults of every port; the same with standbys, and with two sinks
	$(BIN)/python -m tests.support.simulation --seeds $${SEEDS:-10000}
	$(BIN)/python -m tests.support.simulation --standby --seeds $${SEEDS:-10000}
	$(BIN)/python -m tests.support.simulation --sinks --seeds $${SEEDS:-10000}

oracle: $(MARK)  ## Random tables of delta-spark, seeds CDFD_ORACLE_FIRST (0) to CDFD_ORACLE (300), and ten times as many Parquet files (needs Java and Maven)
	CDFD_ORACLE=$${CDFD_ORACLE:-300} CDFD_REFINE_ORACLE=$${CDFD_ORACLE:-300} CDFD_MIRROR_ORACLE=$${CDFD_MIRROR_ORACLE:-200} \
	  CDFD_PARQUET_ORACLE=$$(($${CDFD_ORACLE:-300} * 10)) \
	  $(BIN)/python -m pytest -v tests/overnight/spark/test_oracle.py tests/overnight/spark/test_refine_oracle.py tests/overnight/spark/test_mirror.py \
	  tests/overnight/spark/test_parquet_oracle.py tests/overnight/oracle/test_kernel.py

oracle-preview: $(MARK)  ## The preview of PySpark 4.2 that derives changes from row tracking, compared with cdfd, on CDFD_ORACLE random tables (100)
	CDFD_REFINE_ORACLE=$${CDFD_ORACLE:-100} PYTHONPATH=$(CURDIR) \
	  $$($(BIN)/python -m tests.support.spark.environments) -m pytest -v tests/overnight/spark/test_read_time_changes.py

connect: $(MARK)  ## Spark Connect (needs Java and Maven)
	$(BIN)/python -m pytest tests/overnight/spark/test_connect.py

producer: $(MARK)  ## Tests of Kafka with the other producer, librdkafka (needs Java and Maven)
	CDFD_TEST_SECOND=producer $(PYTEST) tests/standard/kafka tests/integration/kafka tests/standard/contract/test_sink.py

s3-server: $(MARK)  ## Tests of S3 with the other server, versitygw (needs Go)
	CDFD_TEST_SECOND=s3 $(PYTEST) tests/standard/s3 tests/integration/s3 tests/standard/contract/test_storage.py tests/standard/contract/test_ledger.py

numpy: $(MARK)  ## Tests of the kernels with their counterparts in numpy
	CDFD_TEST_SECOND=numpy $(PYTEST) tests/quick/unit tests/quick/contract tests/quick/trevni tests/standard/unit

# These have all cases, too.
coverage mutants producer s3-server numpy: export CDFD_TEST_CASES = all

lock: $(MARK)  ## Pin what tests (uv.lock), the image (docker/requirements) and native/Cargo.lock have, after dependencies changed; UPGRADE=1: the newest
	$(BIN)/python -m pip install --quiet 'uv==0.13.9'
	$(if $(CARGO),cargo update --manifest-path native/Cargo.toml $(if $(UPGRADE),,--workspace))
	$(BIN)/uv lock $(if $(UPGRADE),--upgrade)
	$(BIN)/python docker/lock.py $(if $(UPGRADE),--upgrade)

helm: .cache/helm/helm  ## Helm, built by Go once, and linked as .cache/helm/helm, for rendering the chart

# Go's releases of Helm have these versions from their build: without them, Helm takes the cluster for an old one.
HELM_VERSION := v3.22.0
HELM_KUBERNETES := 37
HELM_FLAGS = -s -w -X helm.sh/helm/v3/internal/version.version=$(HELM_VERSION) $(foreach package,pkg/chartutil pkg/lint/rules, \
  -X helm.sh/helm/v3/$(package).k8sVersionMajor=1 -X helm.sh/helm/v3/$(package).k8sVersionMinor=$(HELM_KUBERNETES))
.cache/helm/helm: $(CACHE)/helm-$(HELM_VERSION)/helm
	mkdir -p $(@D)
	ln -sf $< $@

$(CACHE)/helm-$(HELM_VERSION)/helm:
	GOBIN=$(@D) go install -ldflags "$(HELM_FLAGS)" helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

docs: $(MARK)  ## Rewrite generated references, and the outputs that pages show (outputs need Java and Maven)
	$(BIN)/python -m tests.support.docs.reference
	CDFD_DOCS=update $(BIN)/python -m pytest -q tests/integration/docs

page: $(MARK)  ## Take the pictures of the daemon's page again (Debian's chromium; installs it if you are root)
	$(BIN)/python -m tests.support.browser.picture

changelog: $(MARK)  ## Move the files of changelog.d into CHANGELOG.md as VERSION
	$(BIN)/towncrier build --yes --version $(VERSION)

site: $(MARK)  ## The documentation as a site in `site/`; a broken link or anchor is an error
	$(BIN)/mkdocs build --strict

# Benchmarks measure the build that users get.
bench bench-quick: export CARGO_PROFILE_RELEASE_LTO = fat
bench bench-quick: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 1
bench: $(MARK)  ## Benchmarks, with peers in the same run; updates bench/README.md
	$(SYNC)
	$(BIN)/python -m bench.run

bench-quick: $(MARK)  ## Ratios of reading change rows to peers, in less than three minutes: for changes to how rows are read
	$(SYNC)
	$(BIN)/python -m bench.changes --quick

kafka: $(MARK)  ## A real Kafka broker in the foreground, for trying things out (needs Java and Maven)
	$(BIN)/python -m tests.support.kafka.broker

spark: $(MARK)  ## A PySpark shell with a Delta table, a topic of its changes and the daemon between them (needs Java and Maven)
	@$(BIN)/python -m tests.support.spark.shell

clean:  ## Remove the environment, caches, and built files
	rm -rf site .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist bench/data
