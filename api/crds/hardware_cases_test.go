// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

var hardwareCases = admissionCases{
	"all_hardware": {spec: `
description: "pool {{ .NodePool }} in {{ .Region }}"
tags: ["pool-{{ .NodePool | lower }}", plain]
hardware:
  {cpuLimit: 4, cpuUnits: 200, balloon: 2048, ksm: false, hotplug: [network, disk, usb],
   watchdog: {model: i6300esb, action: reset}, rng: {source: urandom, maxBytes: 2048, period: 500},
   tpm: {version: v2.0, storage: local-lvm}, usb: [{mapping: dongle, usb3: true}],
   pci: [{mapping: gpu, pcie: true, xvga: false}, {mapping: gpu}], machine: pc-q35-9.2+pve1,
   scsiController: virtio-scsi-single, agent: {enabled: true, fsTrimClonedDisks: true},
   startup: {order: 3, upDelay: 10, downDelay: 60}, confidentialComputing: {amdSEV: {type: snp, noDebug: true}}}`},
	"defaults_of_hardware": {spec: `hardware: {watchdog: {}, rng: {}, tpm: {}}`},
	"empty_hardware":       {`hardware: {}`, "spec.hardware"},
	"hotplug_none_and_disk": {`hardware: {hotplug: [none, disk]}`,
		"hotplug none disables hotplug: remove the other values, or remove none"},
	"hotplug_of_memory": {`hardware: {hotplug: [memory]}`, "spec.hardware.hotplug[0]"},
	"rng_period_without_bytes": {`hardware: {rng: {period: 10}}`,
		"period is the interval of maxBytes: set maxBytes, or remove period"},
	"pcie_without_q35": {`hardware: {machine: pc, pci: [{mapping: gpu, pcie: true}]}`,
		"pci[].pcie needs a machine type with PCI Express: set machine to q35, or remove pcie"},
	"unknown_machine": {`hardware: {machine: isapc}`, "spec.hardware.machine"},
	"empty_startup":   {`hardware: {startup: {}}`, "spec.hardware.startup"},
	"SEV_and_TDX": {`hardware: {confidentialComputing: {amdSEV: {type: std}, intelTDX: {}}}`,
		"confidentialComputing needs one of amdSEV and intelTDX, not both"},
	"TDX_without_q35": {`hardware: {machine: pc, confidentialComputing: {intelTDX: {attestation: true}}}`,
		"confidentialComputing.intelTDX needs the machine type q35"},
	"USB_twice": {`hardware: {usb: [{mapping: dongle}, {mapping: dongle}]}`, "spec.hardware.usb[1]: Duplicate value"},
}

var templatesCases = admissionCases{
	"templates_in_parts": {spec: `metadataOptions: {type: cdrom, templatesRefs: [{name: a, namespace: b}, {kind: ConfigMap, name: a, namespace: b}]}`},
	"templates_twice": {`metadataOptions: {type: cdrom, templatesRef: {name: a, namespace: b}, templatesRefs: [{name: a, namespace: b}]}`,
		"templatesRef and templatesRefs exclude each other: move templatesRef to the list, or remove one of them"},
	"no_templates": {`metadataOptions: {type: cdrom, templatesRefs: []}`, "spec.metadataOptions.templatesRefs"},
	"templates_of_other_kind": {`metadataOptions: {type: cdrom, templatesRefs: [{kind: Pod, name: a, namespace: b}]}`,
		"spec.metadataOptions.templatesRefs[0].kind"},
	"cloudinit_with_templates_in_parts": {`metadataOptions: {type: cloudinit, templatesRefs: [{name: a, namespace: b}]}`,
		"type cloudinit renders no templates"},
}
