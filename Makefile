# Everything that a person does with this tree. `make run` and `make test` need no other set-up.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

# The first Python that is new enough; PYTHON=... chooses another one.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# A stamp carries the checksum of what it depends on: only changed content counts, not a changed time, and the second
# `make run` neither starts pip nor imports Cython.
PACKAGES := broker mesh router analytics
COMPILED := $(shell find $(PACKAGES) -name "*.pyx" -o -name "*.pxd" | LC_ALL=C sort) setup.py
SUM_DEPENDENCIES := $(shell { echo $(PYTHON) $(CURDIR); sed -n '/^requires/p;/^dependencies/,/\]/p;/optional-dep/,/^$$/p;/^shoal = /p' pyproject.toml; } | cksum | cut -d' ' -f1)
SUM_COMPILED := $(shell { cksum $(COMPILED); uname -m; } | cksum | cut -d' ' -f1)
VENV_READY := $(VENV)/.created-$(SUM_DEPENDENCIES)
RUN_READY := $(VENV)/.run-$(SUM_DEPENDENCIES)
ANALYTICS_READY := $(VENV)/.analytics-$(SUM_DEPENDENCIES)
TEST_READY := $(VENV)/.test-$(SUM_DEPENDENCIES)
BUILT := $(VENV)/.built-$(SUM_DEPENDENCIES)-$(SUM_COMPILED)

# Client libraries of other languages that the tests drive.
MQTT_JS := .cache/mqtt-js
ROOT_USER := $(shell [ "$$(id -u)" = 0 ] && echo yes)

.PHONY: help
help:
	@echo 'make run            build what changed and start a broker on this machine (ARGS="--listen ..." passes options)'
	@echo 'make test           install what the tests need, check style and types, run all tests (ARGS="-k ..." to pytest)'
	@echo 'make test-quick     the part of it that gives a verdict within three minutes'
	@echo 'make lint           ruff, mypy and import-linter'
	@echo 'make test-workers   all conversations over three workers, and real clients with one worker and with three'
	@echo 'make test-browser   MQTT.js in Chromium, which it installs, over WebSocket with TLS'
	@echo 'make test-checked   the tests on a build with bounds checks, sanitizers and poisoned buffers'
	@echo 'make mutants        break some fifty lines of the source, one at a time; each must be noticed (ARGS="part of a name")'
	@echo 'make coverage       line coverage, compiled modules included'
	@echo 'make simulate       many seeds of the simulator, with one worker and with several (SEEDS=1000 START=1)'
	@echo 'make test-acl       put generated ACL files to mosquitto and to our rules (FILES=2000 SEED=1)'
	@echo 'make fuzz           fuzz (SECONDS=60 TARGET=connection SEED=1), or try one input again (REPLAY=file)'
	@echo 'make test-leaks     many cycles of everything, and nothing may be left of them (6 minutes)'
	@echo 'make soak           mixed load for MINUTES=30, and a verdict: memory flat, nothing acknowledged lost'
	@echo 'make soak-kill      kill -9 every few seconds under load for SECONDS=600 at RATE=5000 messages/s, and a verdict'
	@echo 'make soak-hostile   packets that are much work for SECONDS=15 each, beside a witness whose longest wait is judged'
	@echo 'make soak-workers   a worker stopped for SECONDS=60, and COUNT=1000 names that two clients claim at the same instant, workers killed and stopped'
	@echo 'make capacity       measure what clients, subscriptions and messages cost, and write docs/capacity.md'
	@echo 'make bench          measure beside the floor and mosquitto, and write docs/benchmarks.md'
	@echo 'make admin-turns    how long turns are while an administrator goes through 100,000 clients (a minute)'
	@echo 'make bench-log      measure what durability costs, and write docs/benchmarks-log.md (10 minutes)'
	@echo 'make bench-workers  measure what several workers cost beside one, and write docs/benchmarks-workers.md (5 minutes)'
	@echo 'make demo           broker, 1,000 devices, lake, three questions and a report in build/demo (MINUTES=2)'
	@echo 'make bench-transports  measure what TLS, WebSocket and Unix sockets cost, and write docs/benchmarks-transports.md'
	@echo 'make bench-analytics  measure Spark on the log, and write docs/benchmarks-analytics.md (10 minutes)'
	@echo 'make test-lake-kills  1,000,000 messages into a lake, through kills of broker and writer, without Spark and with'
	@echo 'make test-cluster   a standalone Spark cluster of two workers runs a job with the package in an archive'
	@echo 'make compare        what a message, an idle worker and a start cost beside another commit (BASE=main; 3 minutes)'
	@echo 'make bench-check    that, and measure everything and compare with the committed ratios'
	@echo 'make profile        where the time goes in a loaded worker: py-spy and perf'
	@echo 'make wheel          sdist and wheel in dist/'
	@echo 'make settings       write deploy/shoal.toml and docs/configuration.md'
	@echo 'make changelog      move the notes in docs/changes into CHANGELOG.md, under the version in broker/version.py'
	@echo 'make clean          remove what was built; the virtual environment stays (make distclean takes it too)'

