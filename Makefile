# The two main commands are `make demo` and `make test`; `make help` lists the others.
# Each first installs missing system packages (tools/system.sh), then changed sources into .venv (tools/install.sh).

BIN := .venv/bin
JAVA := tools/with_java.sh
NO_JVM := not broker and not clients and not oracle and not spark and not exhaustive
SANITIZED_TESTS := tests/kernels tests/records tests/columns tests/build tests/convert tests/fuzz tests/streams/test_cache.py tests/streams/test_group.py tests/streams/test_merged.py
# Three workers for two cores: a third of their time tests wait for servers and JVMs.
PARALLEL = -n $$($(BIN)/python -c 'import os; print((os.cpu_count() or 2) * 3 // 2)') --dist loadgroup
TESTS ?= not slow and not full and not exhaustive
TEST_ARGS ?=
BENCH_ARGS ?=
WHEELS_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
CHAOS_ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:  # all install into the one .venv
.PHONY: help demo test test-all test-rest test-kernels build lint docs test-faults chaos test-asan test-threads test-tsan fuzz fuzz-corpora fuzz-oracle coverage coverage-kernels bench bench-spark bench-serve bench-gateway bench-mirror bench-backup bench-memory bench-forensics bench-tiered bench-endurance bench-experiments bench-report wheels clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## convert real topics to message format v1 on a local Spark, and check the result
	@tools/system.sh python compiler java
	@tools/install.sh
	@$(JAVA) tools/demo.sh

test: ## run all checks, and the tests that take seconds at most (TEST_ARGS="-k crc" picks some)
	@tools/system.sh python compiler java maven kcat graphviz
	@tools/install.sh
	@$(MAKE) --no-print-directory lint
	@$(JAVA) $(BIN)/python tests/broker/jars.py
	@$(BIN)/python tests/clients/install.py
	@$(BIN)/python tests/clients/install_go_node.py
	@$(JAVA) $(BIN)/python -m pytest $(PARALLEL) -m "$(TESTS)" $(TEST_ARGS)

test-all: test test-kernels test-rest ## run `make test`, and the rest: slow tests, Kafka 3.9, old clients, kills, pages, ASan and UBSan

test-rest:
	@tools/system.sh chromium || echo "The tests in a browser are skipped."
	@$(JAVA) $(BIN)/python -m pytest $(PARALLEL) -m "(slow or full) and not exhaustive" $(TEST_ARGS)

test-kernels: build ## run the tests of the kernels under ASan and UBSan, where this system has them
	@! tools/sanitized.sh --available || tools/sanitized.sh $(SANITIZED_TESTS) $(TEST_ARGS)

build: ## compile the kernels and install the project into .venv
	@tools/system.sh python compiler
	@tools/install.sh

lint: build ## check style and types, and the stubs against the kernels
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	PATH=$(CURDIR)/$(BIN):$$PATH cython-lint src/_kafkafmt tests/fuzz/native
	MYPYPATH=src $(BIN)/stubtest _kafkafmt

docs: build ## build the documentation site into build/docs, without the network
	@tools/system.sh graphviz
	@$(BIN)/sphinx-build -q -W --keep-going -E -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

test-faults: build ## interrupt each write of the writers in turn; kill backups, restores and exports at any step: 25 minutes
	@$(BIN)/python -m pytest -n auto -m exhaustive $(TEST_ARGS)

chaos: build ## let faults strike brokers, mirrors, a gateway and clients for 20 minutes (CHAOS_ARGS="--minutes 2 --seed 1")
	@tools/system.sh compiler java maven
	@PYTHONPATH=tests $(JAVA) $(BIN)/python -m chaos $(CHAOS_ARGS)

test-asan: build ## run the tests that need no JVM under ASan and UBSan
	@tools/sanitized.sh $(TEST_ARGS)

test-threads: ## run the tests of kernels and of modules that use them in 4 threads at once, on a Python without a GIL (PYTHON=python3.14t)
	@tools/parallel.sh $(TEST_ARGS)

test-tsan: build ## run the tests of shared objects under ThreadSanitizer (TSAN_PYTHON names an instrumented CPython)
	@tools/tsan.sh $(TEST_ARGS)

fuzz: build ## fuzz under ASan and UBSan, each target for FUZZ_SECONDS (60), with clang
	@tools/system.sh clang
	@CC=clang tools/instrument.sh KAFKAFMT_FUZZ build/fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

fuzz-corpora: build ## pack what fuzzing found to reach new code into tests/fuzz/corpus: the next first inputs
	@tools/system.sh clang
	@CC=clang tools/instrument.sh KAFKAFMT_FUZZ build/fuzz
	@tools/fuzz.sh corpora $(FUZZ_TARGETS)

