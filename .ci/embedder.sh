#!/usr/bin/env bash
# Crates that use counterflow, built as their authors would:
# - with no schedule and with ten, several times each; ten add under half a second to the fastest build;
# - with a cudarc of their own beside ours, which is run;
# - with candle's line of cudarc, whose features unite with ours.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
# As their authors build: what they write themselves in pieces.
unset CARGO_INCREMENTAL

mkdir -p "$work/user/src"
cat >"$work/user/Cargo.toml" <<TOML
[package]
name = "user"
version = "0.0.0"
edition = "2024"

[dependencies]
counterflow = { path = "$root" }

[workspace]

TOML
# What others wrote is built once for this and for our own tests.
.ci/others >>"$work/user/Cargo.toml"
cp Cargo.lock "$work/user/Cargo.lock"

# $1 schedules, and a line that differs from the last build.
generate() {
    echo "// build $2"
    if (($1 > 0)); then
        echo "use counterflow::prelude::*;"
    fi
    for index in $(seq 1 "$1"); do
        sed -e "s/pub fn ag_gemm/pub fn schedule_$index/" -n -e '/^#\[schedule\]/,/^}/p' "$root/src/schedules/ag_gemm.rs"
    done
}

# The fastest of several builds of the crate alone, in milliseconds; the dependencies are built already.
fastest() {
    local best=999999 start took
    for round in 1 2 3 4 5; do
        generate "$1" "$1.$round" >"$work/user/src/lib.rs"
        start=$(date +%s%N)
        cargo build --quiet --manifest-path "$work/user/Cargo.toml"
        took=$((($(date +%s%N) - start) / 1000000))
        ((took < best)) && best=$took
    done
    echo "$best"
}

generate 1 warm >"$work/user/src/lib.rs"
cargo build --quiet --manifest-path "$work/user/Cargo.toml"
none=$(fastest 0)
ten=$(fastest 10)
added=$((ten - none))
echo "a crate with no schedule: $none ms; with ten: $ten ms; ten add $added ms"
if ((added >= 500)); then
    echo "ten schedules must add under 500 ms"
    exit 1
fi

# Ours takes any cudarc 0.19 from 0.19.10 on, which is the newest there is; others go through the raw doors.
mkdir -p "$work/beside/src"
cp .ci/beside.rs "$work/beside/src/main.rs"
sed -e 's/^name = .*/name = "beside"/' "$work/user/Cargo.toml" >"$work/beside/Cargo.toml"
cat >>"$work/beside/Cargo.toml" <<TOML

[dependencies.cudarc]
version = "0.18"
default-features = false
features = ["std", "driver", "dynamic-loading", "cuda-13000"]
TOML
cp Cargo.lock "$work/beside/Cargo.lock"
cargo run --quiet --manifest-path "$work/beside/Cargo.toml"
# Its cudarc names every call of the driver. No program of ours does, which a test looks for in this folder.
rm -f "$CARGO_TARGET_DIR"/debug/beside "$CARGO_TARGET_DIR"/debug/deps/beside-*
found=$(cargo tree --quiet --prefix none --manifest-path "$work/beside/Cargo.toml" | grep -o '^cudarc v0.1[89]' | sort -u | tr '\n' ' ')
echo "in one binary: $found"
[[ $found == "cudarc v0.18 cudarc v0.19 " ]]

# What candle asks cudarc for with its feature `cuda`. Cargo unites that with what we ask for, in one cudarc: linked instead of loaded,
# for the toolkit that is found, here the oldest that we know. candle itself needs nvcc for its kernels, so its line stands for it.
mkdir -p "$work/united/src"
echo 'pub use {counterflow::Communicator, cudarc::cublas::CudaBlas};' >"$work/united/src/lib.rs"
sed -e 's/^name = .*/name = "united"/' "$work/user/Cargo.toml" >"$work/united/Cargo.toml"
cat >>"$work/united/Cargo.toml" <<TOML

[dependencies.cudarc]
version = "0.19"
default-features = false
features = ["std", "cublas", "cublaslt", "curand", "driver", "nvrtc", "f16", "f8", "cuda-version-from-build-system", "dynamic-linking"]
TOML
cp Cargo.lock "$work/united/Cargo.lock"
# Nothing is linked, so no driver is needed.
CUDARC_CUDA_VERSION=12030 cargo check --quiet --manifest-path "$work/united/Cargo.toml"
echo "with candle's line of cudarc: one cudarc, checked as it is linked, for CUDA 12.3"