# --- what a machine must have --------------------------------------------------------------------------------------

define CHECK_MACHINE
missing=""; \
if [ -z "$(PYTHON)" ]; then \
	echo "Python 3.11 or newer is needed; found: $$(python3 --version 2>&1 || true)" >&2; \
	missing="python3 python3-venv python3-dev"; \
else \
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "Python's venv module is missing." >&2; missing="$$missing python3-venv"; }; \
	header="$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; \
	[ -f "$$header" ] || { echo "Python's C headers are missing: no $$header." >&2; missing="$$missing python3-dev"; }; \
fi; \
compiler="$${CC:-$$(command -v gcc || command -v cc || true)}"; \
if [ -z "$$compiler" ]; then \
	echo "A C compiler is missing." >&2; missing="$$missing gcc libc6-dev"; \
elif ! echo '#include <sys/epoll.h>' | $$compiler -fsyntax-only -x c - 2>/dev/null; then \
	echo "The C library's headers are missing: no <sys/epoll.h>." >&2; missing="$$missing libc6-dev"; \
fi
endef

# What is missing is named with the command that brings it; `make test` as root runs that command.
.PHONY: machine
machine:
	@$(CHECK_MACHINE); \
	if [ -n "$$missing" ]; then echo "To fix it: apt-get install $$missing" >&2; exit 1; fi

$(VENV_READY):
	@$(MAKE) machine
	@echo '[1/3] creating $(VENV) with $(PYTHON)'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@# Our packages are found in this tree; the command is a two-line script, so nothing is installed twice.
	@echo '$(CURDIR)' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shoal.pth"
	@printf '#!%s\nfrom broker.cli.main import main\n\nmain()\n' '$(CURDIR)/$(BIN)/python' > $(BIN)/shoal
	@chmod +x $(BIN)/shoal
	@touch $@

# $(1): names of extras; prints the requirements of the build, of the broker and of those extras.
REQUIREMENTS = $(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*p["build-system"]["requires"], *p["project"]["dependencies"], *[d for extra in sys.argv[1:] for d in p["project"]["optional-dependencies"][extra]], sep="\n")' $(1)

$(RUN_READY): | $(VENV_READY)
	@echo '[2/3] installing what the broker needs (trio, structlog, msgspec, msgpack, lmdb, pyzmq, click) and Cython, half a minute'
	@$(PIP) install -r <($(call REQUIREMENTS,))
	@touch $@

$(TEST_READY): | $(RUN_READY)
	@echo 'installing what the tests need'
	@$(PIP) install -r <($(call REQUIREMENTS,test lint analytics decoders))
	@touch $@

$(ANALYTICS_READY): | $(RUN_READY)
	@echo 'installing what analytics needs (PySpark and PyArrow)'
	@$(PIP) install -r <($(call REQUIREMENTS,analytics))
	@touch $@

$(BUILT): | $(RUN_READY)
	@$(MAKE) machine
	@echo '[3/3] compiling $(words $(filter %.pyx,$(COMPILED))) modules on $(shell nproc) cores, a minute or two the first time'
	@# A compiled module whose source has gone would still be imported.
	@find $(PACKAGES) -name '*.so' | while read -r module; do [ -e "$${module%%.*}.pyx" ] || rm "$$module"; done
	@$(BIN)/python setup.py -q build_ext --inplace
	@rm -f $(VENV)/.built-*
	@touch $@

