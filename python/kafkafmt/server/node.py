"""The one broker that clients see."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from kafkafmt.server.options import ServerOptions


@dataclass(frozen=True)
class Node:
    """The address of the broker that leads all partitions, and is the group coordinator and the controller."""

    host: str
    port: int
    cluster_id: str
    id: int = 0

    @classmethod
    def advertised(cls, options: ServerOptions, listener: socket.socket, cluster_id: str) -> Node:
        """Return the node that the options advertise, by default the host as given, and the listener's port.

        A host name is not resolved, because certificates are for names.
        """
        host, port = options.advertised or (options.host, listener.getsockname()[1])
        return cls(host, port, cluster_id)
