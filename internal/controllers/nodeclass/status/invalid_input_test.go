// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// invalidInput is an invalid NodeClass, or invalid input that it refers to, which the
// API server cannot validate.
type invalidInput struct {
	// userData of the class's templates; the default of the environment when empty.
	userData string
	class    func(*v1alpha1.ProxmoxNodeClass)
	scenario func(*pvesim.Scenario)
	// condition that reports it; NAME in its message is the name of the environment.
	condition, reason, want string
}

// invalidUserData is reported with the name of the Secret.
func invalidUserData(userData, want string) invalidInput {
	return invalidInput{
		userData: userData, condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
		want: "rendering secret NAME/templates of spec.metadataOptions.templatesRef: " + want,
	}
}

// invalidNetwork is reported per Host, since templates may differ.
func invalidNetwork(class func(*v1alpha1.ProxmoxNodeClass), want string) invalidInput {
	return invalidInput{
		class: class, condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonNetworkInvalid, want: "region-1/pve1: " + want,
		scenario: setTemplateOption("net1", "virtio=BC:24:11:00:00:02,bridge=vmbr0"),
	}
}

// invalidKubelet is reported with the field, its value and what is allowed.
func invalidKubelet(k v1alpha1.KubeletConfiguration, want string) invalidInput {
	return invalidInput{
		class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.KubeletConfiguration = &k },
		condition: v1alpha1.ConditionKubeletConfigurationValid, reason: v1alpha1.ReasonKubeletConfigurationInvalid, want: "spec.kubeletConfiguration." + want,
	}
}

func withSubnets(cidrs ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{}
		for n, cidr := range cidrs {
			c.Spec.Network.Interfaces = append(c.Spec.Network.Interfaces, v1alpha1.VMInterface{
				Name: []string{"net0", "net1", "net2"}[n], Address4: &v1alpha1.AddressSource{CIDR: cidr},
			})
		}
	}
}

func withInterface(nic v1alpha1.VMInterface) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{nic}}
	}
}

func TestReconcileInvalidInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]invalidInput{
		"unknown_templates_secret": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.TemplatesRef.Name = "nowhere" },
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
			want: `reading secret NAME/nowhere of spec.metadataOptions.templatesRef: secrets "nowhere" not found`,
		},
		"unknown_values_secret": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: c.Spec.MetadataOptions.TemplatesRef.Namespace, Name: "nothing"}
			},
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
			want: `reading secret NAME/nothing of spec.metadataOptions.valuesRef: secrets "nothing" not found`,
		},
		"template_syntax":          invalidUserData("#cloud-config\nhostname: {{ .Metadata.Hostname \n", `user-data: line 3: unclosed action started at user-data:2`),
		"unknown_variable":         invalidUserData("#cloud-config\n\nhostname: {{ .Metadata.Hostnam }}\n", `user-data: line 3, column 22: Metadata has no field "Hostnam"`),
		"unknown_value":            invalidUserData("#cloud-config\nhostname: {{ .Values.domain }}\n", `user-data: line 2, column 20: missing key "domain"; valuesRef has no keys`),
		"unknown_function":         invalidUserData("#cloud-config\nhostname: {{ dict }}\n", `user-data: line 2: function "dict" not defined`),
		"invalid_YAML":             invalidUserData("#cloud-config\nhostname: a: b\n", `user-data: line 2: does not render to valid YAML: mapping values are not allowed in this context`),
		"boot_data_too_large":      invalidUserData("#cloud-config\n{{ range 9000 }}# {{ printf \"%200d\" 1 }}\n{{ end }}", `user-data: renders to more than the 1048576 bytes allowed`),
		"Butane_unknown_key":       invalidUserData("variant: fcos\nversion: 1.6.0\nstorage:\n  fils: []\n", `user-data: line 4, column 3: Butane: there is no key "fils" here`),
		"Butane_invalid_value":     invalidUserData("variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: relative\n", `user-data: line 5, column 13: Butane, at $.storage.files.0.path: path not absolute`),
		"Ignition_unknown_version": invalidUserData(`{"ignition": {"version": "9.9.9"}}`, `user-data: Ignition: unsupported config version`),
		"unknown_kubelet_field": invalidKubelet(v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPod": "50"}},
			`maxPod: found 50; the kubelet's configuration (kubelet.config.k8s.io/v1beta1, Kubernetes 1.36) has no such field; did you mean maxPods?`),
		"invalid_kubelet_duration": invalidKubelet(v1alpha1.KubeletConfiguration{Fields: map[string]string{"syncFrequency": `"10x"`}},
			`syncFrequency: found "10x"; want a duration such as "10s" or "1m30s" (time: unknown unit "x" in duration "10x")`),
		"kubelet_expression_syntax": invalidKubelet(v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPods": `"cpus * 10"`}},
			`maxPods: found "cpus * 10"; want a number from 10 to 250, or a CEL expression over cpu (vCPUs) and memory (bytes), such as math.least(110, cpu * 30): 1:1: undeclared reference to 'cpus' (in container '')`),
		"kubelet_expression_negative": invalidKubelet(v1alpha1.KubeletConfiguration{KubeReserved: map[string]string{"memory": "memory - 300 * Gi"}},
			`kubeReserved.memory: found "memory - 300 * Gi"; it is -319975063552: want 0 or more for a VM with 1 vCPUs and 2Gi of memory; want a quantity such as 100m or 512Mi, or a CEL expression over cpu (vCPUs) and memory (bytes), such as 256 * Mi + memory / 50`),
		"unknown_storage": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "nas" },
			condition: v1alpha1.ConditionStorageReady, reason: v1alpha1.ReasonStorageUnsuitable,
			want: `region-1/pve1: spec.bootDevice.storage "nas" is not on this host, which has local, local-lvm`,
		},
		"unknown_storage_of_disk": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "1Gi", Storages: []string{"nas", "ceph"}}}
			},
			condition: v1alpha1.ConditionStorageReady, reason: v1alpha1.ReasonStorageUnsuitable,
			want: "region-1/pve1: spec.disks[name=data].storages lists nas, ceph, none of which is on this host with the content type images; the host has local (dir), local-lvm (lvmthin)",
		},
		"invalid_storage_selector": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.StorageSelector = "storage.typ == 'rbd'" },
			condition: v1alpha1.ConditionStorageReady, reason: v1alpha1.ReasonStorageUnsuitable,
			want: `spec.bootDevice.storageSelector "storage.typ == 'rbd'" is invalid: 1:1: undeclared reference to 'storage' (in container ''); ` +
				"want a CEL expression over storage.name, storage.type, storage.free (bytes) and storage.shared that is true or false",
		},
		"IO_thread_of_shared_controller": {
			scenario: setTemplateOption("scsihw", "virtio-scsi-pci"),
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "1Gi", DiskOptions: v1alpha1.DiskOptions{IOThread: new(true)}}}
			},
			condition: v1alpha1.ConditionInstanceTemplateReady, reason: v1alpha1.ReasonTemplatesNotFound,
			want: `region-1/pve1: template 9000 cannot be used: spec.disks[name=data].ioThread is true, but the disk scsi1 is on the bus scsi with the SCSI controller "virtio-scsi-pci"; ` +
				"it needs the bus virtio, or the bus scsi and the controller virtio-scsi-single: qm set TEMPLATE --scsihw virtio-scsi-single",
		},
		"invalid_CIDR":              invalidNetwork(withSubnets("10.0.0.0/33"), `spec.network.interfaces[0].address4.cidr "10.0.0.0/33" is not a subnet: want a subnet such as 192.168.0.0/24 or 2001:db8::/64`),
		"CIDR_without_free_address": invalidNetwork(withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/30", Exclude: []string{"10.0.0.0/30"}}), `spec.network.interfaces[0].address4.cidr 10.0.0.0/30 has no address left for a VM: the network, broadcast and gateway addresses and the exclusions cover all of it`),
		"range_outside_CIDR": invalidNetwork(withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.9.0/24"}}),
			`spec.network.interfaces[0].address4.ranges[0] "10.0.9.0/24" is not inside 10.0.0.0/24`),
		"gateway_outside_CIDR": invalidNetwork(withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Gateway: "10.0.1.1"}),
			`spec.network.interfaces[0].address4.gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it`),
		"overlapping_address_pools": invalidNetwork(withSubnets("10.0.0.0/16", "10.0.7.0/24"),
			`spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[1].address4 (10.0.7.0/24) overlap: each interface needs its own subnet`),
		"unknown_interface": invalidNetwork(withSubnets("10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"),
			`spec.network.interfaces[2].name net2 is not an interface of the template, which has net0, net1: set bridge to create it`),
		"unknown_bridge_of_interface": {
			class:     withInterface(v1alpha1.VMInterface{Name: "net1", InterfaceDevice: v1alpha1.InterfaceDevice{Bridge: "vmbr7"}}),
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonBridgesNotFound,
			want: `region-1/pve1: bridge "vmbr7" of spec.network.interfaces[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`,
		},
		"routes_not_in_boot_data": {
			class:     withInterface(v1alpha1.VMInterface{Name: "net0", InterfaceRouting: v1alpha1.InterfaceRouting{PolicyRoutes: []v1alpha1.PolicyRoute{{From: "10.0.0.0/8", Table: 1, Priority: 1}}}}),
			userData:  "version: v1alpha1\nmachine: {type: worker}\n",
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
			want: `spec.network.interfaces[0].policyRoutes has no effect: user-data of secret NAME/templates of spec.metadataOptions.templatesRef does not use it, or its format cannot express it; add it to the template as the recipes do, or remove it from the class`,
		},
		"template_gateway_outside_CIDR": {
			scenario:  setTemplateOption("ipconfig0", "ip=10.0.0.0/24,gw=10.0.1.1"),
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonNetworkInvalid,
			want: "region-1/pve1: ipconfig0 of the template: gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it",
		},
		"unknown_security_group": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net0"}}
			},
			condition: v1alpha1.ConditionSecurityGroupsReady, reason: v1alpha1.ReasonSecurityGroupsNotFound,
			want: `region-1: spec.securityGroups: security group "web" does not exist; run: pvesh create /cluster/firewall/groups --group web, and add rules`,
		},
		"unknown_directory_mapping": {
			scenario:  withDirectories(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank"}}),
			class:     withShares("data", "cache"),
			condition: v1alpha1.ConditionSharesReady, reason: v1alpha1.ReasonDirectoriesNotFound,
			want: `region-1: spec.shares[1].mapping: directory mapping "cache" does not exist; ` +
				"run: pvesh create /cluster/mapping/dir --id cache --map node=HOST,path=DIRECTORY, with a --map for each host",
		},
		"unknown_resource_pool": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "team/k8s" },
			condition: v1alpha1.ConditionResourcePoolReady, reason: v1alpha1.ReasonResourcePoolNotFound,
			want: `region-1: spec.resourcePool "team/k8s" does not exist; run: pveum pool add team/k8s`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.check(t)
		})
	}
}

