// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"maps"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// effect is the effect of a field's change on the two hashes of its object.
type effect int

const (
	replaces effect = iota // changes Hash: existing VMs or templates are replaced
	updates                // changes InPlaceHash: existing VMs or templates are updated
	neither                // changes neither hash: only new VMs are affected
)

type hasher interface {
	Hash() string
	InPlaceHash() string
}

func (e effect) check(t *testing.T, field string, before, after hasher) {
	t.Helper()

	if changed := before.Hash() != after.Hash(); changed != (e == replaces) {
		t.Errorf("a change of %s changes Hash: %v, want %v", field, changed, e == replaces)
	}

	if changed := before.InPlaceHash() != after.InPlaceHash(); changed != (e == updates) {
		t.Errorf("a change of %s changes InPlaceHash: %v, want %v", field, changed, e == updates)
	}
}

// checkCovers fails if a field of the spec has no row in the table: the effect of each new field must be decided.
func checkCovers[Row any](t *testing.T, spec any, table map[string]Row) {
	t.Helper()

	for field := range reflect.TypeOf(spec).Fields() {
		if _, ok := table[field.Name]; !ok {
			t.Errorf("the table has no row for the field %s of the spec: add the effect of its change", field.Name)
		}
	}
}

func nodeClass() *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{
		Region:              "cluster-1",
		PlacementStrategy:   v1alpha1.PlacementStrategy{ZoneBalance: v1alpha1.ZoneBalanceBalanced},
		InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: "default"},
		KubeletConfiguration: &v1alpha1.KubeletConfiguration{
			MaxPods:             new(int32(110)),
			ShutdownGracePeriod: &metav1.Duration{Duration: 30 * time.Second},
		},
		BootDevice:      v1alpha1.BootDevice{Size: "30G", Storage: "lvm"},
		Tags:            []string{"k8s", "karpenter"},
		MetadataOptions: v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone},
		SecurityGroups:  []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}},
		ResourcePool:    "pool",
	}}
}

func TestNodeClassHash(t *testing.T) {
	t.Parallel()

	type row struct {
		effect effect
		change func(*v1alpha1.ProxmoxNodeClassSpec)
	}

	table := map[string]row{
		"Region": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Region = "cluster-2" }},
		"PlacementStrategy": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.PlacementStrategy.ZoneBalance = v1alpha1.ZoneBalanceAvailabilityFirst
		}},
		"InstanceTemplateRef": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.InstanceTemplateRef.Name = "other" }},
		"VMSize":              {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.VMSize.Policy = v1alpha1.VMSizeInstanceType }},
		"KubeletConfiguration": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.KubeletConfiguration.ShutdownGracePeriod.Duration = time.Minute
		}},
		"CPU.empty": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.CPU = &v1alpha1.CPULayout{} }},
		"CPU": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
		}},
		"BootDevice": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.Size = "40G" }},
		"Disks": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Disks = []v1alpha1.Disk{{Name: "data", Size: "10G"}}
		}},
		// A changed machine replaces its own Node only.
		"Machines": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Machines = []v1alpha1.Machine{{Name: "db-1"}} }},
		"Hardware": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Hardware = &v1alpha1.Hardware{CPULimit: new(int32(2))}
		}},
		"Description": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Description = "pool {{ .NodePool }}" }},
		"Tags":        {updates, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Tags = append(s.Tags, "more") }},
		"MetadataOptions": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.MetadataOptions = v1alpha1.MetadataOptions{
				Type:         v1alpha1.MetadataTypeCDROM,
				TemplatesRef: &v1alpha1.SecretReference{Name: "a", Namespace: "b"},
				Storage:      "local",
			}
		}},
		"Network": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Network = &v1alpha1.Network{DNSServers: []string{"192.168.0.53"}}
		}},
		"Network.addresses": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
				Name: "net0", Address4: &v1alpha1.AddressSource{Method: v1alpha1.AddressMethodDHCP},
				InterfaceRouting: v1alpha1.InterfaceRouting{Metric: 100, Routes: []v1alpha1.InterfaceRoute{{To: "10.0.0.0/8"}}},
			}}}
		}},
		"Network.bridge": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net1", InterfaceDevice: v1alpha1.InterfaceDevice{Bridge: "vmbr1"}}}}
		}},
		"Network.vlan": {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", InterfaceDevice: v1alpha1.InterfaceDevice{VLAN: new(int32(0))}}}}
		}},
		"SecurityGroups": {updates, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.SecurityGroups[0].Interface = "net1" }},
		"ResourcePool":   {updates, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.ResourcePool = "other" }},
		"HighAvailability": {updates, func(s *v1alpha1.ProxmoxNodeClassSpec) {
			s.HighAvailability = &v1alpha1.HighAvailability{State: v1alpha1.HAStateStarted}
		}},
		"Shares":      {replaces, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Shares = []v1alpha1.Share{{Mapping: "data"}} }},
		"HookScripts": {neither, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.HookScripts = []string{"announce"} }},
	}

	checkCovers(t, v1alpha1.ProxmoxNodeClassSpec{}, table)

	for field, row := range table {
		changed := nodeClass()
		row.change(&changed.Spec)
		row.effect.check(t, field, nodeClass(), changed)

		if got := !maps.Equal(nodeClass().HashedFields(), changed.HashedFields()); got != (row.effect == replaces) {
			t.Errorf("%s: the hashed fields changed: %v, want the same as the hash", field, got)
		}
	}
}

