"""Pages whose blocks are run: each block of shell or Python prints what stands below it.

Folders at the root are in a temporary one. `/backup` has the committed logs. `/broker` has the groups and transactions
that a broker of Kafka 4 left. `/kafka` has the metadata of a cluster.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from data.real_logs import LOGS
from mirror.page import BLOCK, Session, without_durations

ROOT = Path(__file__).parents[2]
COORDINATORS = ROOT / "tests" / "data" / "coordinators" / "4.x"
CLUSTER = ROOT / "tests" / "data" / "cluster"
_SECTION = r"^{marks} {title}\n.*?(?=^#{{1,{level}}} |\Z)"


def section(path: str, title: str) -> str:
    """Return a section of a page, with what is below it. title: the heading with its marks, as `## Install`."""
    marks, _, text = title.partition(" ")
    pattern = _SECTION.format(marks=marks, title=re.escape(text), level=len(marks))
    found = re.search(pattern, (ROOT / path).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{path} has no {title}"
    return found[0]


def titles_with_blocks(path: str) -> list[str]:
    """Return the headings, with their marks, of a page's sections of the second level that have blocks to run."""
    titles = re.findall(r"^## .+$", (ROOT / path).read_text(), re.MULTILINE)
    return [title for title in titles if re.search("^```(sh|python)$", section(path, title), re.MULTILINE)]


def assert_prints_what_it_says(text: str, folder: Path, *, tells_all: bool = True) -> None:
    """Run the blocks of a page one after the other, each with the files and names of those before it.

    tells_all: whether a block without text below it prints nothing. Otherwise it may print what differs between runs.
    """
    shutil.copytree(LOGS, folder / "backup")
    shutil.copytree(COORDINATORS, folder / "broker")
    shutil.copytree(CLUSTER, folder / "kafka")
    session = Session(folder, {})
    for block in BLOCK.finditer(text):
        printed = session.run(block["language"], block["code"]).replace(f"{folder}/", "/")
        if tells_all or block["printed"] is not None:
            assert printed == without_durations(block["printed"] or ""), block["code"]


def assert_has_blocks_for_all_it_prints(text: str) -> None:
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```sh") + text.count("```python") > 0
    assert sum(block["printed"] is not None for block in blocks) == text.count("```text")
