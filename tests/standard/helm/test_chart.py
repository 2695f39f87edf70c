"""The chart, rendered by Helm: what is in it by default, and what each value changes."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cdfd.config import parser
from cdfd.config.settings import Settings
from cdfd.config.validation_errors import file_settings
from cdfd.daemon.membership.shard import Shard
from tests.support.commands import cdfd, history
from tests.support.helm.chart import CONFIG, EXAMPLES, FOLDER, Chart, Object, configuration, daemon, one, pod
from tests.support.helm.tools import ROOT

KUBERNETES = ["1.28", "1.31", kubernetes_validate.latest_version()]
CUSTOM = "monitoring.coreos.com/v1"

examples = pytest.mark.parametrize("example", EXAMPLES, ids=[file.stem.removesuffix("-values") for file in EXAMPLES])


@examples
def test_helm_finds_nothing_wrong(chart: Chart, example: Path) -> None:
    done = chart.run("lint", FOLDER, "--strict", "--values", example)
    assert done.returncode == 0, done.stdout


@examples
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_have_the_form_that_kubernetes_takes(chart: Chart, example: Path, version: str) -> None:
    for each in chart.example(example):
        if each["apiVersion"] != CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@examples
def test_the_configuration_is_one_that_cdfd_takes(chart: Chart, example: Path, tmp_path: Path) -> None:
    objects = chart.example(example)
    if "existing" in example.name:
        assert not [each for each in objects if each["kind"] in ("ConfigMap", "Secret")]
        return
    text = configuration(objects)
    for place in set(re.findall(r"/run/secrets/[\w/.-]+", text)):  # what extraVolumes mount
        file = tmp_path / place.strip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a-secret-of-some-length")
        mounts = [mount["mountPath"] for mount in daemon(objects)["volumeMounts"]]
        assert str(Path(place).parent) in mounts
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "value:1")
    settings = parser.parse(text.replace("/run/secrets", f"{tmp_path}/run/secrets"), environ=environ)
    port = daemon(objects)["ports"][0]["containerPort"]
    assert settings.http.listen is not None
    assert settings.http.listen.port == port
    assert settings.http.listen.host in ("0.0.0.0", "::")


def test_cdfd_check_would_deliver_the_rendered_configuration(chart: Chart, tmp_path: Path) -> None:
    asyncio.run(history(tmp_path / "orders"))
    config = {"pipeline": "p", "tables": [{"uri": str(tmp_path / "orders")}], "sink": {"kind": "files", "path": "out"}}
    (tmp_path / "cdfd.yaml").write_text(configuration(chart.objects(config=config)))
    checked = cdfd("check", "-c", tmp_path / "cdfd.yaml", "--json")
    assert checked.code == 0, checked
    assert json.loads(checked.out)["tables"]


def test_names_may_be_numbers(chart: Chart) -> None:
    values = {"config": CONFIG, "fullnameOverride": "789", "nameOverride": "10", "persistence": {"enabled": True}}
    done = chart.run("template", "123", FOLDER, "--namespace", "456", values=values)
    objects = [each for each in yaml.safe_load_all(done.stdout) if each is not None]
    assert one(objects, "Service")["metadata"]["name"] == "789"
    assert one(objects, "Service")["metadata"]["namespace"] == "456"
    assert one(objects, "Service")["spec"]["selector"] == {
        "app.kubernetes.io/name": "10",
        "app.kubernetes.io/instance": "123",
    }
    volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
    names = volumes["config"]["configMap"]["name"], volumes["data"]["persistentVolumeClaim"]["claimName"]
    assert names == ("789", "789")
    for each in (*objects, pod(objects)):
        described = {"kind": each.get("kind"), **each["metadata"]}
        assert all(isinstance(value, str) for value in described.get("labels", {}).values()), described
        assert all(isinstance(described.get(key, ""), str) for key in ("name", "namespace")), described


class UniqueKeys(yaml.SafeLoader):
    """YAML with a key twice is an error, as for Kubernetes."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping = super().construct_mapping(node, deep)
        assert len(mapping) == len(node.value), node.start_mark
        return mapping


def test_labels_of_yours_do_not_replace_those_of_the_chart(chart: Chart) -> None:
    labels = {"app.kubernetes.io/part-of": "lake", "app.kubernetes.io/name": "x", "helm.sh/chart": "y", "team": "data"}
    values = {"commonLabels": labels, "podLabels": labels, "podMonitor": {"enabled": True, "labels": labels}}
    done = chart.render(**values)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.load_all(done.stdout, UniqueKeys) if each is not None]
    for each in (one(objects, "PodMonitor"), one(objects, "Service"), pod(objects)):
        shown = each["metadata"]["labels"]
        assert (shown["app.kubernetes.io/part-of"], shown["app.kubernetes.io/name"]) == ("cdfd", "cdfd")
        assert shown["team"] == "data"
    assert one(objects, "Service")["metadata"]["labels"]["helm.sh/chart"].startswith("cdfd-")


