# Everything needs `.venv`, which is made from pyproject.toml where it is missing or older. The demo needs only the package itself.
PYTHON ?= python3
# uv installs without compiling. If the environment forbids Python to keep what it compiles, as images often do, each of some thousand
# processes would compile its modules again: twice the processor time of a daemon's start. Empty is as good as unset.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
PACKAGE := .venv/.package
MARK := .venv/.installed

.PHONY: help demo demo-kafka demo-s3 test programs prepared fuzz chaos soak simulate oracle oracle-preview lint lock helm docs page site bench bench-quick kafka spark clean
.DEFAULT_GOAL := help

help:  ## What there is to make
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 20

$(BIN)/python:
	$(PYTHON) -m venv .venv

# pip would compile every module of every dependency. A process compiles those that it imports, and keeps them.
$(PACKAGE): pyproject.toml | $(BIN)/python
	CDFD_NATIVE=0 $(BIN)/python -m pip install --quiet --no-compile --editable .
	touch $@

# uv needs half of pip's processor time. It does not read pip's settings, so where it cannot install, pip does.
# PySpark comes as a source, and compressing a wheel of it takes longer than all the rest.
$(MARK): export DIST_EXTRA_CONFIG = $(CURDIR)/.ci/wheels.cfg
$(MARK): pyproject.toml hatch_build.py $(wildcard cdfd/native/*.pyx cdfd/native/*.pxd) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip 'uv==0.13.9'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]' || $(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(PACKAGE) $@

demo: $(PACKAGE)  ## A table that changes, and every change as it is delivered
	$(BIN)/cdfd demo

demo-kafka: $(MARK)  ## The same into a topic of a real Kafka broker, with a consumer (needs Java and Maven)
	$(BIN)/python -m tests.kafka.demo

demo-s3: $(MARK)  ## The same with the table and the ledger on S3, served by a process of this machine
	$(BIN)/python -m tests.s3.demo

lint: $(MARK)  ## ruff, mypy, import walls, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docs.words

test: lint prepared  ## All tests
	$(BIN)/python -m pytest -n 3

# What tests fetch or build where it is missing, beside the installation and lint: those keep one core busy. Tests tell what fails here.
programs:
	-$(PYTHON) -m tests.prepare programs

prepared: programs $(MARK)
	-$(BIN)/python -m tests.prepare jars packages environments

fuzz: $(MARK)  ## Hostile tables and answers for SECONDS (600), or MUTANTS of them; of SEED (1), of one TARGET; keeps what it finds
	PYTHONPATH=.:tests $(BIN)/python -m fuzz.run --keep --seed $(or $(SEED),1) $(if $(TARGET),--target $(TARGET)) \
	  $(if $(MUTANTS),--mutants $(MUTANTS),--seconds $(or $(SECONDS),600))

chaos: $(MARK)  ## CDFD_CHAOS faults (1000): daemons, brokers, connections, tables, disks, clocks, while a writer commits (needs Java)
	CDFD_CHAOS=$${CDFD_CHAOS:-1000} $(BIN)/python -m pytest -s tests/chaos/test_kafka.py tests/chaos/test_cluster.py tests/chaos/test_tables.py \
		tests/cluster/test_engines.py \
		tests/cli/test_delta_sink.py::test_every_change_once_whenever_it_is_killed \
		tests/cli/test_delta_sink.py::test_a_mirror_is_the_source_at_a_version_whenever_it_is_killed

soak: $(MARK)  ## A day of the daemon in CDFD_SOAK minutes (15): what it holds of the machine must not grow (needs Java)
	CDFD_SOAK=$${CDFD_SOAK:-15} $(BIN)/python -m pytest -s tests/chaos/test_soak.py

simulate: $(MARK)  ## SEEDS random lives (10000) of a daemon in virtual time, with faults of every port
	$(BIN)/python -m tests.simulation --seeds $${SEEDS:-10000}

oracle: $(MARK)  ## CDFD_ORACLE random tables (300), from CDFD_ORACLE_FIRST (0) on, written by delta-spark: its change feed beside ours (needs Java and Maven)
	CDFD_ORACLE=$${CDFD_ORACLE:-300} CDFD_REFINE_ORACLE=$${CDFD_ORACLE:-300} CDFD_MIRROR_ORACLE=$${CDFD_MIRROR_ORACLE:-200} \
	  $(BIN)/python -m pytest -v tests/spark/test_oracle.py tests/spark/test_refine_oracle.py tests/spark/test_mirror.py

oracle-preview: $(MARK)  ## The preview of PySpark 4.2 that derives changes from row tracking, beside ours, on CDFD_ORACLE random tables (100)
	CDFD_REFINE_ORACLE=$${CDFD_ORACLE:-100} PYTHONPATH=$(CURDIR):$(CURDIR)/tests \
	  $$($(BIN)/python -m tests.spark.environments) -m pytest -v tests/spark/test_read_time_changes.py

lock: $(MARK)  ## Pin what the image installs (docker/requirements) after dependencies changed; UPGRADE=1 for the newest of everything
	$(BIN)/python -m pip install --quiet 'uv==0.13.9'
	$(BIN)/python docker/lock.py $(if $(UPGRADE),--upgrade)

helm: .cache/helm/helm  ## Helm, built by Go into .cache/helm, for rendering the chart

# Go's releases of Helm have these versions from their build: without them, Helm takes the cluster for an old one.
HELM_VERSION := v3.22.0
HELM_KUBERNETES := 37
HELM_FLAGS = -s -w -X helm.sh/helm/v3/internal/version.version=$(HELM_VERSION) $(foreach package,pkg/chartutil pkg/lint/rules, \
  -X helm.sh/helm/v3/$(package).k8sVersionMajor=1 -X helm.sh/helm/v3/$(package).k8sVersionMinor=$(HELM_KUBERNETES))
.cache/helm/helm:
	GOBIN=$(CURDIR)/.cache/helm go install -ldflags "$(HELM_FLAGS)" helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

docs: $(MARK)  ## Rewrite generated references, and the outputs that pages show (outputs need Java and Maven)
	$(BIN)/python -m tests.docs.reference
	CDFD_DOCS=update $(BIN)/python -m pytest -q tests/docs

page: $(MARK)  ## Take the pictures of the daemon's page again (Debian's chromium; installs it if you are root)
	PYTHONPATH=.:tests $(BIN)/python -m tests.browser.picture

site: $(MARK)  ## The documentation as a site in `site/`; a broken link or anchor is an error
	$(BIN)/mkdocs build --strict

bench: $(MARK)  ## Benchmarks, with peers in the same run; updates bench/README.md
	$(BIN)/python -m bench.run

bench-quick: $(MARK)  ## Ratios of reading change rows to peers, in less than three minutes: for whoever changes how rows are read
	$(BIN)/python -m bench.changes --quick

kafka: $(MARK)  ## A real Kafka broker in the foreground, for trying things out (needs Java and Maven)
	$(BIN)/python -m tests.kafka.broker

spark: $(MARK)  ## A PySpark shell with a Delta table, a topic of its changes and the daemon between them (needs Java and Maven)
	@$(BIN)/python -m tests.spark.shell

clean:  ## Remove what was made
	rm -rf site .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist bench/data cdfd/native/*.so
