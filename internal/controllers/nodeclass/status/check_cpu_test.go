// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestCheckCPULayout: exclusive cores require a setup by an administrator on each Host.
// The class reports that before any pod waits.
func TestCheckCPULayout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100, Name: "slot", Host: "pve2", Config: map[string]string{
			"template": "1", "memory": "2048", "cores": "2", "affinity": "2-3", "tags": "karpenter-slot-pinned", "scsi0": "local-lvm:base-9100-disk-0,size=3G",
		}})
	}))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := w.NewClass()
	unbound := reconcileClass(w, class)
	w.Expect(unbound.StatusConditions().IsTrue(v1alpha1.ConditionCPULayoutReady)).To(BeTrue())
	w.Expect(unbound.Status.SelectedZones).To(HaveLen(2))

	class.Spec.CPU = &v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind}
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reconcileClass(w, class).Status.SelectedZones).To(HaveLen(2), "a token is sufficient to bind memory")

	class.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	pinned := reconcileClass(w, class)
	w.Expect(pinned.Status.SelectedZones).To(BeEmpty(), "the slot belongs to another template")
	w.Expect(pinned.StatusConditions().Get(v1alpha1.ConditionCPULayoutReady)).To(HaveField("Reason", v1alpha1.ReasonCPULayoutUnsupported))
	w.Expect(conditionMessage(pinned, v1alpha1.ConditionCPULayoutReady)).To(HavePrefix("region-1/pve1, region-1/pve2: spec.cpu.pinning Exclusive needs one of: "))
	w.Expect(pinned.Status.UnusableZones).To(HaveLen(2))
}

// TestCheckCPULayoutPublishedTopology: exclusive cores on a Host with several sockets need no
// settings if pve-hook published the topology. An invalid one is reported.
func TestCheckCPULayoutPublishedTopology(t *testing.T) {
	t.Parallel()
	const line = `<!-- karpenter.proxmox.sinextra.dev/topology {"v":1,"host":"pve1","cells":[{"id":0,"memoryMiB":32768,"cores":["0","1"]},{"id":1,"memoryMiB":32768,"cores":["2","3"]}]} -->`
	w := testenv.New(t, testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		for n := range s.Hosts {
			s.Hosts[n].Sockets, s.Hosts[n].Cores, s.Hosts[n].NUMA = 2, 2, 2
			s.Hosts[n].Config = map[string]string{"description": line}
		}
		for n := range s.Guests {
			if s.Guests[n].Config["template"] != "" {
				s.Guests[n].Config["hookscript"] = "local:snippets/pve-hook"
			}
		}
	}))
	setTemplateZones(w, "region-1/pve1/9000", "region-1/pve2/9001")
	class := w.NewClass()
	class.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	pinned := reconcileClass(w, class)
	w.Expect(pinned.Status.SelectedZones).To(ConsistOf("region-1/pve1/9000"))
	w.Expect(pinned.Status.UnusableZones).To(ConsistOf(And(
		HaveField("Zone", "region-1/pve2"),
		HaveField("Reason", ContainSubstring(`the topology in the notes of host pve2 is invalid: found the topology of host "pve1"`)),
	)))
}
