from typing_extensions import Buffer

def set_producer_state(
    batches: Buffer,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool = False,
) -> None: ...
