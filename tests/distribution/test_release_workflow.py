"""The workflow of a release: what it runs cannot change under its name, and it publishes only tagged versions."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import pytest

import kafkafmt
from distribution_tools import PROJECT, ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / ".github"
if not FOLDER.is_dir():
    pytest.skip("an sdist has no workflows", allow_module_level=True)

TEXT = (FOLDER / "workflows" / "release.yml").read_text()
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["jobs"]


def step(job: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in JOBS[job]["steps"] if each.get("name", "").startswith(name))
    return found


def test_actions_when_used_then_are_named_by_commit_with_the_version_beside_it() -> None:
    lines = re.findall(r"uses: (.*)", TEXT)
    assert len(lines) == sum("uses" in each for job in JOBS.values() for each in job["steps"])
    assert [line for line in lines if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_tools_when_installed_then_are_fixed_by_their_versions() -> None:
    commands = [each["run"] for job in JOBS.values() for each in job["steps"] if "run" in each]
    tools = [
        tool
        for command in commands
        if "pip install" in command
        for tool in shlex.split(command.partition("pip install")[2])
    ]
    assert {tool.partition("==")[0] for tool in tools} == {"build", "cibuildwheel", "twine"}
    assert [tool for tool in tools if not re.fullmatch(r"[a-z]+==\d+\.\d+\.\d+", tool)] == []


def test_build_requirements_when_installed_then_are_those_of_the_project_in_one_version() -> None:
    lines = (FOLDER / "build-constraints.txt").read_text().splitlines()
    fixed = dict(line.split("==") for line in lines if not line.startswith("#"))
    required = dict(line.split(">=") for line in PROJECT["build-system"]["requires"])
    assert fixed.keys() == {*required, "cmake", "ninja"}
    for name, least in required.items():
        assert [*map(int, fixed[name].split("."))] >= [*map(int, least.split("."))]
    for job, name in (("sdist", "Build a wheel"), ("wheels", "Build and test")):
        assert any("build-constraints.txt" in value for value in step(job, name)["env"].values())


def test_version_when_changes_are_not_released_then_is_that_of_no_release() -> None:
    """Else pip would take a release for the same version, and replace nothing."""
    first, *released = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert kafkafmt.__version__ not in released
    assert kafkafmt.__version__.endswith(".dev0") == (first == "Unreleased")


def test_permissions_when_given_then_only_attestation_and_upload_have_an_identity() -> None:
    assert yaml.safe_load(TEXT)["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job} == {
        "attest": {"attestations": "write", "id-token": "write"},
        "publish": {"id-token": "write"},
    }
    checkouts = [each for job in JOBS.values() for each in job["steps"] if "checkout" in each.get("uses", "")]
    assert all(each["with"] == {"persist-credentials": False} for each in checkouts)


@pytest.mark.parametrize(
    ("reference", "status"),
    [
        (f"refs/tags/v{kafkafmt.__version__}", 0),
        (f"refs/tags/{kafkafmt.__version__}", 1),
        (f"refs/tags/v{kafkafmt.__version__}.1", 1),
        (f"refs/heads/v{kafkafmt.__version__}", 1),
        ("refs/heads/main", 1),
    ],
)
def test_publication_when_the_reference_is_not_the_tag_of_the_version_then_is_refused(
    reference: str, status: int
) -> None:
    refusal = step("sdist", "Refuse")
    assert refusal["if"] == "github.ref_type == 'tag' || inputs.publish"
    command = ["bash", "-e", "-o", "pipefail", "-c", refusal["run"]]
    env = {"PATH": "/usr/bin:/bin", "GITHUB_REF": reference}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert (reference in done.stderr) == bool(status)
    assert JOBS["publish"]["needs"] == "attest"
    assert "sdist" in JOBS["attest"]["needs"]
