{{/* Labels of everything in the chart. Call with (list . "component"). */}}
{{- define "remotegpu.labels" -}}
{{- $root := index . 0 -}}
{{ include "remotegpu.selector" . }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* What selectors use: fixed, because there is one installation per cluster. */}}
{{- define "remotegpu.selector" -}}
app.kubernetes.io/name: remotegpu
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Call with (list . "operator"). */}}
{{- define "remotegpu.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.registry }}/remotegpu-{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* Of a service account: pods inherit the pull secrets. Call with (list . "component"). */}}
{{- define "remotegpu.serviceaccount" -}}
{{- $root := index . 0 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: remotegpu-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "remotegpu.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a pod in a namespace that enforces the profile `restricted`. */}}
{{- define "remotegpu.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "remotegpu.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Replicas on different nodes where there are several. Call with the component's name. */}}
{{- define "remotegpu.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: remotegpu
            app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Where a pod may run; the images are for this platform only. Call with the component's values. */}}
{{- define "remotegpu.nodeSelector" -}}
{{- merge (dict) .nodeSelector (dict "kubernetes.io/os" "linux" "kubernetes.io/arch" "amd64") | toYaml }}
{{- end }}

{{/* Liveness and readiness of the HTTP port every component has. */}}
{{- define "remotegpu.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{/* Labels and annotations of a pod; nobody's labels take the place of ours. Call with (list . "component" values). */}}
{{- define "remotegpu.podMetadata" -}}
labels: {{- merge (include "remotegpu.labels" . | fromYaml) (index . 2).podLabels | toYaml | nindent 2 }}
{{- with (index . 2).podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pod template of a Job that runs remotegpu_operator.lifecycle.<hook>, with the ConfigMap of its name, if any, as files.
Call with (list . "hook"). */}}
{{- define "remotegpu.hookPod" -}}
{{- $root := index . 0 -}}
{{- $hook := index . 1 -}}
metadata:
  labels: {{- include "remotegpu.labels" . | nindent 4 }}
spec:
  serviceAccountName: remotegpu-{{ $hook }}
  automountServiceAccountToken: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  securityContext: {{- include "remotegpu.podSecurity" $root | nindent 4 }}
  nodeSelector: {{- include "remotegpu.nodeSelector" $root.Values.operator | nindent 4 }}
  tolerations: {{- toYaml $root.Values.operator.tolerations | nindent 4 }}
  containers:
    - name: {{ $hook }}
      image: {{ include "remotegpu.image" (list $root "operator") }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [python, -m, remotegpu_operator.lifecycle.{{ $hook }}]
      env:
        - name: POD_NAMESPACE
          valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
      resources: {{- toYaml $root.Values.operator.resources | nindent 8 }}
      securityContext: {{- include "remotegpu.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: files, mountPath: /etc/remotegpu/{{ $hook }}, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: files
      configMap: {name: remotegpu-{{ $hook }}, optional: true}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
{{- end }}

{{/* Who may read metrics, as peers of a NetworkPolicy. Probes come from the pod's own node, which no policy keeps out. */}}
{{- define "remotegpu.monitors" -}}
{{- include "remotegpu.from" .Values.metrics.fromNamespaces }}
{{- end }}

{{/* The release's own pods, and those of the namespaces with these labels. Call with the labels. */}}
{{- define "remotegpu.from" -}}
- podSelector: {}
{{- with . }}
- namespaceSelector:
    matchLabels: {{- toYaml . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Call with (list . "the value below metrics"). */}}
{{- define "remotegpu.needsPrometheusOperator" -}}
{{- $root := index . 0 -}}
{{- if not ($root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}
{{- fail (printf "metrics.%s.enabled needs the Prometheus operator, whose API monitoring.coreos.com/v1 this cluster does not have: install it first, or set the value to false" (index . 1)) }}
{{- end }}
{{- end }}
