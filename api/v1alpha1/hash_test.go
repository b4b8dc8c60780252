// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"maps"
	"reflect"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

type (
	classSpec    = v1alpha1.ProxmoxNodeClassSpec
	templateSpec = v1alpha1.ProxmoxTemplateSpec
	nic          = v1alpha1.VMInterface
	device       = v1alpha1.InterfaceDevice
	image        = v1alpha1.SourceImage
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

	g := NewWithT(t)
	g.Expect(before.Hash() != after.Hash()).To(Equal(e == replaces), "a change of %s changes Hash", field)
	g.Expect(before.InPlaceHash() != after.InPlaceHash()).To(Equal(e == updates), "a change of %s changes InPlaceHash", field)
	if class, ok := before.(*v1alpha1.ProxmoxNodeClass); ok {
		changed := !maps.Equal(class.HashedFields(), after.(*v1alpha1.ProxmoxNodeClass).HashedFields())
		g.Expect(changed).To(Equal(e == replaces), "a change of %s changes the hashed fields", field)
	}
}

// checkCovers fails if a field of the spec has no row in the table: the effect of each new field must be decided.
func checkCovers[Row any](t *testing.T, spec any, table map[string]Row) {
	t.Helper()

	for field := range reflect.TypeOf(spec).Fields() {
		NewWithT(t).Expect(table).To(HaveKey(field.Name), "add the effect of its change")
	}
}

func nodeClass() *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{Spec: classSpec{
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
		change func(*classSpec)
	}

	network := func(card nic) func(*classSpec) {
		return func(s *classSpec) { s.Network = &v1alpha1.Network{Interfaces: []nic{card}} }
	}
	table := map[string]row{
		"Region":               {replaces, func(s *classSpec) { s.Region = "cluster-2" }},
		"PlacementStrategy":    {neither, func(s *classSpec) { s.PlacementStrategy.ZoneBalance = "AvailabilityFirst" }},
		"InstanceTemplateRef":  {replaces, func(s *classSpec) { s.InstanceTemplateRef.Name = "other" }},
		"VMSize":               {neither, func(s *classSpec) { s.VMSize.Policy = v1alpha1.VMSizeInstanceType }},
		"KubeletConfiguration": {replaces, func(s *classSpec) { s.KubeletConfiguration.MaxPods = nil }},
		"CPU.empty":            {replaces, func(s *classSpec) { s.CPU = &v1alpha1.CPULayout{} }},
		"CPU":                  {replaces, func(s *classSpec) { s.CPU = &v1alpha1.CPULayout{Pinning: "Exclusive"} }},
		"BootDevice":           {replaces, func(s *classSpec) { s.BootDevice.Size = "40G" }},
		"Disks":                {replaces, func(s *classSpec) { s.Disks = []v1alpha1.Disk{{Name: "data", Size: "10G"}} }},
		// A changed machine replaces its own Node only.
		"Machines":          {neither, func(s *classSpec) { s.Machines = []v1alpha1.Machine{{Name: "db-1"}} }},
		"Hardware":          {replaces, func(s *classSpec) { s.Hardware = &v1alpha1.Hardware{CPULimit: new(int32(2))} }},
		"Description":       {neither, func(s *classSpec) { s.Description = "pool {{ .NodePool }}" }},
		"Tags":              {updates, func(s *classSpec) { s.Tags = append(s.Tags, "more") }},
		"MetadataOptions":   {neither, func(s *classSpec) { s.MetadataOptions = v1alpha1.MetadataOptions{Storage: "local"} }},
		"Network":           {neither, func(s *classSpec) { s.Network = &v1alpha1.Network{DNSServers: []string{"192.168.0.53"}} }},
		"Network.addresses": {neither, network(nic{Name: "net0", InterfaceRouting: v1alpha1.InterfaceRouting{Metric: 100}})},
		"Network.bridge":    {replaces, network(nic{Name: "net1", InterfaceDevice: device{Bridge: "vmbr1"}})},
		"Network.vlan":      {replaces, network(nic{Name: "net0", InterfaceDevice: device{VLAN: new(int32(0))}})},
		"SecurityGroups":    {updates, func(s *classSpec) { s.SecurityGroups[0].Interface = "net1" }},
		"ResourcePool":      {updates, func(s *classSpec) { s.ResourcePool = "other" }},
		"HighAvailability":  {updates, func(s *classSpec) { s.HighAvailability = &v1alpha1.HighAvailability{State: "started"} }},
		"Shares":            {replaces, func(s *classSpec) { s.Shares = []v1alpha1.Share{{Mapping: "data"}} }},
		"HookScripts":       {neither, func(s *classSpec) { s.HookScripts = []string{"announce"} }},
	}

	checkCovers(t, classSpec{}, table)

	for field, row := range table {
		changed := nodeClass()
		row.change(&changed.Spec)
		row.effect.check(t, field, nodeClass(), changed)
	}
}

