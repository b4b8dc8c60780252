// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

var nodeClassCases = admissionCases{
	"minimal": {spec: `instanceTemplateRef: {kind: ProxmoxUnmanagedTemplate, name: default}`},
	// testdata/hashes has NodeClasses and templates with the other fields.
	"all_fields": {spec: `
kubeletConfiguration: {shutdownGracePeriod: 1m30s, clusterDNS: [10.96.0.10, "fd00::10"], imageGCHighThresholdPercent: 85}
cpu: {numa: Bind, pinning: Exclusive, hugepages: 1Gi}
bootDevice: {size: 30Gi, storage: local-lvm}
securityGroups: [{name: kubernetes, interface: net0}, {name: public, interface: net1}]
resourcePool: team/kubernetes
network:
  dnsServers: [192.168.0.53, "2001:db8::53"]
  interfaces:
  - name: net0
    address4: {cidr: 192.168.0.0/24, exclude: [192.168.0.60], gateway: 192.168.0.1,
      ranges: [192.168.0.50-192.168.0.99, 192.168.0.128/26, 192.168.0.10]}
    address6: {cidr: "2001:db8::/64", gateway: "fe80::1"}
  - {name: net1, address4: {method: DHCP}, address6: {method: SLAAC}}
  - {name: net2, address4: {cidr: 203.0.113.5/32, gateway: 172.31.1.1}, address6: {method: None}}`},
	"all_kubelet_fields": {spec: `
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
  featureGates: {MemoryQoS: true}`},
	"templatesRef_without_cdrom": {spec: `metadataOptions: {type: none, templatesRef: {name: ubuntu-k8s, namespace: kube-system}}`},
	"cloudinit_drive": {spec: `
network: {dnsServers: [192.168.0.53]}
metadataOptions:
  type: cloudinit
  cloudInit:
    user: ops
    sshKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn me@example.com"]
    sshKeysRef: {name: keys, namespace: kube-system}
    packageUpgrade: true
    snippets: {vendor: "local:snippets/worker.yaml", meta: "nfs:snippets/meta"}
    storage: local-lvm`},
	"cloudinit_drive_of_template": {spec: `metadataOptions: {type: cloudinit}`},
	"fwcfg":                       {spec: `metadataOptions: {type: fwcfg, templatesRef: {name: flatcar, namespace: kube-system}, storage: local}`},
	"replace_on_change":           {spec: `metadataOptions: {type: cdrom, templatesRef: {name: ubuntu-k8s, namespace: kube-system}, onChange: Replace}`},
	"replace_on_change_without_boot_data": {`metadataOptions: {onChange: Replace}`,
		"onChange Replace needs boot data that can change: set type to cdrom, cloudinit or fwcfg, or remove onChange"},
	"fwcfg_without_templatesRef": {`metadataOptions: {type: fwcfg}`,
		"type fwcfg needs templatesRef: the Secret with the key user-data, in Butane or Ignition"},
	"cloudInit_without_type": {`metadataOptions: {type: none, cloudInit: {user: ops}}`,
		"cloudInit is only used with type cloudinit: set type to cloudinit or remove cloudInit"},
	"network_snippet_and_network": {`
network: {dnsServers: [192.168.0.53]}
metadataOptions: {type: cloudinit, cloudInit: {snippets: {network: "local:snippets/network.yaml"}}}`,
		"metadataOptions.cloudInit.snippets.network replaces the settings of network: remove one of them"},
	"IPv4_cidr_for_IPv6": {`network: {interfaces: [{name: net0, address6: {cidr: 10.0.0.0/24}}]}`,
		"address6.cidr must be an IPv6 subnet, like 2001:db8::/64"},
	"invalid_interface_name": {`network: {interfaces: [{name: eth0, address4: {method: DHCP}}]}`,
		"spec.network.interfaces[0].name"},
	"DNS_server_by_name": {`network: {dnsServers: [dns.example.com]}`,
		"dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53"},
	"no_template":            {`{instanceTemplateRef: null, region: a}`, "spec.instanceTemplateRef: Required value"},
	"pinning_without_numa":   {`cpu: {numa: None, pinning: Exclusive}`, "pinning Exclusive needs numa Bind"},
	"hugepages_without_numa": {`cpu: {numa: None, hugepages: 2Mi}`, "hugepages need numa Bind"},
	"unknown_hugepage_size":  {`cpu: {hugepages: 4Mi}`, `supported values: "2Mi", "1Gi"`},
	"SameCell_with_numa":     {spec: `{cpu: {numa: Bind}, placementStrategy: {poolAffinity: SameCell}}`},
	"SameCell_without_numa": {`placementStrategy: {poolAffinity: SameCell}`,
		"poolAffinity SameCell needs VMs that are bound to NUMA cells"},
	"reserve":         {spec: `placementStrategy: {reserve: LargestHost}`},
	"unknown_reserve": {`placementStrategy: {reserve: AllHosts}`, `supported values: "None", "LargestHost"`},
	"VM_sizes":        {spec: `vmSize: {policy: Exact, min: {cpu: 2, memory: 1024Mi}, max: {cpu: 32, memory: 1Gi}, step: {cpu: 2, memory: 512Mi}, memoryPerCPU: {min: 512Mi, max: 8Gi}, headroomPercent: 20}`},
	"minimum_of_CPUs_above_maximum": {`vmSize: {min: {cpu: 8}, max: {cpu: 4}}`,
		"min.cpu must not be greater than max.cpu"},
	"minimum_of_memory_above_maximum": {`vmSize: {min: {memory: 2Gi}, max: {memory: 1024Mi}}`,
		"min.memory must not be greater than max.memory"},
	"minimum_ratio_above_maximum": {`vmSize: {memoryPerCPU: {min: 2Gi, max: 1Gi}}`,
		"memoryPerCPU.min must not be greater than memoryPerCPU.max"},
	"step_of_zero_CPUs": {`vmSize: {step: {cpu: 0}}`,
		"spec.vmSize.step.cpu: Invalid value: 0: spec.vmSize.step.cpu in body should be greater than or equal to 1"},
	"step_of_zero_memory": {`vmSize: {step: {memory: 0Mi}}`, "spec.vmSize.step.memory: Invalid value"},
	"unknown_size_policy": {`vmSize: {policy: Small}`, `supported values: "Exact", "InstanceType"`},
	"unknown_template_kind": {`instanceTemplateRef: {kind: Image, name: default}`,
		`supported values: "ProxmoxTemplate", "ProxmoxUnmanagedTemplate"`},
	"cdrom_without_templates": {`metadataOptions: {type: cdrom}`, "type cdrom needs templatesRef"},
	"templates_without_namespace": {`metadataOptions: {type: cdrom, templatesRef: {name: a}}`,
		"spec.metadataOptions.templatesRef.namespace: Required value"},
	"unknown_metadata_type": {`metadataOptions: {type: floppy}`, `supported values: "none", "cdrom"`},
	"duplicate_interface": {`network: {interfaces: [{name: net0}, {name: net0, address4: {cidr: 10.0.1.0/24}}]}`,
		"spec.network.interfaces[1]: Duplicate value"},
	"cache_with_plan9": {`shares: [{mapping: data, type: plan9, cache: never}]`,
		"cache is only used with type virtiofs"},
	"storage_without_cdrom": {`metadataOptions: {storage: local}`, "storage is only used with types cdrom and fwcfg"},
	"size_without_unit":     {`bootDevice: {size: "30"}`, "spec.bootDevice.size"},
	"size_in_megabytes":     {`bootDevice: {size: 30000M}`, "spec.bootDevice.size"},
	"tag_with_separator":    {`tags: ["a;b"]`, "spec.tags[0]"},
	"too_many_tags":         {`tags: [a, b, c, d, e, f, g, h, i, j, k]`, "spec.tags: Too many: 11"},
	"unanchored_interface_name": {`securityGroups: [{name: kubernetes, interface: xnet0y}]`,
		"spec.securityGroups[0].interface"},
	"resource_pool_too_deep": {`resourcePool: a/b/c/d`, "spec.resourcePool"},
	"unnamed_security_group": {`securityGroups: [{interface: net0}]`, "spec.securityGroups[0].name: Required value"},
	"unknown_balance": {`placementStrategy: {zoneBalance: Random}`,
		`supported values: "Balanced", "AvailabilityFirst"`},
	"empty_region": {`region: ""`, "spec.region"},
	"crossed_thresholds": {`kubeletConfiguration: {imageGCHighThresholdPercent: 70, imageGCLowThresholdPercent: 80}`,
		"imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"},
	"invalid_duration": {`kubeletConfiguration: {shutdownGracePeriod: 1 day}`,
		"spec.kubeletConfiguration.shutdownGracePeriod"},
	"too_few_pods":        {`kubeletConfiguration: {maxPods: 5}`, "spec.kubeletConfiguration.maxPods"},
	"pods_without_number": {`kubeletConfiguration: {maxPods: true}`, "spec.kubeletConfiguration.maxPods"},
	"reservation_as_number": {`kubeletConfiguration: {kubeReserved: {cpu: 1}}`,
		"spec.kubeletConfiguration.kubeReserved.cpu"},
}

