"""The recipes parse, and have options, commands and variables that there are. `tests/integration/spark/test_recipes.py` runs their script."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml

from cdfd.cli import app
from tests.support.docs.pages import blocks

pytest.importorskip("pyspark")
from cdfd.spark.engine.sink_options import SinkOptions
from cdfd.spark.session import OLDEST
from cdfd.spark.source.options import SourceOptions

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "docs" / "recipes"
PAGE = ROOT / "docs" / "spark-recipes.md"


@dataclass(frozen=True)
class Job:
    """A run of the script: its arguments, and the variables that the driver has."""

    arguments: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deliver", RECIPES / "deliver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def databricks() -> tuple[dict[str, Any], dict[str, Any]]:
    """The job, and the cluster of its only task."""
    (job,) = yaml.safe_load((RECIPES / "databricks.yaml").read_text())["resources"]["jobs"].values()
    clusters = {each["job_cluster_key"]: each["new_cluster"] for each in job["job_clusters"]}
    (task,) = job["tasks"]
    return job, clusters[task["job_cluster_key"]]


def emr() -> dict[str, Any]:
    request: dict[str, Any] = json.loads((RECIPES / "emr-serverless.json").read_text())
    return request


def kubernetes() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((RECIPES / "spark-application.yaml").read_text())
    return manifest


def airflow() -> dict[str, dict[str, Any]]:
    """The keyword arguments of the tasks, by operator."""
    tree = ast.parse((RECIPES / "airflow_dag.py").read_text())
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    return {
        call.func.id: {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id.endswith("Operator")
    }


def of_the_page() -> str:
    """The command of the page."""
    (command,) = ("\n".join(lines) for _, language, lines in blocks(PAGE.read_text().splitlines()) if not language)
    return command.replace("\\\n", " ")


def jobs() -> dict[str, Job]:
    job, cluster = databricks()
    spec = kubernetes()["spec"]
    return {
        "databricks": Job(job["tasks"][0]["spark_python_task"]["parameters"], cluster["spark_env_vars"]),
        "emr": Job(emr()["jobDriver"]["sparkSubmit"]["entryPointArguments"]),
        "kubernetes": Job(spec["arguments"], {each["name"]: "a" for each in spec["driver"]["env"]}),
        "airflow": Job(airflow()["SparkSubmitOperator"]["application_args"]),
        "page": Job(shlex.split(of_the_page())[2:], {"KAFKA_PASSWORD": "a"}),
    }


def run_files() -> Iterator[str]:
    """The script that each recipe names."""
    job, _ = databricks()
    yield job["tasks"][0]["spark_python_task"]["python_file"]
    yield emr()["jobDriver"]["sparkSubmit"]["entryPoint"]
    yield kubernetes()["spec"]["mainApplicationFile"]
    yield airflow()["SparkSubmitOperator"]["application"]
    yield shlex.split(of_the_page())[1]


@pytest.mark.parametrize("name", list(jobs()))
def test_options(name: str) -> None:
    """Source and sink take them, with the variables that the recipe sets and no others."""
    deliver, job = script(), jobs()[name]
    arguments = deliver.parser().parse_args(job.arguments)
    source = SourceOptions.parse(deliver.source_options(arguments))
    sink = SinkOptions.parse(deliver.sink_options(arguments), job.variables)
    assert (source.path, sink.table.uri) == ("s3://lake/orders", "s3://lake/orders")
    assert (sink.table.topic, sink.table.key) == ("shop.orders", ("order_id",))


def test_no_recipe_has_a_secret() -> None:
    """Passwords are references to the driver's environment."""
    for job in jobs().values():
        options = script().sink_options(script().parser().parse_args(job.arguments))
        for name in options:
            if name.endswith(("password", "secret", "token")):
                assert re.fullmatch(r"\$\{[A-Z_]+\}", options[name])


def test_an_option_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    deliver = script()
    arguments = deliver.parser().parse_args(["--uri=a", "--pipeline=p", "--checkpoint=c", "--sink=topic"])
    with pytest.raises(SystemExit):
        deliver.sink_options(arguments)
    assert "'topic' is not NAME=VALUE" in capsys.readouterr().err


def test_the_script_is_that_of_the_recipes() -> None:
    assert {file.rpartition("/")[2] for file in run_files()} == {"deliver.py"}


def test_databricks() -> None:
    """Variables that it uses are declared, and no two runs share the checkpoint."""
    text = (RECIPES / "databricks.yaml").read_text()
    declared = yaml.safe_load(text)["variables"]
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) == set(declared)
    assert not re.search(r"\$\{(?!var\.)", text)  # the bundle would try to resolve it
    job, cluster = databricks()
    assert job["max_concurrent_runs"] == 1
    assert re.fullmatch(r"\{\{secrets/\w+/\w+\}\}", cluster["spark_env_vars"]["KAFKA_PASSWORD"])


def test_emr_serverless() -> None:
    """The request is one that AWS's model accepts."""
    session = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate")
    model = session.get_session().get_service_model("emr-serverless").operation_model("StartJobRun")
    shape = model.input_shape
    arguments = emr()
    assert arguments.keys() <= set(shape.members)
    report = validate.ParamValidator().validate({"clientToken": "a"} | arguments, shape)
    assert not report.has_errors(), report.generate_report()
    parameters = shlex.split(arguments["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"])
    folder = parameters[parameters.index("--archives") + 1].partition("#")[2]
    pythons = {each.partition("=")[2] for each in parameters if "PYTHON=" in each}
    assert pythons == {f"./{folder}/bin/python"}


def test_kubernetes() -> None:
    spec = kubernetes()["spec"]
    assert tuple(map(int, spec["sparkVersion"].split(".")[:2])) >= OLDEST
    assert "--follow" in spec["arguments"]
    assert spec["restartPolicy"]["type"] == "Always"
    assert all(isinstance(value, str) for value in spec["sparkConf"].values())


def test_airflow() -> None:
    """The DAG compiles, and cdfd has the command of its backfill."""
    compile((RECIPES / "airflow_dag.py").read_text(), "airflow_dag.py", "exec")
    program, *arguments = shlex.split(airflow()["BashOperator"]["bash_command"].replace("{{ ds }}", "2026-01-04"))
    assert program == "cdfd"
    commands: Any = typer.main.get_command(app)
    with commands.make_context("cdfd", list(arguments)) as context:
        name, command, others = commands.resolve_command(context, list(arguments))
    with command.make_context(name, others) as parsed:
        assert parsed.params["engine"] == "spark"
        assert parsed.params["id"] == "weekly-2026-01-04"


def test_the_page_links_every_recipe() -> None:
    linked = set(re.findall(r"\]\(recipes/([\w.-]+)\)", PAGE.read_text()))
    assert linked == {file.name for file in RECIPES.iterdir() if file.is_file()}