// TestNodeClassHashInterfaces checks which settings of an interface replace the Nodes of a class that defines it.
func TestNodeClassHashInterfaces(t *testing.T) {
	t.Parallel()

	class := func(change func(*nic)) *v1alpha1.ProxmoxNodeClass {
		out := nodeClass()
		card := nic{Name: "net1", InterfaceDevice: device{Bridge: "vmbr1"}}
		change(&card)
		out.Spec.Network = &v1alpha1.Network{Interfaces: []nic{card}}

		return out
	}

	for field, row := range map[string]struct {
		effect effect
		change func(*nic)
	}{
		"name":      {replaces, func(i *nic) { i.Name = "net2" }},
		"bridge":    {replaces, func(i *nic) { i.Bridge = "vmbr2" }},
		"model":     {replaces, func(i *nic) { i.Model = "e1000" }},
		"vlan":      {replaces, func(i *nic) { i.VLAN = new(int32(7)) }},
		"trunks":    {replaces, func(i *nic) { i.Trunks = []string{"7"} }},
		"rateLimit": {replaces, func(i *nic) { i.RateLimit = "12.5" }},
		"mtu":       {replaces, func(i *nic) { i.MTU = new(int32(9000)) }},
		"queues":    {replaces, func(i *nic) { i.Queues = new(int32(2)) }},
		"firewall":  {replaces, func(i *nic) { i.Firewall = new(false) }},
		"address4":  {neither, func(i *nic) { i.Address4 = &v1alpha1.AddressSource{CIDR: "10.0.0.0/24"} }},
		"metric":    {neither, func(i *nic) { i.Metric = 5 }},
		"routes":    {neither, func(i *nic) { i.Routes = []v1alpha1.InterfaceRoute{{To: "10.0.0.0/8"}} }},
	} {
		before, after := class(func(*nic) {}), class(row.change)
		row.effect.check(t, field, before, after)
	}
}

func TestHashedFields(t *testing.T) {
	t.Parallel()

	class := &v1alpha1.ProxmoxNodeClass{Spec: classSpec{
		Region:     "cluster-1",
		BootDevice: v1alpha1.BootDevice{Size: "30G", FullClone: true},
		Shares:     []v1alpha1.Share{{Mapping: "b"}, {Mapping: "a"}},
		Tags:       []string{"karpenter"},
	}}
	want := map[string]string{
		"bootDevice.fullClone": "true", "bootDevice.size": "30G", "region": "cluster-1", "shares": `[{"mapping":"a"},{"mapping":"b"}]`,
	}

	NewWithT(t).Expect(class.HashedFields()).To(Equal(want))
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
		NewWithT(t).Expect(pair[0]).To(Equal(pair[1]), "%s: increment HashVersion if the change is intended", name)
	}
}

