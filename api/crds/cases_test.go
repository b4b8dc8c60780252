// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

func nodeClassCases() []admissionCase {
	return []admissionCase{
		{
			name: "least",
			spec: `{instanceTemplateRef: {kind: ProxmoxUnmanagedTemplate, name: default}}`,
		}, {
			name: "everything",
			spec: `
region: Region-1
placementStrategy: {zoneBalance: AvailabilityFirst}
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration:
  cpuManagerPolicy: static
  cpuCFSQuota: true
  cpuCFSQuotaPeriod: 100ms
  topologyManagerPolicy: single-numa-node
  topologyManagerScope: pod
  imageGCHighThresholdPercent: 85
  imageGCLowThresholdPercent: 80
  shutdownGracePeriod: 1m30s
  allowedUnsafeSysctls: [net.core.somaxconn]
  clusterDNS: [10.96.0.10, "fd00::10"]
  maxPods: 110
  failSwapOn: false
cpu: {numa: Bind, pinning: Exclusive, hugepages: 1Gi}
bootDevice: {size: 30Gi, storage: local-lvm}
tags: [k8s, karpenter]
metadataOptions:
  type: cdrom
  templatesRef: {name: ubuntu-k8s, namespace: kube-system}
  valuesRef: {name: values, namespace: kube-system}
  storage: local
securityGroups: [{name: kubernetes, interface: net0}, {name: public, interface: net1}]
resourcePool: team/kubernetes
network:
  dnsServers: [192.168.0.53, "2001:db8::53"]
  searchDomains: [example.com]
  interfaces:
  - name: net0
    address4:
      cidr: 192.168.0.0/24
      ranges: [192.168.0.50-192.168.0.99, 192.168.0.128/26, 192.168.0.10]
      exclude: [192.168.0.60]
      gateway: 192.168.0.1
    address6: {cidr: "2001:db8::/64", gateway: "fe80::1"}
  - name: net1
    address4: {method: DHCP}
    address6: {method: SLAAC}
  - name: net2
    address4: {cidr: 203.0.113.5/32, gateway: 172.31.1.1}
    address6: {method: None}`,
		}, {
			name: "templatesRef without cdrom",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: none, templatesRef: {name: ubuntu-k8s, namespace: kube-system}}`,
		}, {
			name: "a cloud-init drive of Proxmox",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {dnsServers: [192.168.0.53]}
metadataOptions:
  type: cloudinit
  cloudInit:
    user: ops
    sshKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn me@example.com"]
    sshKeysRef: {name: keys, namespace: kube-system}
    packageUpgrade: true
    snippets: {vendor: "local:snippets/worker.yaml", meta: "nfs:snippets/meta"}
    storage: local-lvm`,
		}, {
			name: "a cloud-init drive of Proxmox as the template has it",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit}`,
		}, {
			name: "Ignition through the firmware interface",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: fwcfg, templatesRef: {name: flatcar, namespace: kube-system}, storage: local}`,
		}, {
			name: "Ignition without templates",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: fwcfg}`,
			refusal: `type fwcfg needs templatesRef: the Secret with the key user-data, in Butane or Ignition`,
		}, {
			name: "cloudInit without its type",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: none, cloudInit: {user: ops}}`,
			refusal: `cloudInit is only used with type cloudinit: set type to cloudinit or remove cloudInit`,
		}, {
			name: "templates for a drive that Proxmox fills",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, templatesRef: {name: ubuntu-k8s, namespace: kube-system}}`,
			refusal: `type cloudinit renders no templates, Proxmox makes the boot data: remove templatesRef and valuesRef, or set type to cdrom`,
		}, {
			name: "a storage for an ISO that is not made",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, storage: local}`,
			refusal: `storage is only used with type cdrom`,
		}, {
			name: "a user snippet beside a user",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {user: ops, snippets: {user: "local:snippets/user.yaml"}}}`,
			refusal: `snippets.user takes the place of what Proxmox makes of user, sshKeys, sshKeysRef and packageUpgrade`,
		}, {
			name: "a network snippet beside addresses",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {dnsServers: [192.168.0.53]}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {network: "local:snippets/network.yaml"}}}`,
			refusal: `metadataOptions.cloudInit.snippets.network takes the place of what network says: remove one of them`,
		}, {
			name: "a snippet that is a path",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {vendor: /var/lib/vz/snippets/worker.yaml}}}`,
			refusal: `spec.metadataOptions.cloudInit.snippets.vendor`,
		}, {
			name: "snippets without any",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {}}}`,
			refusal: `spec.metadataOptions.cloudInit.snippets`,
		}, {
			name: "a private key",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {sshKeys: ["-----BEGIN OPENSSH PRIVATE KEY-----"]}}`,
			refusal: `spec.metadataOptions.cloudInit.sshKeys[0]`,
		}, {
			name: "a pool without prefix",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 192.168.0.0}}]}`,
			refusal: `cidr must be a subnet with its prefix, like 192.168.0.0/24`,
		}, {
			name: "a pool of the other family",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: "2001:db8::/64"}}]}`,
			refusal: `address4.cidr must be an IPv4 subnet, like 192.168.0.0/24`,
		}, {
			name: "an IPv4 pool for IPv6",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address6: {cidr: 10.0.0.0/24}}]}`,
			refusal: `address6.cidr must be an IPv6 subnet, like 2001:db8::/64`,
		}, {
			name: "SLAAC for IPv4",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: SLAAC}}]}`,
			refusal: `method SLAAC exists for IPv6 only`,
		}, {
			name: "a pool and a method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: DHCP, cidr: 10.0.0.0/24}}]}`,
			refusal: `set either cidr (every VM gets an own address of it) or method`,
		}, {
			name: "neither pool nor method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {}}]}`,
			refusal: `set either cidr (every VM gets an own address of it) or method`,
		}, {
			name: "a gateway for DHCP",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: DHCP, gateway: 10.0.0.1}}]}`,
			refusal: `ranges, exclude and gateway belong to a cidr`,
		}, {
			name: "a gateway with prefix",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24, gateway: 10.0.0.1/24}}]}`,
			refusal: `gateway must be an address without a prefix, like 192.168.0.1`,
		}, {
			name: "a range in words",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24, ranges: [all]}}]}`,
			refusal: `spec.network.interfaces[0].address4.ranges[0]`,
		}, {
			name: "an interface without a number",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: eth0, address4: {method: DHCP}}]}`,
			refusal: `spec.network.interfaces[0].name`,
		}, {
			name: "another method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: Static}}]}`,
			refusal: `supported values: "DHCP", "SLAAC", "None"`,
		}, {
			name: "two pools for one interface",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24}}, {name: net0, address4: {cidr: 10.0.1.0/24}}]}`,
			refusal: `Duplicate value: {"name":"net0"}`,
		}, {
			name: "a name server by name",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {dnsServers: [dns.example.com]}`,
			refusal: "dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53",
		}, {
			name:    "no template",
			spec:    `{region: a}`,
			refusal: "spec.instanceTemplateRef: Required value",
		}, {
			name:    "pinning without cells",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: None, pinning: Exclusive}}`,
			refusal: "pinning Exclusive needs numa Bind",
		}, {
			name:    "hugepages without cells",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: None, hugepages: 2Mi}}`,
			refusal: "hugepages need numa Bind",
		}, {
			name:    "hugepages of a size that nobody has",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {hugepages: 4Mi}}`,
			refusal: `supported values: "2Mi", "1Gi"`,
		}, {
			name: "a pool in one cell",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: Bind}, placementStrategy: {poolAffinity: SameCell}}`,
		}, {
			name:    "a pool in one cell without cells",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {poolAffinity: SameCell}}`,
			refusal: "poolAffinity SameCell needs VMs that are bound to cells",
		}, {
			name:    "unknown kind of template",
			spec:    `{instanceTemplateRef: {kind: Image, name: default}}`,
			refusal: `supported values: "ProxmoxTemplate", "ProxmoxUnmanagedTemplate"`,
		}, {
			name:    "unknown field",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootdevice: {}}`,
			refusal: `unknown field "spec.bootdevice"`,
		}, {
			name:    "cdrom without templates",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom}}`,
			refusal: "type cdrom needs templatesRef",
		}, {
			name: "templates without namespace",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cdrom, templatesRef: {name: a}}`,
			refusal: "spec.metadataOptions.templatesRef.namespace: Required value",
		}, {
			name:    "another way for boot data",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: floppy}}`,
			refusal: `supported values: "none", "cdrom"`,
		}, {
			name:    "a cache for plan9",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, shares: [{mapping: data, type: plan9, cache: never}]}`,
			refusal: "cache is only used with type virtiofs",
		}, {
			name:    "storage for an ISO without cdrom",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {storage: local}}`,
			refusal: "storage is only used with type cdrom",
		}, {
			name:    "size without unit",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootDevice: {size: "30"}}`,
			refusal: "spec.bootDevice.size",
		}, {
			name:    "size in megabytes",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootDevice: {size: 30000M}}`,
			refusal: "spec.bootDevice.size",
		}, {
			name:    "tag that Proxmox would split",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, tags: ["a;b"]}`,
			refusal: "spec.tags[0]",
		}, {
			name:    "too many tags",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, tags: [a, b, c, d, e, f, g, h, i, j, k]}`,
			refusal: "spec.tags: Too many: 11",
		}, {
			name: "interface that only contains a right one",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
securityGroups: [{name: kubernetes, interface: xnet0y}]`,
			refusal: "spec.securityGroups[0].interface",
		}, {
			name:    "pool too deep",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, resourcePool: a/b/c/d}`,
			refusal: "spec.resourcePool",
		}, {
			name:    "unnamed security group",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, securityGroups: [{interface: net0}]}`,
			refusal: "spec.securityGroups[0].name: Required value",
		}, {
			name:    "unknown balance",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {zoneBalance: Random}}`,
			refusal: `supported values: "Balanced", "AvailabilityFirst"`,
		}, {
			name:    "empty region",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, region: ""}`,
			refusal: "spec.region",
		}, {
			name: "thresholds that cross",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration: {imageGCHighThresholdPercent: 70, imageGCLowThresholdPercent: 80}`,
			refusal: "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent",
		}, {
			name: "duration that Go cannot read",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration: {shutdownGracePeriod: 1 day}`,
			refusal: "spec.kubeletConfiguration.shutdownGracePeriod",
		}, {
			name:    "too few pods",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, kubeletConfiguration: {maxPods: 5}}`,
			refusal: "spec.kubeletConfiguration.maxPods",
		},
	}
}

func templateCases() []admissionCase {
	return []admissionCase{
		{
			name: "least",
			spec: `{sourceImage: {url: https://example.com/a.qcow2}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name: "everything",
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
onBoot: true`,
		}, {
			name: "image on an address with a port",
			spec: `{sourceImage: {url: "http://[fd00::1]:8080/a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name:    "image from a file",
			spec:    `{sourceImage: {url: "file:///a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name:    "image without host",
			spec:    `{sourceImage: {url: "https:///a.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name:    "image with a blank in its URL",
			spec:    `{sourceImage: {url: "https://example.com/a b.raw"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "url must be an http or https URL",
		}, {
			name: "image of a single-label host, with login and query",
			spec: `{sourceImage: {url: "https://me:pw@mirror:8443/a.raw?v=1&x=%20y"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
		}, {
			name: "addresses from elsewhere",
			spec: `
sourceImage: {url: "http://10.0.0.1/a.raw"}
storageIDs: [local]
network: [{bridge: vmbr0, address4: dhcp, address6: auto}, {bridge: vmbr1, address4: 10.0.0.5/24, address6: "fd00::5/64"}]`,
		}, {
			name: "image name without extension",
			spec: `
sourceImage: {url: "https://example.com/a", imageName: ubuntu}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "imageName must be a plain file name with an extension",
		}, {
			name: "checksum without type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum and checksumType belong together",
		}, {
			name: "checksum to be filled in",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: <checksum>, checksumType: md5}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
		}, {
			name: "checksum of another type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: sha256}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum must be the hexadecimal digits that checksumType has, without prefix",
		}, {
			name: "checksum with its type in front",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: "md5:d41d8cd98f00b204e9800998ecf8427e", checksumType: md5}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: "checksum must be the hexadecimal digits",
		}, {
			name: "unknown checksum type",
			spec: `
sourceImage: {url: "https://example.com/a", checksum: d41d8cd98f00b204e9800998ecf8427e, checksumType: crc32}
storageIDs: [local]
network: [{bridge: vmbr0}]`,
			refusal: `supported values: "md5", "sha1", "sha224", "sha256", "sha384", "sha512"`,
		}, {
			name:    "no image",
			spec:    `{storageIDs: [local], network: [{bridge: vmbr0}]}`,
			refusal: "spec.sourceImage: Required value",
		}, {
			name:    "VLAN out of range",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, vlan: 4095}]}`,
			refusal: "spec.network[0].vlan",
		}, {
			name:    "unknown network card",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, model: ne2000}]}`,
			refusal: "spec.network[0].model",
		}, {
			name:    "interface without bridge",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{name: net0}]}`,
			refusal: "spec.network[0].bridge: Required value",
		}, {
			name:    "address without prefix",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, address4: 10.0.0.5}]}`,
			refusal: "address4 must be an IPv4 address or subnet with its prefix, like 192.168.0.0/24",
		}, {
			name:    "IPv4 address as IPv6",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, address6: 10.0.0.0/24}]}`,
			refusal: "address6 must be an IPv6 address or subnet",
		}, {
			name:    "gateway with prefix",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, gateway4: 10.0.0.1/24}]}`,
			refusal: "gateway4 must be an IPv4 address without prefix",
		}, {
			name:    "gateway that is no address",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, gateway6: router}]}`,
			refusal: "gateway6 must be an IPv6 address without prefix",
		}, {
			name:    "name server that is no address",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, dnsServers: [dns.example.com]}]}`,
			refusal: "spec.network[0].dnsServers[0]",
		}, {
			name:    "device without mapping",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], pciDevices: [{pcie: true}]}`,
			refusal: "spec.pciDevices[0].mapping: Required value",
		}, {
			name:    "unknown firmware",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], bios: uefi}`,
			refusal: `supported values: "seabios", "ovmf"`,
		}, {
			name:    "display with too much memory",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], vga: {memory: 1024}}`,
			refusal: "spec.vga.memory",
		}, {
			name:    "no storage",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [], network: [{bridge: vmbr0}]}`,
			refusal: "spec.storageIDs",
		}, {
			name:    "no network",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local]}`,
			refusal: "spec.network: Required value",
		}, {
			name: "two interfaces of one name",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{name: net0, bridge: vmbr0}, {name: net0, bridge: vmbr1}]`,
			refusal: "two interfaces have the same name",
		}, {
			name:    "impossible MTU",
			spec:    `{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0, mtu: 500}]}`,
			refusal: "mtu must be 1 (that of the bridge) or from 576 to 65520",
		}, {
			name: "flags of the wrong type",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: 5}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags as a boolean",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: false}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags as an object",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: {aes: "+"}}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags as an empty object",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: {}}`,
			refusal: "spec.cpu.flags",
		}, {
			name: "flags as a list of numbers",
			spec: `
sourceImage: {url: "https://example.com/a"}
storageIDs: [local]
network: [{bridge: vmbr0}]
cpu: {flags: [1]}`,
			refusal: "spec.cpu.flags[0]",
		}, {
			name: "flag without sign",
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
			name: "by name",
			spec: `{templateName: talos}`,
		}, {
			name: "by tags",
			spec: `{region: Region-1, tags: [talos, k8s]}`,
		}, {
			name:    "by nothing",
			spec:    `{region: Region-1}`,
			refusal: "set templateName, tags or both",
		}, {
			name: "by name and tags",
			spec: `{templateName: talos, tags: [k8s]}`,
		}, {
			name:    "by an empty name",
			spec:    `{templateName: ""}`,
			refusal: "spec.templateName",
		}, {
			name:    "by a tag that Proxmox cannot have",
			spec:    `{tags: ["a=b"]}`,
			refusal: "spec.tags[0]",
		}, {
			name:    "by empty tags",
			spec:    `{tags: []}`,
			refusal: "spec.tags",
		},
	}
}
