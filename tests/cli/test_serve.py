"""`kafkafmt serve`: what it is told, what it says of wrong values, and how it begins and ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.logs import is_one_line, run, write_log
from kafkafmt._util.sizes import size_text
from kafkafmt.cli.values import Size
from kafkafmt.serve.options import ServeOptions

TESTS = Path(__file__).parents[1]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with one topic."""
    return write_log(tmp_path / "logs" / "orders-0").parent


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "9092"], ["'9092' is not HOST:PORT"]),
        (["--listen", "::1:9092"], ["'::1:9092' is not HOST:PORT, as 127.0.0.1:9092 or [::1]:9092"]),
        (["--listen", "127.0.0.1:65536"], ["is not HOST:PORT"]),
        (["--listen", "0.0.0.0:9092"], ["--listen 0.0.0.0:9092 needs --advertise"]),
        (["--listen", "[::]:9092"], ["--listen [::]:9092 needs --advertise"]),
        (["--advertise", "host"], ["--advertise", "'host' is not HOST:PORT"]),
        (["--advertise", "host:0"], ["--advertise", "'host:0' is not HOST:PORT", "a port from 1 to 65535"]),
        (["--chunk-size", "64Q"], ["expected a size of 1 byte to 1G", "found '64Q'"]),
        (["--max-downconversion-memory", "0"], ["expected a size of 1 byte to", "found '0'"]),
        (["--workers", "0"], ["--workers"]),
        (["--allow-produce", "--workers", "2"], ["--allow-produce is for one process", "--workers is 1"]),
        (["--auto-create-topics"], ["--auto-create-topics needs --allow-produce"]),
        (["--write-timeout", "0"], ["--write-timeout"]),
        (["--zstd-fallback", "zstd"], ["'zstd' is not one of"]),
        (["--downconversion-codec", "zstd"], ["expected gzip, snappy or lz4, found zstd, which v0 and v1"]),
        (["--downconversion-codec", "none"], ["'none' is not one of 'gzip', 'snappy', 'lz4'"]),
        (["--tls-cert", "cert.pem"], ["--tls-cert and --tls-key go together"]),
        (["--tls-client-ca", "ca.pem"], ["--tls-client-ca needs --tls-cert and --tls-key"]),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], ["none.pem: No such file or directory"]),
        (["--sasl-mechanisms", "PLAIN"], ["--sasl-mechanisms needs --sasl-users"]),
        (
            ["--sasl-users", "u", "--sasl-mechanisms", "PLAIN,GSSAPI"],
            ["expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, found 'GSSAPI'"],
        ),
        (["--sasl-users", "none.ini"], ["none.ini: No such file or directory"]),
        (["--topics-file", "none.ini"], ["none.ini: No such file or directory"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_value_when_wrong_then_one_line_says_what_is_expected(
    logs: Path, arguments: list[str], words: list[str]
) -> None:
    listen = (
        [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    )  # what is wrong may be found behind that
    result = run("serve", logs, *listen, *arguments)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, words), result.stderr


def test_codec_of_converted_records_when_zstd_then_a_gateway_says_in_one_line_what_is_expected() -> None:
    """KIP-283, "Rejected Alternatives: Compression"."""
    result = run("gateway", "kafka://127.0.0.1:1", "--downconversion-codec", "zstd")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["--downconversion-codec", "expected gzip, snappy or lz4, found zstd"])


def test_directory_when_missing_or_a_file_then_one_line_says_so(logs: Path) -> None:
    segment = next(logs.rglob("*.log"))
    for path in (logs / "missing", segment):
        result = run("serve", path, "--listen", "127.0.0.1:0")
        assert result.exit_code == 2
        assert is_one_line(result.stderr, [str(path)]), result.stderr


def test_file_of_topics_or_users_when_wrong_then_one_line_names_file_and_line(
    logs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.ini"
    path.write_text("# what\n[a]\ncolour = red\n")
    expected = {
        "--topics-file": "Unknown topic config name: colour",
        "--sasl-users": "property of a user: expected one of password, SCRAM-SHA-256, SCRAM-SHA-512, found colour",
    }
    for option, message in expected.items():
        result = run("serve", logs, option, path)
        assert result.exit_code == 2
        assert is_one_line(result.stderr, [f"{path}, line 3: {message}"]), result.stderr


def test_certificate_when_wrong_then_one_line_names_it(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.pem"
    path.write_text("text")
    result = run("serve", logs, "--listen", "127.0.0.1:0", "--tls-cert", path, "--tls-key", path)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, [str(path), "PEM"]), result.stderr


def test_extra_when_not_installed_then_one_line_says_which(logs: Path) -> None:
    without = "import sys; sys.modules['structlog'] = None; from kafkafmt.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", without, "serve", str(logs)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "kafkafmt: serve needs structlog: pip install 'kafkafmt[serve]'\n"


def test_other_commands_when_run_then_load_nothing_of_the_server() -> None:
    program = (
        "import sys; from cli.logs import all_commands; all_commands(); "
        "print(sorted({'asyncio', 'kafka', 'prometheus_client', 'scramp', 'structlog'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_complete_help_then_shows_every_option_of_the_server() -> None:
    shown = run("serve", "--help-all").stdout
    for option in (
        "--state",
        "--no-log-message-downconversion-enable",
        "--max-downconversion-memory",
        "--metrics",
    ):
        assert option in shown


def test_complete_help_then_shows_sizes_that_are_the_defaults_with_their_units() -> None:
    shown = " ".join(run("serve", "--help-all").stdout.split())
    for name in ("max_downconversion_bytes", "chunk_bytes", "max_request_bytes", "max_fetch_bytes"):
        default = getattr(ServeOptions, name)
        assert f"[default: {size_text(default)}]" in shown
        assert Size(most=default).convert(size_text(default), None, None) == default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[orders]\npartitions = some\n", ["topics.ini, line 2: partitions is 'some'"]),
        (
            "[orders]\nsegment.bytes = 1\n",
            ["topics.ini, [orders]: segment.bytes: expected 14 to", "found '1'"],
        ),
        ("[orders]\nmessage.timestamp.type = Now\n", ["expected CreateTime or LogAppendTime, found 'Now'"]),
    ],
)
def test_topics_ini_when_wrong_and_records_may_be_produced_then_one_line_says_what_is_expected(
    logs: Path, text: str, words: list[str]
) -> None:
    (logs / "topics.ini").write_text(text)
    result = run("serve", logs, "--listen", "127.0.0.1:0", "--allow-produce")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, words), result.stderr


def test_configuration_file_then_its_options_count_as_given(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f'directory = "{logs}"\nlisten = "127.0.0.1:0"\nmemory = "8M"\nworkers = 2\n')
    result = run("serve", "--config", path)
    assert result.exit_code == 2
    assert "each of 2 workers" in result.stderr
    path.write_text('diretory = "/logs"\n')
    result = run("serve", "--config", path)
    assert f"{path}: unknown option 'diretory': did you mean 'directory'?" in result.stderr


def test_memory_when_it_is_too_small_then_one_line_says_what_would_do(logs: Path) -> None:
    result = run("serve", logs, "--listen", "127.0.0.1:0", "--memory", "8M", "--workers", 2)
    assert result.exit_code == 2
    words = ["--memory: ", "each of 2 workers", "expected a total of at least ", "found 8M"]
    assert is_one_line(result.stderr, words), result.stderr


def test_users_file_when_it_is_empty_then_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users.ini"
    users.touch()
    result = run("serve", tmp_path, "--sasl-users", users)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"--sasl-users {users}: it has no user, so no client can connect" in result.stderr
