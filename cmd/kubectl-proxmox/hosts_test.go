// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A region that does not respond must not hide the others. If none responds, nothing is printed.
func TestHostsUnreachableRegion(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		s := newSite(t, nil)
		configOf := func(region, url string) string {
			return fmt.Sprintf("{region: %s, url: %q, ca_file: %q, token_id: %q, token_secret: %q}",
				region, url, filepath.Join(s.dir, "ca.pem"), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
		}
		away, home := configOf("away", "https://127.0.0.1:1"), configOf("home", s.sim.URL())
		one, two := s.write("one.yaml", "clusters: ["+away+"]"), s.write("two.yaml", "clusters: ["+away+", "+home+"]")
		unreachable := MatchError(And(ContainSubstring(`checking region "away": no response from Proxmox VE`), ContainSubstring("connection refused")))
		out, err := s.run("hosts", "--cloud-config", two)
		s.Expect(err).To(unreachable)
		s.Expect(out).To(MatchRegexp(`(?s)^REGION .*\nhome +pve1 +16 .* GiB .*\nhome +pve2 +16 `))
		out, err = s.run("instance-types", "--cloud-config", two)
		s.Expect(err).To(unreachable)
		_, err = instancetype.Parse([]byte(out))
		s.Expect(err).NotTo(HaveOccurred(), "the controller can load the file")

		cluster := &kubeCluster{client: testenv.NewFakeKube(t), version: "v1.36.3", proxmox: testenv.ClientOptions(s.sim)}
		_, _, err = execute(t, cluster, "plan", "--cloud-config", two)
		s.Expect(err).To(unreachable, "a plan needs all regions")
		out, err = s.run("hosts", "--cloud-config", one)
		s.Expect(err).To(unreachable)
		s.Expect(out).To(BeEmpty())
		s.Expect(errorOf(s.run("hosts", "--cloud-config", filepath.Join(s.dir, "absent")))).To(MatchError(ContainSubstring("does not exist")))
	})
}