// TestNodeClassHashInterfaces checks which settings of an interface replace the Nodes of a class that defines it.
func TestNodeClassHashInterfaces(t *testing.T) {
	t.Parallel()

	class := func(change func(*v1alpha1.VMInterface)) *v1alpha1.ProxmoxNodeClass {
		out := nodeClass()
		nic := v1alpha1.VMInterface{Name: "net1", InterfaceDevice: v1alpha1.InterfaceDevice{Bridge: "vmbr1"}}
		change(&nic)
		out.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{nic}}

		return out
	}

	for field, row := range map[string]struct {
		effect effect
		change func(*v1alpha1.VMInterface)
	}{
		"name":      {replaces, func(i *v1alpha1.VMInterface) { i.Name = "net2" }},
		"bridge":    {replaces, func(i *v1alpha1.VMInterface) { i.Bridge = "vmbr2" }},
		"model":     {replaces, func(i *v1alpha1.VMInterface) { i.Model = "e1000" }},
		"vlan":      {replaces, func(i *v1alpha1.VMInterface) { i.VLAN = new(int32(7)) }},
		"trunks":    {replaces, func(i *v1alpha1.VMInterface) { i.Trunks = []string{"7"} }},
		"rateLimit": {replaces, func(i *v1alpha1.VMInterface) { i.RateLimit = "12.5" }},
		"mtu":       {replaces, func(i *v1alpha1.VMInterface) { i.MTU = new(int32(9000)) }},
		"queues":    {replaces, func(i *v1alpha1.VMInterface) { i.Queues = new(int32(2)) }},
		"firewall":  {replaces, func(i *v1alpha1.VMInterface) { i.Firewall = new(false) }},
		"address4":  {neither, func(i *v1alpha1.VMInterface) { i.Address4 = &v1alpha1.AddressSource{CIDR: "10.0.0.0/24"} }},
		"metric":    {neither, func(i *v1alpha1.VMInterface) { i.Metric = 5 }},
		"routes":    {neither, func(i *v1alpha1.VMInterface) { i.Routes = []v1alpha1.InterfaceRoute{{To: "10.0.0.0/8"}} }},
	} {
		before, after := class(func(*v1alpha1.VMInterface) {}), class(row.change)
		row.effect.check(t, field, before, after)

		if got := !maps.Equal(before.HashedFields(), after.HashedFields()); got != (row.effect == replaces) {
			t.Errorf("%s: the hashed fields changed: %v, want the same as the hash", field, got)
		}
	}
}

func TestHashedFields(t *testing.T) {
	t.Parallel()

	class := &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{
		Region:     "cluster-1",
		BootDevice: v1alpha1.BootDevice{Size: "30G", FullClone: true},
		Shares:     []v1alpha1.Share{{Mapping: "b"}, {Mapping: "a"}},
		Tags:       []string{"karpenter"},
	}}
	want := map[string]string{
		"bootDevice.fullClone": "true", "bootDevice.size": "30G", "region": "cluster-1", "shares": `[{"mapping":"a"},{"mapping":"b"}]`,
	}

	if got := class.HashedFields(); !maps.Equal(got, want) {
		t.Errorf("the hashed fields are %v, want %v", got, want)
	}
}

func TestHashIgnoresOrderAndStatus(t *testing.T) {
	t.Parallel()

	before, after := nodeClass(), nodeClass()
	after.Spec.Tags = []string{"karpenter", "k8s"}
	after.Status.SelectedZones = []string{"cluster-1/pve1/9000"}
	after.Labels = map[string]string{"a": "b"}
	after.StatusConditions().SetTrue(v1alpha1.ConditionClustersReachable)

	neither.check(t, "order, status and metadata", before, after)
}

