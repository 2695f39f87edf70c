"""The Delta protocol, pure: bytes and values in, values out."""
