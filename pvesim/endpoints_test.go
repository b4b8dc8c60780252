// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

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

func testPartition(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(3), pvesim.Options{})
	minority, majority := c.at("pve1"), c.at("pve2")
	g.Expect(c.sim.Partition("pve1")).To(Succeed())

	rows := minority.ok("GET", "/cluster/resources")
	g.Expect(vmids(rows)).To(Equal([]string{"101", "9000"}), "the minority lists guests")
	for _, host := range []string{"pve1", "pve2", "pve3"} {
		g.Expect(row(rows, "id", "node/"+host)).To(fields("status", "unknown", "maxcpu", nil, "level", nil), "the minority shows host")
	}
	for _, r := range minority.ok("GET", "/nodes").([]any) {
		g.Expect(r).To(fields("status", "unknown", "mem", nil, "level", nil), "the minority shows host")
	}
	g.Expect(row(minority.ok("GET", "/cluster/status"), "type", "cluster")["quorate"]).To(Equal(float64(0)))
	minority.refused(500, "cluster not ready - no quorum?", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	minority.refused(595, "No route to host", "GET", "/nodes/pve2/qemu/102/config")

	rows = majority.ok("GET", "/cluster/resources")
	g.Expect(vmids(rows)).To(HaveLen(6), "the majority lists guests")
	for id, status := range map[string]string{"node/pve1": "offline", "node/pve3": "online", "qemu/101": "unknown"} {
		g.Expect(row(rows, "id", id)["status"]).To(Equal(status), id)
	}
	g.Expect(majority.ok("GET", "/cluster/status")).
		To(ContainElements(fields("type", "cluster", "quorate", 1.0), fields("name", "pve1", "online", 0.0), fields("name", "pve2", "local", 1.0)))
	majority.refused(595, "No route to host", "GET", "/nodes/pve1/qemu/101/config")
	majority.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "301")

	c.sim.Heal()
	var quorate []any
	for range 2 {
		quorate = append(quorate, row(minority.ok("GET", "/cluster/status"), "type", "cluster")["quorate"])
	}
	g.Expect(quorate).To(Equal([]any{"0", float64(1)}))
	g.Expect(vmids(minority.ok("GET", "/cluster/resources"))).To(HaveLen(7))
	minority.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	g.Expect(c.sim.Partition("nosuch")).To(HaveOccurred(), "a partition of an unknown host was accepted")
}

func TestHang(t *testing.T) { simulated(t, testHang) }

func testHang(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	hanging, other := c.at("pve1"), c.at("pve2")
	c.admin(200, "POST", "/hosts/pve1/hang", "")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", hanging.url+"/nodes/pve1/qemu/9000/clone", strings.NewReader("newid=300"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(hanging.try(req)).Error().To(MatchError(context.DeadlineExceeded), "the request ended")
	g.Expect(vmids(other.ok("GET", "/cluster/resources"))).NotTo(ContainElement("300"), "the request took effect")
	other.ok("GET", "/nodes/pve1/status") // other hosts reach it
	c.admin(200, "DELETE", "/hosts/pve1/hang", "")
	hanging.ok("GET", "/version")
	c.admin(400, "POST", "/hosts/nosuch/hang", "")
}

func TestHostEndpointOfHostThatIsDown(t *testing.T) { simulated(t, testHostEndpointOfHostThatIsDown) }

func testHostEndpointOfHostThatIsDown(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	first := c.at("pve1")
	first.ok("GET", "/version")
	g.Expect(c.sim.HostDown("pve1", "refused")).To(Succeed())
	req, err := http.NewRequest("GET", first.url+"/version", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.try(req)).Error().To(HaveOccurred())
	g.Expect(c.admin(200, "GET", "/hosts/pve2/url", "")).To(ContainSubstring(c.at("pve2").url))
	for path, body := range map[string]string{"/partition": "", "/hosts/nosuch/hang": ""} {
		c.admin(400, "POST", path, body)
	}
	c.admin(200, "POST", "/partition", "hosts=pve1")
	c.admin(200, "DELETE", "/partition", "")
}
