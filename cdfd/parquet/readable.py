"""The part of a file object that all read-only ones behind `pa.PythonFile` have in common."""


class Readable:
    """A file that can be read and positioned. It is closed once, and then only says so."""

    closed = False

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def writable(self) -> bool:
        """See `io.IOBase`."""
        return False

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self) -> None:
        """See `io.IOBase`."""
        self.closed = True
