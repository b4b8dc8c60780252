// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	shareMapping = "datasets"
	sharePath    = "/mnt/datasets"
	sharedFile   = "from-host"
)

// virtiofsShare maps a directory with one file and adds it to the NodeClass, as in docs/shares.md.
func virtiofsShare(t *testing.T, e *env, kit *harness.Kit) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, sharedFile), []byte(t.Name()), 0o600))
	hosts, err := e.proxmox.API.Hosts(t.Context())
	must(t, err)
	mapping := pvesim.Mapping{Kind: "dir", ID: shareMapping}
	for host := range hosts {
		mapping.Map = append(mapping.Map, fmt.Sprintf("node=%s,path=%s", host, dir))
	}
	e.proxmox.AddMapping(mapping)
	kit.Class.Spec.Shares = []v1alpha1.Share{{Mapping: shareMapping, MountPath: sharePath, Cache: "metadata"}}
}

// hasShare checks that the guest mounts the share and can write to it.
func hasShare(t testing.TB, n *node) {
	t.Helper()
	if found := n.run(t, "findmnt --noheadings --output SOURCE,FSTYPE --raw "+sharePath); found != shareMapping+" virtiofs" {
		t.Errorf("%s is a mount of %q, want the share", sharePath, found)
	}
	file := filepath.Join(sharePath, sharedFile)
	if found := n.run(t, fmt.Sprintf("cat %s; cp %s %s-copy; cat %s-copy", file, file, file, file)); found != t.Name()+t.Name() {
		t.Errorf("the guest reads %q from the share, want %q", found, t.Name()+t.Name())
	}
}
