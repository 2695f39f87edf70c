"""The rules of hadolint that concern Dockerfiles like ours, by its numbers, and a few of our own."""

import re
from collections.abc import Callable, Iterator

from tests.support.image.dockerfile import Instruction, Stage, stages

OFFICIAL_LABELS = ("title", "description", "licenses", "version", "revision", "created")

Rule = Callable[[Instruction], bool]


def _command(text: str) -> str:
    """A shell script with the words of commands on one line."""
    return " ".join(["", *re.split(r"[;&|\s]+", text), ""])


RULES: dict[str, tuple[str, Rule]] = {
    "DL3000": ("WORKDIR", lambda one: not one.text.startswith("/")),
    "DL3003": ("RUN", lambda one: " cd " in _command(one.text)),
    "DL3004": ("RUN", lambda one: " sudo " in _command(one.text)),
    "DL3008": ("RUN", lambda one: bool(re.search(r"apt-get install(?! [^;&]*=\d)", one.text))),
    "DL3009": ("RUN", lambda one: "apt-get update" in one.text and "rm -rf /var/lib/apt/lists/*" not in one.text),
    "DL3014": ("RUN", lambda one: bool(re.search(r"apt-get install(?! [^;&]*-y)", one.text))),
    "DL3015": ("RUN", lambda one: bool(re.search(r"apt-get install(?! [^;&]*--no-install-recommends)", one.text))),
    "DL3020": ("ADD", lambda one: True),
    "DL3025": ("CMD ENTRYPOINT", lambda one: one.words() is None),
    "DL3027": ("RUN", lambda one: bool(re.search(r"\bapt (install|update)", one.text))),
    "DL4000": ("MAINTAINER", lambda one: True),
    "DL4006": ("RUN", lambda one: bool(re.search(r"[^|]\|[^|]", one.text)) and "pipefail" not in one.text),
    "DL4005": ("SHELL", lambda one: True),
    # Ours.
    "shell fails late": ("RUN", lambda one: ";" in one.text and not one.text.startswith("set -eu;")),
    "index without hashes": (
        "RUN",
        lambda one: any(
            "--require-hashes" not in step and "--no-index" not in step and "--no-deps" not in step
            for step in re.findall(r"-m pip (?:--python \S+ )?(?:install|wheel) [^;&]*", one.text)
        ),
    ),
    "health check by a shell": ("HEALTHCHECK", lambda one: ' CMD ["' not in one.text),
    "user by name": ("USER", lambda one: re.fullmatch(r"[1-9]\d*:[1-9]\d*", one.text) is None),
}


def problems(text: str) -> list[str]:
    """Line and rule of each violation."""
    arguments, all_stages = stages(text)
    return [*_by_instruction(all_stages), *_by_stage(arguments, all_stages)]


def _by_instruction(all_stages: list[Stage]) -> Iterator[str]:
    for stage in all_stages:
        for one in stage.instructions:
            for rule, (names, violated) in RULES.items():
                if one.name in names.split() and rule not in one.ignored and violated(one):
                    yield f"line {one.line}: {rule}"


def _by_stage(arguments: dict[str, str], all_stages: list[Stage]) -> Iterator[str]:
    for number, stage in enumerate(all_stages):
        base = arguments.get(stage.base.strip("${}"), stage.base)
        if not re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base):
            yield f"stage {number}: base image without tag (DL3006) or digest"
        if ":latest@" in base:
            yield f"stage {number}: DL3007"
    last = {one.name: one for one in all_stages[-1].instructions}
    if "USER" not in last:
        yield "DL3002"
    if "HEALTHCHECK" not in last:
        yield "DL3057"
    for name in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
        if [one.name for one in all_stages[-1].instructions].count(name) > 1:
            yield f"more than one {name} (DL3012, DL4003, DL4004)"
    labels = last["LABEL"].text if "LABEL" in last else ""
    for label in OFFICIAL_LABELS:
        if f"org.opencontainers.image.{label}=" not in labels:
            yield f"DL3048: no label {label}"
