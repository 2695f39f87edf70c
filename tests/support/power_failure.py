"""Finds the files and names that a power failure would lose because they were not synced. It watches `os.fsync` and each rename."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdfd.storage.durable import is_temporary

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Naming:
    """The event of a file getting a name.

    Attributes:
        name: of the file.
        synced: whether its content was synced before.
        lost: what a power failure would have taken just before.
    """

    name: str
    synced: bool
    lost: tuple[str, ...]


@dataclass(slots=True)
class Device:
    """The device below a folder, as of its last syncs. The folder is empty at first.

    Attributes:
        folder: that is watched.
        ignored: names of files that need not survive.
        namings: each name that a file got by `link`, `rename` or `replace`, in order.
        syncs: number of syncs.
    """

    folder: Path
    ignored: frozenset[str] = frozenset()
    namings: list[Naming] = field(default_factory=list)
    syncs: int = 0
    _contents: dict[Identity, tuple[int, int]] = field(default_factory=dict)
    _names: dict[Identity, dict[str, Identity]] = field(default_factory=dict)

    @classmethod
    def watch(cls, folder: Path, monkeypatch: pytest.MonkeyPatch, ignored: frozenset[str] = frozenset()) -> "Device":
        """Watch a folder until the test ends."""
        assert not list(folder.iterdir())
        device = cls(folder, ignored)
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            # A change during the sync may not be on the device.
            record = device._state_of(descriptor)
            fsync(descriptor)
            record()

        monkeypatch.setattr(os, "fsync", synced)
        for name in ("link", "rename", "replace"):
            monkeypatch.setattr(os, name, device._naming(getattr(os, name)))
        return device

    def lost(self) -> tuple[str, ...]:
        """Paths of files and folders that a power failure would take, or whose content it would take."""
        return tuple(self._lost(self.folder))

    def _lost(self, folder: Path) -> Iterator[str]:
        durable = self._names.get(_identity(folder.stat()), {})
        for path in sorted(folder.iterdir()):
            if is_temporary(path.name) or path.name in self.ignored:
                continue
            file_stat = path.lstat()
            if durable.get(path.name) != _identity(file_stat) or (path.is_file() and not self._is_synced(file_stat)):
                yield str(path.relative_to(self.folder))
            elif path.is_dir():
                yield from self._lost(path)

    def _is_synced(self, file_stat: os.stat_result) -> bool:
        return self._contents.get(_identity(file_stat)) == _content(file_stat)

    def _state_of(self, descriptor: int) -> Callable[[], None]:
        """Takes note of a file or a folder as it is now, once it is called."""
        file_stat = os.fstat(descriptor)
        names = os.listdir(descriptor) if stat.S_ISDIR(file_stat.st_mode) else []
        stats = {name: os.stat(name, dir_fd=descriptor, follow_symlinks=False) for name in names}

        def record() -> None:
            self.syncs += 1
            if stat.S_ISDIR(file_stat.st_mode):
                self._names[_identity(file_stat)] = {name: _identity(each) for name, each in stats.items()}
            else:
                self._contents[_identity(file_stat)] = _content(file_stat)

        return record

    def _naming(self, rename: Callable[..., None]) -> Callable[..., None]:
        def named(source: str, target: str, **options: Any) -> None:
            file_stat = os.stat(source, dir_fd=options.get("src_dir_fd"), follow_symlinks=False)
            self.namings.append(Naming(target, self._is_synced(file_stat), self.lost()))
            rename(source, target, **options)

        return named


def _identity(file_stat: os.stat_result) -> Identity:
    return file_stat.st_dev, file_stat.st_ino


def _content(file_stat: os.stat_result) -> tuple[int, int]:
    return file_stat.st_size, file_stat.st_mtime_ns