.PHONY: build
build: $(BUILT)

# --- the broker ----------------------------------------------------------------------------------------------------

.PHONY: run
run: build
	@exec $(BIN)/shoal serve $(ARGS)

.PHONY: settings
settings: build
	@$(BIN)/python -m broker.config.loader > deploy/shoal.toml
	@$(BIN)/python -m broker.config.page > docs/configuration.md

# --- tests ---------------------------------------------------------------------------------------------------------

# As root, missing system packages are installed; installing mosquitto must not start its service.
.PHONY: test-machine
test-machine:
ifeq ($(ROOT_USER),yes)
	@$(CHECK_MACHINE) 2>/dev/null; \
	command -v mosquitto >/dev/null || missing="$$missing mosquitto"; \
	command -v mosquitto_pub >/dev/null || missing="$$missing mosquitto-clients"; \
	command -v npm >/dev/null || missing="$$missing npm"; \
	command -v haproxy >/dev/null || missing="$$missing haproxy"; \
	command -v nginx >/dev/null || missing="$$missing nginx"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v java >/dev/null || missing="$$missing openjdk-17-jre-headless"; \
	if [ -n "$$missing" ]; then \
		if ! command -v apt-get >/dev/null; then echo "Missing here: $$missing" >&2; exit 0; fi; \
		echo "installing system packages: $$missing"; \
		policy=/usr/sbin/policy-rc.d; \
		if [ ! -e $$policy ]; then printf '#!/bin/sh\nexit 101\n' > $$policy; chmod +x $$policy; trap "rm -f $$policy" EXIT; fi; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq </dev/null; \
		apt-get install -y -qq --no-install-recommends $$missing </dev/null >/dev/null; \
	fi
endif

$(MQTT_JS)/node_modules/mqtt:
	@if command -v npm >/dev/null; then \
		echo 'installing MQTT.js for the tests'; \
		mkdir -p $(MQTT_JS); \
		npm install --silent --no-audit --no-fund --no-save --no-package-lock --prefix $(MQTT_JS) mqtt@5 </dev/null; \
	else echo 'npm is missing: tests with MQTT.js will be skipped'; fi

.PHONY: test-ready
test-ready:
	@$(MAKE) test-machine
	@$(MAKE) $(TEST_READY) $(BUILT) $(MQTT_JS)/node_modules/mqtt

# The tests run in so many processes at once, one more than cores because a third of the time is waiting; more than four
# only wait for one another's brokers.
TEST_PROCESSES ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 4)))

.PHONY: test
test: test-ready
	@$(MAKE) lint
	@echo '--- tests'
	@if $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist=loadgroup $(ARGS); then echo 'make test: lint and tests passed'; \
	else echo 'make test: FAILED, see above' >&2; exit 1; fi

# Units, rules of the house, what is written down, and each conversation twice: in one piece, and cut, late and logged.
# Without real clients, Spark, distributions and the longer runs of simulator and fuzzers.
QUICK := tests/unit tests/house tests/inprocess/test_resume.py tests/inprocess/test_damaged_log.py \
	tests/inprocess/test_reactor_rules.py tests/processes/test_serve.py tests/processes/test_kill.py
QUICK_CONVERSATIONS := whole] or cut_slow_and_logged]

.PHONY: test-quick
test-quick: test-ready
	@$(MAKE) lint
	@echo '--- tests, the quick ones'
	@if $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist=loadgroup $(QUICK) $(ARGS) \
		&& $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) tests/conversations/test_conversations.py -k '$(QUICK_CONVERSATIONS)' $(ARGS); \
	then echo 'make test-quick: passed'; else echo 'make test-quick: FAILED, see above' >&2; exit 1; fi

.PHONY: test-workers
test-workers: test-ready
	@SHOAL_TEST_WORKERS=all $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist=loadgroup \
		tests/clients tests/conversations/test_conversations.py -k worker $(ARGS)

.PHONY: test-browser
test-browser: test-ready
	@command -v chromium >/dev/null || apt-get install -y -qq --no-install-recommends chromium </dev/null >/dev/null
	@$(BIN)/python -m pytest -p no:cacheprovider tests/clients/browser.py $(ARGS)

