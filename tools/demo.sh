#!/usr/bin/env bash
# The main job on real input: the topics in tests/data/logs, which a real broker wrote, down-converted on a local Spark.
# A second run converts only what build/demo lacks, which is nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH
export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1}  # a machine need not know its own name

readonly source=tests/data/logs
readonly target=build/demo

step() {
    printf '\n\033[1m%s\033[0m\n' "$1"
}

run() {
    echo "\$ $*"
    "$@"
}

step "Convert every topic to message format v1, one Spark task a segment"
run kafkafmt convert "$source" "$target" --to-magic 1 --engine spark

step "Check what came out: CRCs, structure, offsets"
run kafkafmt inspect --verify "$target"

step "What to try next"
cat <<NEXT
  . .venv/bin/activate
  kafkafmt inspect $source/*/*.log --records        # the records of what the broker wrote
  kafkafmt inspect $target --json                   # a line of JSON a batch
  kafkafmt convert $target build/demo-v2 --to-magic 2    # and back up to v2, without Spark
  kafkafmt --help
NEXT
