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

// badInput is something that people get wrong in a NodeClass, or in what it names, and
// that the API server cannot see.
type badInput struct {
	// userData of the class's templates; the world's own when empty.
	userData string
	class    func(*v1alpha1.ProxmoxNodeClass)
	scenario func(*pvesim.Scenario)
	// condition that tells it; NAME in its message is the world's.
	condition, reason, want string
}

// badUserData is told with the name of the Secret.
func badUserData(userData, want string) badInput {
	return badInput{
		userData: userData, condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
		want: "rendering secret NAME/templates of spec.metadataOptions.templatesRef: " + want,
	}
}

// badNetwork is told for each Host: the template may be another one there.
func badNetwork(class func(*v1alpha1.ProxmoxNodeClass), want string) badInput {
	return badInput{
		class: class, condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonNetworkInvalid, want: "region-1/pve1: " + want,
		scenario: templates("net1", "virtio=BC:24:11:00:00:02,bridge=vmbr0"),
	}
}

func subnets(cidrs ...string) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{}
		for n, cidr := range cidrs {
			c.Spec.Network.Interfaces = append(c.Spec.Network.Interfaces, v1alpha1.InterfaceAddresses{
				Name: []string{"net0", "net1", "net2"}[n], Address4: &v1alpha1.AddressSource{CIDR: cidr},
			})
		}
	}
}

func TestEveryBadInputIsToldByTheClass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]badInput{
		"templates that are not there": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.TemplatesRef.Name = "nowhere" },
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
			want: `reading secret NAME/nowhere of spec.metadataOptions.templatesRef: secrets "nowhere" not found`,
		},
		"values that are not there": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: c.Spec.MetadataOptions.TemplatesRef.Namespace, Name: "nothing"}
			},
			condition: v1alpha1.ConditionInstanceMetadataOptionsReady, reason: v1alpha1.ReasonMetadataOptionsNotFound,
			want: `reading secret NAME/nothing of spec.metadataOptions.valuesRef: secrets "nothing" not found`,
		},
		"a template that does not parse": badUserData("#cloud-config\nhostname: {{ .Metadata.Hostname \n", `user-data: line 3: unclosed action started at user-data:2`),
		"an unknown variable":            badUserData("#cloud-config\n\nhostname: {{ .Metadata.Hostnam }}\n", `user-data: line 3, column 22: Metadata has no field "Hostnam"`),
		"a value that is not there":      badUserData("#cloud-config\nhostname: {{ .Values.domain }}\n", `user-data: line 2, column 20: missing key "domain"; valuesRef has no keys`),
		"an unknown function":            badUserData("#cloud-config\nhostname: {{ dict }}\n", `user-data: line 2: function "dict" not defined`),
		"boot data that is no YAML":      badUserData("#cloud-config\nhostname: a: b\n", `user-data: line 2: does not render to valid YAML: mapping values are not allowed in this context`),
		"boot data that is too large":    badUserData("#cloud-config\n{{ range 9000 }}# {{ printf \"%200d\" 1 }}\n{{ end }}", `user-data: renders to more than the 1048576 bytes allowed`),
		"Butane with an unknown key":     badUserData("variant: fcos\nversion: 1.6.0\nstorage:\n  fils: []\n", `user-data: line 4, column 3: Butane: there is no key "fils" here`),
		"Butane with a bad value":        badUserData("variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: relative\n", `user-data: line 5, column 13: Butane, at $.storage.files.0.path: path not absolute`),
		"Ignition of an unknown version": badUserData(`{"ignition": {"version": "9.9.9"}}`, `user-data: Ignition: unsupported config version`),
		"a storage that is not there": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Storage = "nas" },
			condition: v1alpha1.ConditionStorageReady, reason: v1alpha1.ReasonStorageUnsuitable,
			want: `region-1/pve1: spec.bootDevice.storage "nas" is not on this host, which has local, local-lvm`,
		},
		"a CIDR that is none": badNetwork(subnets("10.0.0.0/33"), `spec.network.interfaces[0].address4.cidr "10.0.0.0/33" is none: want a subnet such as 192.168.0.0/24 or 2001:db8::/64`),
		"a CIDR without room": badNetwork(net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/30", Exclude: []string{"10.0.0.0/30"}}), `spec.network.interfaces[0].address4.cidr 10.0.0.0/30 has no address left for a VM: the network, the broadcast and the gateway address and the exclusions take all`),
		"a range elsewhere": badNetwork(net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.9.0/24"}}),
			`spec.network.interfaces[0].address4.ranges[0] "10.0.9.0/24" is not inside 10.0.0.0/24`),
		"a gateway elsewhere": badNetwork(net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Gateway: "10.0.1.1"}),
			`spec.network.interfaces[0].address4.gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it`),
		"pools that overlap": badNetwork(subnets("10.0.0.0/16", "10.0.7.0/24"),
			`spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[1].address4 (10.0.7.0/24) overlap: each interface needs a subnet of its own`),
		"an interface that is not there": badNetwork(subnets("10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"),
			`spec.network.interfaces[2].name net2 is no interface of the template, which has net0, net1`),
		"a gateway elsewhere, in the template": {
			scenario:  templates("ipconfig0", "ip=10.0.0.0/24,gw=10.0.1.1"),
			condition: v1alpha1.ConditionNetworkReady, reason: v1alpha1.ReasonNetworkInvalid,
			want: "region-1/pve1: ipconfig0 of the template: gateway 10.0.1.1 is not inside 10.0.0.0/24: VMs could not reach it",
		},
		"a security group that is not there": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net0"}}
			},
			condition: v1alpha1.ConditionSecurityGroupsReady, reason: v1alpha1.ReasonSecurityGroupsNotFound,
			want: `region-1: spec.securityGroups: security group "web" is not there; run: pvesh create /cluster/firewall/groups --group web, and give it rules`,
		},
		"a directory mapping that is not there": {
			scenario:  directories(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=/tank"}}),
			class:     sharing("data", "cache"),
			condition: v1alpha1.ConditionSharesReady, reason: v1alpha1.ReasonDirectoriesNotFound,
			want: `region-1: spec.shares[1].mapping: directory mapping "cache" does not exist; ` +
				"run: pvesh create /cluster/mapping/dir --id cache --map node=HOST,path=DIRECTORY, with a --map for each host",
		},
		"a resource pool that is not there": {
			class:     func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.ResourcePool = "team/k8s" },
			condition: v1alpha1.ConditionResourcePoolReady, reason: v1alpha1.ReasonResourcePoolNotFound,
			want: `region-1: spec.resourcePool "team/k8s" does not exist; run: pveum pool add team/k8s`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.isTold(t)
		})
	}
}

