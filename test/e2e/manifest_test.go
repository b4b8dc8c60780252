// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestManifestInstall follows docs/install-manifest.md with the manifest of a release, which
// MANIFEST names. The controller launches a Node for a pod, is killed meanwhile, and another one
// completes the launch as soon as the Lease of the first has expired.
func TestManifestInstall(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the controller"))
	manifest := os.Getenv("MANIFEST")
	if manifest == "" {
		t.Skip("SKIPPED: MANIFEST must name the manifest of a release; make e2e renders it")
	}
	e := newEnv(t, setup{idle: true, hosts: 2})
	g := NewWithT(t)
	before := e.holdings(g)
	e.removeJoinPermissions(t)
	home := t.TempDir()
	writeJSON(t, filepath.Join(home, "config.yaml"), map[string]any{"clusters": []harness.Cluster{e.proxmox.Cluster(e.region)}})
	for _, block := range shellBlocks(t, "../../docs/install-manifest.md") {
		// Here, the harness has created the CRDs with another field manager.
		block = strings.Replace(block, "--server-side", "--server-side --force-conflicts", 1)
		e.shell(t, home, strings.ReplaceAll(block, "https://github.com/karpenter-proxmox/karpenter-provider-proxmox/releases/latest/download/install.yaml", manifest))
	}
	e.runInstalled(t)
	p := e.newNodePool(t, "kubeadm", nil) // the manifest allows the Secrets of the recipes
	p.deployPods(t, 1)
	was := p.killDuringLaunch(t)
	must(t, e.controller.Start(e.ctx))
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", p.settled)
	g.Expect(claim.UID).To(Equal(was.UID))
	g.Expect(p.vms(g)).To(HaveExactElements(HaveField("VMID", e.vmOf(g, was).VMID)))
	joined, problems, err := e.proxmox.BootRecorder.CheckJoins(e.ctx, e.kube, []string{claim.Name})
	must(t, err)
	g.Expect(joined).To(Equal(1), "the Node joins with its own token: %v", problems)
	g.Expect(e.boots(claim)).To(Equal(1))

	p.deleteClaims(t)
	e.expectUnchanged(t, before)
	g.Expect(e.logOf(t)).NotTo(ContainSubstring("forbidden"), "the permissions of the manifest are insufficient")
}
