"""The kinds of values, as `cdfd.trevni.native_decoding` numbers them."""

cdef enum Kind:
    NULLS = 0
    INTEGERS = 1
    FIXED = 2
    TEXT = 3
    BITS = 4

cdef enum:
    SLACK = 32  # a string of up to so many bytes is copied as so many, where there is room
