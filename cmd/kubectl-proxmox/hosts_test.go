// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHostsAndTheTypesThatFitThem(t *testing.T) {
	t.Parallel()
	sim, err := pvesim.New(pvesim.DefaultScenario(2), pvesim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	dir := t.TempDir()
	config, ca := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "ca.pem")
	write := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ca, string(sim.CAPEM()))
	write(config, fmt.Sprintf("clusters: [{region: home, url: %q, ca_file: %q, token_id: %q, token_secret: %q}]",
		sim.URL(), ca, pvesim.DefaultTokenID, pvesim.DefaultTokenSecret))
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs(args)
		root.SetOut(&out)
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}

	hosts, err := run("hosts", "--cloud-config", config)
	if err != nil || !strings.Contains(hosts, "pve1") || !strings.Contains(hosts, "pve2") || !strings.Contains(hosts, "GiB") {
		t.Errorf("found %v:\n%s", err, hosts)
	}
	types, err := run("instance-types", "--cloud-config", config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "types.json")
	write(file, types)
	if _, err := instancetype.Load(file); err != nil {
		t.Errorf("the controller does not read what was written: %v\n%s", err, types)
	}
	if _, err := run("hosts", "--cloud-config", filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a missing file gives %v", err)
	}
}
