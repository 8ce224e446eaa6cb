#!/usr/bin/env bash
# Compares the published crates with the newest release: a tag `v0.1.0` or later. Before the first one there is nothing to compare
# with. `docs/stable.api` holds the stable surface before and after: `cargo semver-checks` reads one crate at a time, and most of
# what `counterflow` gives comes from its other crates.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(git tag --list 'v[0-9]*' --sort=-version:refname | head -n 1)
if [[ -z $release ]]; then
    echo "no release yet: docs/stable.api is the baseline, and tests/layering compares with it"
    exit 0
fi
command -v cargo-semver-checks >/dev/null || cargo install --locked cargo-semver-checks
# By itself it turns most features on, and the feature `multicast` is built by nobody here.
cargo semver-checks --baseline-rev "$release" --package counterflow --only-explicit-features --features quantise
