// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHostsAndInstanceTypes(t *testing.T) {
	t.Parallel()
	_, dir := startSimulator(t, nil)
	config := filepath.Join(dir, "config.yaml")
	hosts, err := run(t, "hosts", "--cloud-config", config)
	if err != nil || !strings.Contains(hosts, "pve1") || !strings.Contains(hosts, "pve2") || !strings.Contains(hosts, "GiB") {
		t.Errorf("hosts: %v\n%s", err, hosts)
	}
	types, err := run(t, "instance-types", "--cloud-config", config)
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, dir, "types.json", types)
	if _, err := instancetype.Load(file); err != nil {
		t.Errorf("the controller cannot load the file: %v\n%s", err, types)
	}
	if _, err := run(t, "hosts", "--cloud-config", filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("missing file: got error %v", err)
	}
}

// A region that does not respond must not hide the others. If none responds, nothing is printed.
func TestHostsUnreachableRegion(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	sim, dir := startSimulator(t, nil)
	const closed = "https://127.0.0.1:1" // no other test gets this port
	cluster := func(region, url string) string {
		return fmt.Sprintf("{region: %s, url: %q, ca_file: %q, token_id: %q, token_secret: %q}",
			region, url, filepath.Join(dir, "ca.pem"), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
	}
	config := write(t, dir, "two.yaml", "clusters: ["+cluster("away", closed)+", "+cluster("home", sim.URL())+"]")
	unreachable := MatchError(And(ContainSubstring(`checking region "away": no response from Proxmox VE`), ContainSubstring("connection refused")))
	out, err := run(t, "hosts", "--cloud-config", config)
	g.Expect(err).To(unreachable)
	g.Expect(out).To(MatchRegexp(`(?s)^REGION .*\nhome +pve1 .*\nhome +pve2 `))
	out, err = run(t, "instance-types", "--cloud-config", config)
	g.Expect(err).To(unreachable)
	_, err = instancetype.Load(write(t, dir, "types.json", out))
	g.Expect(err).NotTo(HaveOccurred())

	_, err = (&clusters{cloudConfig: config}).read(t.Context())
	g.Expect(err).To(unreachable, "a plan needs all regions")
	out, err = run(t, "hosts", "--cloud-config", write(t, dir, "one.yaml", "clusters: ["+cluster("away", closed)+"]"))
	g.Expect(err).To(unreachable)
	g.Expect(out).To(BeEmpty())
}
