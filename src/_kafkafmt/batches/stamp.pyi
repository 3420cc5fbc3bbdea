from typing_extensions import Buffer

from _kafkafmt.batches.scan import BatchRun

def copy_without_state(
    run: BatchRun, *, producer: bool = True, log_append_time: bool = False, offsets: bool = False
) -> bytearray: ...
def assign_offsets(
    batches: Buffer, base_offset: int, partition_leader_epoch: int, log_append_time: int = -1
) -> int: ...
