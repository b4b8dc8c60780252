// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

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
			g := NewWithT(t)
			p, err := StartProxmox(t.Context(), ProxmoxOptions{Hosts: 2, Version: version, Speed: 20})
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(p.Close)
			add := func(vmid int, description string) {
				t.Helper()
				g.Expect(p.API.Run(t.Context(), http.MethodPost, "/nodes/pve1/qemu", url.Values{
					"vmid": {fmt.Sprint(vmid)}, "name": {"karpenter-node"}, "description": {description}, "scsi0": {"local-lvm:1"},
				})).To(Succeed())
			}
			add(20000, "")
			add(20001, notes(otherRun, 20001))
			add(20002, notes(ownRun, 20009)) // a copy
			add(20003, notes(ownRun, 20003)+notes(ownRun, 20003))
			add(20004, TestNotes(otherRun, 20004))
			before, err := p.API.Holdings(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			add(20010, notes(ownRun, 20010))
			add(20011, TestNotes(ownRun, 20011))
			g.Expect(p.API.Start(t.Context(), Guest{Host: "pve1", VMID: 20010})).To(Succeed())
			g.Expect(p.API.Clean(t.Context(), ownRun)).To(HaveLen(2))
			after, err := p.API.Holdings(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(before.Diff(after)).To(BeEmpty())
			_, err = p.API.Clean(t.Context(), "")
			g.Expect(err).To(HaveOccurred(), "without a cluster ID")
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
		NewWithT(t).Expect(Volume{Host: "pve1", ID: id}.isBootDriveOf(ownRun)).To(Equal(want), id)
	}
}

func TestStaleRecords(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), filepath.Join(t.TempDir(), "runs")
	for cluster, lab := range map[string]string{"running": "https://a", "ended": "https://a", "other_lab": "https://b"} {
		record, err := NewRecord(dir, cluster, lab)
		g.Expect(err).NotTo(HaveOccurred())
		if cluster == "running" {
			t.Cleanup(func() { _ = record.Release() })
		} else {
			g.Expect(record.Release()).To(Succeed())
		}
	}
	stale, err := StaleRecords(dir, "https://a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stale).To(HaveExactElements(HaveField("Cluster", "ended")))
	g.Expect(StaleRecords(dir, "https://a")).To(BeEmpty(), "it is locked")
	g.Expect(stale[0].Remove()).To(Succeed())
	g.Expect(filepath.Glob(filepath.Join(dir, "*"))).To(ConsistOf(HaveSuffix("running"), HaveSuffix("other_lab")))
}

func TestLoadLab(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), t.TempDir()
	cloud := "clusters: [{region: home, url: https://127.0.0.1:8006, token_id: " + pvesim.DefaultTokenID + ", token_secret: " + pvesim.DefaultTokenSecret + "}]"
	g.Expect(os.WriteFile(filepath.Join(dir, "cloud.yaml"), []byte(cloud), 0o600)).To(Succeed())
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
		g.Expect(os.WriteFile(file, []byte(c.content), 0o600)).To(Succeed())
		lab, err := LoadLab(file)
		if c.want == "" {
			g.Expect(err).NotTo(HaveOccurred(), name)
			g.Expect(lab.Region).To(Equal("home"))
			continue
		}
		g.Expect(err).To(MatchError(And(ContainSubstring(c.want), ContainSubstring(file), Not(ContainSubstring(pvesim.DefaultTokenSecret)))), name)
	}
}
