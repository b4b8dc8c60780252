// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// checkDefaults creates objects with unset fields, as a Go program would, and checks the defaults that the API server sets.
func checkDefaults(t *testing.T, api client.Client) {
	t.Helper()

	class := &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: "default"},
			SecurityGroups:      []v1alpha1.SecurityGroup{{Name: "kubernetes"}},
		},
	}
	if err := api.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}

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
	if err := api.Create(t.Context(), template); err != nil {
		t.Fatal(err)
	}

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
		if values[0] != values[1] {
			t.Errorf("spec.%s defaults to %v, want %v", field, values[0], values[1])
		}
	}
}

// checkTransitions checks that the API server rejects changes that would separate machines from their data.
func checkTransitions(t *testing.T, api client.Client) {
	t.Helper()

	class := &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "transitions"},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: "default"},
			Machines:            []v1alpha1.Machine{{Name: "db-1", Zone: "pve1", Region: "home"}, {Name: "db-2", Zone: "pve2"}},
			Disks:               []v1alpha1.Disk{{Name: "data", Size: "1Gi", Storage: "tank", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "tank"}},
		},
	}
	if err := api.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}

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
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

func checkStatus(t *testing.T, api client.Client) {
	t.Helper()

	class := &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "status"},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: "default"},
		},
	}
	if err := api.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}

	class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, "no such template")
	class.Status.SelectedZones = []string{"Region-1/pve1/9000"}
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "Region-1/pve2", Reason: "template talos does not exist"}}

	if err := api.Status().Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}

	stored := &v1alpha1.ProxmoxNodeClass{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(class), stored); err != nil {
		t.Fatal(err)
	}

	if !slices.Equal(stored.Status.UnusableZones, class.Status.UnusableZones) ||
		!slices.Equal(stored.Status.SelectedZones, class.Status.SelectedZones) {
		t.Errorf("stored zones are %+v", stored.Status)
	}

	if stored.StatusConditions().Root().IsTrue() || !stored.StatusConditions().Get(v1alpha1.ConditionInstanceTemplateReady).IsFalse() {
		t.Errorf("stored conditions are %+v", stored.Status.Conditions)
	}

	if stored.Generation != 1 {
		t.Errorf("generation is %d after a status update, want 1", stored.Generation)
	}
}

func checkFlags(t *testing.T, api client.Client) {
	t.Helper()

	for name, flags := range map[string]string{"flags-list": `["+aes", "-pcid"]`, "flags-scalar": `"+aes;-pcid"`} {
		written := object(t, v1alpha1.ProxmoxTemplateKind, fmt.Sprintf(
			`{sourceImage: {url: https://example.com/a}, storageIDs: [local], network: [{bridge: vmbr0}], cpu: {flags: %s}}`, flags))
		written.SetGenerateName("")
		written.SetName(name)

		if err := api.Create(t.Context(), written); err != nil {
			t.Errorf("flags %s are rejected: %v", flags, err)

			continue
		}

		template := &v1alpha1.ProxmoxTemplate{}
		if err := api.Get(t.Context(), client.ObjectKey{Name: name}, template); err != nil {
			t.Errorf("flags %s cannot be read: %v", flags, err)
		} else if want := []string{"+aes", "-pcid"}; !slices.Equal(template.Spec.CPU.Flags, want) {
			t.Errorf("flags %s are read as %q, want %q", flags, template.Spec.CPU.Flags, want)
		}
	}
}

func checkNames(t *testing.T, config *rest.Config) {
	t.Helper()

	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}

	served, err := api.ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}

	shortNames := map[string]string{
		"proxmoxnodeclasses": "pnc", "proxmoxtemplates": "pt", "proxmoxunmanagedtemplates": "put",
	}

	for _, resource := range served.APIResources {
		want, ok := shortNames[resource.Name]
		if !ok {
			continue // a status subresource
		}

		delete(shortNames, resource.Name)

		if resource.Namespaced || !slices.Equal(resource.ShortNames, []string{want}) ||
			!slices.Equal(resource.Categories, []string{"karpenter"}) {
			t.Errorf("%s is served as %+v, want cluster scope, short name %s, category karpenter", resource.Name, resource, want)
		}
	}

	if len(shortNames) > 0 {
		t.Errorf("not served: %v", shortNames)
	}
}

// checkColumns requests a table, as kubectl get does.
func checkColumns(t *testing.T, config *rest.Config) {
	t.Helper()

	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}

	for resource, want := range map[string][]string{
		"proxmoxnodeclasses":        {"Name", "Zones", "Balance", "Template", "Metadata", "Disk", "Ready", "Message", "Age"},
		"proxmoxtemplates":          {"Name", "Zones", "Machine", "CPU", "VGA", "Ready", "Message", "Age"},
		"proxmoxunmanagedtemplates": {"Name", "Zones", "Name", "Ready", "Message", "Age"},
	} {
		answer, err := api.RESTClient().Get().
			AbsPath("apis", v1alpha1.SchemeGroupVersion.String(), resource).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
			DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		table := metav1.Table{}
		if err := json.Unmarshal(answer, &table); err != nil {
			t.Fatal(err)
		}

		var columns []string
		for _, column := range table.ColumnDefinitions {
			columns = append(columns, column.Name)
		}

		if !slices.Equal(columns, want) {
			t.Errorf("%s have the columns %v, want %v", resource, columns, want)
		}
	}
}