@examples
def test_pods_satisfy_the_restricted_standard(chart: Chart, example: Path) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, for what the chart itself adds."""
    objects = chart.example(example)
    for spec in (pod(objects)["spec"], *(each["spec"] for each in objects if each["kind"] == "Pod")):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"].get("runAsUser") != 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = spec["containers"][0]["securityContext"]
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container["readOnlyRootFilesystem"] is True
        for volume in spec.get("volumes", []):
            assert volume.keys() & {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}, volume


READY = "shop-cdfd-test"
"""The pod of `helm test` that asks whether the daemon is ready."""


def test_by_default(chart: Chart) -> None:
    """Two pods, which share all that they need: tables in stores, and positions in the sink."""
    objects = chart.objects()
    assert sorted(each["kind"] for each in objects) == [
        *("ConfigMap", "Deployment", "Pod", "Pod", "PodDisruptionBudget"),
        *("Role", "RoleBinding", "Service", "ServiceAccount", "ServiceAccount"),
    ]
    deployment = one(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert yaml.safe_load(configuration(objects))["progress"] == {"ledger": "none"}
    spec = pod(objects)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert one(objects, "ServiceAccount", "shop-cdfd")["automountServiceAccountToken"] is False
    container = daemon(objects)
    assert container["args"][-3:] == ["run", "--config=/etc/cdfd/cdfd.yaml", "--standby"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/etc/cdfd", "/var/lib/cdfd", "/tmp"}
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert spec["terminationGracePeriodSeconds"] > 10
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["data"]["emptyDir"] == {}
    assert one(objects, "Pod", "shop-cdfd-hand-over")["metadata"]["annotations"]["helm.sh/hook"] == "test"


KEPT: list[dict[str, Any]] = [
    {"persistence": {"enabled": True}},
    {"persistence": {"size": "2Gi"}},
    {"config": CONFIG | {"progress": {"ledger": "/var/lib/cdfd/ledger"}}},
    {"config": CONFIG | {"tables": [{"uri": "/lake/orders"}]}},
    {"config": CONFIG | {"tables": [*CONFIG["tables"], {"discover": "/lake/*"}]}},
    {"config": CONFIG | {"sink": CONFIG["sink"] | {"delivery": "at_least_once"}}},
    {"config": CONFIG | {"sink": {"kind": "files", "path": "/var/lib/cdfd/changes"}}},
    {"config": CONFIG | {"sink": {"kind": "delta", "path": "/var/lib/cdfd/copies"}}},
    {
        "config": {key: value for key, value in CONFIG.items() if key != "sink"}
        | {"sinks": {"topics": CONFIG["sink"], "copies": {"kind": "delta", "path": "/var/lib/cdfd/copies"}}}
    },
    {"config": CONFIG | {"engine": {"kind": "spark", "spark": {"checkpoint": "s3://c"}}}},
    {"config": None, "configFrom": {"secret": "x"}},
    {"config": CONFIG | {"progress": {"ledger": "file:///var/lib/cdfd/ledger"}}},
    {"config": CONFIG | {"tables": [{"uri": "FILE:///lake/orders"}]}},
    {"config": CONFIG | {"tables": [*CONFIG["tables"], {"discover": "file:///lake/*"}]}},
    {"config": CONFIG | {"sink": {"kind": "delta", "path": "file:///var/lib/cdfd/copies"}}},
]


@pytest.mark.parametrize("values", KEPT, ids=[str(number) for number in range(len(KEPT))])
def test_pod_that_keeps_something_has_a_volume_and_runs_alone(chart: Chart, values: dict[str, Any]) -> None:
    objects = chart.objects(**values)
    deployment = one(objects, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert "--standby" not in daemon(objects)["args"]
    claim = one(objects, "PersistentVolumeClaim")["metadata"]
    assert claim["annotations"]["helm.sh/resource-policy"] == "keep"
    volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["name"] == "shop-cdfd"


def test_targets_in_stores_need_no_volume(chart: Chart) -> None:
    objects = chart.objects(config=CONFIG | {"sink": {"kind": "delta", "path": "s3://lake/copies"}})
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert not [each for each in objects if each["kind"] == "PersistentVolumeClaim"]


@pytest.mark.parametrize(
    ("ledger", "delivery"),
    [
        ("none", "exactly_once"),
        ("source", "exactly_once"),
        ("s3://lake/ledger", "exactly_once"),
        ("s3://lake/ledger", "at_least_once"),
    ],
)
def test_ledger_that_both_pods_share_is_used(chart: Chart, ledger: str, delivery: str) -> None:
    sink = CONFIG["sink"] | {"delivery": delivery}
    objects = chart.objects(config=CONFIG | {"progress": {"ledger": ledger}, "sink": sink})
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert yaml.safe_load(configuration(objects))["progress"] == {"ledger": ledger}


def test_a_ledger_without_a_value_counts_as_not_set(chart: Chart) -> None:
    objects = chart.objects(config=CONFIG | {"progress": {"ledger": None, "interval": "5s"}})
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert yaml.safe_load(configuration(objects))["progress"] == {"ledger": "none", "interval": "5s"}


def test_the_service_and_the_selectors_find_the_daemon_only(chart: Chart) -> None:
    objects = chart.objects(
        networkPolicy={"enabled": True}, podDisruptionBudget={"enabled": True}, podMonitor={"enabled": True}
    )
    labels = pod(objects)["metadata"]["labels"]
    selectors = [
        one(objects, "Service")["spec"]["selector"],
        one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(objects, "PodMonitor")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= one(objects, "Pod", READY)["metadata"]["labels"].items()


def test_helm_test_asks_for_a_name_that_the_daemon_answers_to(chart: Chart) -> None:
    objects = chart.objects(service={"port": 80})
    test = one(objects, "Pod", READY)
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (variable,) = test["spec"]["containers"][0]["env"]
    assert variable == {"name": "CDFD_READY_URL", "value": "http://shop-cdfd:80/readyz"}
    assert "shop-cdfd" in yaml.safe_load(configuration(objects))["http"]["hosts"]
    assert one(objects, "Service")["metadata"]["name"] == "shop-cdfd"


TLS = {"tls": {"secretName": "page-tls"}}
AUTHENTICATION = {"authentication": {"secretName": "page"}}


class TestSecuredServer:
    """`http.tls` and `http.authentication`: the configuration, the mounts, and all that connect to the server."""

    def http(self, objects: list[Object]) -> dict[str, Any]:
        section: dict[str, Any] = yaml.safe_load(configuration(objects))["http"]
        return section

    def test_the_configuration_names_what_is_mounted(self, chart: Chart) -> None:
        objects = chart.objects(http=TLS | AUTHENTICATION)
        http = self.http(objects)
        tls, page = "/run/secrets/http-tls", "/run/secrets/http-authentication"
        assert http["tls"] == {"certificate": f"{tls}/tls.crt", "key": f"{tls}/tls.key"}
        assert http["authentication"] == {
            "username_file": f"{page}/username",
            "password_file": f"{page}/password",
            "token_file": f"{page}/token",
        }
        mounts = {mount["name"]: mount["mountPath"] for mount in daemon(objects)["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
        assert (mounts["http-tls"], mounts["http-authentication"]) == (tls, page)
        assert volumes["http-tls"]["secret"] == {"secretName": "page-tls", "defaultMode": 0o440}
        assert volumes["http-authentication"]["secret"] == {"secretName": "page", "defaultMode": 0o440}

    def test_the_token_of_controls(self, chart: Chart) -> None:
        objects = chart.objects(controls={"secretName": "ops"})
        assert yaml.safe_load(configuration(objects))["controls"] == {"token_file": "/run/secrets/controls/token"}
        mounts = {mount["name"]: mount["mountPath"] for mount in daemon(objects)["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
        assert mounts["controls"] == "/run/secrets/controls"
        assert volumes["controls"]["secret"] == {"secretName": "ops", "defaultMode": 0o440}

    def test_one_way_and_client_certificates(self, chart: Chart) -> None:
        page = {"secretName": "page", "basic": False}
        objects = chart.objects(http={"tls": {"secretName": "t", "clientCaKey": "ca.crt"}, "authentication": page})
        assert self.http(objects)["tls"]["client_ca"] == "/run/secrets/http-tls/ca.crt"
        assert list(self.http(objects)["authentication"]) == ["token_file"]

    @pytest.mark.parametrize("values", [{"http": TLS}, {"config": CONFIG | {"http": {"tls": {"certificate": "/c"}}}}])
    def test_probes_and_the_test_of_helm_use_tls(self, chart: Chart, values: dict[str, Any]) -> None:
        objects = chart.objects(**values)
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert daemon(objects)[name]["httpGet"]["scheme"] == "HTTPS"
            assert "scheme" not in daemon(chart.objects())[name]["httpGet"]
        environment = {
            each["name"]: each["value"] for each in one(objects, "Pod", READY)["spec"]["containers"][0]["env"]
        }
        assert environment == {"CDFD_READY_URL": "https://shop-cdfd:9464/readyz"}

    def test_a_probe_of_yours_keeps_its_form(self, chart: Chart) -> None:
        probe = {"exec": {"command": ["true"]}}
        objects = chart.objects(http=TLS, livenessProbe=probe | {"httpGet": None})
        assert daemon(objects)["livenessProbe"]["exec"] == {"command": ["true"]}
        assert "httpGet" not in daemon(objects)["livenessProbe"]

    @pytest.mark.parametrize(
        ("kind", "endpoints"), [("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")]
    )
    def test_prometheus_has_the_same_secrets(self, chart: Chart, kind: str, endpoints: str) -> None:
        value = kind[0].lower() + kind[1:]

        def endpoint(http: dict[str, Any], **monitor: Any) -> dict[str, Any]:
            objects = chart.objects(http=http, **{value: {"enabled": True} | monitor})
            [endpoint_fields] = one(objects, kind)["spec"][endpoints]
            return {
                key: endpoint_fields[key]
                for key in ("scheme", "tlsConfig", "authorization", "basicAuth")
                if key in endpoint_fields
            }

        secured = {
            "scheme": "https",
            "tlsConfig": {
                "ca": {"secret": {"name": "page-tls", "key": "ca.crt"}},
                "serverName": "shop-cdfd.data.svc",
            },
        }
        token = {"authorization": {"credentials": {"name": "page", "key": "token"}}}
        assert endpoint({}) == {}
        assert endpoint(TLS) == secured
        assert endpoint(TLS | AUTHENTICATION) == secured | token
        assert endpoint(AUTHENTICATION) == token
        assert endpoint({"authentication": {"secretName": "page", "bearer": False}}) == {
            "basicAuth": {
                "username": {"name": "page", "key": "username"},
                "password": {"name": "page", "key": "password"},
            }
        }
        assert endpoint(TLS, tlsConfig={"insecureSkipVerify": True}) == {
            "scheme": "https",
            "tlsConfig": {"insecureSkipVerify": True},
        }
        other = {"credentials": {"name": "other", "key": "token"}}
        assert endpoint(AUTHENTICATION, authorization=other) == {"authorization": other}

    @pytest.mark.parametrize(
        ("values", "what"),
        [
            (
                {"http": TLS, "config": CONFIG | {"http": {"tls": {"certificate": "/c"}}}},
                "set one of config.http.tls and http.tls.secretName",
            ),
            (
                {"http": AUTHENTICATION, "config": CONFIG | {"http": {"authentication": {"token_file": "/t"}}}},
                "set one of config.http.authentication and http.authentication.secretName",
            ),
            (
                {"http": {"authentication": {"secretName": "s", "basic": False, "bearer": False}}},
                "at least one of basic and bearer",
            ),
            (
                {"config": CONFIG | {"http": {"authentication": {"token": "plain"}}}},
                "config.http.authentication.token is a secret",
            ),
            (
                {"controls": {"secretName": "ops"}, "config": CONFIG | {"controls": {"token_file": "/t"}}},
                "set one of config.controls.token and controls.secretName",
            ),
            ({"http": {"tls": {"secretName": "A B"}}}, "/http/tls/secretName"),
        ],
    )
    def test_refused(self, chart: Chart, values: dict[str, Any], what: str) -> None:
        assert what in chart.refused(**values)


def test_a_changed_configuration_restarts_the_pod_and_a_new_chart_does_not(chart: Chart, tmp_path: Path) -> None:
    def template(**values: Any) -> Object:
        return pod(chart.objects(**values))

    assert template() == template()
    changed = template(config=CONFIG | {"pipeline": "other"})
    assert changed["metadata"]["annotations"] != template()["metadata"]["annotations"]
    assert "0.2.0" not in json.dumps(template()["metadata"])


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"sink": {"security": {"password": "hunter2"}}}, "config.sink.security.password is a secret in a ConfigMap"),
        ({"storage": {"s3": {"secret_access_key": "x"}}}, "config.storage.s3.secret_access_key is a secret"),
        ({"storage": {"s3": {"session_token": 1234}}}, "config.storage.s3.session_token is a secret"),
        ({"engine": {"spark": {"remote": "sc://h:1/;token=hunter2"}}}, "config.engine.spark.remote is a secret"),
        ({"engine": {"spark": {"conf": {"spark.ssl.keyPassword": "hunter2"}}}}, "keyPassword is a secret"),
        (
            {"engine": {"spark": {"conf": {"fs.azure.account.key.lake.dfs.core.windows.net": "hunter2"}}}},
            "windows.net is a secret in a ConfigMap: use ${NAME} with extraEnv or envFrom, or configKind: Secret",
        ),
        (
            {"telemetry": {"otel": {"headers": {"x-team": "hunter2"}}}},
            "config.telemetry.otel.headers.x-team is a secret",
        ),
        ({"http": {"listen": "0.0.0.0:1"}}, "config.http.listen is set by the chart"),
    ],
)
def test_a_configuration_that_is_refused(chart: Chart, config: dict[str, Any], what: str) -> None:
    merged = json.loads(json.dumps(CONFIG))
    for key, value in config.items():
        merged[key] = merged.get(key, {}) | value
    said = chart.refused(config=merged)
    assert what in said
    assert "hunter2" not in said


def test_a_plain_key_of_a_mask_is_refused(chart: Chart) -> None:
    masked = CONFIG["tables"][0] | {"mask": {"email": {"method": "hmac_sha256", "hmac_key": "hunter2"}}}
    assert "config.tables[0].mask.email.hmac_key is a secret" in chart.refused(config=CONFIG | {"tables": [masked]})


def test_every_secret_setting_is_refused(chart: Chart) -> None:
    shown = {"username", "access_key_id", "remote"}  # of `remote`, the token alone is secret
    for name in file_settings() - shown:
        config = CONFIG | {"storage": {"s3": {name: "hunter2"}}}
        assert f"{name} is a secret in a ConfigMap" in chart.refused(config=config)


def test_what_is_no_secret_may_be_in_a_config_map(chart: Chart) -> None:
    table = CONFIG["tables"][0] | {"headers": {"token": "session"}, "mask": {"password": {"method": "nullify"}}}
    conf = {"spark.executor.memory": "4g", "spark.kubernetes.authenticate.oauthTokenFile": "/t", "x.token": "${TOKEN}"}
    spark = {"remote": "sc://h:1", "conf": conf}
    headers = {"authorization": "Bearer ${TOKEN}"}
    config = CONFIG | {"tables": [table], "engine": {"spark": spark}, "telemetry": {"otel": {"headers": headers}}}
    rendered = yaml.safe_load(configuration(chart.objects(config=config)))
    assert {key: rendered[key] for key in config} == config
    remote = CONFIG | {"engine": {"spark": {"remote": "sc://h:1/;token=${TOKEN}"}}}
    assert "token=${TOKEN}" in configuration(chart.objects(config=remote))


def test_secrets_may_be_references_or_in_a_secret(chart: Chart) -> None:
    sink = CONFIG["sink"] | {"security": {"password": "${PASSWORD}", "key_password_file": "/run/key"}}
    assert "${PASSWORD}" in configuration(chart.objects(config=CONFIG | {"sink": sink}))
    plain = CONFIG | {"sink": CONFIG["sink"] | {"security": {"password": "plain"}}}
    objects = chart.objects(config=plain, configKind="Secret")
    assert "password: plain" in one(objects, "Secret")["stringData"]["cdfd.yaml"]
    volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
    assert volumes["config"]["secret"]["secretName"] == one(objects, "Secret")["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"replicas": 6}, "/replicas"),
        ({"standby": "maybe"}, "/standby"),
        ({"replica": 1}, "replica"),
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"image": {"repository": "cdfd:1"}}, "/image/repository"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"http": {"port": 80}}, "/http/port"),
        ({"logLevel": "trace"}, "/logLevel"),
        ({"configKind": "configmap"}, "/configKind"),
        ({"terminationGracePeriodSeconds": 5}, "/terminationGracePeriodSeconds"),
        ({"persistence": {"size": "1 GB"}}, "/persistence/size"),
        ({"persistence": {"accessModes": ["ReadOnlyMany"]}}, "/persistence/accessModes"),
        ({"config": {"pipeline": "p"}}, "/config"),
        ({"config": CONFIG | {"tables": []}}, "/config/tables"),
        ({"config": CONFIG | {"sink": {"kind": "files", "path": "/x", "mode": 416}}}, "/config/sink/mode"),
        ({"config": CONFIG | {"table": []}}, "table"),
        ({"config": CONFIG | {"http": {"hosts": "cdfd.example.com"}}}, "/config/http/hosts"),
        ({"podMonitor": {"interval": "often"}}, "/podMonitor/interval"),
    ],
)
def test_values_that_the_schema_refuses(chart: Chart, values: dict[str, Any], what: str) -> None:
    said = chart.refused(**values)
    assert "values don't meet the specifications of the schema" in said
    assert what in said


@pytest.mark.parametrize(
    "values",
    [
        {"config": {}},
        {"configFrom": {"secret": "x"}},
        {"config": None, "configFrom": {"secret": "a", "configMap": "b"}},
    ],
)
def test_there_is_one_configuration(chart: Chart, values: dict[str, Any]) -> None:
    assert "set one of config, configFrom.configMap and configFrom.secret" in chart.refused(**values)


def test_stopped(chart: Chart) -> None:
    assert one(chart.objects(replicas=0), "Deployment")["spec"]["replicas"] == 0


def test_maintenance_waits_with_the_volume_and_the_configuration(chart: Chart) -> None:
    container = daemon(chart.objects(maintenance=True))
    assert not {"args", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys()
    assert container["volumeMounts"] == daemon(chart.objects())["volumeMounts"]
    with subprocess.Popen([sys.executable, *container["command"][1:]]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(30) == 0


def test_an_existing_configuration_and_claim(chart: Chart) -> None:
    (example,) = [file for file in EXAMPLES if "existing" in file.name]
    objects = chart.example(example)
    assert {each["kind"] for each in objects} == {"Deployment", "Pod", "Service"}
    volumes = {volume["name"]: volume for volume in pod(objects)["spec"]["volumes"]}
    secret = volumes["config"]["secret"]
    assert secret["secretName"] == "shop-cdfd"
    assert secret["items"] == [{"key": "shop.yaml", "path": "cdfd.yaml"}]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "shop-ledger"
    assert pod(objects)["spec"]["serviceAccountName"] == "shop"
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod(objects)["spec"]["securityContext"].keys()
    other = chart.objects(config=None, configFrom={"configMap": "mine"})
    volumes = {volume["name"]: volume for volume in pod(other)["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "mine"


def test_every_value_arrives(chart: Chart) -> None:
    """The example that sets everything, by what is in it and in no other."""
    (example,) = [file for file in EXAMPLES if "everything" in file.name]
    objects = chart.example(example)
    spec, container = pod(objects)["spec"], daemon(objects)
    assert {each["metadata"]["labels"].get("team") for each in objects if "labels" in each["metadata"]} >= {"data"}
    assert container["image"] == f"registry.example.com:5000/data/cdfd@sha256:{'0' * 64}"
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert "--recover-from-ledger" in container["args"]
    assert "startupProbe" not in container
    assert container["livenessProbe"]["periodSeconds"] == 60
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert [each["name"] for each in spec["containers"]] == ["cdfd", "proxy"]
    assert spec["initContainers"][0]["image"] == "registry.example.com:5000/data/cdfd"
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert spec["tolerations"][0]["key"] == "dedicated"
    assert spec["affinity"]["nodeAffinity"]
    assert spec["topologySpreadConstraints"][0]["maxSkew"] == 1
    assert spec["priorityClassName"] == "important"
    assert spec["dnsConfig"]["options"]
    assert spec["automountServiceAccountToken"] is True
    claim = one(objects, "PersistentVolumeClaim")
    assert claim["spec"]["storageClassName"] == "fast"
    assert "helm.sh/resource-policy" not in claim["metadata"]["annotations"]
    policy = one(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"][0]["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert one(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    for kind, endpoints in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        monitor = one(objects, kind)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"][endpoints][0]["port"] == "http"
        assert monitor["spec"][endpoints][0]["path"] == "/metrics"
        assert monitor["spec"]["jobLabel"] in one(objects, "Service")["metadata"]["labels"]
        assert pod(objects)["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "cdfd"
    assert one(objects, "Secret", "shop-extra")["stringData"] == {"key": "value"}
    dashboard = one(objects, "ConfigMap", "shop-cdfd-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["cdfd.json"])["title"] == "cdfd"


def test_the_network_policy_lets_the_namespace_in_and_everything_out(chart: Chart) -> None:
    policy = one(chart.objects(networkPolicy={"enabled": True}), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {}}]


def test_notes(chart: Chart, tmp_path: Path) -> None:
    # Helm shows them where there is a cluster only. As a template, they are rendered like everything else.
    copy = tmp_path / "cdfd"
    shutil.copytree(FOLDER, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    wrapped = f'{{{{- define "notes" }}}}{text}{{{{ end -}}}}\nnotes: {{{{ include "notes" . | quote }}}}\n'
    (copy / "templates" / "shown.yaml").write_text(wrapped)

    def notes(**values: Any) -> str:
        arguments = ("--namespace", "data", "--show-only", "templates/shown.yaml")
        done = chart.run("template", "shop", copy, *arguments, values={"config": CONFIG} | values)
        assert done.returncode == 0, done.stderr
        return str(yaml.safe_load(done.stdout)["notes"])

    assert "helm test shop --namespace data" in notes()
    assert 'WARNING: image.repository is "cdfd"' in notes()
    assert "WARNING" not in notes(image={"repository": "registry.example.com/cdfd"})
    assert "lost with the pod" in notes(persistence={"enabled": False})
    assert "Positions are in the sink alone" in notes()
    assert "Positions are in the sink alone" not in notes(config=CONFIG | {"progress": {"ledger": "s3://lake/ledger"}})
    assert "There is no standby: all pods use one volume" in notes(persistence={"enabled": True})
    assert "maintenance is on" in notes(maintenance=True)
    assert "replicas is 0" in notes(replicas=0)
    assert "scrapes the daemon twice" in notes(podMonitor={"enabled": True}, serviceMonitor={"enabled": True})
    assert "rollout restart deployment/shop-cdfd" in notes(config={}, configFrom={"secret": "x"})


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]


def test_the_schema_has_every_value_and_the_page_names_it() -> None:
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert set(schema["properties"]) - {"global"} == set(values)
    assert set(schema["properties"]["config"]["properties"]) == set(Settings.model_fields)
    for key, value in values.items():
        assert f"`{key}" in page, key
        fields = schema["properties"][key].get("properties")
        if fields and key != "config":
            assert set(fields) == set(value), key


SHARED: dict[str, Any] = {"persistence": {"accessModes": ["ReadWriteMany"]}}


def test_shards_are_the_pods_of_a_stateful_set(chart: Chart) -> None:
    objects = chart.objects(shards=3, extraEnv=[{"name": "A", "value": "b"}], **SHARED)
    assert not [each for each in objects if each["kind"] == "Deployment"]
    workload = one(objects, "StatefulSet")["spec"]
    assert (workload["replicas"], workload["podManagementPolicy"]) == (3, "Parallel")
    assert workload["serviceName"] == one(objects, "Service")["metadata"]["name"]
    assert workload["selector"]["matchLabels"].items() <= pod(objects)["metadata"]["labels"].items()
    assert "strategy" not in workload
    environment = {each["name"]: each for each in daemon(objects)["env"]}
    assert environment["CDFD_POD"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert list(environment) == ["CDFD_POD", "CDFD_SHARD", "A"]
    name = one(objects, "StatefulSet")["metadata"]["name"]
    shards = [environment["CDFD_SHARD"]["value"].replace("$(CDFD_POD)", f"{name}-{number}") for number in range(3)]
    assert [Shard.parse(shard) for shard in shards] == [Shard(number, 3) for number in range(3)]
    assert one(chart.objects(shards=3, replicas=0, **SHARED), "StatefulSet")["spec"]["replicas"] == 0


def test_without_shards_there_is_one_pod_and_no_shard(chart: Chart) -> None:
    assert "env" not in daemon(chart.objects(shards=1))
    assert "several pods stand by for each other" in chart.refused(replicas=2, persistence={"enabled": True})
    assert "with shards, it is 1" in chart.refused(replicas=2, shards=2, **SHARED)
    assert "/shards" in chart.refused(shards=0)


def test_shards_share_what_they_write(chart: Chart) -> None:
    assert "ReadWriteMany" in chart.refused(shards=2, persistence={"enabled": True})
    assert not [each for each in chart.objects(shards=2) if each["kind"] == "PersistentVolumeClaim"]
    assert "all pods share" in chart.refused(shards=2, persistence={"enabled": False})
    chart.objects(shards=2, persistence={"existingClaim": "mine"})
    for ledger in ("s3://lake/ledger", "none", "source"):
        config = CONFIG | {"progress": {"ledger": ledger}}
        assert not [
            each
            for each in chart.objects(shards=2, persistence={"enabled": False}, config=config)
            if each["kind"] == "PersistentVolumeClaim"
        ]
    spark = CONFIG | {"engine": {"kind": "spark", "spark": {"checkpoint": "s3://c"}}}
    assert "does not support several pods" in chart.refused(shards=2, config=spark, **SHARED)


ON_S3: dict[str, Any] = {
    "persistence": {"enabled": False},
    "config": CONFIG | {"progress": {"ledger": "s3://lake/ledger"}},
}


@pytest.mark.parametrize("values", [SHARED, ON_S3], ids=["volume", "ledger on S3"])
def test_two_pods_stand_by_for_each_other_if_they_share_the_ledger(chart: Chart, values: dict[str, Any]) -> None:
    objects = chart.objects(**values)
    deployment = one(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert daemon(objects)["args"][-1] == "--standby"
    assert one(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    [apart] = pod(objects)["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (
        apart["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= pod(objects)["metadata"]["labels"].items()
    )


@pytest.mark.parametrize(
    "values",
    [
        {"persistence": {"enabled": True}},
        {**ON_S3, "standby": False},
        {"persistence": {"enabled": False}},
        {"persistence": {"existingClaim": "mine"}},
        {"config": CONFIG | {"sink": {"kind": "files", "path": "/x"}}, "persistence": {"enabled": False}},
        {"config": CONFIG | {"progress": {"ledger": "file:///x"}}, "persistence": {"enabled": False}},
        {"config": None, "configFrom": {"secret": "x"}, "persistence": {"enabled": False}},
    ],
    ids=[
        "one volume",
        "off",
        "ledger in the pod",
        "unknown claim",
        "files in the pod",
        "file: in the pod",
        "unknown configuration",
    ],
)
def test_one_pod_runs_alone_otherwise(chart: Chart, values: dict[str, Any]) -> None:
    objects = chart.objects(**values)
    assert one(objects, "Deployment")["spec"]["replicas"] == 1
    assert one(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert "--standby" not in daemon(objects)["args"]
    assert not [each for each in objects if each["kind"] == "PodDisruptionBudget"]


def test_standby_is_what_you_say(chart: Chart) -> None:
    known = {"config": None, "configFrom": {"secret": "x"}, "persistence": {"enabled": False}, "standby": True}
    assert one(chart.objects(**known), "Deployment")["spec"]["replicas"] == 2
    assert one(chart.objects(**known, replicas=3), "Deployment")["spec"]["replicas"] == 3
    alone = chart.objects(**ON_S3, replicas=1)
    assert daemon(alone)["args"][-1] == "--standby", "an update hands over"
    assert not [each for each in alone if each["kind"] == "PodDisruptionBudget"]
    assert "standby: all pods use one volume" in chart.refused(standby=True, persistence={"enabled": True})
    spark = CONFIG | {"engine": {"kind": "spark", "spark": {"checkpoint": "s3://c"}}}
    assert "does not support several pods" in chart.refused(config=spark, replicas=2, **SHARED)


def test_maintenance_leaves_one_pod(chart: Chart) -> None:
    deployment = one(chart.objects(**ON_S3, maintenance=True), "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})


def test_helm_test_has_the_rights_that_it_needs_while_it_runs(chart: Chart) -> None:
    objects = chart.objects(**ON_S3)
    mine = [each for each in objects if each["metadata"]["name"] == "shop-cdfd-hand-over"]
    assert sorted(each["kind"] for each in mine) == ["Pod", "Role", "RoleBinding", "ServiceAccount"]
    assert all(each["metadata"]["annotations"]["helm.sh/hook"] == "test" for each in mine)
    assert one(mine, "Role")["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]}]
    [container] = one(mine, "Pod")["spec"]["containers"]
    assert container["command"][-1] == (FOLDER / "files" / "hand_over.py").read_text()
    for each in mine:
        for version in KUBERNETES:
            kubernetes_validate.validate(each, version, strict=True)
    names = [each["metadata"]["name"] for each in chart.objects(**ON_S3, tests={"handOver": False})]
    assert "shop-cdfd-hand-over" not in names


def checksum(objects: list[Object]) -> str:
    annotation: str = pod(objects)["metadata"]["annotations"]["checksum/config"]
    return annotation


def test_the_daemon_applies_changed_tables_itself_and_other_changes_restart_it(chart: Chart) -> None:
    before = chart.objects()
    more = CONFIG | {"tables": [*CONFIG["tables"], {"discover": "s3://lake/sales/*"}]}
    after = chart.objects(config=more)
    assert configuration(before) != configuration(after)
    assert checksum(before) == checksum(after)
    assert checksum(before) != checksum(chart.objects(config=CONFIG | {"poll": {"interval": "2s"}}))
    assert checksum(before) != checksum(chart.objects(http={"port": 9999}))
    # The queries of Spark read their configuration at the start only.
    engine = {"engine": {"kind": "spark", "spark": {"checkpoint": "s3://c"}}}
    assert checksum(chart.objects(config=CONFIG | engine)) != checksum(chart.objects(config=more | engine))


def test_a_file_of_the_configuration_that_is_mounted_whole_is_replaced_in_place(chart: Chart) -> None:
    """Kubernetes never updates a file that is mounted with `subPath`, and the daemon would not see the change."""
    mounts = {mount["mountPath"]: mount for mount in daemon(chart.objects())["volumeMounts"]}
    assert "subPath" not in mounts["/etc/cdfd"]
