#!/usr/bin/env bash
# Runs every example, as many at a time as there are cores, and looks at how each ends. `.ci/examples.sh debug` takes what
# `cargo test --workspace --no-run` built; `.ci/examples.sh release` builds them first, as the README has people do.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=$1
if [[ $profile == release ]]; then
    cargo build --release --examples
fi

one() {
    local name code=0 wanted=0
    name=$(basename "$2" .rs)
    [[ $name == rejected ]] && wanted=1
    "${CARGO_TARGET_DIR:-target}/$1/examples/$name" >/dev/null || code=$?
    if ((code != wanted)); then
        echo "    example $name exits with $code, not $wanted"
        return 1
    fi
    echo "    example $name"
}
export -f one
# Any that fails makes xargs fail.
printf '%s\0' examples/*.rs | xargs -0 -n 1 -P "$(nproc)" bash -c 'one "$0" "$1"' "$profile"
