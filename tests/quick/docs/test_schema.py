"""The JSON schema of the configuration accepts what cdfd accepts, and finds wrong keys and values."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cdfd.config.document import Node, read
from cdfd.config.schema import json_schema
from tests.quick.docs.test_configurations import ELSEWHERE, SMALL, completed, is_configuration
from tests.support.docs.pages import blocks

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "cdfd.schema.json"
VALIDATOR = jsonschema.Draft7Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))


class EditorLoader(yaml.SafeLoader):
    """YAML 1.2, as editors read it: `off` is text, and a time too."""


EditorLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("bool", "timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
EditorLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), list("tf"))


def configurations() -> list[Any]:
    """The examples of `config/`, of the pages, and of the chart."""
    files = {file.name: file.read_text(encoding="utf-8") for file in sorted((ROOT / "config").glob("*.yaml"))}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for first, language, lines in blocks(page.read_text(encoding="utf-8").splitlines()):
            if language == "yaml" and page.name not in ELSEWHERE and is_configuration(lines):
                files[f"{page.name}:{first}"] = yaml.safe_dump(completed(loaded("\n".join(lines))))
    for file in sorted((ROOT / "helm" / "cdfd" / "ci").glob("*.yaml")):
        if config := loaded(file.read_text(encoding="utf-8")).get("config"):
            files[file.name] = yaml.safe_dump(config)
    return [pytest.param(text, id=name) for name, text in files.items()]


def loaded(text: str) -> Any:
    # As an editor does, which knows no references: their braces are text only where they are quoted or alone.
    return yaml.load(re.sub(r"(?<=[ :])(\$\{[^}]*\})(?=[ ,}])", r'"\1"', text), EditorLoader)


def problems(document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def as_text(node: Node) -> Any:
    """A document whose scalars are all text, as cdfd reads it."""
    if isinstance(node.content, dict):
        return {key: as_text(value) for key, value in node.content.items()}
    return [as_text(item) for item in node.content] if isinstance(node.content, tuple) else node.content


def test_published_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(VALIDATOR.schema)


def test_every_place_is_an_example() -> None:
    names = {str(example.id).partition(":")[0] for example in configurations()}
    assert {"shop.yaml", "kafka-values.yaml", "several-sinks.md"} <= names


@pytest.mark.parametrize("text", configurations())
def test_every_example_is_valid(text: str) -> None:
    assert problems(loaded(text)) == []
    assert problems(as_text(read(text)[0])) == []


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_every_file_of_config_names_the_schema(file: Path) -> None:
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / path).resolve() == PUBLISHED


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"pipelin": "shop"}, "$"),
        ({"pipeline": "Shop"}, "$.pipeline"),
        ({"poll": {"interval": "1"}}, "$.poll.interval"),
        ({"poll": {"interval": 1}}, "$.poll"),
        ({"catch_up": {"max_rows": 0}}, "$.catch_up.max_rows"),
        ({"catch_up": {"max_bytes": "64 megabytes"}}, "$.catch_up"),
        ({"tables": [{"url": "/data/orders"}]}, "$.tables[0]"),
        ({"tables": [{"uri": "/data/orders", "refine": "sometimes"}]}, "$.tables[0].refine"),
        ({"tables": [{"discover": "/data/*", "uri": "/data/orders"}]}, "$.tables[0]"),
        ({"tables": [{"uri": "/data/orders", "mask": {"a": {"length": 2}}}]}, "$.tables[0].mask"),
        ({"sink": {"kind": "kafak", "bootstrap_servers": "localhost:9092"}}, "$.sink.kind"),
        ({"sink": {"kind": "kafka", "bootstrap_server": "localhost:9092"}}, "$.sink"),
        ({"sink": {"kind": "kafka", "bootstrap_servers": "localhost:9092", "format": "avr"}}, "$.sink.format"),
        ({"sink": {"kind": "kafka", "bootstrap_servers": "localhost:9092", "path": "/x"}}, "$.sink"),
        ({"sink": {"kind": "files"}}, "$.sink"),
        ({"sinks": {"mirror": {"kind": "nowhere"}}}, "$.sinks"),
        ({"controls": {"signals": ["explode"]}}, "$.controls"),
        ({"http": {"listen": 9464}}, "$.http"),
    ],
)
def test_wrong_key_or_value_is_found_where_it_is(part: dict[str, Any], place: str) -> None:
    assert problems(SMALL) == []
    errors = problems({**SMALL, **part})
    assert any(error.startswith((f"{place}:", f"{place}.")) for error in errors), errors


@pytest.mark.parametrize(
    "part",
    [
        {"http": None, "poll": {"interval": None}},
        {"http": {"listen": None}},
        {"pipeline": "${PIPELINE}", "catch_up": {"max_rows": "${ROWS:-10}"}, "sink": {"kind": "${KIND}"}},
        {"sink": {"kind": "files", "path": "out", "format": "flat", "mode": 640}},
        {"sink": {**SMALL["sink"], "format": {"envelope": "debezium"}}},
        {"sink": {**SMALL["sink"], "security": {"password_file": "/run/secrets/kafka", "username": 12}}},
        {"tables": [{"uri": "t", "start": {"after": 41}, "columns": ["a", {"name": "b", "as": "c"}], "refine": "off"}]},
        {"spill": {"max_bytes": 4096}, "poll": {"interval": "1.5s"}},
    ],
)
def test_each_form_of_a_value_is_valid(part: dict[str, Any]) -> None:
    assert problems({**SMALL, **part}) == []


def test_every_key_of_the_reference_has_its_description() -> None:
    text = (ROOT / "docs" / "reference-configuration.md").read_text(encoding="utf-8")
    keys = re.findall(r"(?m)^\| `(poll|catch_up|spill)\.(\w+)` \| [^|]+ \| ([^|]+) \| [^|]* \| ([^|]+) \|$", text)
    assert keys
    definitions = VALIDATOR.schema["$defs"]
    names = {"poll": "Poll", "catch_up": "CatchUp", "spill": "Spill"}
    for section, key, default, description in keys:
        actual = definitions[names[section]]["properties"][key]
        assert description.partition(" See [")[0] in actual["description"]
        if "default" in actual:
            assert default == f"`{actual['default']}`"


def test_kinds_of_other_packages_are_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    from cdfd.config.settings import SinkSettings
    from cdfd.runtime.registry import SINKS

    class Elsewhere(SinkSettings):
        """A sink of another package."""

        place: str
        """Where."""

    monkeypatch.setitem(SINKS._loaded, "elsewhere", Elsewhere)
    schema = json_schema()
    document = {**SMALL, "sink": {"kind": "elsewhere", "place": "here"}}
    assert list(jsonschema.Draft7Validator(schema).iter_errors(document)) == []
    assert problems(document) != []
