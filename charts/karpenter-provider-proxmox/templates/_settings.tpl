{{/* Written by "make generate" from internal/operator/options.go. */}}
{{/* YAML has only floats to helm: 100000000 would become 1e+08. */}}
{{- define "karpenter.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "karpenter.settings" -}}
{{- if not (kindIs "invalid" .Values.settings.instanceTypesFile) }}
- name: INSTANCE_TYPES_FILE
  value: {{ include "karpenter.plain" .Values.settings.instanceTypesFile | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.nodeSettingFile) }}
- name: NODE_SETTING_FILE
  value: {{ include "karpenter.plain" .Values.settings.nodeSettingFile | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.nodePolicy) }}
- name: NODE_POLICY
  value: {{ include "karpenter.plain" .Values.settings.nodePolicy | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.systemNamespace) }}
- name: SYSTEM_NAMESPACE
  value: {{ include "karpenter.plain" .Values.settings.systemNamespace | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxVmid) }}
- name: PROXMOX_VMID
  value: {{ include "karpenter.plain" .Values.settings.proxmoxVmid | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxVmidMax) }}
- name: PROXMOX_VMID_MAX
  value: {{ include "karpenter.plain" .Values.settings.proxmoxVmidMax | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxTemplateVmid) }}
- name: PROXMOX_TEMPLATE_VMID
  value: {{ include "karpenter.plain" .Values.settings.proxmoxTemplateVmid | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxTemplateVmidMax) }}
- name: PROXMOX_TEMPLATE_VMID_MAX
  value: {{ include "karpenter.plain" .Values.settings.proxmoxTemplateVmidMax | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.templateBuilds) }}
- name: TEMPLATE_BUILDS
  value: {{ include "karpenter.plain" .Values.settings.templateBuilds | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.templateGrace) }}
- name: TEMPLATE_GRACE
  value: {{ include "karpenter.plain" .Values.settings.templateGrace | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.vmMemoryOverheadPercent) }}
- name: VM_MEMORY_OVERHEAD_PERCENT
  value: {{ include "karpenter.plain" .Values.settings.vmMemoryOverheadPercent | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.pciResources) }}
- name: PCI_RESOURCES
  value: {{ include "karpenter.plain" .Values.settings.pciResources | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.pricePerVcpu) }}
- name: PRICE_PER_VCPU
  value: {{ include "karpenter.plain" .Values.settings.pricePerVcpu | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.pricePerGb) }}
- name: PRICE_PER_GB
  value: {{ include "karpenter.plain" .Values.settings.pricePerGb | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.pricePerNode) }}
- name: PRICE_PER_NODE
  value: {{ include "karpenter.plain" .Values.settings.pricePerNode | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.pricePerDevice) }}
- name: PRICE_PER_DEVICE
  value: {{ include "karpenter.plain" .Values.settings.pricePerDevice | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.volumeAttachmentLimits) }}
- name: VOLUME_ATTACHMENT_LIMITS
  value: {{ include "karpenter.plain" .Values.settings.volumeAttachmentLimits | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxPollInterval) }}
- name: PROXMOX_POLL_INTERVAL
  value: {{ include "karpenter.plain" .Values.settings.proxmoxPollInterval | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxCloneSlots) }}
- name: PROXMOX_CLONE_SLOTS
  value: {{ include "karpenter.plain" .Values.settings.proxmoxCloneSlots | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxTaskTimeout) }}
- name: PROXMOX_TASK_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.proxmoxTaskTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxDialTimeout) }}
- name: PROXMOX_DIAL_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.proxmoxDialTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.proxmoxResponseTimeout) }}
- name: PROXMOX_RESPONSE_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.proxmoxResponseTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.cloneSlowAfter) }}
- name: CLONE_SLOW_AFTER
  value: {{ include "karpenter.plain" .Values.settings.cloneSlowAfter | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.cloneRefuseAfter) }}
- name: CLONE_REFUSE_AFTER
  value: {{ include "karpenter.plain" .Values.settings.cloneRefuseAfter | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.launchRetryTimeout) }}
- name: LAUNCH_RETRY_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.launchRetryTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.launchFailureBackoff) }}
- name: LAUNCH_FAILURE_BACKOFF
  value: {{ include "karpenter.plain" .Values.settings.launchFailureBackoff | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.launchFailureBackoffMax) }}
- name: LAUNCH_FAILURE_BACKOFF_MAX
  value: {{ include "karpenter.plain" .Values.settings.launchFailureBackoffMax | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.staticCapacityTimeout) }}
- name: STATIC_CAPACITY_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.staticCapacityTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.joinTokenTtl) }}
- name: JOIN_TOKEN_TTL
  value: {{ include "karpenter.plain" .Values.settings.joinTokenTtl | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.operationTimeout) }}
- name: OPERATION_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.operationTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.shutdownTimeout) }}
- name: SHUTDOWN_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.shutdownTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.restartBackoff) }}
- name: RESTART_BACKOFF
  value: {{ include "karpenter.plain" .Values.settings.restartBackoff | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.restartLimit) }}
- name: RESTART_LIMIT
  value: {{ include "karpenter.plain" .Values.settings.restartLimit | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.repairUnreadyToleration) }}
- name: REPAIR_UNREADY_TOLERATION
  value: {{ include "karpenter.plain" .Values.settings.repairUnreadyToleration | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.repairRequestToleration) }}
- name: REPAIR_REQUEST_TOLERATION
  value: {{ include "karpenter.plain" .Values.settings.repairRequestToleration | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.repairDrainTimeout) }}
- name: REPAIR_DRAIN_TIMEOUT
  value: {{ include "karpenter.plain" .Values.settings.repairDrainTimeout | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.hostRemovedAfter) }}
- name: HOST_REMOVED_AFTER
  value: {{ include "karpenter.plain" .Values.settings.hostRemovedAfter | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.migratedDriftAfter) }}
- name: MIGRATED_DRIFT_AFTER
  value: {{ include "karpenter.plain" .Values.settings.migratedDriftAfter | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.hostDriftAfter) }}
- name: HOST_DRIFT_AFTER
  value: {{ include "karpenter.plain" .Values.settings.hostDriftAfter | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.orphanPolicy) }}
- name: ORPHAN_POLICY
  value: {{ include "karpenter.plain" .Values.settings.orphanPolicy | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.orphanGrace) }}
- name: ORPHAN_GRACE
  value: {{ include "karpenter.plain" .Values.settings.orphanGrace | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.orphanSweepInterval) }}
- name: ORPHAN_SWEEP_INTERVAL
  value: {{ include "karpenter.plain" .Values.settings.orphanSweepInterval | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.settings.orphanDeletionMaxFraction) }}
- name: ORPHAN_DELETION_MAX_FRACTION
  value: {{ include "karpenter.plain" .Values.settings.orphanDeletionMaxFraction | quote }}
{{- end }}
{{- end }}
