#!/usr/bin/env bash
# Compiles every device kernel with nvcc (sm_80, sm_90) and hipcc (gfx906) and holds their reports against floors.py.
# Two minutes or so. On Debian `apt-get install hipcc libamdhip64-dev` brings hipcc (70 MB); what is missing is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" -m pytest -rs tests/device/compile_gpu.py "$@"