// check expects the input to be reported by its condition and by Ready only.
func (c invalidInput) check(t *testing.T) {
	t.Helper()
	w, class := newEnvWithClass(t, c.scenario, c.class)
	if c.userData != "" {
		secret := testenv.Reload(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})
		secret.Data = map[string][]byte{"user-data": []byte(c.userData)}
		w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
	}
	reconcileClass(w, class)
	w.Refresh() // resource pools and mappings are read once a class refers to them
	class = reconcileClass(w, class)
	for _, condition := range class.Status.Conditions {
		w.Expect(condition.IsFalse()).To(Equal(condition.Type == c.condition || condition.Type == operatorstatus.ConditionReady), "%s: %s", condition.Type, condition.Message)
	}
	got, want := class.StatusConditions().Get(c.condition), replaceName(c.want, w.Name)
	w.Expect(got.Message).To(Equal(want))
	w.Expect(got.Reason).To(Equal(c.reason))
	w.Expect(conditionMessage(class, operatorstatus.ConditionReady)).To(Equal(c.condition + ": " + want))
	inZone := c.condition != v1alpha1.ConditionInstanceMetadataOptionsReady && c.condition != v1alpha1.ConditionKubeletConfigurationValid
	w.Expect(len(class.Status.UnusableZones) == 1).To(Equal(inZone), "boot data does not depend on hosts")
	w.Expect(len(class.Status.SelectedZones) == 0).To(Equal(inZone))
}
