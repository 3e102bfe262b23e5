#!/usr/bin/env bash
# One lane of a lease: the engines of one GPU, in turns. `lease.sh start` begins one for each GPU.
#
#   bash benchmarks/gpu/session.sh LANE OUT
#
# in the repository root, vLLM and TableTune on the PYTHONPATH. Lanes: 0 and 1 for the two GPUs of a machine, dry for
# a machine without any, profiles to make documents.
#
# All engines start side by side, and none is measured before all of ENGINES have started: starting disturbs what
# is measured, on the other GPU too. Then those of a GPU take turns in the order of their --after, for at most --seconds.
# The documents are those of earlier profiles, by the product's own command.
#
# Left in OUT for each engine: NAME.pid while it runs, NAME.started, NAME.ended; and lane-LANE.log.
set -u
lane=$1 out=$(realpath -m "$2")
here=$(dirname "$0")
results=$here/../results
shapes=${SHAPES:-/root/shapes}
small=${SMALL:-/root/small}
python=${PYTHON:-python3}
mkdir -p "$out"
echo $$ >"$out/lane-$lane.pid"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1

# Aligned for the lengths 0 to 3 and 252 requests, as `tabletune render` wrote them.
aligned=$("$python" -c "import sys, yaml; print(*yaml.safe_load(open(sys.argv[1]))['cudagraph-capture-sizes'])" \
  "$results/gpu/h200-qwen3-4b-eagle3-vllm-args.yaml")

# serving NAME PLAN DOCUMENT [option...] -- ARGUMENTS...
serving() {
  local name=$1 plan=$2 document=$3
  shift 3
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  "$python" "$here/serve.py" --plan "$here/plans/$plan.yaml" --document "$document" --output "$out" --name "$name" \
    --together "${ENGINES:-8}" "${options[@]}" "$@" >"$out/$name.log" 2>&1 &
  echo $! >"$out/$name.pid"
  wait $!
  local code=$?
  echo "$(date +%T) $name ended with $code" >>"$out/lane-$lane.log"
  # Here and not in serve.py: others have their turn after one that was killed, too.
  rm "$out/$name.pid"
  touch "$out/$name.started" "$out/$name.ended"
}

# profiling NAME ARGUMENTS...
profiling() {
  local name=$1
  shift
  local began=$SECONDS
  "$python" -c 'from tabletune_profiler.main import run; run()' profile --output "$out/$name-document.json" --plot -- \
    "$@" >"$out/$name-profile.log" 2>&1
  local code=$?
  echo "$(date +%T) profile of $name ended with $code after $((SECONDS - began)) s" >>"$out/lane-$lane.log"
}

synthetic() { # METHOD MODEL-OR-EMPTY LENGTH RATES
  echo "{\"method\":\"$1\",${2:+\"model\":\"$2\",}\"num_speculative_tokens\":$3,\"rejection_sample_method\":\"synthetic\",\"synthetic_acceptance_rates\":$4}"
}

# gib NUMBER: with the KV cache's size given, no engine measures how much memory the others leave it.
gib() { echo --gpu-memory-utilization 0.1 --kv-cache-memory-bytes $(($1 << 30)); }

dummy=(--load-format dummy --skip-tokenizer-init)
eagle3=("$shapes/qwen3-4b" --max-model-len 10240
  --speculative-config "$(synthetic eagle3 "$shapes/qwen3-4b-eagle3" 3 '[0.76,0.56,0.42]')")
draft_model=("$shapes/qwen3-4b" --max-model-len 4096
  --speculative-config "$(synthetic draft_model "$shapes/qwen3-0.6b" 3 '[0.78,0.6,0.46]')")
moe=("$shapes/qwen3-30b-a3b" --max-model-len 4096
  --speculative-config "$(synthetic eagle3 "$shapes/qwen3-30b-a3b-eagle3" 3 '[0.7,0.5,0.36]')")
# A block of drafts costs what it costs whatever its length; more of it is accepted than of a head's drafts. Users measure
# 3.4 (chat) to 8.2 (mathematics) tokens a step with blocks of 16; this is 3.95 with blocks of 8.
dflash=("$shapes/qwen3-4b" --max-model-len 10240
  --speculative-config "$(synthetic dflash "$shapes/qwen3-4b-dflash" 7 '[0.8,0.62,0.48,0.37,0.29,0.22,0.17]')")
# Real weights: what confidence the drafter has is worth something only there.
real=("$small/smollm2-135m" --max-model-len 2048 --no-enable-prefix-caching)
drafting="{\"method\":\"draft_model\",\"model\":\"$small/smollm2-135m-drafter\",\"num_speculative_tokens\":3"
# The same for the lengths of that document and the longest of this drafter, whose pass is always 8 tokens a request.
aligned_dflash=$("$python" -c "from tabletune import graphs; print(*graphs.aligned_capture_sizes((0, 1, 2, 3, 7), 192, 1536))")
advised_dflash=(--max-num-seqs 192 --cudagraph-capture-sizes $aligned_dflash)
advised=(--max-num-seqs 252 --cudagraph-capture-sizes $aligned)
# Dummy weights route every token to the same experts; vLLM's simulation spreads them.
export VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random
document=$results/off-h200-eagle3-document.json