.PHONY: simulate
simulate: test-ready
	@$(BIN)/python -m tests.simulator --seeds $(or $(SEEDS),1000) --start $(or $(START),1) $(ARGS)
	@$(BIN)/python -m tests.simulator --several --seeds $(or $(SEEDS),1000) --start $(or $(START),1) $(ARGS)

.PHONY: fuzz
fuzz: test-ready
	@$(BIN)/python -m tests.tools.fuzz --seconds $(or $(SECONDS),60) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY))

.PHONY: test-acl
test-acl: test-ready
	@$(BIN)/python -m tests.tools.acl_beside_mosquitto --files $(or $(FILES),2000) --seed $(or $(SEED),1)

.PHONY: test-leaks
test-leaks: test-ready
	@$(BIN)/python -m pytest -p no:cacheprovider tests/tools/leaks/in_process.py tests/tools/leaks/process.py $(ARGS)

.PHONY: demo test-lake-kills test-cluster
# Nothing of what tests need but PySpark, and Java.
demo: $(ANALYTICS_READY) $(BUILT)
	@rm -rf build/demo
	@$(BIN)/python -m analytics.cli.demo build/demo --minutes $(or $(MINUTES),2) --devices $(or $(DEVICES),1000)

test-lake-kills: test-ready
	@$(BIN)/python -m tests.analytics.killing --messages $(or $(MESSAGES),1000000) --workers 1
	@$(BIN)/python -m tests.analytics.killing --messages $(or $(MESSAGES),1000000) --workers 3 --format delta
	@$(BIN)/python -m tests.analytics.killing --messages $(or $(MESSAGES),1000000) --workers 3 --spark

test-cluster: test-ready
	@$(BIN)/python -m tests.analytics.cluster

.PHONY: soak soak-kill soak-workers soak-hostile capacity admin-turns
soak: test-ready
	@$(BIN)/python -m tests.tools.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

soak-kill: test-ready
	@$(BIN)/python -m tests.tools.soak.kill --seconds $(or $(SECONDS),600) --rate $(or $(RATE),5000) $(if $(SEED),--seed $(SEED)) $(ARGS)

# A worker that is stopped for a minute; a thousand client identifiers that two clients claim at once.
soak-workers: test-ready
	@$(BIN)/python -m tests.tools.soak.stall --seconds $(or $(SECONDS),60)
	@$(BIN)/python -m tests.tools.soak.claims --count $(or $(COUNT),1000)
	@$(BIN)/python -m tests.tools.soak.kill --workers 3 --seconds $(or $(SECONDS),60) --rate 1000

# Packets that are much work, beside a witness that must not wait.
soak-hostile: test-ready
	@$(BIN)/python -m tests.tools.soak.hostile_packets --seconds $(or $(SECONDS),15) $(ARGS)

capacity: test-ready
	@$(BIN)/python -m tests.tools.bench.capacity

admin-turns: test-ready
	@$(BIN)/python -m tests.tools.bench.admin_turns $(or $(CLIENTS),100000)

.PHONY: lint
lint: $(TEST_READY)
	@echo '--- lint: ruff, mypy, import-linter'
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'not as ruff formats it: .venv/bin/ruff format' >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

# A copy of the tree, so that neither the C files nor the modules of two kinds of build meet. Sources keep their time,
# and only what changed is compiled again. $(1): the folder, $(2): the switch of setup.py.
define BUILD_COPY
	@mkdir -p $(1)
	@find $(1) -mindepth 2 -name build -prune -o \( -name '*.py' -o -name '*.pyx' -o -name '*.pxd' \) -type f -exec rm {} +
	@tar -cf - --exclude='*.so' --exclude='__pycache__' \
		broker router mesh analytics tests deploy docs shoal.py shoal_packages.py pyspark_shoal.py setup.py pyproject.toml README.md LICENSE Makefile .ci | tar -xf - -C $(1)
	@cd $(1) && $(2)=1 $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
endef

LIBRARY = $(shell gcc -print-file-name=$(1))
SANITIZED := env PYTHONMALLOC=malloc HYPOTHESIS_PROFILE=checked \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$(CURDIR)/build/checked/sanitizer \
	UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/build/checked/sanitizer

