// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func mapped(host string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=" + host + ",path=/tank/data"}}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func TestLaunchShares(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(mapped("pve1")))
	w.NodeClass.Spec.Shares = []v1alpha1.Share{{Mapping: "data", MountPath: "/mnt/data", Cache: "metadata"}}
	p := w.StartProcess()
	claim := p.Launched("default-a", w.NodeClass)
	in, _, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(HaveOccurred())
	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Options).To(HaveKeyWithValue("virtiofs0", "dirid=data,cache=metadata"))
	status, err := w.Client.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())
	p.Delete(claim)
	w.ExpectNoOrphans()
}

// The class is checked for it, but the mapping can be deleted later.
func TestLaunchShareWithoutDirectory(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(mapped("pve7")))
	w.NodeClass.Spec.Shares = []v1alpha1.Share{{Mapping: "data"}}
	p := w.StartProcess()
	claim := p.Planned("default-a", w.NodeClass)
	err := p.Launch(claim, w.NodeClass)
	w.Expect(err).To(MatchError(ContainSubstring("directory mapping invalid: 'data' has no path on node 'pve1'")))
	w.Expect(err).To(BeAssignableToTypeOf(&instance.LaunchError{}))
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}

func TestLaunchPlan9Shares(t *testing.T) {
	t.Parallel()
	const inherited = "-no-hpet"
	w := testenv.NewFake(t, testenv.Scenario(mapped("pve1"), templatesWith(map[string]string{"args": inherited})))
	w.NodeClass.Spec.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9, MountPath: "/mnt/data"}}
	w.Expect(w.StartProcess().Launch(w.StartProcess().Planned("without", w.NodeClass), w.NodeClass)).
		To(MatchError(ContainSubstring("by plan9: region " + testenv.Region + ": the cloud config has no login of root")))

	p := w.StartProcess(testenv.AsRoot())
	claim := p.Launched("with", w.NodeClass)
	cfg := w.VMConfig(w.Intent(claim))
	w.Expect(cfg.Options["args"]).To(Equal(inherited + " -virtfs local,id=karpenter-data,path=/tank/data,mount_tag=data,security_model=mapped-xattr"))
	w.Expect(cfg.Options).NotTo(HaveKey("virtiofs0"))
}
