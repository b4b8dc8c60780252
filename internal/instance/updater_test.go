// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestUpdateInPlace(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
	}))
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.NodeClass.Spec.Tags = []string{"Web", "k8s", "vm-{{ .InstanceID }}"}
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net0"}}
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(Succeed())
	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Tags()).To(ConsistOf("k8s", "web", fmt.Sprintf("vm-%d", in.VMID)))
	w.Expect(cfg.Network().NICs()[0].Firewall).To(BeTrue())
	w.Expect(w.Stored(claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationInPlaceUpdateHash, w.NodeClass.InPlaceHash()))
	owns, why := p.Instances.VMs.Get(t.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID})
	w.Expect(why).NotTo(HaveOccurred())
	w.Expect(owns.ClaimUID).To(Equal(string(claim.UID)), "it is still ours")
	p.Delete(claim)
}

// A change of tags does not revert what an administrator changed by hand.
func TestUpdateInPlaceKeepsFirewall(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.SecurityGroups = nil
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	nic := w.VMConfig(in).Network().NICs()[0]
	w.Expect(nic.Firewall).To(BeFalse())
	nic.Firewall = true
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"net0": nic.Encode()}})).To(Succeed())
	w.NodeClass.Spec.Tags = []string{"web"}
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(Succeed())
	cfg := w.VMConfig(in)
	w.Expect(cfg.Tags()).To(ConsistOf("web"))
	w.Expect(cfg.Network().NICs()[0].Firewall).To(BeTrue())
}

// Tags of machines have the name of the machine, at launch and later.
func TestUpdateInPlaceMachine(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1"}}
	w.NodeClass.Spec.Tags = []string{"node-{{ .Hostname }}"}
	p := w.StartProcess()
	claim := p.Launched("pool-abc", w.NodeClass)
	w.Expect(w.VMConfig(w.Intent(claim)).Tags()).To(ConsistOf("node-db-1"))
	w.NodeClass.Spec.Tags = append(w.NodeClass.Spec.Tags, "web")
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(Succeed())
	w.Expect(w.VMConfig(w.Intent(claim)).Tags()).To(ConsistOf("node-db-1", "web"))
}

func TestUpdateInPlaceFirewall(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
		for i, guest := range s.Guests {
			if guest.VMID == 9000 {
				s.Guests[i].Config["net1"] = "virtio=BC:24:11:00:77:01,bridge=vmbr0"
				s.Guests[i].Config["net2"] = "virtio=BC:24:11:00:77:02,bridge=vmbr0,firewall=1"
			}
		}
	}))
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{
		{Name: "kubernetes", Interface: "net0"}, {Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net1"}, {Name: "web", Interface: "net2"},
	}
	p := w.StartProcess()
	claim := p.Launched("default-a", w.NodeClass)
	firewalled := func() map[string]bool {
		in, _, err := instance.ReadIntent(claim)
		w.Expect(err).NotTo(HaveOccurred())
		cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		out := map[string]bool{}
		for _, nic := range cfg.Network().NICs() {
			out[nic.Slot] = nic.Firewall
		}
		return out
	}
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": true, "net2": true}))
	w.NodeClass.Spec.SecurityGroups = w.NodeClass.Spec.SecurityGroups[:1]
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(Succeed())
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": false, "net2": true}), "net2 inherits it from its template")
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net1"}}
	w.Expect(p.Instances.Updater.UpdateInPlace(t.Context(), claim, w.NodeClass)).To(Succeed())
	w.Expect(firewalled()).To(Equal(map[string]bool{"net0": false, "net1": true, "net2": true}))
}
