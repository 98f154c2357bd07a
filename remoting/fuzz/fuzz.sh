#!/usr/bin/env bash
# Coverage-guided fuzzing of every decoder in turn with nightly Rust, REMOTEGPU_FUZZ_SECONDS (600) each, until one fails.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target/fuzz}
seconds=${REMOTEGPU_FUZZ_SECONDS:-600}
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
cargo run --release --locked --quiet -- --write-seeds corpus
for target in frames commands records preface image cubin ptx; do
    echo "==> $target"
    cargo +nightly fuzz run --fuzz-dir . --features libfuzzer "$target" -- \
        -max_total_time="$seconds" -malloc_limit_mb=64 -timeout=1 -max_len=65536
done
