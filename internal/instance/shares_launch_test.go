// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func mapped(host string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=" + host + ",path=/tank/data"}}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func TestAVMStartsWithItsShares(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, mapped("pve1"))
	w.class.Spec.Shares = []v1alpha1.Share{{Mapping: "data", MountPath: "/mnt/data", Cache: "metadata"}}
	p := w.process()
	claim := w.launched(p, "default-a")
	in, _, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())
	cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Options).To(HaveKeyWithValue("virtiofs0", "dirid=data,cache=metadata"))
	status, err := w.client().VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())
	w.deleted(p, claim)
	w.expectNothingLeft()
}

// The preflight looks for it; the mapping may go after it.
func TestAVMThatCannotHaveItsShareIsGivenUpWithTheReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, mapped("pve7"))
	w.class.Spec.Shares = []v1alpha1.Share{{Mapping: "data"}}
	p := w.process()
	claim := w.planned(p, "default-a")
	err := p.Launcher.Launch(t.Context(), claim, w.class)
	w.Expect(err).To(MatchError(ContainSubstring("directory mapping invalid: 'data' has no path on node 'pve1'")))
	w.Expect(err).To(BeAssignableToTypeOf(&instance.LaunchError{}))
	w.deleted(p, w.reread(claim))
	w.expectNothingLeft()
}

func TestAVMSharesByPlan9WithARootLogin(t *testing.T) {
	t.Parallel()
	const inherited = "-no-hpet"
	w := newWorld(t, 1, mapped("pve1"), templatesWith(map[string]string{"args": inherited}))
	w.class.Spec.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9, MountPath: "/mnt/data"}}
	w.Expect(w.process().Launcher.Launch(t.Context(), w.planned(w.process(), "without"), w.class)).
		To(MatchError(ContainSubstring("by plan9: region " + region + ": the cloud config has no login of root")))

	p := w.process(w.asRoot)
	claim := w.launched(p, "with")
	cfg := w.configOf(w.intentOf(claim))
	w.Expect(cfg.Options["args"]).To(Equal(inherited + " -virtfs local,id=karpenter-data,path=/tank/data,mount_tag=data,security_model=mapped-xattr"))
	w.Expect(cfg.Options).NotTo(HaveKey("virtiofs0"))
}
