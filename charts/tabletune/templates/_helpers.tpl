{{/* Name of the release's objects; cut so that the longest suffix still fits. */}}
{{- define "tabletune.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "tabletune" .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 40 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-tabletune-operator" (.Release.Name | trunc 30 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{/* What selects the operator's pods. A Deployment's selector can never change, so nothing is added here. */}}
{{- define "tabletune.selectorLabels" -}}
app.kubernetes.io/name: tabletune
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object. */}}
{{- define "tabletune.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" "tabletune"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/component" "operator"
  "app.kubernetes.io/part-of" "tabletune"
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_")) -}}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{/* Labels that make Prometheus or Grafana find an object, with those of every object; call with (list $ labels). */}}
{{- define "tabletune.foundLabels" -}}
{{- merge (include "tabletune.labels" (first .) | fromYaml) (last .) | toYaml }}
{{- end }}

{{- define "tabletune.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tabletune.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "tabletune.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* The subject of every binding. */}}
{{- define "tabletune.subjects" -}}
- kind: ServiceAccount
  name: {{ include "tabletune.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* What the operator may do in a namespace that it looks after; tests compare it with config/rbac. */}}
{{- define "tabletune.rules" -}}
# What is asked for, and what is answered. Patch of the object itself is for one annotation: a profile that
# spec.serving.driftPolicy asks for.
- apiGroups: [tabletune.dev]
  resources: [drafttables]
  verbs: [get, list, watch, patch]
- apiGroups: [tabletune.dev]
  resources: [drafttables/status]
  verbs: [patch]
# Tables, history and reports. Rights on get and patch are also what a profiling pod is given, for one of them.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
# Profiling Jobs, and how their pods get on.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
# Patch is for one annotation of serving pods, which makes the kubelet refresh the table's volume at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch{{ if .Values.rbac.patchPods }}, patch{{ end }}]
# Why a Job has no pod is told by Events alone.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
# The identity of a profiling pod, which may get and patch its own report.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create, patch]
{{- end }}
