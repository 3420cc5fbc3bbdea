"""kcat as a producer: librdkafka as it is packaged; options: its codec, and "idempotent"."""

from __future__ import annotations

import subprocess

from producer_driver import Producing


def main() -> None:
    told = Producing()
    codec, *idempotent = told.options
    settings = [f"compression.codec={codec}", "acks=all"]
    if idempotent:
        settings.append("enable.idempotence=true")
    if told.version is not None:
        settings += ["api.version.request=false", f"broker.version.fallback={told.version}"]
    options = [word for setting in settings for word in ("-X", setting)]
    command = ["kcat", "-P", "-b", told.bootstrap, "-t", told.topic, "-p", "0", "-K", ":", *options]
    lines = b"".join(key + b":" + value + b"\n" for key, value in told.records())
    subprocess.run(command, input=lines, check=True)


if __name__ == "__main__":
    main()
