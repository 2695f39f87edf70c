"""The allocator of Arrow's buffers in cdfd's own processes; programs that import the library keep theirs."""

import pyarrow as pa


def prefer_jemalloc() -> None:
    """Use jemalloc if Arrow has it and you chose no other allocator (`ARROW_DEFAULT_MEMORY_POOL`).

    Some threads create batches and others free them. Arrow's default, mimalloc, then keeps much more memory than is in use: 290 MB resident
    for 44 MB of buffers. jemalloc keeps 170 MB at the same speed.
    """
    if pa.default_memory_pool().backend_name == "mimalloc" and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
