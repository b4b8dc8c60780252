// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

func hardwareCases() []admissionCase {
	return []admissionCase{
		{
			name: "all_hardware",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
description: "pool {{ .NodePool }} in {{ .Region }}"
tags: ["pool-{{ .NodePool | lower }}", plain]
hardware:
  cpuLimit: 4
  cpuUnits: 200
  balloon: 2048
  ksm: false
  hotplug: [network, disk, usb]
  watchdog: {model: i6300esb, action: reset}
  rng: {source: urandom, maxBytes: 2048, period: 500}
  tpm: {version: v2.0, storage: local-lvm}
  usb: [{mapping: dongle, usb3: true}]
  pci: [{mapping: gpu, pcie: true, xvga: false}, {mapping: gpu}]
  machine: pc-q35-9.2+pve1
  scsiController: virtio-scsi-single
  agent: {enabled: true, fsTrimClonedDisks: true}
  startup: {order: 3, upDelay: 10, downDelay: 60}
  confidentialComputing: {amdSEV: {type: snp, noDebug: true}}`,
		}, {
			name: "defaults_of_hardware",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {watchdog: {}, rng: {}, tpm: {}}}`,
		}, {
			name:    "empty_hardware",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {}}`,
			refusal: "spec.hardware",
		}, {
			name:    "hotplug_none_and_disk",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {hotplug: [none, disk]}}`,
			refusal: "hotplug none disables hotplug: remove the other values, or remove none",
		}, {
			name:    "hotplug_of_memory",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {hotplug: [memory]}}`,
			refusal: "spec.hardware.hotplug[0]",
		}, {
			name:    "rng_period_without_bytes",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {rng: {period: 10}}}`,
			refusal: "period is the interval of maxBytes: set maxBytes, or remove period",
		}, {
			name:    "pcie_without_q35",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {machine: pc, pci: [{mapping: gpu, pcie: true}]}}`,
			refusal: "pci[].pcie needs a machine type with PCI Express: set machine to q35, or remove pcie",
		}, {
			name:    "unknown_machine",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {machine: isapc}}`,
			refusal: "spec.hardware.machine",
		}, {
			name:    "empty_startup",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {startup: {}}}`,
			refusal: "spec.hardware.startup",
		}, {
			name:    "SEV_and_TDX",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {confidentialComputing: {amdSEV: {type: std}, intelTDX: {}}}}`,
			refusal: "confidentialComputing needs one of amdSEV and intelTDX, not both",
		}, {
			name:    "TDX_without_q35",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {machine: pc, confidentialComputing: {intelTDX: {attestation: true}}}}`,
			refusal: "confidentialComputing.intelTDX needs the machine type q35",
		}, {
			name:    "USB_twice",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, hardware: {usb: [{mapping: dongle}, {mapping: dongle}]}}`,
			refusal: "spec.hardware.usb[1]: Duplicate value",
		},
	}
}

func templatesCases() []admissionCase {
	return []admissionCase{
		{
			name: "templates_in_parts",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom, templatesRefs: [{name: a, namespace: b}, {kind: ConfigMap, name: a, namespace: b}]}}`,
		}, {
			name:    "templates_twice",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom, templatesRef: {name: a, namespace: b}, templatesRefs: [{name: a, namespace: b}]}}`,
			refusal: "templatesRef and templatesRefs exclude each other: move templatesRef to the list, or remove one of them",
		}, {
			name:    "no_templates",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom, templatesRefs: []}}`,
			refusal: "spec.metadataOptions.templatesRefs",
		}, {
			name:    "templates_of_other_kind",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom, templatesRefs: [{kind: Pod, name: a, namespace: b}]}}`,
			refusal: "spec.metadataOptions.templatesRefs[0].kind",
		}, {
			name:    "cloudinit_with_templates_in_parts",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cloudinit, templatesRefs: [{name: a, namespace: b}]}}`,
			refusal: "type cloudinit renders no templates",
		},
	}
}
