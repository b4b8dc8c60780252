// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

var me = Identity{Region: "r1", VMID: 20001, ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11", KubeCluster: "7c0e0a53-0000-4000-8000-000000000001"}

func described(id Identity) proxmox.VMConfig {
	return proxmox.VMConfig{Options: map[string]string{
		"description": Description(NewMark(id, Intent{}, nil), Notes{Claim: "default-abc", NodePool: "default", NodeClass: "default", InstanceType: "t1.2VCPU-6GB", CapacityType: "on-demand"}),
	}}
}

func TestIdentityOwns(t *testing.T) {
	t.Parallel()
	configured := described(me)
	configured.Options["smbios1"] = proxmox.SMBIOS{UUID: strings.ToUpper(me.ClaimUID), Serial: vmconfig.SMBIOSSerial("default-abc", me.VMID), SKU: "t1"}.Encode()
	otherUUID := described(me)
	otherUUID.Options["smbios1"] = proxmox.SMBIOS{UUID: "00000000-0000-4000-8000-000000000000", Serial: vmconfig.SMBIOSSerial("default-abc", me.VMID)}.Encode()
	edited := described(me)
	edited.Options["description"] = "do not touch before friday\n" + edited.Options["description"] + "\n\n-- ops"
	twice := described(me)
	twice.Options["description"] += twice.Options["description"]

	for name, test := range map[string]struct {
		cfg  proxmox.VMConfig
		owns bool
		why  string
	}{
		"fresh_clone":                {described(me), true, ""},
		"configured":                 {configured, true, ""},
		"edited_notes":               {edited, true, ""},
		"no_mark":                    {proxmox.VMConfig{Options: map[string]string{"description": "mine"}}, false, "no ownership mark"},
		"copy_or_restored_backup":    {described(Identity{VMID: 20002, ClaimUID: me.ClaimUID, KubeCluster: me.KubeCluster}), false, "a copy or a restored backup"},
		"other_claim":                {described(Identity{VMID: me.VMID, ClaimUID: "other", KubeCluster: me.KubeCluster}), false, "another NodeClaim"},
		"other_kubernetes_cluster":   {described(Identity{VMID: me.VMID, ClaimUID: me.ClaimUID, KubeCluster: "other"}), false, "another Kubernetes cluster"},
		"configured_with_other_UUID": {otherUUID, false, "SMBIOS UUID"},
		"two_marks":                  {twice, false, "no ownership mark"},
		"invalid_mark":               {proxmox.VMConfig{Options: map[string]string{"description": "<!-- karpenter.proxmox.sinextra.dev {oops} -->"}}, false, "no ownership mark"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			owns, why := me.Owns(test.cfg)
			g.Expect(owns).To(Equal(test.owns), why)
			g.Expect(why).To(ContainSubstring(test.why))
		})
	}
}

func FuzzReadIdentity(f *testing.F) {
	f.Add(described(me).Description())
	f.Add("<!-- karpenter.proxmox.sinextra.dev {} -->")
	f.Fuzz(func(t *testing.T, text string) {
		cfg := proxmox.VMConfig{Options: map[string]string{"description": text}}
		if id, ok := ReadIdentity("r1", cfg); ok && id.ClaimUID == "" {
			t.Fatalf("an identity without a claim was read from %q", text)
		}
	})
}

func TestIdentityOfConfiguredVM(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clone := described(me)
	clone.Options["scsi0"], clone.Options["boot"] = "local-lvm:vm-20001-disk-0,size=3G", "order=scsi0"
	clone.Options["smbios1"] = "uuid=e536baad-cf78-4543-9034-60295eed2b22,manufacturer=QUNNRQ==,base64=1"
	g.Expect(vmconfig.IsConfigured(clone, me.VMID)).To(BeFalse())
	inherited := described(me)
	inherited.Options["smbios1"] = proxmox.SMBIOS{UUID: "e536baad-cf78-4543-9034-60295eed2b22", Serial: vmconfig.SMBIOSSerial("older", 123)}.Encode()
	owns, why := me.Owns(inherited)
	g.Expect(owns).To(BeTrue(), "the template was the VM of a Node: %s", why)
	change, err := vmconfig.Change(clone, vmconfig.Desired{Name: "default-abc", VMID: me.VMID, UUID: me.ClaimUID, Cores: 2, MemoryMiB: 6144})
	g.Expect(err).NotTo(HaveOccurred())
	maps.Copy(clone.Options, change.Set)
	g.Expect(vmconfig.IsConfigured(clone, me.VMID)).To(BeTrue())
	owns, why = me.Owns(clone)
	g.Expect(owns).To(BeTrue(), why)
}

// The file is also one of the formats that all releases must read.
func TestDescription(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want, err := os.ReadFile("../ownership/testdata/formats/vm-v1-notes.txt")
	g.Expect(err).NotTo(HaveOccurred())
	id := Identity{VMID: 20123, ClaimName: "default-abc", KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"}
	notes := NewNotes("default-abc", "default", "default", Intent{
		InstanceType: "t1.2VCPU-6GB", CapacityType: "on-demand", Cores: 2, MemoryMiB: 6144, DiskBytes: 30 << 30, Price: 0.061442,
	})
	text := Description(NewMark(id, Intent{TemplateHost: "pve1", TemplateID: 9000, ImageID: "4711"}, nil), notes)
	g.Expect(text).To(Equal(string(want)))
	g.Expect(len(text)).To(BeNumerically("<", 8192), "Proxmox refuses longer notes")
	owns, why := id.Owns(proxmox.VMConfig{Options: map[string]string{"description": text}})
	g.Expect(owns).To(BeTrue(), why)

	notes.Price = 0
	g.Expect(strings.Contains(Description(NewMark(id, Intent{}, nil), notes), "Price")).To(BeFalse(), "it is unknown")
}

// Proxmox refuses notes of more than 8192 characters.
func TestDescriptionLongest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	in := Intent{
		Host: strings.Repeat("h", 63), TemplateHost: strings.Repeat("t", 63), TemplateID: 999999999, ImageID: strings.Repeat("i", 40), Machine: strings.Repeat("m", 63),
		Binding: &Binding{}, HA: &v1alpha1.HighAvailability{Group: strings.Repeat("g", 63)}, ResourcePool: strings.Repeat("p", 63), DiskBytes: 1 << 50,
	}
	var cpus, hooks []string
	for n := range 128 {
		in.Binding.Pin = append(in.Binding.Pin, 2*n+100)
		cpus = append(cpus, fmt.Sprint(2*n+100)) // every other CPU
	}
	in.Binding.CPUs = strings.Join(cpus, ",")
	for n := range 10 {
		hooks = append(hooks, fmt.Sprintf("%02d%s", n, strings.Repeat("x", 61)))
		in.HA.Rules = append(in.HA.Rules, fmt.Sprintf("%02d%s", n, strings.Repeat("r", 30)))
	}
	notes := NewNotes("default-abc", "default", "default", in)
	notes.Description = strings.Repeat("d", maxDescription)
	id := Identity{VMID: 999999999, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"}
	text := Description(NewMark(id, in, hooks), notes)
	mark, ok := ownership.Read(text)
	g.Expect(ok).To(BeTrue())
	g.Expect(mark.Hooks).To(Equal(hooks))
	mark.Applied = new(NewApplied(&v1alpha1.ProxmoxNodeClass{}, in))
	g.Expect(len(mark.Notes(text))).To(BeNumerically("<=", 8192))
}
