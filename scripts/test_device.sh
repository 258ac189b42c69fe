#!/usr/bin/env bash
# The tests that need a GPU, and the measurements, on a machine that has one; at most nine minutes. What is
# printed goes to the folder $OUT too, if there is one, and the end is a summary.
set -u
cd "$(dirname "$0")/.."
if [ ! -d .device-packages ] && [ -f .device-packages.tar.gz ]; then tar xzf .device-packages.tar.gz; fi
export PYTHONPATH="$PWD/src:$PWD/.device-packages:$PWD" XLA_PYTHON_CLIENT_PREALLOCATE=false
out=${OUT:-$(mktemp -d)}
python=${PYTHON:-python3}
JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} timeout "${TESTS_S:-320}" "$python" -m pytest -q -p no:cacheprovider --confcutdir=tests \
    --durations=10 -rfE -W ignore::DeprecationWarning --continue-on-collection-errors tests/device 2>&1 | tee "$out/tests.txt" | tail -n 150
tests=${PIPESTATUS[0]}
timeout "${FIGURES_S:-210}" "$python" -m benchmarks.device_components "$@" 2>&1 | tee "$out/figures.txt" >/dev/null
figures=${PIPESTATUS[0]}
echo "=== summary (124: out of time) ==="
grep -E "^(FAILED|ERROR)|passed|failed" "$out/tests.txt" | tail -n 40
echo "tests: status $tests; figures: status $figures"
grep -v "^\(INFO\|WARNING\)" "$out/figures.txt" | tail -n 80
exit $((tests != 0 || figures != 0))
