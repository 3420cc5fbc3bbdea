#!/usr/bin/env bash
# Fuzz each target for a time: `fuzz.sh SECONDS [TARGET...]`. The default is all targets of tests/fuzz.
# Needs the kernels that `instrument.sh KAFKAFMT_FUZZ build/fuzz` makes with clang. Keeps the corpus in build/fuzz/corpus
# for the next run. Saves inputs that break an invariant in build/fuzz/findings. Exits with 1 if there was one.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
readonly site=$PWD/build/fuzz/site
readonly python=$PWD/.venv/bin/python
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    read -r -a targets < <(PYTHONPATH=$PWD/tests "$python" -m fuzz.seeds)
fi

"$python" -m pip --disable-pip-version-check -q install --no-deps --upgrade --target "$site" 'atheris>=3.0'

# The kernels call the fuzzer's library, so it is preloaded. PYTHONMALLOC gives every object its own allocation, so that
# the sanitizer sees its bounds.
fuzzing() {
    LD_PRELOAD=$site/asan_with_fuzzer.so ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=64 PYTHONMALLOC=malloc \
        PYTHONPATH=$site:$PWD/tests "$python" "$@"
}

failed=0
for target in "${targets[@]}"; do
    corpus=build/fuzz/corpus/$target
    findings=build/fuzz/findings/$target
    mkdir -p "$findings"
    fuzzing -m fuzz.seeds "$target" "$corpus"
    echo "== $target, for $seconds seconds"
    fuzzing -m fuzz.run "$target" -max_total_time="$seconds" -max_len=4096 -timeout=100 -rss_limit_mb=2048 \
        -malloc_limit_mb=256 -print_final_stats=1 -artifact_prefix="$findings/" "$corpus" || failed=1
done
exit $failed
