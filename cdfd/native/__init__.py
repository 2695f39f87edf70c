"""Kernels in machine code, from Cython, for loops that neither numpy nor Arrow has: values whose place depends on the value before.

They read and write buffers and nothing else. Each has a counterpart in numpy or Arrow that gives the same. That one is used where the kernels
were not built: on platforms without a wheel and without a compiler. A kernel that finds its input damaged says so, and leaves the error to
its counterpart, so errors do not depend on the platform either.
"""

built: bool
"""Whether the kernels are there. Without them, the modules of this package cannot be used."""

try:
    from cdfd.native import json_rows, kafka_records, trevni_decoding, trevni_encoding
except ImportError:
    built = False
else:
    built = True

__all__ = ["built", "json_rows", "kafka_records", "trevni_decoding", "trevni_encoding"]