case $lane in
  0)
    export CUDA_VISIBLE_DEVICES=${GPU:-0}
    serving eagle3-fixed3 fixed "$document" --plain -- \
      "${eagle3[@]}" "${advised[@]}" "${dummy[@]}" $(gib 8) &
    # As on 2026-11-30, of which its loops are a repetition, but for the KV cache that a profile wants: requests grow
    # while a batch is timed.
    serving eagle3-advised eagle3 "$document" --after eagle3-fixed3 --seconds 840 -- \
      "${eagle3[@]}" "${advised[@]}" "${dummy[@]}" $(gib 29) &
    serving dflash dflash "$document" --after eagle3-advised -- \
      "${dflash[@]}" "${advised_dflash[@]}" "${dummy[@]}" $(gib 27) &
    {
      # While the others start.
      "$python" "$here/real.py" "$small" "$results/gpu/serving/draft-model-document.json" >"$out/real.log" 2>&1
      serving real-draft real "$small/other-times.json" --after dflash --seconds 150 --prompts "$small/prompts.jsonl" -- \
        "${real[@]}" "${advised[@]}" --speculative-config "$drafting}" $(gib 8) &
      serving real-adaptive-verification real-fixed "$small/other-times.json" --plain --after real-draft --prompts "$small/prompts.jsonl" -- \
        "${real[@]}" "${advised[@]}" --speculative-config "$drafting,\"enable_adaptive_verification\":true}" $(gib 8) &
      wait
    } &
    ;;
  1)
    export CUDA_VISIBLE_DEVICES=${GPU:-1}
    serving eagle3-full full "$document" -- \
      "${eagle3[@]}" "${advised[@]}" "${dummy[@]}" $(gib 29) --compilation-config '{"cudagraph_mode":"FULL"}' &
    serving eagle3-default default "$results/gpu/h200-qwen3-4b-eagle3-default.json" --after eagle3-full --seconds 480 -- \
      "${eagle3[@]}" --max-num-seqs 256 "${dummy[@]}" $(gib 30) &
    # Begins with bursts, which may kill it.
    serving eagle3-more more "$document" --after eagle3-default -- \
      "${eagle3[@]}" "${advised[@]}" "${dummy[@]}" $(gib 22) &
    ;;
  2)
    # With lane 3 in 13 minutes: what a lease that ended early did not reach.
    export CUDA_VISIBLE_DEVICES=${GPU:-0}
    serving eagle3-bursts bursts "$document" -- \
      "${eagle3[@]}" "${advised[@]}" "${dummy[@]}" $(gib 29) &
    ;;
  3)
    export CUDA_VISIBLE_DEVICES=${GPU:-1}
    serving dflash dflash "$document" -- \
      "${dflash[@]}" "${advised_dflash[@]}" "${dummy[@]}" $(gib 27) &
    {
      "$python" "$here/real.py" "$small" "$results/gpu/serving/draft-model-document.json" >"$out/real.log" 2>&1
      serving real-draft real "$small/other-times.json" --after dflash --prompts "$small/prompts.jsonl" -- \
        "${real[@]}" "${advised[@]}" --speculative-config "$drafting}" $(gib 8) &
      serving real-adaptive-verification real-fixed "$small/other-times.json" --plain --after real-draft --prompts "$small/prompts.jsonl" -- \
        "${real[@]}" "${advised[@]}" --speculative-config "$drafting,\"enable_adaptive_verification\":true}" $(gib 8) &
      wait
    } &
    ;;
  dry)
    # On a CPU: that every step of a lease runs.
    model=${MODEL:?folder of a small model}
    export VLLM_CPU_KVCACHE_SPACE=1 VLLM_USE_AOT_COMPILE=0
    cpu=("$model" --max-num-seqs 16 --max-model-len 1024 --speculative-config
      "{\"method\":\"draft_model\",\"model\":\"$model\",\"num_speculative_tokens\":3}")
    serving dry dry "$results/profile-draft_model-document.json" -- "${cpu[@]}" &
    ;;
  profiles)
    # Sequences grow while a batch is timed: KV cache for 252 of them with some 700 tokens each.
    profiling draft-model "${draft_model[@]}" "${advised[@]}" "${dummy[@]}" $(gib 50)
    profiling moe-eagle3 "${moe[@]}" "${advised[@]}" "${dummy[@]}" $(gib 22)
    ;;
  *)
    echo "there is no lane $lane; there are 0, 1, dry and profiles" >&2
    exit 2
    ;;
esac
wait
echo "$(date +%T) lane $lane has ended" >>"$out/lane-$lane.log"
touch "$out/lane-$lane.ended"
