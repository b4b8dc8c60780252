// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package webpage_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// sample returns a map with everything that the page shows.
func sample() fleet.Map {
	pods := []fleet.Pod{{Namespace: "shop", Name: "web-1", Ready: true}, {Namespace: "shop", Name: "web-2", Reason: "ContainerCreating"}}
	return fleet.Map{
		Taken:   now,
		Regions: []fleet.Region{{Name: "home", Problem: "polling home has failed since 11:59"}},
		Hosts: []fleet.Host{
			{
				Region: "home", Name: "pve1", CPUs: fleet.Usage{Total: 16, VMs: 4, Guests: 2, Reserved: 2}, Memory: fleet.Usage{Total: 64 << 30, VMs: 16 << 30},
				Storages: []fleet.Storage{{Name: "local-lvm", TotalBytes: 500 << 30, UsedBytes: 100 << 30}}, Cells: []fleet.Cell{{ID: 0}, {ID: 1}},
				Energy: declared.Energy{Watts: 90, CostPerHour: 0.027},
			},
			{Region: "home", Name: "pve2", Sleep: "Asleep", Saved: declared.Energy{Watts: 60}},
		},
		VMs: []fleet.VM{
			{
				Region: "home", Host: "pve1", VMID: 20001, Claim: "default-a", NodePool: "default", Type: "s1.4VCPU-16GB", Phase: fleet.Ready, PricePerHour: 0.122, Pods: pods, Created: now,
				Timeline: []fleet.Step{{Name: "Cloned", After: 2500 * time.Millisecond}, {Name: "Initialized", After: 15 * time.Second}},
			},
			{Region: "home", Host: "pve1", VMID: 20002, Claim: "gpu-<script>", NodePool: "gpu", Phase: fleet.Booting, PricePerHour: 1},
		},
		NodePools: []fleet.NodePool{{Name: "default", VMs: 1, Energy: declared.Energy{Watts: 45}}, {Name: "gpu", VMs: 1}},
		Pending:   []fleet.Pod{{Namespace: "shop", Name: "waits", Reason: "nodepool default: pve1: 1 CPUs free, 2 required", Created: now}},
		Templates: []fleet.Template{{Kind: "ProxmoxTemplate", Name: "debian", Zones: []string{"home/pve1/1000"}, Problem: "home/pve2: offline"}},
		Problems:  []string{"nodeclass default is not ready: all hosts are full"},
		Activity:  []string{"launching nodeclaim gpu-<script>"},
		Events:    []fleet.Event{{Time: now, Object: "nodeclaim/default-b", Reason: "LaunchFailed", Message: "storage is full", Warning: true, Count: 3}},
	}
}

// get returns the response to a request for a page that shows the sample.
func get(method, path string) *httptest.ResponseRecorder {
	return respond(sample(), nil, method, path)
}

func respond(m fleet.Map, err error, method, path string) *httptest.ResponseRecorder {
	response := httptest.NewRecorder()
	page := webpage.Page{Read: func(context.Context) (fleet.Map, error) { return m, err }}
	page.ServeHTTP(response, httptest.NewRequest(method, path, nil))
	return response
}

func TestPage(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	response := get(http.MethodGet, "/proxmox")
	g.Expect(response.Code).To(Equal(http.StatusOK))
	for _, want := range []string{
		"2 hosts · 2 VMs · 2 pods · 1 pending · price 1.122 per hour, 819.06 per month · power 90 W, 2.2 kWh/day, 0.65/day · saved 60 W, 1.4 kWh/day", "polling home has failed", "nodeclass default is not ready",
		"VM 20001", `<td class="ok">Ready</td>`, "NUMA cell 1", "shop/web-2: ContainerCreating", "nodepool default: pve1: 1 CPUs free, 2 required",
		"Cloned 2.5 s → Initialized 15.0 s", "<td>1000</td><td>–</td>", "<th>Power</th>", "<td>45 W, 1.1 kWh/day</td>", "power 90 W, 2.2 kWh/day, 0.65/day</span>", "saved 60 W, 1.4 kWh/day</span>", "home/pve2: offline", `<span class="soft">asleep</span>`, `<span class="ok">up</span>`, "LaunchFailed", "storage is full (×3)",
		`<rect class="vms" x="0.0" width="40.0" height="12">`, `<rect class="guests" x="40.0" width="20.0" height="12">`,
	} {
		g.Expect(response.Body.String()).To(ContainSubstring(want))
	}
	g.Expect(response.Body.String()).NotTo(ContainSubstring("gpu-<script>"), "names are escaped")
	g.Expect(response.Body.String()).NotTo(MatchRegexp(`(?i)(src|href)="(https?:)?//|@import|url\(`), "no external assets")
	nonce := regexp.MustCompile(`<style nonce="([^"]+)">`).FindStringSubmatch(response.Body.String())
	g.Expect(nonce).To(HaveLen(2))
	g.Expect(response.Header().Get("Content-Security-Policy")).To(HavePrefix("default-src 'none'; style-src 'nonce-" + nonce[1] + "'"))
	g.Expect(response.Header().Get("Cache-Control")).To(Equal("no-store"))
}

func TestPageFilterAndSort(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	filtered := get(http.MethodGet, "/proxmox?nodepool=default").Body.String()
	g.Expect(filtered).To(And(ContainSubstring("VM 20001"), Not(ContainSubstring("VM 20002")), ContainSubstring("1 VMs · 2 pods")))
	g.Expect(get(http.MethodGet, "/proxmox?sort=price").Body.String()).To(MatchRegexp(`(?s)VM 20002.*VM 20001`))
	g.Expect(get(http.MethodGet, "/proxmox?sort=%22%3E").Body.String()).To(ContainSubstring("<b>name</b>"), "an unknown order is ignored")
}

func TestPageErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	response := respond(fleet.Map{}, errors.New("listing events: forbidden"), http.MethodGet, "/proxmox")
	g.Expect(response.Code).To(Equal(http.StatusInternalServerError))
	g.Expect(response.Body.String()).To(Equal("reading objects failed: listing events: forbidden\n"))
	g.Expect(get(http.MethodPost, "/proxmox").Code).To(Equal(http.StatusMethodNotAllowed))
	g.Expect(get(http.MethodGet, "/other").Code).To(Equal(http.StatusNotFound))
	g.Expect(respond(fleet.Map{}, nil, http.MethodGet, "/proxmox").Body.String()).To(ContainSubstring("idle"))
}