func managedTemplate() *v1alpha1.ProxmoxTemplate {
	return &v1alpha1.ProxmoxTemplate{Spec: templateSpec{
		Region:      "cluster-1",
		Description: "a template",
		SourceImage: image{URL: "https://example.com/image.qcow2", ImageName: "image.qcow2"},
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

	const a, b = "https://a.example/a.qcow2", "https://b.example/a.qcow2"
	const sums, checksum = "https://a.example/MD5SUMS", "d41d8cd98f00b204e9800998ecf8427e"

	talos := func(version, factory string) image {
		return image{Talos: &v1alpha1.TalosImage{Schematic: "1234", Version: version, Arch: "amd64", FactoryURL: factory}}
	}
	read := func(url, value string) *v1alpha1.ResolvedChecksum {
		return &v1alpha1.ResolvedChecksum{URL: url, FileName: "a.qcow2", Type: "md5", Value: value}
	}
	known, summed := image{URL: a, Checksum: checksum, ChecksumType: "md5"}, image{URL: a, ChecksumURL: sums}

	for name, test := range map[string]struct {
		before, after image
		read          [2]*v1alpha1.ResolvedChecksum
		same          bool
	}{
		"order_of_mirrors":         {before: image{URLs: []string{a, b}}, after: image{URLs: []string{b, a}}, same: true},
		"mirrors_without_checksum": {before: image{URLs: []string{a}}, after: image{URLs: []string{b}}},
		"mirrors_with_checksum": {
			before: image{URLs: []string{a}, Checksum: checksum, ChecksumType: "md5"},
			after:  image{URLs: []string{b}, Checksum: checksum, ChecksumType: "md5"}, same: true,
		},
		"checksum_that_was_read":    {known, summed, [2]*v1alpha1.ResolvedChecksum{nil, read(sums, checksum)}, true},
		"another_checksum_was_read": {summed, summed, [2]*v1alpha1.ResolvedChecksum{read(sums, "00"), read(sums, checksum)}, false},
		"checksum_of_another_file":  {known, summed, [2]*v1alpha1.ResolvedChecksum{nil, read("https://b.example/MD5SUMS", checksum)}, false},
		"another_volume":            {before: image{Volume: "local:import/a.qcow2"}, after: image{Volume: "local:import/b.qcow2"}},
		"another_image_factory":     {before: talos("v1.11.3", "https://a.example"), after: talos("v1.11.3", "https://b.example"), same: true},
		"another_Talos_version":     {before: talos("v1.11.3", "https://a.example"), after: talos("v1.11.4", "https://a.example")},
	} {
		before, after := managedTemplate(), managedTemplate()
		before.Spec.SourceImage, after.Spec.SourceImage = test.before, test.after
		before.Status.Checksum, after.Status.Checksum = test.read[0], test.read[1]

		NewWithT(t).Expect(before.Hash() == after.Hash()).To(Equal(test.same), name)
	}
}

func TestTemplateHash(t *testing.T) {
	t.Parallel()

	type row struct {
		effect effect
		change func(*templateSpec)
	}

	table := map[string]row{
		"Region":       {neither, func(s *templateSpec) { s.Region = "cluster-2" }},
		"Description":  {updates, func(s *templateSpec) { s.Description = "another" }},
		"SourceImage":  {replaces, func(s *templateSpec) { s.SourceImage.Checksum = "0123" }},
		"StorageIDs":   {replaces, func(s *templateSpec) { s.StorageIDs = []string{"local"} }},
		"Prepare":      {replaces, func(s *templateSpec) { s.Prepare = &v1alpha1.Preparation{} }},
		"Machine":      {updates, func(s *templateSpec) { s.Machine = "pc" }},
		"BIOS":         {replaces, func(s *templateSpec) { s.BIOS = "ovmf" }},
		"TPM":          {replaces, func(s *templateSpec) { s.TPM = &v1alpha1.TPM{Version: "v2.0"} }},
		"Agent":        {updates, func(s *templateSpec) { s.Agent = &v1alpha1.Agent{Enabled: true} }},
		"CPU":          {updates, func(s *templateSpec) { s.CPU.Flags = nil }},
		"VGA":          {updates, func(s *templateSpec) { s.VGA = &v1alpha1.VGA{Type: "serial0"} }},
		"Network":      {updates, func(s *templateSpec) { s.Network[0].VLAN = 15 }},
		"PCIDevices":   {updates, func(s *templateSpec) { s.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu"}} }},
		"Tags":         {updates, func(s *templateSpec) { s.Tags = nil }},
		"ResourcePool": {updates, func(s *templateSpec) { s.ResourcePool = "pool" }},
		"OnBoot":       {updates, func(s *templateSpec) { s.OnBoot = new(true) }},
	}

	checkCovers(t, templateSpec{}, table)

	for field, row := range table {
		changed := managedTemplate()
		row.change(&changed.Spec)
		row.effect.check(t, field, managedTemplate(), changed)
	}
}

func TestTemplateHashPreparation(t *testing.T) {
	t.Parallel()

	prepared := func(change func(*v1alpha1.ProxmoxTemplate)) string {
		template := managedTemplate()
		template.Spec.Prepare = &v1alpha1.Preparation{TemplatesRef: v1alpha1.SecretReference{Name: "a", Namespace: "b"}}
		template.Status.Preparation = &v1alpha1.PreparationStatus{BootDataHash: "v2-1"}
		change(template)
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
		NewWithT(t).Expect(prepared(test.change) != prepared(func(*v1alpha1.ProxmoxTemplate) {})).To(Equal(test.replaces), name)
	}
}