// isTold: by one condition and by Ready, and by no other.
func (c badInput) isTold(t *testing.T) {
	t.Helper()
	options := []testenv.Option{testenv.NoPolling()}
	if c.scenario != nil {
		options = append(options, testenv.Scenario(c.scenario))
	}
	w := testenv.New(t, options...)
	found(w, "region-1/pve1/9000")
	if c.userData != "" {
		secret := testenv.Reload(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})
		secret.Data = map[string][]byte{"user-data": []byte(c.userData)}
		w.Expect(w.Kube.Update(t.Context(), secret)).To(Succeed())
	}
	changes := []func(*v1alpha1.ProxmoxNodeClass){}
	if c.class != nil {
		changes = append(changes, c.class)
	}
	class := checked(w, w.NewClass(changes...))
	w.Refresh() // pools and mappings are looked up once somebody asks
	class = checked(w, class)
	for _, condition := range class.Status.Conditions {
		w.Expect(condition.IsFalse()).To(Equal(condition.Type == c.condition || condition.Type == operatorstatus.ConditionReady), "%s: %s", condition.Type, condition.Message)
	}
	got, want := class.StatusConditions().Get(c.condition), replaceName(c.want, w.Name)
	w.Expect(got.Message).To(Equal(want))
	w.Expect(got.Reason).To(Equal(c.reason))
	w.Expect(message(class, operatorstatus.ConditionReady)).To(Equal(c.condition + ": " + want))
	inZone := c.condition != v1alpha1.ConditionInstanceMetadataOptionsReady
	w.Expect(len(class.Status.UnusableZones) == 1).To(Equal(inZone), "boot data is not a matter of hosts")
	w.Expect(len(class.Status.SelectedZones) == 0).To(Equal(inZone))
}
