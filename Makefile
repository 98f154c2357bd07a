# Everything a person or CI runs. All set-up lands in .venv/ and target/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
FUZZ_SECONDS ?= 10
FUZZ_LONGER_SECONDS ?= 60
# The shard whose turn it is: a name of .ci/shards.toml, or none. REMOTEGPU_SHARD says another; see docs/testing.md.
SHARD = PYTHONPATH=tests $(PYTHON) tools/shard.py
LIBRARIES := PYTHONPATH=tests $(PYTHON) tools/libraries.py
E2E_CLUSTER := $(if $(REMOTEGPU_E2E_CONTEXT),,$(if $(filter 0,$(shell id -u)),cluster images))
RUST_SOURCES := $(shell find remoting tools/bench tools/recorder -name '*.rs' -o -name 'Cargo.toml' -o -name '*.proto') remoting/softgpu/ptxas remoting/softgpu/nvjitlink.c remoting/softgpu/nvrtc.c remoting/client/sanitizer.c Cargo.toml Cargo.lock

OFFLOAD_SOURCES := $(shell find remoting/remotegpu/__init__.py remoting/remotegpu/paths.py remoting/remotegpu/api remoting/remotegpu/offload offload/remotegpu_offload -name '*.py' -o -name '*.json')

.PHONY: help help-all set-up build demo demo-survive demo-offload cluster cluster-down cluster-programs images demo-kubernetes test test-longer test-rust test-python test-api test-torch-smoke test-shard test-decoders test-decoders-longer test-everything test-e2e test-e2e-all test-all test-frameworks test-null-frameworks test-null-serving shard-serving-null null-serving test-null-sglang llama-cpp test-serving-values torch-bed demo-torch cost-torch test-order test-mirrors test-lock-order test-mirror-rules headers libraries undefended sanitize sanitize-address sanitize-thread release-fixture prometheus chromium chaos test-gpu test-gpu-frameworks record-gpu release symbols system-tools lint prose docs pictures bench bench-all bench-check bench-kubernetes bench-serving fuzz generate calls clean

# What a person needs first; `make help-all` shows the rest.
MAIN := build demo demo-torch demo-kubernetes test test-longer test-e2e test-all lint generate docs bench clean

help: ## Show the main targets
	@$(MAKE) --no-print-directory help-all | awk -v main="$(MAIN)" 'BEGIN { split(main, names); for (n in names) shown[names[n]] = 1 } $$1 in shown'
	@echo "make help-all shows all targets"

help-all: ## Show all targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

set-up: .venv/.installed headers ## Create .venv with everything the project and its tests need

.venv/.installed: pyproject.toml
	@echo "==> Python packages into .venv (the CUDA compiler wheels are large; some minutes the first time)"
	@test -x $(PYTHON) || python3 -m venv .venv
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

headers: target/headers/.installed ## CUDA's headers of the versions that the function table is compared with: 9 MB of wheels

