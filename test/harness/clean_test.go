// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	ownRun   = "0b5c7a3e-1111-4222-8333-444455556666"
	otherRun = "9f5c7a3e-1111-4222-8333-444455556666"
)

func notes(cluster string, vmid int) string {
	return fmt.Sprintf("Karpenter managed instance\n\n<!-- karpenter.proxmox.sinextra.dev {\"v\":1,\"vmid\":%d,\"claim\":\"c\",\"cluster\":%q} -->\n", vmid, cluster)
}

// TestClean creates guests with the same name in the same VMID range and checks that only
// those of the run are deleted.
func TestClean(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p, err := StartProxmox(t.Context(), ProxmoxOptions{Hosts: 2, Version: version, Speed: 20})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			add := func(vmid int, description string) {
				t.Helper()
				if err := p.API.Run(t.Context(), http.MethodPost, "/nodes/pve1/qemu", url.Values{
					"vmid": {fmt.Sprint(vmid)}, "name": {"karpenter-node"}, "description": {description}, "scsi0": {"local-lvm:1"},
				}); err != nil {
					t.Fatal(err)
				}
			}
			add(20000, "")
			add(20001, notes(otherRun, 20001))
			add(20002, notes(ownRun, 20009)) // a copy
			add(20003, notes(ownRun, 20003)+notes(ownRun, 20003))
			add(20004, TestNotes(otherRun, 20004))
			before, err := p.API.Holdings(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			add(20010, notes(ownRun, 20010))
			add(20011, TestNotes(ownRun, 20011))
			if err := p.API.Run(t.Context(), http.MethodPost, "/nodes/pve1/qemu/20010/status/start", nil); err != nil {
				t.Fatal(err)
			}
			removed, err := p.API.Clean(t.Context(), ownRun)
			if err != nil || len(removed) != 2 {
				t.Errorf("deleted %q (%v), want two VMs", removed, err)
			}
			after, err := p.API.Holdings(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if left := before.Diff(after); len(left) > 0 {
				t.Errorf("changed: %q", left)
			}
			if _, err := p.API.Clean(t.Context(), ""); err == nil {
				t.Error("cleaned up without a cluster ID")
			}
		})
	}
}

func TestIsBootDriveOf(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"local:iso/karpenter-0b5c7a3e-6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c.iso": true,
		"local:iso/karpenter-9f5c7a3e-6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c.iso": false,
		"local:iso/debian.iso":       false,
		"local-lvm:vm-20010-disk-0":  false,
		"karpenter-0b5c7a3e-disk-0":  false,
		"local:iso/karpenter--.iso":  false,
		"local:iso/0b5c7a3e-own.iso": false,
	} {
		if got := (Volume{Host: "pve1", ID: id}).isBootDriveOf(ownRun); got != want {
			t.Errorf("%s: %t, want %t", id, got, want)
		}
	}
}

func TestStaleRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "runs")
	for cluster, lab := range map[string]string{"running": "https://a", "ended": "https://a", "other_lab": "https://b"} {
		record, err := NewRecord(dir, cluster, lab)
		if err != nil {
			t.Fatal(err)
		}
		if cluster == "running" {
			t.Cleanup(func() { _ = record.Release() })
		} else if err := record.Release(); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := StaleRecords(dir, "https://a")
	if err != nil || len(stale) != 1 || stale[0].Cluster != "ended" {
		t.Fatalf("stale records are %v (%v), want the ended run", stale, err)
	}
	if again, err := StaleRecords(dir, "https://a"); err != nil || len(again) != 0 {
		t.Errorf("stale records are %v (%v), want none while they are locked", again, err)
	}
	if err := stale[0].Remove(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 || slices.ContainsFunc(left, func(name string) bool { return filepath.Base(name) == "ended" }) {
		t.Errorf("records are %q (%v), want those of the running run and the other lab", left, err)
	}
}

func TestLoadLab(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cloud := "clusters: [{region: home, url: https://127.0.0.1:8006, token_id: " + pvesim.DefaultTokenID + ", token_secret: " + pvesim.DefaultTokenSecret + "}]"
	if err := os.WriteFile(filepath.Join(dir, "cloud.yaml"), []byte(cloud), 0o600); err != nil {
		t.Fatal(err)
	}
	const good = "cloudConfig: cloud.yaml\ntemplate: {name: ubuntu}\nvmids: {from: 20000, to: 20999}\n"
	for name, c := range map[string]struct{ content, want string }{
		"good":                {good, ""},
		"no_cloud_config":     {"template: {name: ubuntu}\nvmids: {from: 20000, to: 20999}\n", "cloudConfig"},
		"missing_file":        {strings.Replace(good, "cloud.yaml", "else.yaml", 1), "else.yaml"},
		"unknown_field":       {good + "storrage: local\n", "storrage"},
		"no_template":         {"cloudConfig: cloud.yaml\nvmids: {from: 20000, to: 20999}\n", "template"},
		"few_VMIDs":           {strings.Replace(good, "20999", "20010", 1), "20010"},
		"unknown_region":      {good + "region: work\n", `"work"`},
		"small_disk":          {good + "diskSize: 2G\n", "diskSize: found 2G, want at least 30G"},
		"invalid_disk":        {good + "diskSize: large\n", "diskSize: found large, want at least 30G"},
		"larger_disk":         {good + "diskSize: 32Gi\n", ""},
		"hostname_as_address": {good + "nodeAddress: laptop\n", `"laptop"`},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		lab, err := LoadLab(file)
		switch {
		case c.want == "" && (err != nil || lab.Region != "home" || lab.API == nil):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file)):
			t.Errorf("%s: error %v, want it to contain %s and the file", name, err, c.want)
		case err != nil && strings.Contains(err.Error(), pvesim.DefaultTokenSecret):
			t.Errorf("%s: the error contains the secret", name)
		}
	}
}
