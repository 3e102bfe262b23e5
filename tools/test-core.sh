#!/usr/bin/env bash
# Tests the core and the plugin in an environment of their own, with what serving pods have: nothing that
# only the profiler or the operator needs. On the newest Python, so that a machine with two sees both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(python3 tools/pythons.py)
uv=.venv/bin/uv
environment=.cache/core-venv

"$uv" venv --quiet --clear --python "$python" "$environment"
"$uv" pip sync --quiet --python "$environment" --require-hashes requirements/core.txt
for package in vllm torch kopf kubernetes typer rich matplotlib; do
  if "$environment/bin/python" -c "import $package" 2> /dev/null; then
    echo "requirements/core.txt brings $package, which the core and the plugin must do without." >&2
    exit 1
  fi
done
"$environment/bin/python" -m pytest -m "not engine" tests/core tests/plugin