// addressCases are NodeClasses with an IPv4 address.
var addressCases = admissionCases{
	"cidr_without_prefix": {`cidr: 192.168.0.0`, "cidr must be a subnet with its prefix, like 192.168.0.0/24"},
	"IPv6_cidr_for_IPv4":  {`cidr: "2001:db8::/64"`, "address4.cidr must be an IPv4 subnet, like 192.168.0.0/24"},
	"SLAAC_for_IPv4":      {`method: SLAAC`, "method SLAAC exists for IPv6 only"},
	"cidr_and_method": {`method: DHCP, cidr: 10.0.0.0/24`,
		"set either cidr (every VM gets its own address from it) or method"},
	"neither_cidr_nor_method": {``, "set either cidr (every VM gets its own address from it) or method"},
	"gateway_with_DHCP": {`method: DHCP, gateway: 10.0.0.1`,
		"ranges, exclude and gateway are only used with a cidr"},
	"gateway_with_prefix": {`cidr: 10.0.0.0/24, gateway: 10.0.0.1/24`,
		"gateway must be an address without a prefix, like 192.168.0.1"},
	"invalid_range":  {`cidr: 10.0.0.0/24, ranges: [all]`, "spec.network.interfaces[0].address4.ranges[0]"},
	"unknown_method": {`method: Static`, `supported values: "DHCP", "SLAAC", "None"`},
}.within(`network: {interfaces: [{name: net0, address4: {`, `}}]}`)

