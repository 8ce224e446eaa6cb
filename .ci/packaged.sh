#!/usr/bin/env bash
# Each crate by its package alone, as the registry would have it: packages stand in the registry's place. A crate of somebody else's is
# made from them, too. `.ci/packaged.sh` checks the workspace's packages; `.ci/packaged.sh bridges` tests those outside the workspace,
# beside them: it comes after the first.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=$(realpath "${CARGO_TARGET_DIR:-target}")
work=$target/package/tried-${1:-workspace}
lock=Cargo.lock
rm -rf "$work" && mkdir -p "$work"

# Here, a crate's files are as old as this run: cargo looks at times alone.
unpack() {
    tar -xzmf "$1" -C "$work" && basename "$1" -0.1.0.crate
}
ours=()
for package in "$target"/package/counterflow*-0.1.0.crate; do
    ours+=("$(unpack "$package")")
done
if (($#)); then
    lock=bridges/Cargo.lock
    # Their lock files would name crates of ours that are not published yet.
    cargo package --quiet --no-verify --allow-dirty --exclude-lockfile --workspace --manifest-path bridges/Cargo.toml \
        --target-dir "$target/bridges"
    tried=()
    for package in "$target"/bridges/package/counterflow*-0.1.0.crate; do
        tried+=("$(unpack "$package")")
    done
else
    tried=("${ours[@]}" user)
    mkdir -p "$work/user-0.1.0/src"
    cp examples/your_own.rs "$work/user-0.1.0/src/main.rs"
    cat >"$work/user-0.1.0/Cargo.toml" <<TOML
[package]
name = "user"
version = "0.1.0"
edition = "2024"

[dependencies]
counterflow = { version = "0.1.0", features = ["quantise", "unstable"] }
counterflow-workbench = "0.1.0"
TOML
fi

cp "$lock" "$work/Cargo.lock"
{
    printf '[workspace]\nresolver = "3"\nmembers = [%s]\n\n' "$(printf '"%s-0.1.0", ' "${tried[@]}")"
    # What others wrote is compiled once for this and for our own tests.
    .ci/others
    printf '\n[patch.crates-io]\n'
    for name in "${ours[@]}"; do
        printf '%s = { path = "%s-0.1.0" }\n' "$name" "$name"
    done
} >"$work/Cargo.toml"
cd "$work"

# What packages that are named have of the crates that they name: each with its features.
features() {
    cargo tree --quiet --no-dedupe --edges normal --depth 1 --prefix none --format "{p} {f}" "${@/#/--package=}" | sort -u
}
# Together, one has the features that another one asks for. None of these may have more of a crate than by itself.
each_as_by_itself() {
    local name together
    together=$(features "$@")
    for name; do
        if features "$name" | comm -23 - <(echo "$together") | grep .; then
            echo "$name has other features by itself than beside $*" >&2
            return 1
        fi
    done
}

if (($# == 0)); then
    groups=(
        "counterflow-codegen"
        "counterflow counterflow-emitter counterflow-emulator counterflow-launcher counterflow-macros counterflow-quantise
         counterflow-runtime counterflow-timeline"
        "counterflow-layers"
        "counterflow-workbench user"
    )
    diff <(printf '%s\n' ${groups[*]} | sort) <(printf '%s\n' "${tried[@]}" | sort)
    for group in "${groups[@]}"; do
        read -r -d '' -a names <<<"$group" || true
        each_as_by_itself "${names[@]}"
        cargo check --quiet --target-dir "$target" "${names[@]/#/--package=}"
        printf 'checked from its package: %s\n' "${names[@]}"
    done
    exit
fi

RUSTDOC=$root/.ci/pages cargo test --workspace --target-dir "$target"
# Without what the tests ask for. What is others' takes most of the time, and is the same for all of them.
each_as_by_itself "${tried[@]}"
cargo build --quiet --workspace --target-dir "$target"
printf 'tested from its package: %s\n' "${tried[@]}"
