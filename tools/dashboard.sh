#!/usr/bin/env bash
# Puts what the dashboard's page loads that is not ours into $1/dashboard: htm with Preact inside, exactly as
# operator/dashboard/package-lock.json has it, whose digests npm checks. npm comes with .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

made=${CARGO_TARGET_DIR:-target}/dashboard
mkdir -p "$made" "$1/dashboard"
cp operator/dashboard/package.json operator/dashboard/package-lock.json operator/dashboard/.npmrc "$made"
npm ci --silent --prefix "$made"
cp "$made/node_modules/htm/preact/standalone.module.js" "$1/dashboard/htm.js"
cp "$made/node_modules/htm/LICENSE" "$1/dashboard/LICENSE"
