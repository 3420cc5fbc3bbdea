"""The corpora that fuzzing left: the inputs of a target that reach more than its seeds, in `corpus/TARGET.tar.xz`.

`make fuzz-corpora` makes them from `build/fuzz/corpus`. libFuzzer finds the fewest inputs that reach the same, and
`python -m fuzz.corpora TARGET FOLDER` packs those of them that are no seeds. The same inputs make the same bytes.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

PACKED = Path(__file__).parent / "corpus"
MAX_PACKED_BYTES = 90_000  # 22 targets: 2 MB


def corpus(target: str) -> list[bytes]:
    """The packed inputs of a target; none if it has no corpus yet."""
    path = PACKED / f"{target}.tar.xz"
    if not path.exists():
        return []
    with tarfile.open(path) as archive:
        files = [archive.extractfile(member) for member in archive]
        return [file.read() for file in files if file is not None]


def packed(inputs: list[bytes]) -> bytes:
    """Pack inputs, the smallest first; as many as fit."""
    inputs = sorted(set(inputs), key=lambda one: (len(one), one))
    while len(archive := _archive(inputs)) > MAX_PACKED_BYTES:
        inputs = inputs[: len(inputs) * 9 // 10]
    return archive


def _archive(inputs: list[bytes]) -> bytes:
    archived = io.BytesIO()
    with tarfile.open(fileobj=archived, mode="w:xz", preset=9) as archive:
        for number, data in enumerate(inputs):
            member = tarfile.TarInfo(f"{number:04}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return archived.getvalue()


def main() -> None:
    from fuzz import seeds

    target, folder = sys.argv[1], Path(sys.argv[2])
    first = {*seeds.generated(target)}
    found = [data for data in (path.read_bytes() for path in folder.iterdir()) if data not in first]
    archive = packed(found)
    PACKED.mkdir(exist_ok=True)
    (PACKED / f"{target}.tar.xz").write_bytes(archive)
    print(f"{target}: {len(corpus(target))} of {len(found)} inputs in {len(archive)} bytes")


if __name__ == "__main__":
    main()
