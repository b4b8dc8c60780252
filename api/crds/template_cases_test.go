// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

// templateCases are specs of ProxmoxTemplates.
var templateCases = admissionCases{
	"minimal": {spec: "{}"},
	"all_fields": {spec: `
machine: pc
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
prepare:
  {templatesRef: {name: a, namespace: b}, valuesRef: {name: a, namespace: b}, storage: local, size: {cpu: 4, memory: 4Gi},
   diskSize: 8Gi, timeout: 1h30m, keepFailed: 0s, refreshAfter: 168h, maxConcurrent: 1}`},
	"preparation_without_Secret": {`prepare: {}`, "spec.prepare.templatesRef: Required value"},
	"preparation_with_short_timeout": {`prepare: {templatesRef: {name: a, namespace: b}, timeout: 10s}`,
		"timeout must be at least 1m"},
	"preparation_with_days": {`prepare: {templatesRef: {name: a, namespace: b}, refreshAfter: 7d}`,
		"spec.prepare.refreshAfter"},
	"preparation_with_frequent_refresh": {`prepare: {templatesRef: {name: a, namespace: b}, refreshAfter: 10m}`,
		"refreshAfter must be at least 1h"},
	"image_URL_with_address_and_port": {spec: `sourceImage: {url: "http://[fd00::1]:8080/a.raw"}`},
	"image_URL_of_file":               {`sourceImage: {url: "file:///a.raw"}`, "url must be an http or https URL"},
	"image_URL_without_host":          {`sourceImage: {url: "https:///a.raw"}`, "url must be an http or https URL"},
	"image_URL_with_space": {`sourceImage: {url: "https://example.com/a b.raw"}`,
		"url must be an http or https URL"},
	"image_URL_with_login_and_query": {spec: `sourceImage: {url: "https://me:pw@mirror:8443/a.raw?v=1&x=%20y"}`},
	"dhcp_auto_and_static_addresses": {spec: `
network: [{bridge: vmbr0, address4: dhcp, address6: auto}, {bridge: vmbr1, address4: 10.0.0.5/24, address6: "fd00::5/64"}]`},
	"checksum_placeholder": {spec: `sourceImage: {url: "https://example.com/a", checksum: <checksum>, checksumType: md5}`},
	"mirrors_and_checksum_URL": {spec: `
sourceImage: {urls: ["https://a.example/a.img", "http://b.example:8080/b/a.img"],
  checksumURL: "https://a.example/SHA256SUMS"}`},
	"Talos_image": {spec: `
sourceImage:
  talos: {schematic: 376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, version: v1.11.3-rc.1, arch: arm64, factoryURL: "http://factory.lan:8080"}`},
	"existing_volume": {spec: `sourceImage: {volume: "nfs-1:import/debian-13.qcow2"}`},
	"no_source":       {`sourceImage: {imageName: a.qcow2}`, "set exactly one of url, urls, talos and volume"},
	"two_sources": {`sourceImage: {url: "https://example.com/a.raw", volume: "local:import/a.raw"}`,
		"set exactly one of url, urls, talos and volume"},
	"mirror_of_file": {`sourceImage: {urls: ["https://example.com/a.raw", "file:///a.raw"]}`,
		"each of urls must be an http or https URL"},
	"mirror_twice": {`sourceImage: {urls: ["https://example.com/a.raw", "https://example.com/a.raw"]}`,
		"urls contains a URL twice"},
	"no_mirrors": {`sourceImage: {urls: []}`, "spec.sourceImage.urls"},
	"Talos_version_without_v": {`sourceImage: {talos: {schematic: 376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, version: 1.11.3}}`,
		"version must be a Talos version that starts with v, like v1.11.3"},
	"Talos_schematic_is_not_an_ID": {`sourceImage: {talos: {schematic: siderolabs/qemu-guest-agent, version: v1.11.3}}`,
		"schematic must be an ID of the Image Factory"},
	"volume_of_another_content_type": {`sourceImage: {volume: "local:iso/debian-13.iso"}`,
		"volume must be an image with content type import"},
	"volume_with_checksum": {`sourceImage: {volume: "local:import/a.raw", checksumURL: "https://example.com/SHA256SUMS"}`,
		"imageName, checksum and checksumURL are for images that are downloaded"},
	"checksum_and_checksum_URL": {`
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: md5,
  checksumURL: "https://example.com/MD5SUMS"}`,
		"set checksum or checksumURL, not both"},
	"checksum_URL_of_file": {`sourceImage: {url: "https://example.com/a.raw", checksumURL: "file:///SHA256SUMS"}`,
		"checksumURL must be an http or https URL"},
	"no_image":                 {`sourceImage: null`, "spec.sourceImage: Required value"},
	"interface_without_bridge": {`network: [{name: net0}]`, "spec.network[0].bridge: Required value"},
	"device_without_mapping":   {`pciDevices: [{pcie: true}]`, "spec.pciDevices[0].mapping: Required value"},
	"unknown_firmware":         {`bios: uefi`, `supported values: "seabios", "ovmf"`},
	"display_memory_too_large": {`vga: {memory: 1024}`, "spec.vga.memory"},
	"no_storage":               {`storageIDs: []`, "spec.storageIDs"},
	"no_network":               {`network: null`, "spec.network: Required value"},
	"duplicate_interface_name": {`network: [{name: net0, bridge: vmbr0}, {name: net0, bridge: vmbr1}]`,
		"two interfaces have the same name"},
	"flags_of_the_wrong_type":    {`cpu: {flags: 5}`, "spec.cpu.flags"},
	"flags_as_a_boolean":         {`cpu: {flags: false}`, "spec.cpu.flags"},
	"flags_as_an_object":         {`cpu: {flags: {aes: "+"}}`, "spec.cpu.flags"},
	"flags_as_an_empty_object":   {`cpu: {flags: {}}`, "spec.cpu.flags"},
	"flags_as_a_list_of_numbers": {`cpu: {flags: [1]}`, "spec.cpu.flags[0]"},
	"flag_without_sign":          {`cpu: {flags: aes}`, "spec.cpu.flags"},
}

