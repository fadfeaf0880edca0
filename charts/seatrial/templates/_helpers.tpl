{{- define "seatrial.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "seatrial.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "seatrial.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "seatrial.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Names of cluster-wide objects carry the namespace, so that two releases do not take each other's. */}}
{{- define "seatrial.clusterName" -}}
{{- if eq .Release.Namespace (include "seatrial.fullname" .) -}}
{{ include "seatrial.fullname" . }}
{{- else -}}
{{ printf "%s-%s" .Release.Namespace (include "seatrial.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "seatrial.selectorLabels" -}}
app.kubernetes.io/name: {{ include "seatrial.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "seatrial.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "seatrial.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "seatrial.serviceAccountName" -}}
{{- default (include "seatrial.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "seatrial.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What the Pod Security Standard "restricted" asks of a container. */}}
{{- define "seatrial.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "seatrial.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Namespaces of the teams, as a JSON list: those that the operator watches, unless network policies name others. */}}
{{- define "seatrial.teamNamespaces" -}}
{{- default .Values.config.namespaces .Values.networkPolicies.namespaces | toJson }}
{{- end }}

{{/* Users who may set our labels and status, as a CEL list. */}}
{{- define "seatrial.operatorUsers" -}}
{{- $operator := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "seatrial.serviceAccountName" .) -}}
{{- $broker := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "seatrial.brokerName" .) -}}
{{- concat (list $operator $broker) .Values.admission.trustedUsers | toJson -}}
{{- end }}

{{- define "seatrial.kuberayUser" -}}
{{- with .Values.kuberay -}}system:serviceaccount:{{ .namespace }}:{{ .serviceAccount }}{{- end -}}
{{- end }}
