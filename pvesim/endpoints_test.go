// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// at returns a client of one host's endpoint.
func (c *client) at(host string) *client {
	c.t.Helper()
	url, err := c.sim.HostURL(host)
	if err != nil {
		c.t.Fatal(err)
	}
	other := *c
	other.url = url
	return &other
}

// vmids returns the VMIDs in a list of resources.
func vmids(rows any) (out []string) {
	const prefix = "qemu/"
	for _, r := range rows.([]any) {
		if id, _ := r.(map[string]any)["id"].(string); strings.HasPrefix(id, prefix) {
			out = append(out, strings.TrimPrefix(id, prefix))
		}
	}
	slices.Sort(out)
	return out
}

func TestPartition(t *testing.T) { simulated(t, testPartition) }

func testPartition(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(3), pvesim.Options{})
	minority, majority := c.at("pve1"), c.at("pve2")
	if err := c.sim.Partition("pve1"); err != nil {
		t.Fatal(err)
	}

	rows := minority.ok("GET", "/cluster/resources")
	if got := vmids(rows); !slices.Equal(got, []string{"101", "9000"}) {
		t.Errorf("the minority lists guests %v, want those of pve1", got)
	}
	for _, host := range []string{"pve1", "pve2", "pve3"} {
		if r := row(rows, "id", "node/"+host); r["status"] != "unknown" || r["maxcpu"] != nil || r["level"] != nil {
			t.Errorf("the minority shows host %v", r)
		}
	}
	for _, r := range minority.ok("GET", "/nodes").([]any) {
		if h := r.(map[string]any); h["status"] != "unknown" || h["mem"] != nil || h["level"] != nil {
			t.Errorf("the minority shows host %v", h)
		}
	}
	if got := row(minority.ok("GET", "/cluster/status"), "type", "cluster")["quorate"]; got != float64(0) {
		t.Errorf("quorate is %v in the minority", got)
	}
	minority.refused(500, "cluster not ready - no quorum?", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	minority.refused(595, "No route to host", "GET", "/nodes/pve2/qemu/102/config")

	rows = majority.ok("GET", "/cluster/resources")
	if got := vmids(rows); len(got) != 6 {
		t.Errorf("the majority lists guests %v, want all", got)
	}
	if row(rows, "id", "node/pve1")["status"] != "offline" || row(rows, "id", "node/pve3")["status"] != "online" || row(rows, "id", "qemu/101")["status"] != "unknown" {
		t.Errorf("the majority shows %v", rows)
	}
	status := majority.ok("GET", "/cluster/status")
	if row(status, "type", "cluster")["quorate"] != float64(1) || row(status, "name", "pve1")["online"] != float64(0) || row(status, "name", "pve2")["local"] != float64(1) {
		t.Errorf("the majority's status: %v", status)
	}
	majority.refused(595, "No route to host", "GET", "/nodes/pve1/qemu/101/config")
	majority.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "301")

	c.sim.Heal()
	var quorate []any
	for range 2 {
		quorate = append(quorate, row(minority.ok("GET", "/cluster/status"), "type", "cluster")["quorate"])
	}
	if !slices.Equal(quorate, []any{"0", float64(1)}) {
		t.Errorf("quorate is %v after the partition, want it late", quorate)
	}
	if got := vmids(minority.ok("GET", "/cluster/resources")); len(got) != 7 {
		t.Errorf("guests %v are listed after the partition, want all", got)
	}
	minority.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	if err := c.sim.Partition("nosuch"); err == nil {
		t.Error("a partition of an unknown host was accepted")
	}
}

func TestHang(t *testing.T) { simulated(t, testHang) }

func testHang(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	hanging, other := c.at("pve1"), c.at("pve2")
	if status, text := admin(t, c.sim, "POST", "/hosts/pve1/hang", ""); status != 200 {
		t.Fatal(text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", hanging.url+"/nodes/pve1/qemu/9000/clone", strings.NewReader("newid=300"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hanging.try(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the request ended with %v, want a timeout", err)
	}
	if got := vmids(other.ok("GET", "/cluster/resources")); slices.Contains(got, "300") {
		t.Error("the request took effect")
	}
	other.ok("GET", "/nodes/pve1/status") // other hosts reach it
	admin(t, c.sim, "DELETE", "/hosts/pve1/hang", "")
	hanging.ok("GET", "/version")
	if status, _ := admin(t, c.sim, "POST", "/hosts/nosuch/hang", ""); status != 400 {
		t.Errorf("unknown host: status %d", status)
	}
}

func TestHostEndpointOfHostThatIsDown(t *testing.T) { simulated(t, testHostEndpointOfHostThatIsDown) }

func testHostEndpointOfHostThatIsDown(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	first := c.at("pve1")
	first.ok("GET", "/version")
	if err := c.sim.HostDown("pve1", "refused"); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("GET", first.url+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := first.try(req); err == nil {
		t.Errorf("a host that is down responded with %d", a.Status)
	}
	status, text := admin(t, c.sim, "GET", "/hosts/pve2/url", "")
	if want := c.at("pve2").url; status != 200 || !strings.Contains(text, want) {
		t.Errorf("the URL of pve2: %d %s, want %s", status, text, want)
	}
	for path, body := range map[string]string{"/partition": "", "/hosts/nosuch/hang": ""} {
		if status, _ := admin(t, c.sim, "POST", path, body); status != 400 {
			t.Errorf("POST %s: status %d", path, status)
		}
	}
	if status, text := admin(t, c.sim, "POST", "/partition", "hosts=pve1"); status != 200 {
		t.Error(text)
	}
	admin(t, c.sim, "DELETE", "/partition", "")
}
