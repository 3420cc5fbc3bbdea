#!/usr/bin/env bash
# Fuzz each target for a time: `fuzz.sh SECONDS [TARGET...]`. The default is all targets of tests/fuzz.
# Needs the kernels that `instrument.sh KAFKAFMT_FUZZ build/fuzz` makes with clang. Keeps the corpus in build/fuzz/corpus
# for the next run. Saves inputs that break an invariant in build/fuzz/findings. Exits with 1 if there was one.
# `fuzz.sh corpora [TARGET...]` fuzzes nothing: it packs what is needed of build/fuzz/corpus into tests/fuzz/corpus, and
# adds what was fuzzed to tests/fuzz/RESULTS.md.
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

# As the kernels of that build (CMakeLists.txt).
checks=$PWD/build/fuzz/native_checks
CC=${CC:-clang} CFLAGS="-g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=pointer-overflow \
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer" PYTHONPATH=$PWD/tests "$python" -m fuzz.native_checks "$checks"
export KAFKAFMT_NATIVE_CHECKS=$checks

# The kernels call the fuzzer's library, so it is preloaded. PYTHONMALLOC gives every object its own allocation, so that
# the sanitizer sees its bounds.
fuzzing() {
    LD_PRELOAD=$site/asan_with_fuzzer.so ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=64 PYTHONMALLOC=malloc \
        PYTHONPATH=$site:$PWD/tests "$python" "$@"
}

# Short inputs are faster. 512 bytes have room for a value that is copied by memcpy (MAX_SHORT_COPY).
longest_input() {
    case $1 in
        kernel_*) echo 512 ;;
        *) echo 4096 ;;
    esac
}

merged=
trap 'rm -rf "$merged"' EXIT

# Packs the inputs of a target that reach more than its seeds: the fewest, as libFuzzer finds them.
pack() {
    local target=$1
    merged=$(mktemp -d)
    fuzzing -m fuzz.seeds "$target" "$merged" --seeds
    fuzzing -m fuzz.run "$target" -merge=1 -max_len="$(longest_input "$target")" -timeout=100 \
        -rss_limit_mb=2048 "$merged" "build/fuzz/corpus/$target"
    fuzzing -m fuzz.corpora "$target" "$merged"
    rm -r "$merged"
}

failed=0
for target in "${targets[@]}"; do
    corpus=build/fuzz/corpus/$target
    findings=build/fuzz/findings/$target
    mkdir -p "$findings"
    fuzzing -m fuzz.seeds "$target" "$corpus"
    if [ "$seconds" = corpora ]; then
        pack "$target"
        continue
    fi
    echo "== $target, for $seconds seconds"
    log=build/fuzz/$target.log
    sources=$(PYTHONPATH=$PWD/tests "$python" -m fuzz.results "$target")
    TIMEFORMAT='seconds of CPU: %U %S'
    if { time fuzzing -m fuzz.run "$target" -max_total_time="$seconds" -max_len="$(longest_input "$target")" \
        -timeout=100 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
        -artifact_prefix="$findings/" "$corpus"; } 2>&1 | tee "$log"; then
        # A line that `python -m fuzz.results` adds up.
        awk -v target="$target" -v sources="$sources" '
            /^stat::number_of_executed_units/ { inputs = $2 }
            /^seconds of CPU/ { seconds = $4 + $5 }
            END { print target, sources, seconds, inputs }' "$log" >>build/fuzz/runs
    else
        failed=1
    fi
done
if [ "$seconds" = corpora ] && [ -e build/fuzz/runs ]; then
    PYTHONPATH=$PWD/tests "$python" -m fuzz.results
fi
exit $failed