var unmanagedTemplateCases = admissionCases{
	"by_name":          {spec: `templateName: talos`},
	"by_tags":          {spec: `{region: Region-1, tags: [talos, k8s]}`},
	"by_VMID":          {spec: `{region: Region-1, vmid: 9000}`},
	"VMID_too_low":     {`vmid: 99`, "spec.vmid"},
	"no_criteria":      {`region: Region-1`, "set templateName, tags or both"},
	"by_name_and_tags": {spec: `{templateName: talos, tags: [k8s]}`},
	"empty_name":       {`templateName: ""`, "spec.templateName"},
	"invalid_tag":      {`tags: ["a=b"]`, "spec.tags[0]"},
	"empty_tags":       {`tags: []`, "spec.tags"},
}

// templateNetworkCases are ProxmoxTemplates with one interface.
var templateNetworkCases = admissionCases{
	"VLAN_out_of_range":    {`vlan: 4095`, "spec.network[0].vlan"},
	"unknown_network_card": {`model: ne2000`, "spec.network[0].model"},
	"address_without_prefix": {`address4: 10.0.0.5`,
		"address4 must be an IPv4 address or subnet with its prefix, like 192.168.0.0/24"},
	"IPv4_address_as_IPv6":         {`address6: 10.0.0.0/24`, "address6 must be an IPv6 address or subnet"},
	"gateway_with_prefix":          {`gateway4: 10.0.0.1/24`, "gateway4 must be an IPv4 address without prefix"},
	"gateway_is_not_an_address":    {`gateway6: router`, "gateway6 must be an IPv6 address without prefix"},
	"DNS_server_is_not_an_address": {`dnsServers: [dns.example.com]`, "spec.network[0].dnsServers[0]"},
	"invalid_MTU":                  {`mtu: 500`, "mtu must be 1 (the MTU of the bridge) or from 576 to 65520"},
}.within(`network: [{bridge: vmbr0, `, `}]`)

// checksumCases are ProxmoxTemplates with an image.
var checksumCases = admissionCases{
	"image_name_without_extension": {`imageName: ubuntu`, "imageName must be a plain file name with an extension"},
	"checksum_without_type": {`checksum: d41d8cd98f00b204e9800998ecf8427e`,
		"checksum and checksumType belong together"},
	"checksum_of_another_type": {`checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: sha256`,
		"checksum must have as many hexadecimal digits as checksumType requires, without a prefix"},
	"checksum_with_prefix": {`checksum: "md5:d41d8cd98f00b204e9800998ecf8427e", checksumType: md5`,
		"checksum must have as many hexadecimal digits"},
	"unknown_checksum_type": {`checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: crc32`,
		`supported values: "md5", "sha1", "sha224", "sha256", "sha384", "sha512"`},
}.within(`sourceImage: {url: "https://example.com/a", `, `}`)