// A stored hash must not change between releases, or every Node of every user drifts at the upgrade.
func TestHashStability(t *testing.T) {
	t.Parallel()

	template := managedTemplate()

	for name, pair := range map[string][2]string{
		"NodeClass.Hash":        {nodeClass().Hash(), "608453774258035390"},
		"NodeClass.InPlaceHash": {nodeClass().InPlaceHash(), "17479549646061122307"},
		"Template.Hash":         {template.Hash(), "7378561030383092092"},
		"Template.InPlaceHash":  {template.InPlaceHash(), "14483031366796192460"},
	} {
		if got, want := pair[0], pair[1]; got != want {
			t.Errorf("%s = %s, want %s as in earlier releases: increment HashVersion if the change is intended", name, got, want)
		}
	}
}

func managedTemplate() *v1alpha1.ProxmoxTemplate {
	return &v1alpha1.ProxmoxTemplate{Spec: v1alpha1.ProxmoxTemplateSpec{
		Region:      "cluster-1",
		Description: "a template",
		SourceImage: v1alpha1.SourceImage{URL: "https://example.com/image.qcow2", ImageName: "image.qcow2"},
		StorageIDs:  []string{"local", "lvm"},
		Machine:     "q35",
		BIOS:        "seabios",
		CPU:         v1alpha1.CPU{Type: "host", Flags: v1alpha1.CPUFlags{"+aes"}},
		Network:     []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
		Tags:        []string{"karpenter"},
	}}
}

// The content of the image counts, not the mirror that serves it or where its checksum was read.
func TestTemplateHashOfSources(t *testing.T) {
	t.Parallel()

	const checksum = "d41d8cd98f00b204e9800998ecf8427e"

	talos := func() *v1alpha1.TalosImage {
		return &v1alpha1.TalosImage{Schematic: "1234", Version: "v1.11.3", Arch: "amd64", FactoryURL: "https://a.example"}
	}
	read := func(url, value string) *v1alpha1.ResolvedChecksum {
		return &v1alpha1.ResolvedChecksum{URL: url, FileName: "a.qcow2", Type: "md5", Value: value}
	}

	for name, test := range map[string]struct {
		before, after v1alpha1.SourceImage
		read          [2]*v1alpha1.ResolvedChecksum
		same          bool
	}{
		"order_of_mirrors": {
			before: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.qcow2", "https://b.example/a.qcow2"}},
			after:  v1alpha1.SourceImage{URLs: []string{"https://b.example/a.qcow2", "https://a.example/a.qcow2"}}, same: true,
		},
		"mirrors_without_checksum": {
			before: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.qcow2"}},
			after:  v1alpha1.SourceImage{URLs: []string{"https://b.example/a.qcow2"}},
		},
		"mirrors_with_checksum": {
			before: v1alpha1.SourceImage{URLs: []string{"https://a.example/a.qcow2"}, Checksum: checksum, ChecksumType: "md5"},
			after:  v1alpha1.SourceImage{URLs: []string{"https://b.example/a.qcow2"}, Checksum: checksum, ChecksumType: "md5"}, same: true,
		},
		"checksum_that_was_read": {
			before: v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", Checksum: checksum, ChecksumType: "md5"},
			after:  v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ChecksumURL: "https://a.example/MD5SUMS"},
			read:   [2]*v1alpha1.ResolvedChecksum{nil, read("https://a.example/MD5SUMS", checksum)}, same: true,
		},
		"another_checksum_was_read": {
			before: v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ChecksumURL: "https://a.example/MD5SUMS"},
			after:  v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ChecksumURL: "https://a.example/MD5SUMS"},
			read:   [2]*v1alpha1.ResolvedChecksum{read("https://a.example/MD5SUMS", "00"), read("https://a.example/MD5SUMS", checksum)},
		},
		"checksum_of_another_file": {
			before: v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", Checksum: checksum, ChecksumType: "md5"},
			after:  v1alpha1.SourceImage{URL: "https://a.example/a.qcow2", ChecksumURL: "https://a.example/MD5SUMS"},
			read:   [2]*v1alpha1.ResolvedChecksum{nil, read("https://b.example/MD5SUMS", checksum)},
		},
		"another_volume": {
			before: v1alpha1.SourceImage{Volume: "local:import/a.qcow2"},
			after:  v1alpha1.SourceImage{Volume: "local:import/b.qcow2"},
		},
		"another_image_factory": {
			before: v1alpha1.SourceImage{Talos: talos()},
			after: v1alpha1.SourceImage{Talos: func() *v1alpha1.TalosImage {
				other := talos()
				other.FactoryURL = "https://b.example"

				return other
			}()}, same: true,
		},
		"another_Talos_version": {
			before: v1alpha1.SourceImage{Talos: talos()},
			after: v1alpha1.SourceImage{Talos: func() *v1alpha1.TalosImage {
				other := talos()
				other.Version = "v1.11.4"

				return other
			}()},
		},
	} {
		before, after := managedTemplate(), managedTemplate()
		before.Spec.SourceImage, after.Spec.SourceImage = test.before, test.after
		before.Status.Checksum, after.Status.Checksum = test.read[0], test.read[1]

		if same := before.Hash() == after.Hash(); same != test.same {
			t.Errorf("%s: the hash is the same: %t, want %t", name, same, test.same)
		}
	}
}