fuzz-oracle: build ## compare with Kafka's own record code on mutated bytes for FUZZ_SECONDS (60), until they differ
	@tools/system.sh java maven
	@PYTHONPATH=tests $(JAVA) $(BIN)/python -m fuzz.differential $(FUZZ_SECONDS)

coverage: build ## show the branches of Python that the tests without a JVM reach, in all processes
	@rm -rf build/coverage-data && mkdir -p build/coverage-data
	-COVERAGE_FILE=$(CURDIR)/build/coverage-data/of $(BIN)/coverage run -m pytest $(PARALLEL) -m "$(NO_JVM)" $(TEST_ARGS)
	@COVERAGE_FILE=$(CURDIR)/build/coverage-data/of $(BIN)/coverage combine --quiet
	@COVERAGE_FILE=$(CURDIR)/build/coverage-data/of $(BIN)/coverage report

coverage-kernels: build ## show the lines of the kernels that the tests in TEST_ARGS="tests/..." reach, by line tracing
	@tools/instrument.sh KAFKAFMT_TRACE build/coverage
	-cd build/coverage/site && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/coverage run --rcfile=$(CURDIR)/tools/kernel_coverage.ini \
	-m pytest -c $(CURDIR)/pyproject.toml --rootdir=$(CURDIR) -m "$(NO_JVM)" $(addprefix $(CURDIR)/,$(TEST_ARGS))
	cd build/coverage/site && $(CURDIR)/$(BIN)/coverage report --rcfile=$(CURDIR)/tools/kernel_coverage.ini

bench: build ## compare with Kafka's Java, Python clients and the floors; try KIP-126 (BENCH_ARGS="-k lz4" picks rows)
	@tools/system.sh compiler java maven isal
	@$(JAVA) $(BIN)/python -m bench.compare $(BENCH_ARGS)

bench-spark: build ## compare on a local Spark with a ceiling, Spark's Kafka source and a UDF (BENCH_ARGS="--sizes 1,16")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.spark $(BENCH_ARGS)

bench-serve: build ## compare the endpoint with a real Kafka broker over the same segments (BENCH_ARGS="-k lz4")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.serve $(BENCH_ARGS)

bench-gateway: build ## compare the gateway with direct connections, kafka-proxy and a broker that converts (BENCH_ARGS="-k lz4")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.gateway $(BENCH_ARGS)

bench-mirror: build ## compare ways to mirror between two real brokers with confluent-kafka and a floor (BENCH_ARGS="-k zstd")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.mirror $(BENCH_ARGS)

bench-backup: build ## compare a backup of a real broker with the raw mirror of the same topic into a folder (BENCH_ARGS="-k 1024")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.backup $(BENCH_ARGS)

bench-memory: build ## replay and table 4 GB within 256 MB by one budget and by single limits, and measure buffers and caches
	@$(BIN)/python -m bench.memory $(BENCH_ARGS)

bench-forensics: build ## compare the readers of internal topics with kafka-dump-log on 1 GiB of __consumer_offsets
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.forensics $(BENCH_ARGS)

bench-tiered: build ## compare tiered storage on Spark with the same bytes as plain segments, for each transform (BENCH_ARGS="--partitions 1")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.tiered $(BENCH_ARGS)

bench-endurance: build ## run serve, gateway and mirror for two hours under a steady load: is each flat? (BENCH_ARGS="mirror --minutes 10")
	@tools/system.sh java maven
	@$(JAVA) $(BIN)/python -m bench.endurance $(BENCH_ARGS)

bench-experiments: build ## run the experiments of the KIPs: chunk sizes, memory, and connections
	@tools/system.sh java
	@for name in chunk_size exact_size fetch_memory lazy_memory serve_throughput serve_memory serve_connections serve_hostile spark_memory; do $(JAVA) $(BIN)/python -m bench.experiments.$$name && echo || exit 1; done

bench-report: build ## make bench/RESULTS.md and its charts from bench/results
	@$(BIN)/python -m bench.report

wheels: ## build and test the sdist and the wheels that this machine can, and print which (WHEELS_ARGS="--python 3.12")
	@tools/system.sh python
	@"$$(tools/python.sh)" tools/wheels.py $(WHEELS_ARGS)

clean: ## remove all builds, but not the jars that Maven fetched
	rm -rf .venv wheelhouse .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	@find bench docs python src tests tools -name __pycache__ -prune -exec rm -rf {} +
	@test ! -d build || find build -mindepth 1 -maxdepth 1 ! -name jars -exec rm -rf {} +
