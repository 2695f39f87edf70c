{{- define "cdfd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "cdfd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "cdfd.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Quoted, as all names: those of releases and namespaces may be numbers. */}}
{{- define "cdfd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cdfd.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Labels of an object. The chart's own win, because selectors and monitors need them. Takes the root, and optionally more labels. */}}
{{- define "cdfd.labels" -}}
{{- $own := merge (dict "app.kubernetes.io/part-of" "cdfd") (include "cdfd.selectorLabels" .root | fromYaml) -}}
{{- toYaml (merge $own (.labels | default dict) .root.Values.commonLabels) -}}
{{- end -}}

{{/* Metadata of an object. Takes the root, and optionally name, labels and annotations. */}}
{{- define "cdfd.metadata" -}}
name: {{ .name | default (include "cdfd.fullname" .root) | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
  {{- $versions := dict "helm.sh/chart" $chart "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service }}
  {{- include "cdfd.labels" (dict "root" .root "labels" (merge $versions (.labels | default dict))) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "cdfd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cdfd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "cdfd.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a volume. With `auto`, only if something is kept on it, or one of its other values is set. */}}
{{- define "cdfd.volume" -}}
{{- $volume := .Values.persistence -}}
{{- if eq ($volume.enabled | toString) "auto" -}}
{{- $is_set := or $volume.existingClaim $volume.storageClass $volume.annotations (ne $volume.size "1Gi") (ne ($volume.accessModes | join "") "ReadWriteOnce") -}}
{{- if or $is_set (not .Values.config) (eq (include "cdfd.keepsNothing" .) "") -}}yes{{- end -}}
{{- else if $volume.enabled -}}yes{{- end -}}
{{- end -}}

{{/* Not empty if a location is on the file system of the pod. */}}
{{- define "cdfd.isLocal" -}}
{{- if or (not (contains "://" .)) (hasPrefix "file:" (lower .)) -}}yes{{- end -}}
{{- end -}}

{{/* Where the ledger is; empty if the configuration does not say. */}}
{{- define "cdfd.ledger" -}}
{{- dig "progress" "ledger" "" .Values.config | default "" -}}
{{- end -}}

{{/* Whether no pod keeps anything: positions are in the sink, tables in stores, and the ledger is in a store, or there is none. */}}
{{- define "cdfd.keepsNothing" -}}
{{- $config := .Values.config -}}
{{- $sinks := pick $config "sink" "sinks" | toYaml -}}
{{- $folder := include "cdfd.folderSink" . -}}
{{- $ledger := include "cdfd.ledger" . | default "none" -}}
{{- $remote := or (has $ledger (list "none" "source")) (not (include "cdfd.isLocal" $ledger)) -}}
{{- range $table := $config.tables -}}
{{- $remote = and $remote (not (include "cdfd.isLocal" ($table.uri | default $table.discover | default "" | toString))) -}}
{{- end -}}
{{- $local := or $folder (and (contains "at_least_once" $sinks) (eq $ledger "none")) (eq (dig "engine" "kind" "embedded" $config) "spark") -}}
{{- if and $remote (not $local) -}}yes{{- end -}}
{{- end -}}

{{/* Not empty if a sink writes into a folder. */}}
{{- define "cdfd.folderSink" -}}
{{- range $sink := concat (list (.Values.config.sink | default dict)) (values (.Values.config.sinks | default dict)) -}}
{{- if or (eq ($sink.kind | default "") "files") (and (eq ($sink.kind | default "") "delta") (include "cdfd.isLocal" ($sink.path | default ""))) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cdfd.claim" -}}
{{- .Values.persistence.existingClaim | default (include "cdfd.fullname" .) -}}
{{- end -}}

{{/* The configuration file. The names of the service are added to http.hosts, so that it answers to them. */}}
{{- define "cdfd.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $http := $config.http | default dict -}}
{{- if hasKey $http "listen" -}}
{{- fail "config.http.listen is set by the chart: use http.address and http.port" -}}
{{- end -}}
{{- $hosts := $http.hosts | default list -}}
{{- if .Values.service.enabled -}}
{{- $name := include "cdfd.fullname" . -}}
{{- $namespaced := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts = concat $hosts (list $name $namespaced (printf "%s.svc" $namespaced) (printf "%s.svc.cluster.local" $namespaced)) -}}
{{- end -}}
{{- $address := ternary (printf "[%s]" .Values.http.address) .Values.http.address (contains ":" .Values.http.address) -}}
{{- $_ := set $http "listen" (printf "%s:%v" $address .Values.http.port) -}}
{{- $_ := set $http "hosts" (uniq $hosts) -}}
{{- with .Values.http.tls -}}
{{- if .secretName -}}
{{- if hasKey $http "tls" -}}
{{- fail "set one of config.http.tls and http.tls.secretName" -}}
{{- end -}}
{{- $folder := include "cdfd.tlsFolder" $ -}}
{{- $tls := dict "certificate" (printf "%s/tls.crt" $folder) "key" (printf "%s/tls.key" $folder) -}}
{{- with .clientCaKey -}}{{- $_ := set $tls "client_ca" (printf "%s/%s" $folder .) -}}{{- end -}}
{{- $_ := set $http "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- with .Values.http.authentication -}}
{{- if .secretName -}}
{{- if hasKey $http "authentication" -}}
{{- fail "set one of config.http.authentication and http.authentication.secretName" -}}
{{- end -}}
{{- if not (or .basic .bearer) -}}
{{- fail "http.authentication: at least one of basic and bearer must be true" -}}
{{- end -}}
{{- $folder := include "cdfd.authenticationFolder" $ -}}
{{- $given := dict -}}
{{- range $key := concat (ternary (list "username" "password") list .basic) (ternary (list "token") list .bearer) -}}
{{- $_ := set $given (printf "%s_file" $key) (printf "%s/%s" $folder $key) -}}
{{- end -}}
{{- $_ := set $http "authentication" $given -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "http" $http -}}
{{- if and (eq (include "cdfd.volume" .) "") (eq (.Values.persistence.enabled | toString) "auto") (not (include "cdfd.ledger" .)) -}}
{{- /* The default is a folder of the pod, and would be lost with it. */ -}}
{{- $_ := set $config "progress" (merge (dict "ledger" "none") ($config.progress | default dict)) -}}
{{- end -}}
{{- if .Values.controls.secretName -}}
{{- $controls := $config.controls | default dict -}}
{{- if or (hasKey $controls "token") (hasKey $controls "token_file") -}}
{{- fail "set one of config.controls.token and controls.secretName" -}}
{{- end -}}
{{- $_ := set $controls "token_file" (printf "%s/token" (include "cdfd.controlsFolder" .)) -}}
{{- $_ := set $config "controls" $controls -}}
{{- end -}}
{{- if eq .Values.configKind "ConfigMap" -}}
{{- include "cdfd.refusePlainSecrets" (dict "path" "config" "value" $config) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- define "cdfd.tlsFolder" -}}/run/secrets/http-tls{{- end -}}
{{- define "cdfd.authenticationFolder" -}}/run/secrets/http-authentication{{- end -}}
{{- define "cdfd.controlsFolder" -}}/run/secrets/controls{{- end -}}

{{/* Not empty if the server has TLS. The chart cannot see it in a configuration that is not its own: set http.tls.secretName there, too. */}}
{{- define "cdfd.https" -}}
{{- if or .Values.http.tls.secretName (dig "http" "tls" dict .Values.config) -}}yes{{- end -}}
{{- end -}}

{{/* A probe, with the scheme of the server. */}}
{{- define "cdfd.probe" -}}
{{- $probe := deepCopy .probe -}}
{{- if and .https $probe.httpGet -}}
{{- $_ := set $probe "httpGet" (merge $probe.httpGet (dict "scheme" "HTTPS")) -}}
{{- end -}}
{{ toYaml $probe }}
{{- end -}}

{{/* How Prometheus connects: fields of a monitor's endpoint. Takes the root and the monitor. */}}
{{- define "cdfd.scrape" -}}
{{- $http := .root.Values.http -}}
{{- if include "cdfd.https" .root -}}
scheme: https
{{ $name := printf "%s.%s.svc" (include "cdfd.fullname" .root) .root.Release.Namespace -}}
{{- $default := dict "serverName" $name -}}
{{- with $http.tls.secretName -}}
{{- $_ := set $default "ca" (dict "secret" (dict "name" . "key" "ca.crt")) -}}
{{- end -}}
tlsConfig:
  {{- toYaml (.monitor.tlsConfig | default $default) | nindent 2 }}
{{ end -}}
{{- $secret := $http.authentication.secretName -}}
{{- if .monitor.authorization -}}
authorization:
  {{- toYaml .monitor.authorization | nindent 2 }}
{{ else if .monitor.basicAuth -}}
basicAuth:
  {{- toYaml .monitor.basicAuth | nindent 2 }}
{{ else if and $secret $http.authentication.bearer -}}
authorization:
  credentials: {name: {{ $secret }}, key: token}
{{ else if $secret -}}
basicAuth:
  username: {name: {{ $secret }}, key: username}
  password: {name: {{ $secret }}, key: password}
{{ end -}}
{{- end -}}

{{/* Everybody who can look at the namespace can read a ConfigMap. Headers of a table are names of columns, and those of a collector secrets. */}}
{{- define "cdfd.refusePlainSecrets" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- include "cdfd.refusePlainSecrets" (dict "path" (printf "%s.%s" $path $key) "value" $value) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $index, $value := .value -}}
{{- include "cdfd.refusePlainSecrets" (dict "path" (printf "%s[%d]" $path $index) "value" $value) -}}
{{- end -}}
{{- else if not (or (kindIs "invalid" .value) (regexMatch "(^|[^$])[$][{]" (toString .value)) (regexMatch "^config[.]tables.*[.]headers[.]" $path)) -}}
{{- $in_map := regexMatch "^config[.](telemetry[.]otel[.]headers[.]|engine[.]spark[.]conf[.].*(?i:password|secret|token|key|(secret|account[.]key)[.].*)$)" $path -}}
{{- $alone := regexMatch "([._](password|secret|token)|[.](secret_access_key|hmac_key))$" $path -}}
{{- if or $in_map $alone (and (eq $path "config.engine.spark.remote") (contains ";token=" (toString .value))) -}}
{{- $file := ternary "" (printf ", %s_file with extraVolumes" (regexFind "[^.]*$" $path)) $in_map -}}
{{- fail (printf "%s is a secret in a ConfigMap: use ${NAME} with extraEnv or envFrom%s, or configKind: Secret" $path $file) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the configuration is: exactly one of three places. */}}
{{- define "cdfd.configVolume" -}}
{{- $given := compact (list (ternary "config" "" (gt (len .Values.config) 0)) .Values.configFrom.configMap .Values.configFrom.secret) -}}
{{- if ne (len $given) 1 -}}
{{- fail "set one of config, configFrom.configMap and configFrom.secret" -}}
{{- end -}}
{{- $own := gt (len .Values.config) 0 -}}
{{- $key := ternary "cdfd.yaml" .Values.configFrom.key $own -}}
{{- if or .Values.configFrom.secret (and $own (eq .Values.configKind "Secret")) -}}
secret:
  secretName: {{ .Values.configFrom.secret | default (include "cdfd.fullname" .) | quote }}
  defaultMode: 0440
  items: [{key: {{ $key | quote }}, path: cdfd.yaml}]
{{- else -}}
configMap:
  name: {{ .Values.configFrom.configMap | default (include "cdfd.fullname" .) | quote }}
  items: [{key: {{ $key | quote }}, path: cdfd.yaml}]
{{- end -}}
{{- end -}}

{{/* Several pods share the tables of a pipeline: then each one has a name with its number. */}}
{{- define "cdfd.workload" -}}
{{- ternary "StatefulSet" "Deployment" (gt (int .Values.shards) 1) -}}
{{- end -}}

{{/* Why several pods cannot run; empty if they can. They share what is written about the tables. */}}
{{- define "cdfd.notShared" -}}
{{- $config := .Values.config -}}
{{- $ledger := include "cdfd.ledger" . | default (ternary "none" "" (eq (.Values.persistence.enabled | toString) "auto")) -}}
{{- if eq (dig "engine" "kind" "embedded" $config) "spark" -}}
config.engine.kind spark does not support several pods
{{- else if include "cdfd.volume" . -}}
{{- if not (or .Values.persistence.existingClaim (has "ReadWriteMany" .Values.persistence.accessModes)) -}}
all pods use one volume: set persistence.accessModes to [ReadWriteMany], or persistence.enabled to false and config.progress.ledger to a place such as on S3
{{- end -}}
{{- else if and $config (not (has $ledger (list "none" "source"))) (include "cdfd.isLocal" $ledger) -}}
without a volume, set config.progress.ledger to a place that all pods share, such as on S3, or to none
{{- end -}}
{{- end -}}

{{/* Whether the pods stand by for each other. With `auto`, only where the chart sees that they can. */}}
{{- define "cdfd.standby" -}}
{{- $standby := .Values.standby | toString -}}
{{- $possible := and .Values.config (not .Values.persistence.existingClaim) (not (include "cdfd.notShared" .)) (or (include "cdfd.volume" .) (not (include "cdfd.folderSink" .))) -}}
{{- if and (le (int .Values.shards) 1) (or (eq $standby "true") (and (ne $standby "false") $possible)) -}}yes{{- end -}}
{{- end -}}

{{- define "cdfd.replicas" -}}
{{- if .Values.maintenance -}}
1
{{- else if eq (.Values.replicas | toString) "auto" -}}
{{- ternary 2 1 (ne "" (include "cdfd.standby" .)) -}}
{{- else -}}
{{- .Values.replicas -}}
{{- end -}}
{{- end -}}

{{- define "cdfd.checkPods" -}}
{{- $several := gt (int (include "cdfd.replicas" .)) 1 -}}
{{- if gt (int .Values.shards) 1 -}}
{{- with include "cdfd.notShared" . -}}{{- fail (printf "shards: %s" .) -}}{{- end -}}
{{- if $several -}}{{- fail "replicas: with shards, it is 1, or 0 to stop" -}}{{- end -}}
{{- else if and (eq (.Values.standby | toString) "true") (include "cdfd.notShared" .) -}}
{{- fail (printf "standby: %s" (include "cdfd.notShared" .)) -}}
{{- else if and $several (not (include "cdfd.standby" .)) -}}
{{- $why := include "cdfd.notShared" . | default "set standby to true, if all pods share config.progress.ledger" -}}
{{- fail (printf "replicas: several pods stand by for each other: %s" $why) -}}
{{- end -}}
{{- end -}}

{{/* The part of the configuration that needs a restart. */}}
{{- define "cdfd.restartingConfig" -}}
{{- $config := include "cdfd.config" . | fromYaml -}}
{{- if eq (dig "engine" "kind" "embedded" $config) "spark" -}}
{{- toYaml $config -}}
{{- else -}}
{{- omit $config "tables" | toYaml -}}
{{- end -}}
{{- end -}}
