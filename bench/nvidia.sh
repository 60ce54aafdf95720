#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds Esker on a machine with an NVIDIA GPU and no network, checks it there and measures it.
#
#     bench/nvidia.sh WHEELS OUT [PHASE...]
#
# WHEELS: a folder of wheels for that machine's Python: scikit-build-core, pathspec, packaging, nanobind, gguf,
#   and those of rich, jinja2, tokenizers, pytest, hypothesis and what they need that the machine lacks.
# OUT: a folder for logs and result files.
# PHASES, default all: build check models sanitize tune ops decode stream prompt
# The real model's synthetic file (68 GB) goes to ESKER_BIG_FOLDER, default /dev/shm.
set -uo pipefail
wheels=$(realpath "$1") out=$(realpath "$2")
shift 2
phases=${*:-build check models sanitize tune ops decode stream prompt}
processes=$(nproc)
root=$(realpath "$(dirname "$0")/..")
site=${ESKER_SITE:-/tmp/esker-site}
big=${ESKER_BIG_FOLDER:-/dev/shm}/k512.gguf
export PYTHONPATH=$site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/esker-cache}
esker() { python3 -m esker "$@"; }

phase() { # NAME COMMAND...: its output in OUT/NAME.log, the end of it here
  local name=$1 start=$SECONDS status
  shift
  "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "== $name: status $status, $((SECONDS - start)) s"
  tail -n "${TAIL:-12}" "$out/$name.log"
  return $status
}

build() {
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl &&
    python3 -m pip install -q --no-index --no-deps --no-build-isolation --no-compile --upgrade \
      --target "$site" "$root"
}

parity() { python3 "$root/tests/gpu/parity_in_parallel.py" cuda "$@"; }

# Every kind of finding on every kernel, at the small shapes of the parity cases: needs `check` first.
sanitize() {
  local tool status=0
  for tool in memcheck racecheck initcheck synccheck; do
    echo "-- $tool"
    timeout "${SANITIZE_S:-240}" compute-sanitizer --tool $tool --target-processes all --error-exitcode 9 \
      --print-limit 5 python3 "$root/tests/gpu/parity_in_parallel.py" cuda "$processes" \
      --cover "$out/kernels-of-cases.json" 2>&1 | tail -n 40
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
  done
  return $status
}

synthesize() { [ -e "$big" ] || esker synth --preset k512-iq2_xs "$big"; }

cd /tmp || exit 1
for name in $phases; do
  case $name in
    build) phase build build || exit 1 ;;
    check)
      phase parity parity "$processes" --record "$out/kernels-of-cases.json"
      TAIL=60 phase check esker selftest --backend cuda --quick
      ;;
    models) phase models env ESKER_TEST_DEVICE=cuda python3 -m pytest "$root/tests/gpu/test_device.py" -q -p no:cacheprovider ;;
    sanitize) TAIL=60 phase sanitize sanitize ;;
    tune)
      phase synth synthesize
      TAIL=60 phase tune esker tune --backend cuda --model "$big"
      ;;
    ops) TAIL=60 phase ops esker bench ops --backend cuda --repeats 3 --bytes 1GB --out "$out/ops-h200.json" \
      --types Q8_0,Q6_K,IQ4_XS,IQ3_S,IQ2_S,Q2_0 --shapes 10240x2560,248320x2560,640x2560 ;;
    decode)
      phase synth synthesize
      phase decode esker bench decode --backend cuda --model "$big" --arena 100% --prefill 32 --decode 48 --threads 8 \
        --random-tokens 1 --repeats 3 --out "$out/decode-k512-h200.json"
      ;;
    stream)
      phase synth synthesize
      phase stream esker bench stream --backend cuda --model "$big" --arena 6.8GB --prefill 32 --decode 48 --threads 8 \
        --random-tokens 1 --repeats 3 --out "$out/stream-k512-h200.json"
      ;;
    prompt)
      phase synth synthesize
      phase prompt esker bench prefill --backend cuda --model "$big" --arena 100% --prefill 2048 \
        --random-tokens 1 --repeats 3 --out "$out/prefill-k512-h200.json"
      ;;
    *) echo "no phase $name" >&2 && exit 2 ;;
  esac
done
