#!/usr/bin/env bash
# A lease of a GPU machine without a network, call by call; README.md has the whole sequence.
#
#   lease.sh pack FOLDER      here: vLLM and a small model, in FOLDER/0/part, FOLDER/1/part, … for the calls that carry them
#   lease.sh take PART        there, once for each part: keeps it, since the next call carries another
#   lease.sh start            there: unpacks all parts, makes models, begins a lane of session.sh on each GPU
#   lease.sh poll SECONDS     there: waits so long, or until all lanes have ended; tells, and packs what there is into OUT
#   lease.sh finish SECONDS   there: the same, but then ends the engines so that they write their results, and packs those
#   lease.sh unpack FROM TO   here: results from the files of the last call
#
# LEASE is the folder on the machine's own disk that stays between calls; OUT the one whose files come back; LANES the
# lanes of session.sh. What each subcommand needs beside them has a default that fits the machine. Processes are ended by
# their ids, never by a word of their command: that word is in this call's command, too, and the machine was lost by it.
set -euo pipefail
shopt -s nullglob
exec </dev/null
here=$(cd "$(dirname "$0")" && pwd)
lease=${LEASE:-/root/lease}
results=$lease/results
python=${PYTHON:-python3}
FILE_MB=15   # of a file of results that may come back
CALL_MIB=62  # of working tree and part together that a call may carry
ENDING_SECONDS=${ENDING_SECONDS:-25}

pack() { # FOLDER
  local root tree limit count
  # Not local: it is removed when the script ends, and with it the function.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  local platforms=()
  for n in 39 35 34 31 28 27 24 17 12 5; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
  platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
  local target=(-q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none
    "${platforms[@]}")
  "$python" -m pip download "${target[@]}" -d "$work/wheels" -r "$here/lease-needs.txt"
  "$python" -m pip install "${target[@]}" --no-compile --target "$work/site" "$work"/wheels/*.whl
  # FlashAttention 2 (Hopper runs 3) and what else no engine here loads.
  rm -rf "$work"/site/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so "$work"/site/vllm/vllm-rs \
    "$work"/site/vllm/_flashmla* "$work"/site/vllm/_deepselect* "$work"/site/vllm/_flashkda*
  tar -c -C "$work/site" . | xz -T0 -3 >"$work/site.tar.xz"
  root=$(git -C "$here" rev-parse --show-toplevel)
  tree=$(cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 du -cb | awk 'END { print $1 }')
  limit=$(((CALL_MIB << 20) - tree))
  count=$((($(stat -c %s "$work/site.tar.xz") + limit - 1) / limit))
  split -n "$count" -d -a 1 "$work/site.tar.xz" "$work/part"
  for ((i = 0; i < count; i++)); do
    mkdir -p "$1/$i"
    mv "$work/part$i" "$1/$i/part"
  done
  echo "the working tree has $((tree >> 20)) MiB; $count parts:"
  du -h "$1"/*/part
}

take() { # PART
  mkdir -p "$lease/parts"
  # Named by order of arrival.
  cp "$1" "$lease/parts/$(printf %02d "$(find "$lease/parts" -type f | wc -l)")"
  ls -l "$lease/parts"
}

start() {
  mkdir -p "$lease/site" "$results"
  [ ! -d "$lease/parts" ] || cat "$lease"/parts/* | xz -dc -T0 | tar -x -C "$lease/site"
  # The next call replaces the working tree.
  rm -rf "$lease/tree"
  mkdir "$lease/tree"
  tar -c -C "$here/../.." --exclude='./.[!.]*' --exclude=__pycache__ . | tar -x -C "$lease/tree"
  cd "$lease/tree"
  export PYTHONPATH=$lease/site:$PWD:$PWD/profiler:$PWD/plugin${PYTHONPATH:+:$PYTHONPATH}
  export VLLM_CACHE_ROOT=$lease/cache TRITON_CACHE_DIR=$lease/cache/triton TORCHINDUCTOR_CACHE_DIR=$lease/cache/inductor
  nproc
  ! command -v nvidia-smi >/dev/null || nvidia-smi -L || true
  "$python" benchmarks/gpu/shapes.py "${SHAPES:-/root/shapes}"
  local lane first=0 share lanes
  read -r -a lanes <<<"${LANES:-0 1}"
  # Lanes have cores of their own, so that none waits for another's.
  share=$(($(nproc) / ${#lanes[@]}))
  for lane in "${lanes[@]}"; do
    setsid nohup taskset -c "$first-$((first + share - 1))" \
      bash benchmarks/gpu/session.sh "$lane" "$results" </dev/null >"$results/session-$lane.log" 2>&1 &
    first=$((first + share))
  done
  until [ "$(find "$results" -name 'lane-*.pid' | wc -l)" = ${#lanes[@]} ]; do sleep 0.1; done
  echo "$(date +%T) lanes ${lanes[*]} have begun"
}

running() { # whether a lane has not ended
  local lane
  for lane in "$results"/lane-*.pid; do
    [ -e "${lane%.pid}.ended" ] || return 0
  done
  return 1
}

tell() {
  cat "$results"/lane-*.log 2>/dev/null || true
  grep -h '^[0-9][0-9]:[0-9][0-9]:[0-9][0-9] ' "$results"/*.log | sort | tail -20 | cut -c1-200 || true
  ! command -v nvidia-smi >/dev/null ||
    nvidia-smi --query-gpu=memory.used,utilization.gpu,clocks.sm,power.draw --format=csv,noheader || true
  local log
  for log in "$results"/*.log; do
    ! grep -q ERROR "$log" || echo "$log: $(grep -c ERROR "$log") errors, last: $(grep ERROR "$log" | tail -1 | cut -c1-250)"
  done
}

collect() {
  mkdir -p "$OUT"
  rm -f "$OUT"/results.tar.xz.*
  # Engines may be writing: what has changed meanwhile is whole in the next call's files.
  (cd "$results" && find . -maxdepth 1 -type f ! -name '*.svg' -print0 | tar -c --null -T - 2>/dev/null || true) |
    xz -3 -T0 | split -b "${FILE_MB}M" -d -a 1 - "$OUT/results.tar.xz."
  ls -l "$OUT"
}

wait_for_lanes() { # SECONDS
  local until=$((SECONDS + $1))
  while running && ((SECONDS < until)); do sleep 1; done
}

poll() { # SECONDS
  wait_for_lanes "$1"
  tell
  collect
}

finish() { # SECONDS
  wait_for_lanes "$1"
  local file pid until
  # SIGTERM has them write; a lane that sees its engine end begins no further one, since all run already.
  for file in "$results"/*.pid; do
    case $file in */lane-*) continue ;; esac
    [ ! -e "$file" ] || kill -TERM "$(cat "$file")" 2>/dev/null || true
  done
  until=$((SECONDS + ENDING_SECONDS))
  while running && ((SECONDS < until)); do sleep 0.5; done
  for file in "$results"/lane-*.pid; do
    pid=$(cat "$file")
    # Each lane leads a session, and so a group, of its own.
    [ -e "${file%.pid}.ended" ] || kill -KILL -- "-$pid" 2>/dev/null || true
  done
  tell
  collect
}

unpack() { # FROM TO
  mkdir -p "$2"
  cat "$1"/results.tar.xz.* | xz -dc | tar -x -C "$2"
  ls "$2"
}

case ${1:-} in
  pack | take | start | poll | finish | unpack) "$@" ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
