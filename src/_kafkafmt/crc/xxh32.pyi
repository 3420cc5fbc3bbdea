from typing import final

from typing_extensions import Buffer

@final
class XXH32:
    def update(self, data: Buffer) -> None: ...
    def digest(self) -> int: ...

def xxh32(data: Buffer) -> int: ...
