// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestRootSet(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		runSimulated(t, release, func(t *testing.T, g *WithT) {
			ctx := t.Context()
			sim, token := simulate(t, release)
			g.Expect(clone(ctx, token, nodeID)).To(Succeed())
			for option, value := range map[string]string{"affinity": "0-1", "hugepages": "1024", "args": "-foo"} {
				err := token.UpdateVM(ctx, "pve1", nodeID, proxmox.ConfigChange{Set: map[string]string{option: value}})
				g.Expect(err).To(MatchError(ContainSubstring("only root can set '" + option + "' config")))
			}

			file, write := secretFile(t, "not yet")
			cfg := simConfig(sim)
			g.Expect(cfg.HasRoot()).To(BeFalse())
			cfg.Root = &proxmox.RootLogin{Username: proxmox.RootUser, PasswordFile: file}
			g.Expect(cfg.HasRoot()).To(BeTrue())
			root, err := proxmox.NewRoot(cfg, proxmox.Options{DialContext: sim.DialContext})
			g.Expect(err).NotTo(HaveOccurred())
			options := proxmox.RootOptions{Affinity: cpuset.New(2, 3), Hugepages: "2", IgnitionFile: new("/iso/a.iso")}
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(MatchError(proxmox.ErrUnauthorized))
			write(pvesim.RootPassword)
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(Succeed(), "the changed password is read")

			found, err := token.VMConfig(ctx, "pve1", nodeID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Compute().Affinity()).To(Equal(cpuset.New(2, 3)))
			g.Expect(found.Compute().Hugepages()).To(Equal("2"))
			g.Expect(found.Options["args"]).To(ContainSubstring("file=/iso/a.iso"))
			g.Expect(root.Set(ctx, "pve1", nodeID, found, proxmox.RootOptions{IgnitionFile: new("/iso/a.iso")})).To(Succeed())
			g.Expect(token.VMConfig(ctx, "pve1", nodeID)).To(HaveField("Digest", found.Digest), "the same file is not written again")
			g.Expect(root.Set(ctx, "pve1", nodeID, found, proxmox.RootOptions{IgnitionFile: new("")})).To(Succeed())
			g.Expect(token.VMConfig(ctx, "pve1", nodeID)).To(HaveField("Options", Not(HaveKey("args"))))
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, proxmox.RootOptions{})).To(Succeed(), "no options, no call")

			cfg = simConfig(sim)
			cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", proxmox.RootUser, pvesim.RootPassword
			root, err = proxmox.NewRoot(cfg, proxmox.Options{DialContext: sim.DialContext})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(Succeed(), "a Cluster whose own login is root@pam needs no other")
		})
	}
}
