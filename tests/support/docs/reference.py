"""The pages, and the parts of pages, that are generated from the code. `python -m tests.support.docs.reference` writes them.

A part of a page is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import typer
from prometheus_client.parser import text_string_to_metric_families

from cdfd.cli import app
from cdfd.daemon.http.metrics import Metrics, Reading
from cdfd.daemon.http.status import Search, Searches, daemon_families
from cdfd.deliver.headroom import KINDS, Headroom
from cdfd.errors import CdfdError
from cdfd.log.pace import PollBudget
from tests.support.docs import figures, reference_settings, reference_sizing

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def generated(docs: Path = DOCS) -> dict[Path, str]:
    """Pages, as the code has them. Text around generated parts is that of the page."""
    whole = {
        "reference-configuration.md": reference_settings.page(),
        "cli.md": "\n".join(_commands()),
        "reference-errors.md": "\n".join(_errors()),
    }
    note = "<!-- Generated from the code by `make docs`. -->\n\n"
    pages = {docs / name: f"{note}{text.rstrip()}\n" for name, text in whole.items()}
    metrics = {"gauges": _metrics(("gauge",)), "counters": _metrics(("counter", "histogram", "summary"))}
    parts = {"metrics.md": metrics, "performance.md": {name: figures.part(name) for name in figures.PARTS}}
    parts["sizing.md"] = {name: part() for name, part in reference_sizing.PARTS.items()}
    pages |= {docs / name: _with_parts(docs / name, lines) for name, lines in parts.items()}
    return pages | {docs / "cdfd.schema.json": _schema()}


def write(docs: Path = DOCS) -> None:
    """Write the pages."""
    for page, text in generated(docs).items():
        page.write_text(text, encoding="utf-8")


def _schema() -> str:
    """The schema of the configuration. A process of its own has no kinds that tests register."""
    command = [sys.executable, "-m", "cdfd", "config", "schema"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


# The command line

_COMMANDS = """# Command line reference