target/headers/.installed: .venv/.installed $(wildcard tests/codegen/pinned/*.txt)
	@echo "==> CUDA's headers into target/headers"
	@rm -rf target/headers
	@for pinned in tests/codegen/pinned/*.txt; do $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps \
	    --target "target/headers/$$(basename "$$pinned" .txt)" -r "$$pinned"; done
	@touch $@

build: target/dist/.built ## Build client, worker, gateway and software GPU into target/dist

target/dist/.built: .venv/.installed tools/dist.sh tools/pod.sh tools/python.sh tools/dashboard.sh operator/dashboard/package-lock.json $(RUST_SOURCES) $(OFFLOAD_SOURCES)
	@echo "==> Rust: client, worker, gateway, software GPU (about five minutes the first time)"
	@tools/dist.sh
	@touch $@

demo: build ## Train on 0.25 of a GPU that another process holds, and compare with the software GPU alone
	@$(PYTHON) examples/01-digits/demo.py

demo-survive: build ## A training whose connection is cut five times, whose share another one uses meanwhile, and which moves to a second appliance
	@PYTHONPATH=tests $(PYTHON) examples/01-digits/survive.py

demo-offload: build target/frameworks/.installed ## A torch program, unmodified, on appliances of this machine: as a device, moved from one to another, as a function, as a whole
	@$(PYTHON) examples/10-offload/demo.py --python target/frameworks/bin/python

cluster: .venv/.installed ## A Kubernetes cluster of two nodes on this machine (root; its programs take 12 minutes the first time)
	@cd e2e && ../$(PYTHON) -m cluster up

cluster-down: .venv/.installed ## Take that cluster down
	@cd e2e && ../$(PYTHON) -m cluster down

cluster-programs: .venv/.installed ## What the cluster and the tests of API semantics run, without starting it
	@if command -v go >/dev/null && [ "$$(id -u)" = 0 ]; then cd e2e && ../$(PYTHON) -m cluster programs; \
	else echo "==> Without Go and root no API server is built; where there is none its tests say so and are skipped"; fi

release: target/portable/.built ## The wheel, the chart, checksums, notes and bills of materials into dist/; also the images, after `make images`
	@REMOTEGPU_DIST=$(CURDIR)/target/portable PYTHONPATH=e2e $(PYTHON) tools/release.py

target/portable/.built: target/dist/.built
	@echo "==> Rust for glibc 2.17, the server's part too (some minutes the first time)"
	@REMOTEGPU_PORTABLE=1 REMOTEGPU_DIST=target/portable tools/dist.sh
	@touch $@

images: build ## The project's images with their bills of materials, and into the nodes of the cluster where it is up
	@cd e2e && ../$(PYTHON) -m cluster images

demo-kubernetes: cluster images ## helm install, a pod with remotegpu/fraction: 0.25, and its CUDA program runs
	@PYTHONPATH=tests $(PYTHON) e2e/demo.py

# Without root there are no nodes: pytest then says so, and CI takes that for a failure (REMOTEGPU_E2E_REQUIRED).
test-e2e: .venv/.installed $(E2E_CLUSTER) ## Core's and the shard's tests on a cluster: `make cluster`'s, which needs root, or the one of context REMOTEGPU_E2E_CONTEXT
	@echo "==> End to end on a cluster"
	@shard=$$($(SHARD)); if [ "$$shard" = serving-values ]; then tools/llama_cpp.sh few; fi; \
	    $(PYTHON) -m pytest -m e2e e2e --part core --part "$$shard"

# What is away or drains in some of the tests, does so for as long as was asked for.
test-e2e-all: export REMOTEGPU_E2E_AWAY_SECONDS ?= 300
test-e2e-all: export REMOTEGPU_E2E_DRAIN_SECONDS ?= 60
test-e2e-all: .venv/.installed $(E2E_CLUSTER) llama-cpp ## Every test on that cluster
	@echo "==> End to end on a cluster, every test"
	@$(PYTHON) -m pytest -m e2e e2e

test: PARTS := lint docs test-rust test-python
test: ## Lint, documents, Rust tests, core of the Python and program tests: without a cluster, an API server or torch

test-longer: PARTS := test-api test-torch-smoke test-decoders test-shard
test-longer: ## What CI runs besides: tests with an API server, some of torch, decoders under mutation, the shard whose turn it is

# A part that fails keeps no other from being run.
test test-longer:
	@failed=; for part in $(PARTS); do begun=$$SECONDS; \
	    $(MAKE) --no-print-directory $$part || failed+=" $$part"; \
	    echo "==> $$part took $$((SECONDS - begun)) s"; done; \
	if [ -n "$$failed" ]; then echo "==> Failed:$$failed" >&2; exit 1; fi

test-rust: build
	@echo "==> Rust tests"
	@cargo test --release --locked --workspace --quiet --no-fail-fast

# A test waits half of its time, so two processes run them, each a file at a time.
BOTH := -n 2 --dist loadfile

test-python: build headers system-tools
	@echo "==> Python and program tests: core"
	@$(PYTHON) -m pytest --part core $(BOTH)

test-api: build system-tools cluster-programs ## Core's tests that start etcd and an API server: CRDs, webhook, operator, device plugin
	@echo "==> Tests with an API server"
	@$(PYTHON) -m pytest --part api $(BOTH)

test-decoders: build
	@echo "==> Decoders under mutation, $(FUZZ_SECONDS) s each"
	@REMOTEGPU_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo run --release --locked --quiet --manifest-path remoting/fuzz/Cargo.toml --target-dir target/fuzz

test-decoders-longer:
	@$(MAKE) --no-print-directory test-decoders FUZZ_SECONDS=$(FUZZ_LONGER_SECONDS)

test-shard: .venv/.installed ## The shard whose turn it is; REMOTEGPU_SHARD=k takes another, REMOTEGPU_SHARD=none leaves it out
	@shard=$$($(SHARD)); if [ "$$shard" != none ]; then $(MAKE) --no-print-directory "shard-$$shard"; fi

# A shard's tests, but for those on the cluster, which are test-e2e's. Each entry of a torch shard has a process of its
# own, since torch keeps a device for good.
shard-torch-a shard-torch-b: build target/frameworks/.installed
	@set -f; tests=$$($(SHARD) --tests $(@:shard-%=%)); status=0; for each in $$tests; do \
	    TIMEFORMAT="    $$each: %R s, its processes %U s and %S s of CPU"; \
	    time target/frameworks/bin/python -m pytest -q -m frameworks --part $(@:shard-%=%) "$$each" || status=$$?; done; exit "$$status"

shard-programs shard-survival shard-chart-and-cli shard-security shard-suspension shard-versions shard-serving-values: build system-tools cluster-programs
	@$(PYTHON) -m pytest --part $(@:shard-%=%) $(BOTH)

# Wheels of up to 8 GB, in venvs that share their files (target/libraries). The cases of a library stay in one process.
shard-libraries-a shard-libraries-b: build
	@$(LIBRARIES) install $(@:shard-%=%)
	@$(PYTHON) -m pytest --part $(@:shard-%=%) -n 2 --dist loadgroup

libraries: build ## Run every library of docs/libraries.md natively and on a share, and write the page
	@$(LIBRARIES) install
	@$(LIBRARIES) run --write

# The cases of a program stay in one process, which loads torch once.
shard-torch-cuda: build torch-bed
	@$(PYTHON) -m pytest --part torch-cuda

shard-security: target/undefended/.built test-decoders-longer

shard-chart-and-cli: target/portable/.built prometheus chromium

# The dashboard's page is tested in it.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "==> Debian package chromium"; \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; fi

prometheus:
	@tools/prometheus.sh

shard-versions: release-fixture

shard-serving-values: llama-cpp

release-fixture: build ## Build the release before this one, for tests of neighbouring versions: some minutes the first time
	@tools/release_fixture.sh

undefended: target/undefended/.built ## A worker and a gateway that can leave out a defence, for tests/attacker: some minutes the first time

target/undefended/.built: $(RUST_SOURCES)
	@echo "==> A worker and a gateway that can leave out a defence"
	@cargo build --profile sanitize --locked --quiet -p remotegpu-worker --features undefended --target-dir target/undefended
	@touch $@

# The compiler of a release takes the flag where RUSTC_BOOTSTRAP allows it, and brings the sanitizer's library, but no
# standard library that was built with it. Locks, channels and threads are understood all the same: they are compiled into
# what uses them, or are the C library's. What is taken for a race wrongly is in tools/thread_sanitizer.txt. What a worker
# loads, the software GPU, is as it is built otherwise. Leaks are not looked for: a session is a process, and tests' drivers
# forget what they gave. The thread sanitizer admits no memory where the software GPU has its own, so that its tests are
# those that need none.
sanitize: sanitize-address sanitize-thread ## The tests of client and worker, and both of them, with the address and the thread sanitizer: some 20 minutes

sanitize-thread: SANITIZER_FLAGS := -Cunsafe-allow-abi-mismatch=sanitizer
sanitize-thread: SANITIZER_TESTS := --test session --test connect --test gateway
sanitize-address sanitize-thread: sanitize-%: build
	@echo "==> Client and worker under the $* sanitizer"
	@ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=suppressions=$(CURDIR)/tools/thread_sanitizer.txt REMOTEGPU_TEST_DRIVER=$(CURDIR)/target/dist/native/libcuda.so.1 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$* $(SANITIZER_FLAGS)" cargo test --profile sanitize --locked --quiet \
	    --target x86_64-unknown-linux-gnu --target-dir target/sanitize-$* -p remotegpu-worker -p remotegpu-client $(SANITIZER_TESTS)

# Files whose tests share a session, or have none, share a process: torch and a session take seconds to start.
TORCH_SMOKE := "amp checkpoint cuda loader names rng" "autograd endurance_torch interrupted_torch ops storage traps" \
    "cuda_acceptor explain_torch opdb processes torch_programs whole" mutates_torch onnxruntime switch values

test-torch-smoke: build target/frameworks/.installed ## Core's tests of torch: one of each file
	@echo "==> torch: core's tests"
	@status=0; for files in $(TORCH_SMOKE); do \
	    target/frameworks/bin/python -m pytest -q -m frameworks --part core $$(printf 'offload/tests/torch/test_%s.py ' $$files) || status=$$?; \
	done; exit "$$status"

LOCK_ORDER_PROGRAMS ?= 100
LOCK_ORDER_TESTS := $(addprefix tests/remoting/test_,locks.py peers.py random_mirrors.py two_appliances.py)

test-lock-order: build ## Tests of sharing on a client that asserts the order of its locks (remoting/client/src/locks.rs), and its own tests: some 15 minutes
	@echo "==> A client that asserts the order of its locks"
	@cargo test --release --locked --quiet -p remotegpu-client --features lock-order
	@cargo build --release --locked --quiet -p remotegpu-client --features lock-order
	@rm -rf target/lock-order; cp -al target/dist target/lock-order
	@cp target/release/libremotegpu_client.so target/lock-order/client/new; mv target/lock-order/client/new target/lock-order/client/libcuda.so.1
	@REMOTEGPU_DIST=$(CURDIR)/target/lock-order REMOTEGPU_MIRROR_PROGRAMS=$(LOCK_ORDER_PROGRAMS) $(PYTHON) -m pytest -q $(BOTH) $(LOCK_ORDER_TESTS)
	@REMOTEGPU_DIST=$(CURDIR)/target/lock-order $(PYTHON) -m pytest -q $(BOTH) --part core tests/remoting

# A person's `make test-all`, and nothing that CI runs: pods come and go for half an hour, and faults for a quarter.
test-everything: export REMOTEGPU_CHURN_MINUTES ?= 30
test-everything: export REMOTEGPU_CHAOS_SECONDS ?= 900
test-everything: build target/undefended/.built target/portable/.built release-fixture llama-cpp torch-bed headers system-tools cluster-programs
	@$(LIBRARIES) install
	@echo "==> Python and program tests: core and every shard"
	@$(PYTHON) -m pytest
	@echo "==> Tests marked thorough"
	@$(PYTHON) -m pytest -m thorough

test-all: .venv/.installed ## Every test that needs no GPU: hours, and 30 GB of wheels; run again, it leaves out the parts that passed on these files
	@tree=$$($(SHARD) --tree); $(MAKE) --no-print-directory $(ALL_PARTS:%=target/test-all/$$tree/%.passed)

ALL_PARTS := lint test-rust test-everything test-decoders-longer test-e2e-all test-frameworks test-null-frameworks test-null-serving test-null-sglang test-serving-values test-order test-mirrors test-lock-order test-mirror-rules sanitize-address sanitize-thread

# Fewer programs than `make test-order`, which takes an hour by itself.
target/test-all/%/test-order.passed: export ORDER_PROGRAMS = 1000
target/test-all/%/test-order.passed: export ORDER_FAULT_PROGRAMS = 200
target/test-all/%.passed:
	@$(MAKE) --no-print-directory $(*F)
	@mkdir -p $(@D); date -u +%FT%TZ >$@; echo "==> passed: $(*F)"

test-frameworks: build target/frameworks/.installed ## torch, Triton, torch.compile, offload's torch device: 3 GB of wheels, then some minutes
	@echo "==> torch and Triton on the software GPU, alone and on a share"
	@target/frameworks/bin/python -m pytest -m frameworks tests/frameworks_torch
	@echo "==> Offload: the torch device, and programs that use it; a process for each file, since torch keeps a device for good"
	@set -e; for file in offload/tests/torch/test_*.py; do target/frameworks/bin/python -m pytest -q -m frameworks "$$file"; done

target/frameworks/.installed: pyproject.toml
	@echo "==> torch and what it needs into target/frameworks: 3 GB to load, 6 GB on the disk"
	@test -x target/frameworks/bin/python || python3 -m venv target/frameworks
	@target/frameworks/bin/python -m pip install --disable-pip-version-check --no-cache-dir --editable '.[frameworks]'
	@touch $@

test-null-frameworks: build target/null-frameworks/.installed ## torch, transformers, Triton, CuPy, torch.compile on a null GPU, which runs no kernel: 4 GB of wheels
	@echo "==> Frameworks on a null GPU: accepted calls, round trips and bytes per step"
	@$(PYTHON) -m pytest -m null_frameworks tests/null

test-null-serving: shard-serving-null ## vLLM from its wheel on a share of a null GPU, which runs no kernel: accepted calls, round trips of each step

# One process: the tests have one compile cache, and one of them measures time. No hash chooses it (.ci/shards.toml).
shard-serving-null: build null-serving
	@$(PYTHON) -m pytest -m null_serving --part serving-null --durations=0 tests/null

null-serving: .venv/.installed
	@tools/null_serving.sh

test-null-sglang: build null-serving ## SGLang from its wheel on a share of a null GPU, by three carriers: 2 GB of wheels beside vLLM's
	@tools/null_serving.sh sglang
	@echo "==> SGLang on a null GPU: answers, round trips of a token"
	@$(PYTHON) -m pytest -m null_sglang --durations=0 tests/null

llama-cpp: build ## llama.cpp with CUDA into target/serving, by the kernels that shard serving-values calls: some minutes, once
	@tools/llama_cpp.sh few

test-serving-values: build ## llama.cpp's whole test of its own operations on the software GPU, whose other kernels it builds: hours
	@tools/llama_cpp.sh all
	@echo "==> Every operation of llama.cpp on the software GPU"
	@$(PYTHON) -m pytest -m serving_values tests/llama_cpp

torch-bed: .venv/.installed ## torch 2.6 with CUDA 12.4 of Debian trixie into target/torch-bed, whose kernels the software GPU runs: 1.45 GB to fetch, 4.2 GB on the disk; CUDNN=1 adds cuDNN, 0.6 GB more
	@PYTHONPATH=tools $(PYTHON) -m torch_bed target/torch-bed $(if $(CUDNN),--cudnn)

demo-torch: build torch-bed ## Train with an unmodified torch, eager, on 0.25 of a software GPU, and compare with the CPU's losses; fetches 1.45 GB the first time
	@$(PYTHON) examples/17-torch/demo.py target/torch-bed/python3

cost-torch: build target/null-frameworks/.installed ## Train and generate with unmodified torch programs on a share of a null GPU: what a step costs, no results
	@PYTHONPATH=tests $(PYTHON) tests/null/demo.py

target/null-frameworks/.installed: tests/null/requirements.txt
	@echo "==> torch, transformers, CuPy and JAX into target/null-frameworks: 4 GB to load, 9 GB on the disk"
	@test -x target/null-frameworks/bin/python || python3 -m venv target/null-frameworks
	@target/null-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir -r tests/null/requirements.txt
	@touch $@

# Dropping packets in a network namespace needs nft and root; without them that one test says so and is skipped.
system-tools:
	@if ! (command -v nft && command -v ip && command -v openssl && command -v pgrep) >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "==> Debian packages nftables iproute2 openssl procps"; \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends nftables iproute2 openssl procps >/dev/null; fi

lint: .venv/.installed prose ## mypy --strict, ruff, import contracts, clippy, rustfmt, prose
	@echo "==> Lint"
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports
	@cargo fmt --all --check
	@cargo clippy --release --locked --workspace --all-targets --quiet -- -D warnings

prose: .venv/.installed ## The Markdown, docstrings and comments: words, length of lines, links between files (.rumdl.toml)
	@echo "==> Prose"
	@.venv/bin/rumdl check --quiet .
	@$(PYTHON) tools/plain_english.py

docs: .venv/.installed ## The documentation as a site in target/site, which fails on dead links; man pages in target/man
	@echo "==> Site"
	@$(PYTHON) tools/site.py
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@$(PYTHON) tools/man_pages.py target/man/man1

pictures: build ## Make docs/pictures/*.svg anew: diagrams from *.dot, nvidia-smi.svg from a real run
	@if ! command -v dot >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get -qq update && apt-get -qq install -y --no-install-recommends graphviz >/dev/null; fi
	@$(PYTHON) tools/pictures.py

bench: build ## Latency and bandwidth of both carriers against raw TCP
	@.venv/bin/remotegpu bench

bench-all: build ## Everything that `remotegpu bench` measures, into benchmarks/, and its picture; a quiet machine
	@$(PYTHON) tools/ledger.py record

bench-check: build ## Measure three times; what is slower by 15 % than the last run in benchmarks/ fails
	@$(PYTHON) tools/ledger.py check

bench-serving: build null-serving ## What clients of vLLM wait for, natively and on a share of a null GPU: some 15 minutes
	@PYTHONPATH=tests $(PYTHON) tools/bench_serving.py

bench-kubernetes: cluster images ## Claims and pods per second, and how much later a pod with a share starts
	@$(PYTHON) e2e/bench/claims.py --json target/bench-kubernetes/claims.json
	@$(PYTHON) e2e/bench/watching.py --json target/bench-kubernetes/watching.json
	@$(PYTHON) e2e/bench/webhook.py --json target/bench-kubernetes/webhook.json
	@$(PYTHON) e2e/bench/start.py --json target/bench-kubernetes/start.json

ORDER_PROGRAMS ?= 10000
ORDER_FAULT_PROGRAMS ?= 500

test-order: build ## 10,000 random programs against the model of CUDA's order, then each rule of order left out: about an hour
	@echo "==> $(ORDER_PROGRAMS) programs each way"
	@REMOTEGPU_ORDER_PROGRAMS=$(ORDER_PROGRAMS) $(PYTHON) -m pytest -q tests/order
	@echo "==> A worker that can leave out a rule of order"
	@cargo build --release --locked -p remotegpu-worker --features order-faults --target-dir target/order-faults
	@PYTHONPATH=tests REMOTEGPU_ORDER_FAULT_PROGRAMS=$(ORDER_FAULT_PROGRAMS) $(PYTHON) tests/order/leave_out_rules.py target/order-faults/release/remotegpu-worker

MIRROR_PROGRAMS ?= 10000

test-mirrors: build ## 10,000 random programs with memory that host and device share, natively and on shares, also disturbed
	@REMOTEGPU_MIRROR_PROGRAMS=$(MIRROR_PROGRAMS) $(PYTHON) -m pytest -q tests/remoting/test_random_mirrors.py

test-mirror-rules: build ## Leave out each rule of memory that host and device share: its test has to fail
	@echo "==> A client, a worker and a software GPU that can leave out a rule"
	@cargo build --release --locked -p remotegpu-worker -p remotegpu-client -p remotegpu-softgpu --features remotegpu-worker/order-faults,remotegpu-client/order-faults --target-dir target/order-faults
	@PYTHONPATH=tests $(PYTHON) tests/order/leave_out_mirror_rules.py target/order-faults

CHAOS_SECONDS ?= 900
CHAOS_SEED ?= $(shell date +%s)

chaos: build ## Random faults on eight sessions for 15 minutes, of a seed that it prints: nothing may be lost, doubled or leaked
	@REMOTEGPU_CHAOS_SECONDS=$(CHAOS_SECONDS) REMOTEGPU_CHAOS_SEED=$(CHAOS_SEED) $(PYTHON) -m pytest -s tests/chaos

test-gpu: build ## The tests marked gpu: needs an NVIDIA driver; fits ten minutes
	@$(PYTHON) -m pytest -m gpu

test-gpu-frameworks: build ## torch, JAX, CuPy, NCCL as far as this Python has them: natively, on 0.5, and two at 0.25, with a table of ratios
	@PYTHONPATH=tests $(PYTHON) tests/gpu/gpu_frameworks.py

symbols: .venv/.installed ## Read anew which driver and NVML functions the wheels of torch, NCCL, CUPTI, ... name (3 GB of wheels)
	@$(PYTHON) tools/symbols.py

record-gpu: build ## Record test programs natively on a real GPU into target/recordings: what the null GPU is held to
	@tools/record_gpu.sh

fuzz: ## Coverage-guided fuzzing of every decoder with nightly, until stopped
	@remoting/fuzz/fuzz.sh

generate: .venv/.installed ## Regenerate what the function table and the .proto files generate
	@$(PYTHON) remoting/codegen/generate.py
	@$(PYTHON) tools/generate_rpc.py
	@$(PYTHON) tools/generate_values_schema.py
	@$(PYTHON) tools/generate_admission.py
	@$(PYTHON) tools/generate_boards.py
	@$(PYTHON) tools/write_version.py

calls: build ## Record anew which driver functions each test program calls; then `make generate`
	@$(PYTHON) tests/compiled_programs/calls.py

clean: ## Remove everything built
	@test ! -e target/cluster/state || $(MAKE) cluster-down
	rm -rf .venv target
