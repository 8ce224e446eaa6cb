#!/usr/bin/env bash
# Runs every example and looks at how it ends. `.ci/examples.sh debug` takes what `cargo test --workspace --no-run` built;
# `.ci/examples.sh release` builds them first, as the README has people do.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=$1
if [[ $profile == release ]]; then
    cargo build --release --examples
fi
for source in examples/*.rs; do
    name=$(basename "$source" .rs)
    printf '\n    example %s\n' "$name"
    code=0 wanted=0
    [[ $name == rejected ]] && wanted=1
    "${CARGO_TARGET_DIR:-target}/$profile/examples/$name" >/dev/null || code=$?
    if ((code != wanted)); then
        echo "    $name exits with $code, not $wanted"
        exit 1
    fi
done
