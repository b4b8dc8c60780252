// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
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
