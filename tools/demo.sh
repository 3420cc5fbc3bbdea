#!/usr/bin/env bash
# Convert topics that a real broker wrote to message format v1 on a local Spark, and check the result.
# A second run converts only segments that are missing in build/demo: none.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH
export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1}  # some machines cannot resolve their own name

readonly source=tests/data/logs
readonly target=build/demo

step() {
    printf '\n== %s\n' "$1"
}

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

step "Convert segments of a broker, in every codec, to message format v1: one Spark task for each segment"
run kafkafmt convert "$source" "$target" --to-magic 1 --zstd-fallback lz4 --engine spark

step "Check the result: lengths, CRCs, the order of offsets, every record"
run kafkafmt inspect --verify "$target"

step "One topic before and after: v1 has no zstd, so its batches are lz4 now"
run kafkafmt inspect "$source/zstd-0"
run kafkafmt inspect "$target/zstd-0"

cat <<NEXT

== What to try next
  . .venv/bin/activate
  kafkafmt inspect $source/headers-0 --records      the records, with their headers
  kafkafmt inspect $source --json                   a line of JSON for each batch
  kafkafmt inspect $source --records --parquet build/records.parquet
  kafkafmt convert $target build/demo-v2 --to-magic 2      back to v2, without Spark
  kafkafmt --help
Run \`make demo\` again: nothing is converted twice. To start from the beginning, run \`rm -r $target\`.
NEXT
