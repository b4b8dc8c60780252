// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

func templateCases() []admissionCase {
	return []admissionCase{
		{
			name: "minimal",
			spec: `{sourceImage: {url: https://example.com/a.qcow2}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name: "all_fields",
			spec: `
region: Region-1
description: a template
sourceImage:
  url: https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img
  imageName: ubuntu-amd64.qcow2
  checksum: d41d8cd98f00b204e9800998ecf8427e
  checksumType: md5
storageIDs: [local, system]
machine: pc
bios: ovmf
tpm: {version: v1.2}
agent: {enabled: true, type: isa, fsFreezeOnBackup: false, fsTrimClonedDisks: true}
cpu: {type: x86-64-v4, flags: [+pdpe1gb, -pcid]}
vga: {type: serial0, memory: 16}
network:
- {name: net0, model: virtio, bridge: vmbr0, mtu: 1, vlan: 15, firewall: true}
- {name: net1, bridge: vmbr1, mtu: 9000, address4: 192.168.0.0/24, gateway4: 192.168.0.1, address6: "fd00::/64",
   gateway6: "fd00::1", dnsServers: [192.168.0.1]}
- {bridge: vmbr2}
pciDevices: [{mapping: gpu, mdev: nvidia-63, pcie: true, xvga: false}]
tags: [karpenter]
resourcePool: templates
prepare:
  templatesRef: {name: kubeadm-prepare, namespace: kube-system}
  valuesRef: {name: kubeadm-prepare, namespace: kube-system}
  storage: local
  size: {cpu: 4, memory: 4Gi}
  diskSize: 8Gi
  timeout: 1h30m
  keepFailed: 0s
  refreshAfter: 168h
  maxConcurrent: 1
onBoot: true`,
		}, {
			name: "preparation_without_Secret",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
prepare: {}`,
			refusal: "spec.prepare.templatesRef: Required value",
		}, {
			name: "preparation_with_short_timeout",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
prepare: {templatesRef: {name: a, namespace: b}, timeout: 10s}`,
			refusal: "timeout must be at least 1m",
		}, {
			name: "preparation_with_days",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
prepare: {templatesRef: {name: a, namespace: b}, refreshAfter: 7d}`,
			refusal: "spec.prepare.refreshAfter",
		}, {
			name: "preparation_with_frequent_refresh",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
prepare: {templatesRef: {name: a, namespace: b}, refreshAfter: 10m}`,
			refusal: "refreshAfter must be at least 1h",
		}, {
			name: "image_URL_with_address_and_port",
			spec: `{sourceImage: {url: "http://[fd00::1]:8080/a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name:    "image_URL_of_file",
			spec:    `{sourceImage: {url: "file:///a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name:    "image_URL_without_host",
			spec:    `{sourceImage: {url: "https:///a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name:    "image_URL_with_space",
			spec:    `{sourceImage: {url: "https://example.com/a b.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name: "image_URL_with_login_and_query",
			spec: `{sourceImage: {url: "https://me:pw@mirror:8443/a.raw?v=1&x=%20y"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name: "dhcp_auto_and_static_addresses",
			spec: `
sourceImage: {url: "http://10.0.0.1/a.raw"}
storageIDs: [local]
network: [{bridge: vmbr0, address4: dhcp, address6: auto}, {bridge: vmbr1, address4: 10.0.0.5/24, address6: "fd00::5/64"}]`,
		}, {
			name: "image_name_without_extension",
			spec: `
sourceImage: {url: "https://example.com/a", imageName: ubuntu}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "imageName must be a plain file name with an extension",
		}, {
			name: "checksum_without_type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum and checksumType belong together",
		}, {
			name: "checksum_placeholder",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: <checksum>, checksumType: md5}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
		}, {
			name: "checksum_of_another_type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: sha256}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum must have as many hexadecimal digits as checksumType requires, without a prefix",
		}, {
			name: "checksum_with_prefix",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: "md5:d41d8cd98f00b204e9800998ecf8427e", checksumType: md5}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum must have as many hexadecimal digits",
		}, {
			name: "unknown_checksum_type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: crc32}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: `supported values: "md5", "sha1", "sha224", "sha256", "sha384", "sha512"`,
		}, {
			name: "mirrors_and_checksum_URL",
			spec: `
sourceImage:
  urls: ["https://a.example/noble.img", "http://b.example:8080/mirror/noble.img"]
  checksumURL: https://a.example/SHA256SUMS
storageIDs: [local]
network: [{bridge: vmbr0}]`,
		}, {
			name: "Talos_image",
			spec: `
sourceImage:
  talos: {schematic: 376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, version: v1.11.3-rc.1, arch: arm64, factoryURL: "http://factory.lan:8080"}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
		}, {
			name: "existing_volume",
			spec: `{sourceImage: {volume: "nfs-1:import/debian-13.qcow2"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name:    "no_source",
			spec:    `{sourceImage: {imageName: a.qcow2}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "set exactly one of url, urls, talos and volume",
		}, {
			name:    "two_sources",
			spec:    `{sourceImage: {url: "https://example.com/a.raw", volume: "local:import/a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "set exactly one of url, urls, talos and volume",
		}, {
			name:    "mirror_of_file",
			spec:    `{sourceImage: {urls: ["https://example.com/a.raw", "file:///a.raw"]}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "each of urls must be an http or https URL",
		}, {
			name:    "mirror_twice",
			spec:    `{sourceImage: {urls: ["https://example.com/a.raw", "https://example.com/a.raw"]}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "urls contains a URL twice",
		}, {
			name:    "no_mirrors",
			spec:    `{sourceImage: {urls: []}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "spec.sourceImage.urls",
		}, {
			name: "Talos_version_without_v",
			spec: `
sourceImage: {talos: {schematic: 376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, version: 1.11.3}}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "version must be a Talos version that starts with v, like v1.11.3",
		}, {
			name: "Talos_schematic_is_not_an_ID",
			spec: `
sourceImage: {talos: {schematic: siderolabs/qemu-guest-agent, version: v1.11.3}}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "schematic must be an ID of the Image Factory",
		}, {
			name:    "volume_of_another_content_type",
			spec:    `{sourceImage: {volume: "local:iso/debian-13.iso"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "volume must be an image with content type import",
		}, {
			name:    "volume_with_checksum",
			spec:    `{sourceImage: {volume: "local:import/a.raw", checksumURL: "https://example.com/SHA256SUMS"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "imageName, checksum and checksumURL are for images that are downloaded",
		}, {
			name: "checksum_and_checksum_URL",
			spec: `
sourceImage:
  url: https://example.com/a.raw
  checksum: d41d8cd98f00b204e9800998ecf8427e
  checksumType: md5
  checksumURL: https://example.com/MD5SUMS
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "set checksum or checksumURL, not both",
		}, {
			name:    "checksum_URL_of_file",
			spec:    `{sourceImage: {url: "https://example.com/a.raw", checksumURL: "file:///SHA256SUMS"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "checksumURL must be an http or https URL",
		}, {
			name:    "no_image",
			spec:    `{storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "spec.sourceImage: Required value",
		}, {
			name:    "VLAN_out_of_range",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, vlan: 4095}]}`,
			refusal: "spec.network[0].vlan",
		}, {
			name:    "unknown_network_card",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, model: ne2000}]}`,
			refusal: "spec.network[0].model",
		}, {
			name:    "interface_without_bridge",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{name: net0}]}`,
			refusal: "spec.network[0].bridge: Required value",
		}, {
			name:    "address_without_prefix",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, address4: 10.0.0.5}]}`,
			refusal: "address4 must be an IPv4 address or subnet with its prefix, like 192.168.0.0/24",
		}, {
			name:    "IPv4_address_as_IPv6",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, address6: 10.0.0.0/24}]}`,
			refusal: "address6 must be an IPv6 address or subnet",
		}, {
			name:    "gateway_with_prefix",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, gateway4: 10.0.0.1/24}]}`,
			refusal: "gateway4 must be an IPv4 address without prefix",
		}, {
			name:    "gateway_is_not_an_address",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, gateway6: router}]}`,
			refusal: "gateway6 must be an IPv6 address without prefix",
		}, {
			name:    "DNS_server_is_not_an_address",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, dnsServers: [dns.example.com]}]}`,
			refusal: "spec.network[0].dnsServers[0]",
		}, {
			name:    "device_without_mapping",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], pciDevices: [{pcie: true}]}`,
			refusal: "spec.pciDevices[0].mapping: Required value",
		}, {
			name:    "unknown_firmware",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], bios: uefi}`,
			refusal: `supported values: "seabios", "ovmf"`,
		}, {
			name:    "display_memory_too_large",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], vga: {memory: 1024}}`,
			refusal: "spec.vga.memory",
		}, {
			name:    "no_storage",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [], network: [{bridge: vmbr0}]}`,
			refusal: "spec.storageIDs",
		}, {
			name:    "no_network",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local]}`,
			refusal: "spec.network: Required value",
		}, {
			name: "duplicate_interface_name",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{name: net0, bridge: vmbr0}, {name: net0, bridge: vmbr1}]`,
			refusal: "two interfaces have the same name",
		}, {
			name:    "invalid_MTU",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, mtu: 500}]}`,
			refusal: "mtu must be 1 (the MTU of the bridge) or from 576 to 65520",
		}, {
			name: "flags_of_the_wrong_type",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: 5}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags_as_a_boolean",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: false}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags_as_an_object",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: {aes: "+"}}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags_as_an_empty_object",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: {}}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags_as_a_list_of_numbers",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: [1]}`,
			refusal: "spec.cpu.flags[0]",
		}, {
			name: "flag_without_sign",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: aes}`,
			refusal: "spec.cpu.flags",
		},
	}
}

func unmanagedTemplateCases() []admissionCase {
	return []admissionCase{
		{
			name: "by_name",
			spec: `{templateName: talos}`,
		}, {
			name: "by_tags",
			spec: `{region: Region-1, tags: [talos, k8s]}`,
		}, {
			name: "by_VMID",
			spec: `{region: Region-1, vmid: 9000}`,
		}, {
			name:    "VMID_too_low",
			spec:    `{vmid: 99}`,
			refusal: "spec.vmid",
		}, {
			name:    "no_criteria",
			spec:    `{region: Region-1}`,
			refusal: "set templateName, tags or both",
		}, {
			name: "by_name_and_tags",
			spec: `{templateName: talos, tags: [k8s]}`,
		}, {
			name:    "empty_name",
			spec:    `{templateName: ""}`,
			refusal: "spec.templateName",
		}, {
			name:    "invalid_tag",
			spec:    `{tags: ["a=b"]}`,
			refusal: "spec.tags[0]",
		}, {
			name:    "empty_tags",
			spec:    `{tags: []}`,
			refusal: "spec.tags",
		},
	}
}
