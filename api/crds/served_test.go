// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// createClass creates a NodeClass.
func createClass(t *testing.T, api client.Client, name string, spec v1alpha1.ProxmoxNodeClassSpec) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: "default"}
	class := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	NewWithT(t).Expect(api.Create(t.Context(), class)).To(Succeed())
	return class
}

// checkDefaults creates objects with unset fields, as a Go program would, and checks the defaults that the API server sets.
func checkDefaults(t *testing.T, api client.Client) {
	g := NewWithT(t)
	class := createClass(t, api, "defaults", v1alpha1.ProxmoxNodeClassSpec{SecurityGroups: []v1alpha1.SecurityGroup{{Name: "kubernetes"}}})
	template := &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: "https://example.com/a.qcow2"},
			StorageIDs:  []string{"local"},
			TPM:         &v1alpha1.TPM{},
			VGA:         &v1alpha1.VGA{},
			Agent:       &v1alpha1.Agent{Enabled: true},
			Network:     []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}},
		},
	}
	g.Expect(api.Create(t.Context(), template)).To(Succeed())
	for field, values := range map[string][2]any{
		"bootDevice.size":               {class.Spec.BootDevice.Size, v1alpha1.DiskSize("30G")},
		"placementStrategy.zoneBalance": {class.Spec.PlacementStrategy.ZoneBalance, v1alpha1.ZoneBalanceBalanced},
		"metadataOptions.type":          {class.Spec.MetadataOptions.Type, v1alpha1.MetadataTypeNone},
		"securityGroups[0].interface":   {class.Spec.SecurityGroups[0].Interface, "net0"},
		"machine":                       {template.Spec.Machine, "q35"},
		"bios":                          {template.Spec.BIOS, "seabios"},
		"tpm.version":                   {template.Spec.TPM.Version, "v2.0"},
		"vga.type":                      {template.Spec.VGA.Type, "std"},
		"agent.type":                    {template.Spec.Agent.Type, "virtio"},
		"cpu.type":                      {template.Spec.CPU.Type, "x86-64-v2-AES"},
		"network[0].model":              {template.Spec.Network[0].Model, "virtio"},
		"network[0].mtu":                {template.Spec.Network[0].MTU, uint16(1500)},
	} {
		g.Expect(values[0]).To(Equal(values[1]), field)
	}
}

// checkTransitions checks that the API server rejects changes that would separate machines from their data.
func checkTransitions(t *testing.T, api client.Client) {
	class := createClass(t, api, "transitions", v1alpha1.ProxmoxNodeClassSpec{
		Machines: []v1alpha1.Machine{{Name: "db-1", Zone: "pve1", Region: "home"}, {Name: "db-2", Zone: "pve2"}},
		Disks: []v1alpha1.Disk{
			{Name: "data", Size: "1Gi", Storage: "tank", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "tank"},
		},
	})
	for want, change := range map[string]func(*v1alpha1.ProxmoxNodeClassSpec){
		"": func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Machines[0], s.Machines[1] = s.Machines[1], v1alpha1.Machine{Name: "db-3", Zone: "pve1"}
			s.Disks[1].Storage, s.Disks[0].Size = "other", "2Gi"
		},
		"zone of a machine cannot be changed":                 func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Machines[0].Zone = "pve2" },
		"region of a machine cannot be changed":               func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Machines[0].Region = "other" },
		"storage of a disk with retain cannot be changed":     func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Disks[0].Storage = "other" },
		"a disk with retain belongs to a machine on one host": func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Machines = nil },
	} {
		changed := class.DeepCopy()
		change(&changed.Spec)
		err := api.Update(t.Context(), changed, client.DryRunAll)
		if want == "" {
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		} else {
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
		}
	}
}

func checkStatus(t *testing.T, api client.Client) {
	g := NewWithT(t)
	class := createClass(t, api, "status", v1alpha1.ProxmoxNodeClassSpec{})
	class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, "no such template")
	class.Status.SelectedZones = []string{"Region-1/pve1/9000"}
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "Region-1/pve2", Reason: "template talos does not exist"}}
	g.Expect(api.Status().Update(t.Context(), class.DeepCopy())).To(Succeed())

	stored := &v1alpha1.ProxmoxNodeClass{}
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(class), stored)).To(Succeed())
	g.Expect(stored.Status.UnusableZones).To(Equal(class.Status.UnusableZones))
	g.Expect(stored.Status.SelectedZones).To(Equal(class.Status.SelectedZones))
	g.Expect(stored.StatusConditions().Root().IsTrue()).To(BeFalse())
	g.Expect(stored.StatusConditions().Get(v1alpha1.ConditionInstanceTemplateReady).IsFalse()).To(BeTrue())
	g.Expect(stored.Generation).To(Equal(int64(1)), "a status update does not change the generation")
}

func checkFlags(t *testing.T, api client.Client) {
	g := NewWithT(t)
	for name, spec := range map[string]string{"flags-list": `cpu: {flags: ["+aes", "-pcid"]}`, "flags-scalar": `cpu: {flags: "+aes;-pcid"}`} {
		written := object(t, v1alpha1.ProxmoxTemplateKind, spec)
		written.SetName(name)
		g.Expect(api.Create(t.Context(), written)).To(Succeed(), name)
		template := &v1alpha1.ProxmoxTemplate{}
		g.Expect(api.Get(t.Context(), client.ObjectKey{Name: name}, template)).To(Succeed(), name)
		g.Expect(template.Spec.CPU.Flags).To(BeEquivalentTo([]string{"+aes", "-pcid"}), name)
	}
}

func checkNames(t *testing.T, config *rest.Config) {
	g := NewWithT(t)
	api, err := discovery.NewDiscoveryClientForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	served, err := api.ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
	g.Expect(err).NotTo(HaveOccurred())
	for name, shortName := range map[string]string{
		"proxmoxnodeclasses": "pnc", "proxmoxtemplates": "pt", "proxmoxunmanagedtemplates": "put",
	} {
		g.Expect(served.APIResources).To(ContainElement(And(
			HaveField("Name", name), HaveField("Namespaced", false), HaveField("ShortNames", Equal([]string{shortName})),
			HaveField("Categories", Equal([]string{"karpenter"})),
		)))
	}
}

// checkColumns requests a table, as kubectl get does.
func checkColumns(t *testing.T, config *rest.Config) {
	g := NewWithT(t)
	api, err := discovery.NewDiscoveryClientForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	for resource, want := range map[string][]string{
		"proxmoxnodeclasses":        {"Name", "Zones", "Balance", "Template", "Metadata", "Disk", "Ready", "Message", "Age"},
		"proxmoxtemplates":          {"Name", "Zones", "Machine", "CPU", "VGA", "Ready", "Message", "Age"},
		"proxmoxunmanagedtemplates": {"Name", "Zones", "Name", "Ready", "Message", "Age"},
	} {
		answer, err := api.RESTClient().Get().
			AbsPath("apis", v1alpha1.SchemeGroupVersion.String(), resource).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
			DoRaw(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		table := metav1.Table{}
		g.Expect(json.Unmarshal(answer, &table)).To(Succeed())
		var columns []string
		for _, column := range table.ColumnDefinitions {
			columns = append(columns, column.Name)
		}
		g.Expect(columns).To(Equal(want), resource)
	}
}
