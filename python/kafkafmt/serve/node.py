"""The one broker that an endpoint is to its clients."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from kafkafmt.serve.options import ServeOptions


@dataclass(frozen=True)
class Node:
    """Where clients find all partitions, the group coordinator and the controller."""

    host: str
    port: int
    cluster_id: str
    id: int = 0

    @classmethod
    def advertised(cls, options: ServeOptions, listener: socket.socket, cluster_id: str) -> Node:
        """What the options say that clients are told; else the host to listen on, by its name if it has one, since
        certificates are for names, and the port that was had."""
        host, port = options.advertised or (options.host, listener.getsockname()[1])
        return cls(host, port, cluster_id)
