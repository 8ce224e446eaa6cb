#!/usr/bin/env bash
# Fetches what compiles and disassembles CUDA without a GPU into .cuda/: NVIDIA's wheels, under NVIDIA's licence, never
# checked in. Does nothing when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
have() { [ -e .cuda/nvidia/cu13/lib/libnvrtc.so.13 ] && [ -x .cuda/nvidia/cu13/bin/nvdisasm ]; }
if have; then exit 0; fi
python=$(command -v python3 || command -v python || true)
if [ -z "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "no Python with pip: install one, or set COUNTERFLOW_NVRTC to a folder with libnvrtc.so.13" >&2
    exit 1
fi
# NVRTC 13.0 fits the drivers that load its code; the disassemblers have no 13.0 and read its output.
"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade --target .cuda \
    nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86
# Other builds of the same libraries, half of the space.
rm -f .cuda/nvidia/cu13/lib/*.alt.so*
have
