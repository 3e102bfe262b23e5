#!/usr/bin/env bash
# All settings on a machine with two H200, one lane a GPU, for a lease of half an hour:
#
#   bash benchmarks/gpu/session.sh serve-0 OUT & bash benchmarks/gpu/session.sh serve-1 OUT & wait
#   bash benchmarks/gpu/session.sh profiles OUT
#
# in the repository root, vLLM and TableTune on the PYTHONPATH. All engines start side by side (three minutes), and
# none is measured before all have started: starting disturbs what is measured, on the other GPU too. Then those of a
# GPU take turns. The documents are those of `profiles`, by the product's own command, from an earlier run.
set -u
lane=$1 out=$(realpath -m "$2")
here=$(dirname "$0")
results=$here/../results
shapes=${SHAPES:-/root/shapes}
turn=$out/turn-$lane
mkdir -p "$out"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES=$([ "$lane" = serve-1 ] && echo 1 || echo 0)
[ -d "$shapes" ] || python3 "$here/shapes.py" "$shapes"

# Aligned for the lengths 0 to 3 and 252 requests, as `tabletune render` wrote them.
aligned=$(python3 -c "import sys, yaml; print(*yaml.safe_load(open(sys.argv[1]))['cudagraph-capture-sizes'])" \
  "$results/gpu/h200-qwen3-4b-eagle3-vllm-args.yaml")

# serving NAME PLAN DOCUMENT GIB-OF-KV-CACHE [option...] -- ARGUMENTS...
serving() {
  local name=$1 plan=$2 document=$3 gib=$4
  shift 4
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  python3 "$here/serve.py" --plan "$here/plans/$plan.yaml" --document "$document" --output "$out" --name "$name" \
    --turn "$turn" --together "${ENGINES:-6}" "${options[@]}" "$@" --load-format dummy --skip-tokenizer-init --gpu-memory-utilization 0.1 \
    --kv-cache-memory-bytes $((gib << 30)) >"$out/$name.log" 2>&1
  echo "$(date +%T) $name ended with $?" >>"$out/lane-$lane.log"
}

# profiling NAME GIB-OF-KV-CACHE ARGUMENTS...
profiling() {
  local name=$1 gib=$2
  shift 2
  local began=$SECONDS
  python3 -c 'from tabletune_profiler.main import run; run()' profile --output "$out/$name-document.json" --plot -- \
    "$@" --load-format dummy --skip-tokenizer-init --gpu-memory-utilization 0.1 \
    --kv-cache-memory-bytes $((gib << 30)) >"$out/$name-profile.log" 2>&1
  echo "$(date +%T) profile of $name ended with $? after $((SECONDS - began)) s" >>"$out/lane-$lane.log"
}

synthetic() { # METHOD MODEL-OR-EMPTY LENGTH RATES
  echo "{\"method\":\"$1\",${2:+\"model\":\"$2\",}\"num_speculative_tokens\":$3,\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rates\":$4}"
}

eagle3=("$shapes/qwen3-4b" --max-model-len 10240
  --speculative-config "$(synthetic eagle3 "$shapes/qwen3-4b-eagle3" 3 '[0.76,0.56,0.42]')")
small=("$shapes/qwen3-4b" --max-model-len 4096
  --speculative-config "$(synthetic draft_model "$shapes/qwen3-0.6b" 3 '[0.78,0.6,0.46]')")
moe=("$shapes/qwen3-30b-a3b" --max-model-len 4096
  --speculative-config "$(synthetic eagle3 "$shapes/qwen3-30b-a3b-eagle3" 3 '[0.7,0.5,0.36]')")
advised=(--max-num-seqs 252 --cudagraph-capture-sizes $aligned)
# Dummy weights route every token to the same experts; vLLM's simulation spreads them.
export VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random

case $lane in
  serve-0)
    document=$results/off-h200-eagle3-document.json
    serving eagle3-default constants "$results/gpu/h200-qwen3-4b-eagle3-default.json" 19 -- "${eagle3[@]}" \
      --max-num-seqs 256 &
    serving eagle3-fixed3 fixed "$document" 7 --plain -- "${eagle3[@]}" "${advised[@]}" &
    serving eagle3-full full "$document" 19 -- "${eagle3[@]}" "${advised[@]}" \
      --compilation-config '{"cudagraph_mode":"FULL"}' &
    serving eagle3-advised eagle3 "$document" 22 -- "${eagle3[@]}" "${advised[@]}" &
    ;;
  serve-1)
    serving eagle3-bursts bursts "$results/off-h200-eagle3-document.json" 20 -- "${eagle3[@]}" "${advised[@]}" &
    serving moe-eagle3 setting "$results/gpu/serving/moe-eagle3-document.json" 22 -- "${moe[@]}" "${advised[@]}" &
    ;;
  profiles)
    # Sequences grow while a batch is timed: KV cache for 252 of them with some 700 tokens each.
    profiling draft-model 50 "${small[@]}" "${advised[@]}"
    profiling moe-eagle3 22 "${moe[@]}" "${advised[@]}"
    ;;
esac
wait
echo "$(date +%T) lane $lane has ended" >>"$out/lane-$lane.log"
