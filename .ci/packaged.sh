#!/usr/bin/env bash
# A crate of somebody else's, made from the packages that `cargo package` left: they stand in the registry's place.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/src"
cp examples/your_own.rs "$work/src/main.rs"
cp Cargo.lock "$work/Cargo.lock"
cat >"$work/Cargo.toml" <<TOML
[package]
name = "user"
version = "0.0.0"
edition = "2024"

[dependencies]
counterflow = { version = "0.1.0", features = ["quantise", "unstable"] }
counterflow-workbench = "0.1.0"

[workspace]

[profile.dev.package."*"]
debug = false

[patch.crates-io]
TOML
for package in "$target"/package/counterflow*-0.1.0.crate; do
    tar -xzf "$package" -C "$work"
    name=$(basename "$package" -0.1.0.crate)
    echo "$name = { path = \"$name-0.1.0\" }" >>"$work/Cargo.toml"
done
# One that is not used is only warned of.
cargo check --quiet --manifest-path "$work/Cargo.toml" --target-dir "$target"
echo "a crate is checked that was made from $(find "$work" -maxdepth 1 -name 'counterflow*' | wc -l) packages"
