from typing_extensions import Buffer

__pyx_capi__: dict[str, object]

def murmur2(data: Buffer) -> int: ...
