from typing import final

import numpy as np
from numpy.typing import NDArray

def lend(size: int) -> NDArray[np.uint8]: ...

@final
class Block:
    def __init__(self, size: int) -> None: ...

@final
class SpareBlocks:
    def __init__(self, *args: object, **kwargs: object) -> None: ...

@final
class Loan: ...

@final
class GrowingArray:
    def __init__(self, item_size: int, slack: int = 0) -> None: ...
