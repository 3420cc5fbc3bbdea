"""Errors for packages that are not installed: they name the extra that installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The names on the package index of modules that have other names.
_PACKAGES = {
    "google": "protobuf",
    "grpc_tools": "grpcio-tools",
    "jsonpath_ng": "jsonpath-ng",
    "kafka": "kafka-python",
    "prometheus_client": "prometheus-client",
}
_INSTALL = ": pip install "


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Say what to install in the ModuleNotFoundError of the block: `what` needs the module, `extra` installs it.

    An error that says so already is raised unchanged. `name` of the error is the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "kafkafmt", "_kafkafmt") or _INSTALL in str(error):
            raise
        raise ModuleNotFoundError(missing_package(what, name, f"'kafkafmt[{extra}]'"), name=name) from None


def missing_package(what: str, module: str, install: str | None = None) -> str:
    """Return the message that `what` needs a module. install: what pip installs; None for the package itself."""
    package = _PACKAGES.get(module, module)
    return f"{what} needs {package}{_INSTALL}{install or package}"