func TestTemplateHash(t *testing.T) {
	t.Parallel()

	type row struct {
		effect effect
		change func(*v1alpha1.ProxmoxTemplateSpec)
	}

	table := map[string]row{
		"Region":       {neither, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Region = "cluster-2" }},
		"Description":  {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description = "another" }},
		"SourceImage":  {replaces, func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.Checksum = "0123" }},
		"StorageIDs":   {replaces, func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"local"} }},
		"Prepare":      {replaces, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Prepare = &v1alpha1.Preparation{} }},
		"Machine":      {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Machine = "pc" }},
		"BIOS":         {replaces, func(s *v1alpha1.ProxmoxTemplateSpec) { s.BIOS = "ovmf" }},
		"TPM":          {replaces, func(s *v1alpha1.ProxmoxTemplateSpec) { s.TPM = &v1alpha1.TPM{Version: "v2.0"} }},
		"Agent":        {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Agent = &v1alpha1.Agent{Enabled: true} }},
		"CPU":          {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.CPU.Flags = nil }},
		"VGA":          {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.VGA = &v1alpha1.VGA{Type: "serial0"} }},
		"Network":      {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Network[0].VLAN = 15 }},
		"PCIDevices":   {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu"}} }},
		"Tags":         {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.Tags = nil }},
		"ResourcePool": {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.ResourcePool = "pool" }},
		"OnBoot":       {updates, func(s *v1alpha1.ProxmoxTemplateSpec) { s.OnBoot = new(true) }},
	}

	checkCovers(t, v1alpha1.ProxmoxTemplateSpec{}, table)

	for field, row := range table {
		changed := managedTemplate()
		row.change(&changed.Spec)
		row.effect.check(t, field, managedTemplate(), changed)
	}
}

func TestTemplateHashPreparation(t *testing.T) {
	t.Parallel()

	prepared := func(changes ...func(*v1alpha1.ProxmoxTemplate)) string {
		template := managedTemplate()
		template.Spec.Prepare = &v1alpha1.Preparation{TemplatesRef: v1alpha1.SecretReference{Name: "a", Namespace: "b"}}
		template.Status.Preparation = &v1alpha1.PreparationStatus{BootDataHash: "v2-1"}

		for _, change := range changes {
			change(template)
		}

		return template.Hash()
	}

	for name, test := range map[string]struct {
		replaces bool
		change   func(*v1alpha1.ProxmoxTemplate)
	}{
		"content_of_Secrets": {true, func(t *v1alpha1.ProxmoxTemplate) { t.Status.Preparation.BootDataHash = "v2-2" }},
		"refresh":            {true, func(t *v1alpha1.ProxmoxTemplate) { t.Status.Preparation.RefreshedAt = new(metav1.Now()) }},
		"disk_size":          {true, func(t *v1alpha1.ProxmoxTemplate) { t.Spec.Prepare.DiskSize = "8Gi" }},
		"name_of_Secret":     {false, func(t *v1alpha1.ProxmoxTemplate) { t.Spec.Prepare.TemplatesRef.Name = "c" }},
		"other_fields": {false, func(t *v1alpha1.ProxmoxTemplate) {
			p := t.Spec.Prepare
			p.Size, p.Storage, p.MaxConcurrent = v1alpha1.VMSize{CPU: 4}, "nfs", 1
			p.Timeout, p.KeepFailed, p.RefreshAfter = &metav1.Duration{}, &metav1.Duration{}, &metav1.Duration{Duration: time.Hour}
		}},
	} {
		if changed := prepared(test.change) != prepared(); changed != test.replaces {
			t.Errorf("%s: found changed hash %t, want %t", name, changed, test.replaces)
		}
	}
}
