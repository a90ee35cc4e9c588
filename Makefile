# Two commands matter: `make demo` shows Headgate at work, `make test` proves it.
SHELL := /bin/bash
BIN := .venv/bin
JAR := src/headgate/match/jars/headgate-connector.jar
PROGRAMS := cc chromium libatomic mvn kubectl npm curl openssl promtool

# Tests and demos start Python hundreds of times: what one start has compiled is kept for the others.
unexport PYTHONDONTWRITEBYTECODE
# What mypy has found of a file is kept by the file's content: another clone of this repository need not find it again.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/headgate/mypy

.PHONY: setup demo demo-cluster check test test-all in-parts programs native sink tests test-fast nightly image image-test docs docs-serve pages conformance dist newcomer lock proto clean

setup: .venv/.ready $(JAR) .venv/.classes

# Without a C compiler headgate-native is left out; when one has come it is built.
NATIVE := $(if $(wildcard .venv/lib/python*/site-packages/headgate_native),,$(shell command -v cc >/dev/null && echo native))

.venv/.ready: requirements/dev.txt pyproject.toml scripts/setup.sh hatch_build.py $(wildcard packaging/native/*.* packaging/native/*/*.py) \
    $(NATIVE)
	@scripts/setup.sh

# Without Maven the jar lacks its sink for Kafka; when Maven has come it is built again.
SINK := $(if $(wildcard connector/build/classes/dev/headgate/connector/kafka),,$(shell command -v mvn >/dev/null && echo sink))

$(JAR): $(shell find connector/src connector/resources -type f) scripts/build-connector.sh $(SINK) | .venv/.ready
	@scripts/build-connector.sh

# Half a minute once, and every server is ready in two thirds of the time.
.venv/.classes: .venv/.ready | $(JAR)
	@echo "setup: an archive of Spark's classes, with which servers start faster (half a minute the first time)"
	@$(BIN)/python -m headgate.server.class_archive && touch $@ || true

demo: setup
	@$(BIN)/headgate demo

# A whole deployment on Kafka and a Spark cluster, on loopback, of which one of each part is killed. Needs Maven.
demo-cluster: setup
	@$(BIN)/python -m examples.cluster

# The last line compiles each test file once, which else each process of a run does for itself.
check: .venv/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest --collect-only -qq | sed -n '/= ERRORS/,$$p'; exit $${PIPESTATUS[0]}

# What every change must pass: all that is fast enough. Three processes keep two cores busy, as tests wait now and then.
# What one test prints is under its name, and `.venv/bin/python -m pytest PATH::TEST` runs it alone.
test: TESTS = -m "not slow"
test: export HEADGATE_TEST_DEPTH = gate
test: in-parts

# Also what takes longer: programs of other languages, moves to Kafka, the cluster with kills, more repetitions.
test-all: export HEADGATE_TEST_DEPTH = all
test-all: PROGRAMS += go systemd-nspawn
test-all: in-parts

# Programs that setup makes use of come first. What is not there yet is made beside the checks; then the tests; and how
# long both took.
in-parts: programs
	@$(MAKE) --no-print-directory -j 2 setup check && before=$$SECONDS && \
	  $(MAKE) --no-print-directory tests TESTS='$(TESTS)' PROGRAMS='$(PROGRAMS)' && \
	  echo "setup and checks $$before s, tests $$((SECONDS - before)) s, $$SECONDS s in all"

programs:
	@scripts/ensure.sh $(PROGRAMS)

tests: programs setup
	@$(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder --durations 20 $(TESTS)

# For the inner loop: what starts neither a JVM nor a server nor Kafka.
test-fast: PROGRAMS := cc kubectl curl openssl promtool
test-fast: programs setup
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not (spark or system or crash or kafka)"

# What takes hours: a million pairs of an event and a filter, by cel-cpp, by the plan's rows and by Spark; new schedules;
# a hundred kills; new examples for every property.
nightly: export HEADGATE_TEST_DEPTH = nightly
nightly: TESTS = -o timeout=7200
nightly: PROGRAMS += go
nightly: tests image-test

# The image of the Containerfile, by the first of podman, docker and buildah that is here.
image:
	@$$(command -v podman || command -v docker || command -v buildah) build -f Containerfile -t headgate .

# Builds it from packages alone, and runs a server from it. As root, on Debian with buildah and mmdebstrap; takes minutes.
image-test: setup
	@scripts/build-image.sh headgate-test
	@$(BIN)/python -m pytest -q tests/packaging/built_image.py

# The documentation as a site in build/site; a warning is an error. No network is needed, and none is used.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The pages of docs/reference that are written from the code: commands, settings, limits, metrics, operators.
pages: setup
	@$(BIN)/python -m scripts.pages

# docs/reference/conformance.md, from a run of the Broker contract on a real server. The suites of public cases are
# programs of their own: .venv/bin/python -m conformance SUITE FILE.
conformance: setup
	@HEADGATE_WRITE_PAGES=1 $(BIN)/python -m pytest -q tests/conformance/test_broker.py

# The wheels: headgate-broker, headgate-client, on which it depends, and headgate-native where there is a C compiler.
dist: setup
	@rm -f dist/headgate*.whl
	@for project in . packaging/client $$(command -v cc >/dev/null && echo packaging/native); do \
	  $(BIN)/uv build -q --wheel --offline --no-build-isolation --python $(BIN)/python -o dist $$project || exit 1; done

# How long it takes a newcomer from nothing to the first filtered delivery, by the wheels and by a clone.
newcomer: dist
	@$(BIN)/python -m scripts.newcomer

lock:
	@for set in "--extra cluster --extra mcp pyproject.toml requirements/dev.in -o requirements/dev.txt" "pyproject.toml -o requirements/runtime.txt" \
	    "--extra cluster pyproject.toml -o requirements/cluster.txt" \
	  "packaging/client/pyproject.toml -c requirements/runtime.txt -o requirements/client.txt" \
	  "--extra mcp packaging/client/pyproject.toml -c requirements/dev.txt -o requirements/mcp.txt"; do \
	  $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11 -q $$set; done

# Python of the .proto files, which is committed: only who changes one needs the compiler.
proto: setup
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src $$(cd src && find . -name '*.proto' | sed 's|^\./||')

clean:
	rm -rf .venv build dist connector/build packaging/native/build src/headgate/match/jars .mypy_cache .ruff_cache .pytest_cache .hypothesis
