# Two commands matter: `make demo` shows Headgate at work, `make test` proves it.
SHELL := /bin/bash
BIN := .venv/bin
JAR := src/headgate/match/jars/headgate-connector.jar
FAST := not spark and not system and not crash and not kafka

# Tests and demos start Python hundreds of times: what one start has compiled is kept for the others.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-cluster test test-fast test-servers nightly image image-test docs docs-serve pages conformance check dist newcomer lock proto clean

setup: .venv/.ready $(JAR)

.venv/.ready: requirements/dev.txt pyproject.toml scripts/setup.sh
	@scripts/setup.sh

$(JAR): $(shell find connector/src connector/resources -type f) scripts/build-connector.sh | .venv/.ready
	@scripts/build-connector.sh

demo: setup
	@$(BIN)/headgate demo

# A whole deployment on Kafka and a Spark cluster, on loopback, of which one of each part is killed. Needs Maven.
demo-cluster: setup
	@$(BIN)/python -m examples.cluster

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# First what needs neither a JVM nor a server, then what does. Each on a few processes: what one prints is under its test,
# and `.venv/bin/python -m pytest PATH::TEST` runs one test alone.
test: check test-fast test-servers

# For the inner loop.
test-fast: setup
	@scripts/ensure-promtool.sh
	@echo "tests without a JVM or a server"
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal -m "$(FAST)"

# Two processes, file by file, each with one Spark and one server for all tests that need no other. More would only wait
# for each other.
test-servers: setup
	@scripts/ensure-chromium.sh
	@echo "tests with a JVM or a server"
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations 20 -m "not ($(FAST))"

# What takes hours: a million pairs of an event and a filter, by cel-cpp, by the plan's rows and by Spark; new schedules;
# a hundred kills; new examples for every property.
nightly: setup
	@HEADGATE_SIM_SEED=0 HEADGATE_SIM_RUNS=10000 $(BIN)/python -m pytest -s tests/simulation
	@HEADGATE_EXPLORE=1 HEADGATE_EXACT_PAIRS=1000000 $(BIN)/python -m pytest tests/filter/test_exactness.py tests/match/test_exact.py
	@HEADGATE_CRASH_KILLS=100 $(BIN)/python -m pytest -m crash
	@HEADGATE_GENERATION_CHANGES=100 $(BIN)/python -m pytest -s tests/store/test_kafka_matcher.py
	@HEADGATE_EXPLORE=1 $(BIN)/python -m pytest -m "$(FAST)"
	@$(MAKE) image-test

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

# docs/reference/conformance.md, from a run of the Broker contract on a real server.
conformance: setup
	@HEADGATE_WRITE_PAGES=1 $(BIN)/python -m pytest -q tests/conformance/test_broker.py

# The wheels of both distributions: headgate, and headgate-client, on which it depends.
dist: setup
	@rm -f dist/headgate*.whl
	@for project in . packaging/client; do \
	  $(BIN)/uv build -q --wheel --offline --no-build-isolation --python $(BIN)/python -o dist $$project || exit 1; done

# How long it takes a newcomer from nothing to the first filtered delivery, by the wheels and by a clone.
newcomer: dist
	@$(BIN)/python -m scripts.newcomer

lock:
	@for set in "--extra cluster pyproject.toml requirements/dev.in -o requirements/dev.txt" "pyproject.toml -o requirements/runtime.txt" \
	    "--extra cluster pyproject.toml -o requirements/cluster.txt" \
	  "packaging/client/pyproject.toml -c requirements/runtime.txt -o requirements/client.txt"; do \
	  $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --python-version 3.11 -q $$set; done

# Python of the .proto files, which is committed: only who changes one needs the compiler.
proto: setup
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src $$(cd src && find . -name '*.proto' | sed 's|^\./||')

clean:
	rm -rf .venv build dist connector/build src/headgate/match/jars .mypy_cache .ruff_cache .pytest_cache .hypothesis