# Without distributions, and without what drives programs of others, Spark among them: those are no build of ours.
WITHOUT_OTHERS := -m 'not packaging' --ignore=tests/clients --ignore=tests/house/test_house.py --ignore=tests/house/test_floors.py \
	$(foreach name,arrow_lake wire_formats decoding jobs lake lake_reading lake_writers network source,--ignore=tests/analytics/test_$(name).py)

.PHONY: test-checked
test-checked: test-ready
	@echo 'building with bounds checks and sanitizers in build/checked'
	$(call BUILD_COPY,build/checked,SHOAL_CHECKED)
	@rm -f build/checked/sanitizer.*
	@cd build/checked && $(SANITIZED) LD_PRELOAD="$(call LIBRARY,libasan.so) $(call LIBRARY,libubsan.so)" \
		PYTHONPATH=$(CURDIR)/build/checked $(CURDIR)/$(BIN)/python -m pytest \
		-n $(TEST_PROCESSES) --dist=loadgroup \
		$(WITHOUT_OTHERS) -p no:cacheprovider $(ARGS) \
		|| { cat sanitizer.* 2>/dev/null || true; echo 'make test-checked: FAILED, see above' >&2; exit 1; }
	@# What was found in a process that a test started, and which that test did not notice.
	@if ls build/checked/sanitizer.* >/dev/null 2>&1; then cat build/checked/sanitizer.*; exit 1; fi
	@echo 'make test-checked: passed'

# Nothing of these builds differs from a plain one but the place; bytecode of a source that changes twice a second lies.
.PHONY: mutants
mutants: test-ready
	@echo 'building in build/mutants'
	$(call BUILD_COPY,build/mutants,PYTHONDONTWRITEBYTECODE)
	@cd build/mutants && PYTHONPATH=$(CURDIR)/build/mutants $(CURDIR)/$(BIN)/python -m tests.tools.mutants $(ARGS)

.PHONY: coverage
coverage: test-ready
	@$(PIP) install coverage
	@echo 'building for line coverage in build/coverage'
	$(call BUILD_COPY,build/coverage,SHOAL_LINETRACE)
	@cd build/coverage && printf '[run]\nplugins = Cython.Coverage\nsource = broker,router,mesh\nbranch = False\n' > .coveragerc
	@cd build/coverage && PYTHONPATH=$(CURDIR)/build/coverage $(CURDIR)/$(BIN)/python -m coverage run -m pytest \
		$(WITHOUT_OTHERS) -p no:cacheprovider -q $(ARGS)
	@cd build/coverage && $(CURDIR)/$(BIN)/python -m coverage report

# --- speed ---------------------------------------------------------------------------------------------------------

.PHONY: bench bench-log bench-workers bench-transports bench-analytics bench-check compare profile
bench: test-ready
	@$(BIN)/python -m tests.tools.bench run $(ARGS)

bench-workers: test-ready
	@$(BIN)/python -m tests.tools.bench.workers $(ARGS)

bench-transports: test-ready
	@$(BIN)/python -m tests.tools.bench.transports $(ARGS)

bench-log: test-ready
	@$(BIN)/python -m tests.tools.bench.log_rows run $(ARGS)

bench-analytics: test-ready
	@$(BIN)/python -m tests.tools.bench.analytics $(ARGS)

# Instructions of a message, memory of an idle worker, CPU of a start.
compare: test-ready
	@$(BIN)/python -m tests.tools.compare $(BASE)

bench-check: compare
	@$(BIN)/python -m tests.tools.bench check $(ARGS)

profile: test-ready
	@$(BIN)/python -m tests.tools.profile $(ARGS)

# --- distributions -------------------------------------------------------------------------------------------------

.PHONY: wheel
wheel: $(TEST_READY)
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@ls -l dist

# The notes that it took are removed, and both is staged for a commit. DRAFT=1 only shows what would be written.
.PHONY: changelog
changelog: $(RUN_READY)
	@$(PIP) install towncrier
	@$(BIN)/towncrier build $(if $(DRAFT),--draft,--yes) \
		--version "$$($(BIN)/python -c 'from broker.version import VERSION; print(VERSION)')"

.PHONY: clean distclean
clean:
	@rm -rf build dist *.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	@find $(PACKAGES) -name '*.so' -delete
	@rm -f $(VENV)/.built-*
	@find broker mesh router analytics tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) .cache
