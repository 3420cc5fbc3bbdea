from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from _kafkafmt.json.message_programs import MessagePrograms

TYPE_DTYPE: np.dtype[np.void]

@final
class TopicRecords:
    def __init__(
        self,
        programs: MessagePrograms,
        types: NDArray[Any],
        control_types: NDArray[Any],
        names: bytes,
        is_framed: bool,
    ) -> None: ...