Every command, its arguments and its options. [See changes](tail.md) and [the daemon](daemon.md) show how you use them. For the meaning
of `VERSION`, see [where a range begins and ends](tail.md#where-a-range-begins-and-ends).
For exit codes, see [the daemon](daemon.md#exit-codes).

Every command prints its options with `--help`.
"""


def _commands() -> Iterator[str]:
    root = typer.main.get_command(app)
    yield _COMMANDS
    yield f"## Global options\n\n{root.help}\n"
    yield "You can give `--debug`, `--log-format` and `--log-level` before or after the name of the command.\n"
    yield from _options(root)
    yield from _below(root, typer.Context(root, info_name="cdfd"), "cdfd")


def _below(group: Any, context: Any, name: str) -> Iterator[str]:
    """The commands of a group."""
    for short in group.list_commands(context):
        command, path = group.get_command(context, short), f"{name} {short}"
        inner = type(context)(command, info_name=short, parent=context)
        yield f"## `{path}`\n\n{command.help}\n"
        if hasattr(command, "list_commands"):
            yield from _below(command, inner, path)
            continue
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = [path, "[OPTIONS]", *(_argument(one) if one.required else f"[{_argument(one)}]" for one in arguments)]
        yield f"```text\n{' '.join(usage)}\n```\n"
        if arguments:
            yield "| argument | default | description |\n|---|---|---|"
            yield from (_row(f"`{_argument(one)}`", one) for one in arguments)
            yield ""
        yield from _options(command)


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + "..." * (argument.nargs == -1)


def _options(command: Any) -> Iterator[str]:
    """The options of a command, but for the copies of global ones."""
    own = {"install_completion", "show_completion"}
    options = [one for one in command.params if one.param_type_name == "option"]
    shown = [one for one in options if one.expose_value or one.name in own or one.name == "_version"]
    if shown:
        yield "| option | default | description |\n|---|---|---|"
        yield from (_row(_option(one), one) for one in shown)
        yield ""


def _option(option: Any) -> str:
    names = sorted(option.opts, key=len)
    return ", ".join(f"`{name}{'' if option.is_flag else f' {_value(option)}'}`" for name in names)


def _value(option: Any) -> str:
    choices = [each for each in get_args(option.type_descriptor.annotation) if isinstance(each, str)]
    return option.metavar or "\\|".join(choices) or "NUMBER"


def _row(name: str, parameter: Any) -> str:
    text, _, said = (parameter.help or "").partition("Default: ")
    assert text, f"{name} has no help"
    unset = "required" if parameter.required else "off" if getattr(parameter, "is_flag", False) else "none"
    default = f"`{parameter.default}`" if parameter.default else said.removesuffix(".") or unset
    return f"| {name} | {default} | {text.strip()} |"


def _with_parts(page: Path, parts: Mapping[str, Iterable[str]]) -> str:
    """A page with its generated parts."""
    text = page.read_text(encoding="utf-8")
    for name, lines in parts.items():
        table = "\n".join(lines)
        pattern = rf"(?s)(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", text)
        assert count == 1, f"{page.name} has {count} parts {name}"
    return text


# Metrics


def _metrics(kinds: tuple[str, ...]) -> Iterator[str]:
    metrics = Metrics("0", native=True)
    metrics.table("orders")
    reading = Reading("orders", "at_tip", False, 0, 0, 0, 0, 0.0, 0.0, tuple(Headroom(kind, 0, 0) for kind in KINDS))
    searches = Searches({"shop/*": Search(60, 0)})
    further = list(daemon_families("shop", {"": searches}, PollBudget(720, 60)))
    families = [
        family
        for family in text_string_to_metric_families(metrics.render([reading], further).decode())
        if family.name.startswith("cdfd_") and family.type in kinds
    ]
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for family in sorted(families, key=lambda family: "table" not in family.samples[0].labels):
        labels = "; ".join(_label(family, label) for label in _labels(family)) or "none"
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _labels(family: Any) -> list[str]:
    return sorted(family.samples[0].labels.keys() - {"le"}, key=lambda label: (label != "table", label))


def _label(family: Any, label: str) -> str:
    """A label, with its values if there are few of them."""
    values = list(dict.fromkeys(sample.labels[label] for sample in family.samples))
    few = 1 < len(values) <= 4
    return f"`{label}`" + (f": {', '.join(f'`{value}`' for value in values)}" if few else "")


# Errors

_ERRORS = """# Error reference

Every exception that cdfd raises. [Errors](errors.md) lists causes and actions. To handle all of them in Python, catch
`cdfd.errors.CdfdError`.

## Fields

| field | meaning |
|---|---|"""


def _errors() -> Iterator[str]:
    yield _ERRORS
    attributes = (inspect.getdoc(CdfdError) or "").partition("Attributes:\n")[2]
    yield from (f"| `{name}` | {text} |" for name, text in re.findall(r"(?m)^    (\w+): (.+)$", attributes))
    yield "| `family` | the family, as in logs, `/status` and `cdfd_errors_total`. |"
    yield "| `exit_code` | the exit code of a command that ends with this error. |"
    yield "\n## Classes\n\n| class | module | base | family | exit code | meaning |\n|---|---|---|---|---|---|"
    for kind in error_classes():
        meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        base = kind.__bases__[0].__name__
        yield f"| `{kind.__name__}` | `{kind.__module__}` | `{base}` | `{kind.family}` | {kind.exit_code} | {meaning} |"


def error_classes() -> list[type[CdfdError]]:
    """`CdfdError` and all classes below it, in the order of modules and lines, those of `cdfd.errors` first."""
    classes: dict[str, type[CdfdError]] = {"CdfdError": CdfdError}
    root = ROOT / "cdfd" / "errors.py"
    for file in sorted((ROOT / "cdfd").rglob("*.py"), key=lambda file: (file != root, file)):
        for name, base in re.findall(r"(?m)^class (\w+)\((\w+)\):", file.read_text(encoding="utf-8")):
            if base in classes:  # no other module is imported: some need PySpark
                module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                classes[name] = getattr(importlib.import_module(module), name)
    return list(classes.values())


if __name__ == "__main__":
    write()
