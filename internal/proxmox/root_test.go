// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"os"
	"path/filepath"
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
			for option, value := range map[string]string{"affinity": "0-1", "hugepages": "1024"} {
				err := token.UpdateVM(ctx, "pve1", nodeID, proxmox.ConfigChange{Set: map[string]string{option: value}})
				g.Expect(err).To(MatchError(ContainSubstring("only root can set '" + option + "' config")))
			}

			file := filepath.Join(t.TempDir(), "password")
			g.Expect(os.WriteFile(file, []byte("not yet\n"), 0o600)).To(Succeed())
			cfg := simConfig(sim)
			g.Expect(cfg.HasRoot()).To(BeFalse())
			cfg.Root = &proxmox.RootLogin{Username: proxmox.RootUser, PasswordFile: file}
			g.Expect(cfg.HasRoot()).To(BeTrue())
			root, err := proxmox.NewRoot(cfg, proxmox.Options{DialContext: sim.DialContext})
			g.Expect(err).NotTo(HaveOccurred())
			options := proxmox.RootOptions{Affinity: cpuset.New(2, 3), Hugepages: "2"}
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(MatchError(proxmox.ErrUnauthorized))
			g.Expect(os.WriteFile(file, []byte(pvesim.RootPassword+"\n"), 0o600)).To(Succeed())
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(Succeed(), "the changed password is read")

			found, err := token.VMConfig(ctx, "pve1", nodeID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.Compute().Affinity()).To(Equal(cpuset.New(2, 3)))
			g.Expect(found.Compute().Hugepages()).To(Equal("2"))
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, proxmox.RootOptions{})).To(Succeed(), "no options, no call")

			cfg = simConfig(sim)
			cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", proxmox.RootUser, pvesim.RootPassword
			root, err = proxmox.NewRoot(cfg, proxmox.Options{DialContext: sim.DialContext})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(root.Set(ctx, "pve1", nodeID, proxmox.VMConfig{}, options)).To(Succeed(), "a Cluster whose own login is root@pam needs no other")
		})
	}
}

func TestRootSetIgnitionFile(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		runSimulated(t, release, func(t *testing.T, g *WithT) {
			ctx := t.Context()
			sim, token := simulate(t, release)
			g.Expect(clone(ctx, token, nodeID)).To(Succeed())
			cfg := simConfig(sim)
			cfg.Root = &proxmox.RootLogin{Username: proxmox.RootUser, Password: pvesim.RootPassword}
			root, err := proxmox.NewRoot(cfg, proxmox.Options{DialContext: sim.DialContext})
			g.Expect(err).NotTo(HaveOccurred())
			task, err := token.UploadISO(ctx, "pve1", "local", "x.iso", []byte("{}"))
			g.Expect(waitFor(ctx, token, task, err)).To(Succeed())
			path, err := token.VolumePath(ctx, "pve1", "local:iso/x.iso")
			g.Expect(err).NotTo(HaveOccurred())

			setFile := func(path string) proxmox.VMConfig {
				before, err := token.VMConfig(ctx, "pve1", nodeID)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(root.Set(ctx, "pve1", nodeID, before, proxmox.RootOptions{IgnitionFile: new(path)})).To(Succeed())
				after, err := token.VMConfig(ctx, "pve1", nodeID)
				g.Expect(err).NotTo(HaveOccurred())
				return after
			}
			err = token.UpdateVM(ctx, "pve1", nodeID, proxmox.ConfigChange{Set: map[string]string{"args": "-foo"}})
			g.Expect(err).To(MatchError(ContainSubstring("only root can set 'args' config")))
			set := setFile(path)
			g.Expect(set.Options["args"]).To(Equal("-fw_cfg name=opt/com.coreos/config,file=" + path + " -fw_cfg name=opt/org.flatcar-linux/config,file=" + path))
			g.Expect(setFile(path).Digest).To(Equal(set.Digest), "the same file is not written again")
			g.Expect(setFile("").Options).NotTo(HaveKey("args"))
		})
	}
}
