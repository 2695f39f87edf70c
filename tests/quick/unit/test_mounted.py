"""Files that are read again when they change, as Kubernetes, editors and people change them."""

import logging
import os
import pickle
from pathlib import Path

import pytest

from cdfd.config.parser import parse
from cdfd.config.values import Secret
from cdfd.runtime.mounted import MountedText, state_of
from cdfd.sinks.kafka.settings import KafkaSettings


class Mount:
    """A folder as the kubelet mounts a secret: names are links through `..data`, which another link replaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._number = 0

    def put(self, **files: str) -> None:
        self._number += 1
        version = self.folder / f"..2026_{self._number}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text)
            # Times of modification do not tell the versions apart.
            os.utime(version / name, (1_700_000_000, 1_700_000_000))
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").replace(self.folder / "..data")


def test_a_mount_whose_link_is_swapped(tmp_path: Path) -> None:
    mount = Mount(tmp_path / "secret")
    mount.put(password="first")
    secret = Secret(MountedText(str(tmp_path / "secret/password")))
    assert secret.reveal() == "first"
    mount.put(password="other")  # of the same length, at the same time
    assert secret.reveal() == "other"


def test_a_file_that_is_written_in_place_and_one_that_is_renamed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    mounted = MountedText(str(file))
    file.write_text("the second\n")
    assert mounted.read() == "the second"
    (tmp_path / "new").write_text("the third!\n")
    (tmp_path / "new").replace(file)
    assert mounted.read() == "the third!"


def test_a_file_is_read_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    mounted = MountedText(str(file))
    monkeypatch.setattr("cdfd.runtime.mounted.read_secret", lambda path: pytest.fail("read again"))
    assert [mounted.read() for _ in range(3)] == ["first"] * 3


def test_a_file_that_cannot_be_used_keeps_the_earlier_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "password"
    file.write_text("first-secret")
    mounted = MountedText(str(file))
    with caplog.at_level(logging.INFO, "cdfd.config"):
        file.write_text("\n")
        assert [mounted.read() for _ in range(3)] == ["first-secret"] * 3
        file.unlink()
        assert mounted.read() == "first-secret"
        file.write_text("second-secret")
        assert mounted.read() == "second-secret"
    said = [record.message for record in caplog.records]
    assert len(said) == 3
    assert "the file is empty; its earlier text stays in use" in said[0]
    assert "No such file" in said[1]
    assert "has changed" in said[2]
    assert "secret" not in caplog.text.replace("test_a_file", "")


def test_a_state_of_nothing(tmp_path: Path) -> None:
    assert state_of(str(tmp_path / "none")) is None
    assert state_of("a\0b") is None


def test_secrets_are_equal_by_text_or_by_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("same")
    a, again, b = (Secret(MountedText(str(tmp_path / name))) for name in ("a", "a", "b"))
    assert a == again
    assert hash(a) == hash(again)
    assert a != b
    assert Secret("same") == Secret("same") != a


def test_another_machine_gets_the_text_without_the_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("first")
    sent = pickle.dumps(Secret(MountedText(str(tmp_path / "password"))))
    (tmp_path / "password").unlink()
    assert pickle.loads(sent).reveal() == "first"


def test_a_configuration_follows_its_files_and_shows_names_only(tmp_path: Path) -> None:
    mount = Mount(tmp_path / "kafka")
    mount.put(user="u-1", password="p-1")
    settings = parse(
        """
        pipeline: shop
        tables: [{uri: /data/orders}]
        sink:
          kind: kafka
          bootstrap_servers: kafka:9092
          security: {protocol: SASL_SSL, mechanism: PLAIN, username_file: kafka/user, password_file: kafka/password}
        """,
        {},
        folder=str(tmp_path),
    )
    mount.put(user="u-2", password="p-2")
    assert isinstance(settings.sink, KafkaSettings)
    security = settings.sink.security
    assert security.username is not None
    assert security.password is not None
    assert (security.username.reveal(), security.password.reveal()) == ("u-2", "p-2")
    shown = settings.public()["sink"]["security"]
    assert (shown["username"], shown["password"]) == ("u-2", "***")
    assert "p-2" not in repr(settings) + str(settings)
