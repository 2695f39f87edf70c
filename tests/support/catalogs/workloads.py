"""Random workloads that Delta Kernel for Java runs on a catalog-managed table, read by cdfd at each version as the kernel reads it."""

from __future__ import annotations

import random

import cdfd
from tests.support.catalogs.kernel import Kernel, KernelError
from tests.support.catalogs.unity_server import UnityServer

STEPS = 12


def run_workload(server: UnityServer, kernel: Kernel, seed: int) -> None:
    """Create a table, then append, remove, publish and write checkpoints at random. cdfd reads between the steps and at the end."""
    chance = random.Random(seed)
    name = f"main.sales.t{seed}"
    place = (name, *kernel.ask("create", name))
    alive: list[int] = []
    version, following = 0, 1
    for _ in range(STEPS):
        match chance.choices(["append", "remove", "publish", "checkpoint", "read"], [5, 2, 2, 1, 2])[0]:
            case "append":
                count = chance.randint(1, 5)
                ids = list(range(following, following + count))
                following += count
                version = int(kernel.ask("append", *place, ",".join(map(str, ids)))[0])
                alive += ids
            case "remove" if alive:
                chosen = chance.choice(alive)
                version = int(kernel.ask("remove", *place, chosen)[0])
                alive = _rows(kernel, place, version)
                assert chosen not in alive
            case "publish" | "checkpoint" as command if version:
                # A checkpoint is refused where one exists already.
                if command == "publish" or chance.random() < 0.5:
                    kernel.ask("publish", *place)
                else:
                    _checkpoint(kernel, place)
            case "read":
                _compare(server, kernel, place, version)
    _compare(server, kernel, place, version)


def _checkpoint(kernel: Kernel, place: tuple[str, ...]) -> None:
    try:
        kernel.ask("checkpoint", *place)
    except KernelError as error:
        assert "CheckpointAlreadyExists" in str(error)  # noqa: PT017 # other errors fail the test


def _rows(kernel: Kernel, place: tuple[str, ...], version: int) -> list[int]:
    [text] = kernel.ask("rows", *place, version) or [""]
    return [int(each) for each in text.split(",") if each]


def _compare(server: UnityServer, kernel: Kernel, place: tuple[str, ...], latest: int) -> None:
    options = {"endpoint": server.url}
    uri = f"uc://{place[0]}"
    changes = cdfd.changes(uri, storage_options=options).read_all().to_pylist()
    assert cdfd.snapshot(uri, storage_options=options).read_all()["id"].sort().to_pylist() == _rows(
        kernel, place, latest
    )
    rows: list[int] = []
    for version in range(latest + 1):
        for change in (each for each in changes if each["_commit_version"] == version):
            (rows.remove if change["_change_type"] == "delete" else rows.append)(change["id"])
        assert sorted(rows) == _rows(kernel, place, version), (place[0], version)
    assert all(each["_commit_version"] <= latest for each in changes)
