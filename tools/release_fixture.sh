#!/usr/bin/env bash
# Builds the release before this one, from the commit that remoting/registry/wire.yaml names, into
# target/fixture/release: client, worker, gateway and the Python of command line and appliance, laid out as target/dist.
# The software GPU is this tree's: it is no end of the wire. Needs `make build`; dependencies that `make test-rust` has compiled are
# not compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(sed -n 's/^previous: *//p' remoting/registry/wire.yaml)
fixture=$PWD/target/fixture
release=$fixture/release
[ "$(cat "$release/commit" 2>/dev/null)" != "$commit" ] || exit 0
git cat-file -e "$commit^{commit}" 2>/dev/null || {
    echo "release-fixture: commit $commit is not in this clone, so its tests are skipped; \`git fetch --unshallow\` fetches it"
    exit 0
}
SECONDS=0
echo "==> The release before this one, ${commit:0:12} (some minutes)"
rm -rf "$fixture/source" "$release"
mkdir -p "$fixture/source" "$release/bin" "$release/client" "$release/python" "$fixture/cargo/release"
git archive "$commit" | tar -x -C "$fixture/source"
# Links, since cargo writes nothing anew that it finds up to date. Not of what this workspace makes: cargo gives the same
# names to the crates of both, and would take this tree's, which are newer than that release's files.
for part in deps build .fingerprint; do
    [ -e "$fixture/cargo/release/$part" ] || cp -al "target/release/$part" "$fixture/cargo/release/" 2>/dev/null || true
done
cargo metadata --no-deps --format-version 1 --locked | .venv/bin/python -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    for name in {package["name"], *(target["name"] for target in package["targets"])}:
        print(name, name.replace("-", "_"))' | while read -r name crate; do
    rm -rf "$fixture"/cargo/release/{.fingerprint,build}/"$name"-* "$fixture"/cargo/release/deps/{,lib}"$crate"-*
done
cargo build --release --locked --quiet -p remotegpu-worker -p remotegpu-client \
    --manifest-path "$fixture/source/Cargo.toml" --target-dir "$fixture/cargo"
cp "$fixture/cargo/release/remotegpu-worker" "$fixture/cargo/release/remotegpu-gateway" "$release/bin/"
cp "$fixture/cargo/release/libremotegpu_client.so" "$release/client/libcuda.so.1"
ln -s libcuda.so.1 "$release/client/libnvidia-ml.so.1"
cp -r "$fixture/source/remoting/remotegpu" "$release/python/"
for part in native frameworks lib; do ln -s "../../dist/$part" "$release/$part"; done
rm -rf "$fixture/source" "$fixture/cargo"
echo "$commit" >"$release/commit"
echo "    $SECONDS s"
