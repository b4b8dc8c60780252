// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

func nodeClassCases() []admissionCase {
	return []admissionCase{
		{
			name: "minimal",
			spec: `{instanceTemplateRef: {kind: ProxmoxUnmanagedTemplate, name: default}}`,
		}, {
			name: "all_fields",
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
			name: "all_kubelet_fields",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration:
  maxPods: math.least(110, cpu * 30)
  podsPerCore: 10
  kubeReserved: {cpu: 100m, memory: memory / 20}
  systemReserved: {ephemeral-storage: 1Gi}
  evictionHard: {memory.available: 5%}
  evictionSoft: {memory.available: 10%}
  evictionSoftGracePeriod: {memory.available: 1m30s}
  logging: {format: json, flushFrequency: 5s}
  registryPullQPS: 0
  featureGates: {MemoryQoS: true}`,
		}, {
			name: "templatesRef_without_cdrom",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: none, templatesRef: {name: ubuntu-k8s, namespace: kube-system}}`,
		}, {
			name: "cloudinit_drive",
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
			name: "cloudinit_drive_of_template",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit}`,
		}, {
			name: "fwcfg",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: fwcfg, templatesRef: {name: flatcar, namespace: kube-system}, storage: local}`,
		}, {
			name: "replace_on_change",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cdrom, templatesRef: {name: ubuntu-k8s, namespace: kube-system}, onChange: Replace}`,
		}, {
			name: "replace_on_change_without_boot_data",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {onChange: Replace}`,
			refusal: `onChange Replace needs boot data that can change: set type to cdrom, cloudinit or fwcfg, or remove onChange`,
		}, {
			name: "unknown_onChange",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, onChange: Restart}`,
			refusal: `supported values: "Ignore", "Replace"`,
		}, {
			name: "fwcfg_without_templatesRef",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: fwcfg}`,
			refusal: `type fwcfg needs templatesRef: the Secret with the key user-data, in Butane or Ignition`,
		}, {
			name: "cloudInit_without_type",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: none, cloudInit: {user: ops}}`,
			refusal: `cloudInit is only used with type cloudinit: set type to cloudinit or remove cloudInit`,
		}, {
			name: "cloudinit_with_templatesRef",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, templatesRef: {name: ubuntu-k8s, namespace: kube-system}}`,
			refusal: `type cloudinit renders no templates, Proxmox generates the boot data: remove templatesRef and valuesRef, or set type to cdrom`,
		}, {
			name: "storage_with_cloudinit",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, storage: local}`,
			refusal: `storage is only used with types cdrom and fwcfg`,
		}, {
			name: "user_snippet_and_user",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {user: ops, snippets: {user: "local:snippets/user.yaml"}}}`,
			refusal: `snippets.user replaces what Proxmox generates from user, sshKeys, sshKeysRef and packageUpgrade`,
		}, {
			name: "network_snippet_and_network",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {dnsServers: [192.168.0.53]}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {network: "local:snippets/network.yaml"}}}`,
			refusal: `metadataOptions.cloudInit.snippets.network replaces the settings of network: remove one of them`,
		}, {
			name: "snippet_is_path",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {vendor: /var/lib/vz/snippets/worker.yaml}}}`,
			refusal: `spec.metadataOptions.cloudInit.snippets.vendor`,
		}, {
			name: "empty_snippets",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {}}}`,
			refusal: `spec.metadataOptions.cloudInit.snippets`,
		}, {
			name: "private_key",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cloudinit, cloudInit: {sshKeys: ["-----BEGIN OPENSSH PRIVATE KEY-----"]}}`,
			refusal: `spec.metadataOptions.cloudInit.sshKeys[0]`,
		}, {
			name: "cidr_without_prefix",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 192.168.0.0}}]}`,
			refusal: `cidr must be a subnet with its prefix, like 192.168.0.0/24`,
		}, {
			name: "IPv6_cidr_for_IPv4",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: "2001:db8::/64"}}]}`,
			refusal: `address4.cidr must be an IPv4 subnet, like 192.168.0.0/24`,
		}, {
			name: "IPv4_cidr_for_IPv6",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address6: {cidr: 10.0.0.0/24}}]}`,
			refusal: `address6.cidr must be an IPv6 subnet, like 2001:db8::/64`,
		}, {
			name: "SLAAC_for_IPv4",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: SLAAC}}]}`,
			refusal: `method SLAAC exists for IPv6 only`,
		}, {
			name: "cidr_and_method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: DHCP, cidr: 10.0.0.0/24}}]}`,
			refusal: `set either cidr (every VM gets its own address from it) or method`,
		}, {
			name: "neither_cidr_nor_method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {}}]}`,
			refusal: `set either cidr (every VM gets its own address from it) or method`,
		}, {
			name: "gateway_with_DHCP",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: DHCP, gateway: 10.0.0.1}}]}`,
			refusal: `ranges, exclude and gateway are only used with a cidr`,
		}, {
			name: "gateway_with_prefix",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24, gateway: 10.0.0.1/24}}]}`,
			refusal: `gateway must be an address without a prefix, like 192.168.0.1`,
		}, {
			name: "invalid_range",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24, ranges: [all]}}]}`,
			refusal: `spec.network.interfaces[0].address4.ranges[0]`,
		}, {
			name: "invalid_interface_name",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: eth0, address4: {method: DHCP}}]}`,
			refusal: `spec.network.interfaces[0].name`,
		}, {
			name: "unknown_method",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {method: Static}}]}`,
			refusal: `supported values: "DHCP", "SLAAC", "None"`,
		}, {
			name: "duplicate_interface",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {interfaces: [{name: net0, address4: {cidr: 10.0.0.0/24}}, {name: net0, address4: {cidr: 10.0.1.0/24}}]}`,
			refusal: `spec.network.interfaces[1]: Duplicate value`,
		}, {
			name: "DNS_server_by_name",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
network: {dnsServers: [dns.example.com]}`,
			refusal: "dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53",
		}, {
			name:    "no_template",
			spec:    `{region: a}`,
			refusal: "spec.instanceTemplateRef: Required value",
		}, {
			name:    "pinning_without_numa",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: None, pinning: Exclusive}}`,
			refusal: "pinning Exclusive needs numa Bind",
		}, {
			name:    "hugepages_without_numa",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: None, hugepages: 2Mi}}`,
			refusal: "hugepages need numa Bind",
		}, {
			name:    "unknown_hugepage_size",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {hugepages: 4Mi}}`,
			refusal: `supported values: "2Mi", "1Gi"`,
		}, {
			name: "SameCell_with_numa",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, cpu: {numa: Bind}, placementStrategy: {poolAffinity: SameCell}}`,
		}, {
			name:    "SameCell_without_numa",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {poolAffinity: SameCell}}`,
			refusal: "poolAffinity SameCell needs VMs that are bound to NUMA cells",
		}, {
			name: "reserve",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {reserve: LargestHost}}`,
		}, {
			name:    "unknown_reserve",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {reserve: AllHosts}}`,
			refusal: `supported values: "None", "LargestHost"`,
		}, {
			name: "VM_sizes",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {policy: Exact, min: {cpu: 2, memory: 1024Mi}, max: {cpu: 32, memory: 1Gi}, step: {cpu: 2, memory: 512Mi}, memoryPerCPU: {min: 512Mi, max: 8Gi}, headroomPercent: 20}}`,
		}, {
			name:    "minimum_of_CPUs_above_maximum",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {min: {cpu: 8}, max: {cpu: 4}}}`,
			refusal: "min.cpu must not be greater than max.cpu",
		}, {
			name:    "minimum_of_memory_above_maximum",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {min: {memory: 2Gi}, max: {memory: 1024Mi}}}`,
			refusal: "min.memory must not be greater than max.memory",
		}, {
			name:    "minimum_ratio_above_maximum",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {memoryPerCPU: {min: 2Gi, max: 1Gi}}}`,
			refusal: "memoryPerCPU.min must not be greater than memoryPerCPU.max",
		}, {
			name:    "step_of_zero_CPUs",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {step: {cpu: 0}}}`,
			refusal: "spec.vmSize.step.cpu: Invalid value: 0: spec.vmSize.step.cpu in body should be greater than or equal to 1",
		}, {
			name:    "step_of_zero_memory",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {step: {memory: 0Mi}}}`,
			refusal: "spec.vmSize.step.memory: Invalid value",
		}, {
			name:    "unknown_size_policy",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, vmSize: {policy: Small}}`,
			refusal: `supported values: "Exact", "InstanceType"`,
		}, {
			name:    "unknown_template_kind",
			spec:    `{instanceTemplateRef: {kind: Image, name: default}}`,
			refusal: `supported values: "ProxmoxTemplate", "ProxmoxUnmanagedTemplate"`,
		}, {
			name:    "unknown_field",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootdevice: {}}`,
			refusal: `unknown field "spec.bootdevice"`,
		}, {
			name:    "cdrom_without_templates",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: cdrom}}`,
			refusal: "type cdrom needs templatesRef",
		}, {
			name: "templates_without_namespace",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
metadataOptions: {type: cdrom, templatesRef: {name: a}}`,
			refusal: "spec.metadataOptions.templatesRef.namespace: Required value",
		}, {
			name:    "unknown_metadata_type",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {type: floppy}}`,
			refusal: `supported values: "none", "cdrom"`,
		}, {
			name:    "cache_with_plan9",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, shares: [{mapping: data, type: plan9, cache: never}]}`,
			refusal: "cache is only used with type virtiofs",
		}, {
			name:    "storage_without_cdrom",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, metadataOptions: {storage: local}}`,
			refusal: "storage is only used with types cdrom and fwcfg",
		}, {
			name:    "size_without_unit",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootDevice: {size: "30"}}`,
			refusal: "spec.bootDevice.size",
		}, {
			name:    "size_in_megabytes",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, bootDevice: {size: 30000M}}`,
			refusal: "spec.bootDevice.size",
		}, {
			name:    "tag_with_separator",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, tags: ["a;b"]}`,
			refusal: "spec.tags[0]",
		}, {
			name:    "too_many_tags",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, tags: [a, b, c, d, e, f, g, h, i, j, k]}`,
			refusal: "spec.tags: Too many: 11",
		}, {
			name:    "unanchored_interface_name",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, securityGroups: [{name: kubernetes, interface: xnet0y}]}`,
			refusal: "spec.securityGroups[0].interface",
		}, {
			name:    "resource_pool_too_deep",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, resourcePool: a/b/c/d}`,
			refusal: "spec.resourcePool",
		}, {
			name:    "unnamed_security_group",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, securityGroups: [{interface: net0}]}`,
			refusal: "spec.securityGroups[0].name: Required value",
		}, {
			name:    "unknown_balance",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, placementStrategy: {zoneBalance: Random}}`,
			refusal: `supported values: "Balanced", "AvailabilityFirst"`,
		}, {
			name:    "empty_region",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, region: ""}`,
			refusal: "spec.region",
		}, {
			name: "crossed_thresholds",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration: {imageGCHighThresholdPercent: 70, imageGCLowThresholdPercent: 80}`,
			refusal: "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent",
		}, {
			name: "invalid_duration",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
kubeletConfiguration: {shutdownGracePeriod: 1 day}`,
			refusal: "spec.kubeletConfiguration.shutdownGracePeriod",
		}, {
			name:    "too_few_pods",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, kubeletConfiguration: {maxPods: 5}}`,
			refusal: "spec.kubeletConfiguration.maxPods",
		}, {
			name:    "pods_without_number",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, kubeletConfiguration: {maxPods: true}}`,
			refusal: "spec.kubeletConfiguration.maxPods",
		}, {
			name:    "reservation_as_number",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, kubeletConfiguration: {kubeReserved: {cpu: 1}}}`,
			refusal: "spec.kubeletConfiguration.kubeReserved.cpu",
		},
	}
}