// cloudInitCases are NodeClasses with cloud-init drives.
var cloudInitCases = admissionCases{
	"unknown_onChange": {`onChange: Restart`, `supported values: "Ignore", "Replace"`},
	"cloudinit_with_templatesRef": {`templatesRef: {name: ubuntu-k8s, namespace: kube-system}`,
		"type cloudinit renders no templates, Proxmox generates the boot data: remove templatesRef and valuesRef, or set type to cdrom"},
	"storage_with_cloudinit": {`storage: local`, "storage is only used with types cdrom and fwcfg"},
	"user_snippet_and_user": {`cloudInit: {user: ops, snippets: {user: "local:snippets/user.yaml"}}`,
		"snippets.user replaces what Proxmox generates from user, sshKeys, sshKeysRef and packageUpgrade"},
	"snippet_is_path": {`cloudInit: {snippets: {vendor: /var/lib/vz/snippets/worker.yaml}}`,
		"spec.metadataOptions.cloudInit.snippets.vendor"},
	"empty_snippets": {`cloudInit: {snippets: {}}`, "spec.metadataOptions.cloudInit.snippets"},
	"private_key": {`cloudInit: {sshKeys: ["-----BEGIN OPENSSH PRIVATE KEY-----"]}`,
		"spec.metadataOptions.cloudInit.sshKeys[0]"},
}.within(`metadataOptions: {type: cloudinit, `, `}`)
