from typing import final

__pyx_capi__: dict[str, object]

@final
class Block:
    def __init__(self, size: int) -> None: ...

@final
class SpareBlocks:
    def __init__(self) -> None: ...

@final
class Loan: ...

@final
class GrowingArray:
    def __init__(self, item_size: int, slack: int = 0) -> None: ...
