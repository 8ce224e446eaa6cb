#!/usr/bin/env bash
# Each crate by its package alone, as the registry would have it: packages stand in the registry's place. A crate of somebody else's is
# made from them, too. `.ci/packaged.sh` takes the workspace's packages; `.ci/packaged.sh cube` takes that crate, outside the
# workspace, beside them: it comes after the first.
set -euo pipefail
cd "$(dirname "$0")/.."
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
    # Its lock file would name crates of ours that are not published yet.
    cargo package --quiet --no-verify --allow-dirty --exclude-lockfile --manifest-path "$1/Cargo.toml" --target-dir "$target/$1"
    tried=("$(unpack "$target/$1/package/counterflow-$1-0.1.0.crate")")
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
    printf '[workspace]\nresolver = "3"\nmembers = [%s]\n' "$(printf '"%s-0.1.0", ' "${tried[@]}")"
    printf '\n[profile.dev.package."*"]\ndebug = false\n\n[patch.crates-io]\n'
    for name in "${ours[@]}"; do
        printf '%s = { path = "%s-0.1.0" }\n' "$name" "$name"
    done
} >"$work/Cargo.toml"
# One after the other: together, one would have the features that another one asks for.
for name in "${tried[@]}"; do
    cargo check --quiet --manifest-path "$work/Cargo.toml" --target-dir "$target" --package "$name"
    echo "checked from its package: $name"
done
