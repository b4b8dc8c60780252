// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
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
	NewWithT(c.t).Expect(err).NotTo(HaveOccurred())
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

func TestHostEndpoints(t *testing.T) { simulated(t, testHostEndpoints) }

func testHostEndpoints(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	hanging, other := c.at("pve1"), c.at("pve2")
	c.admin(200, "POST", "/hosts/pve1/hang", "")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	g.Expect(hanging.try(hanging.request("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300").WithContext(ctx))).Error().To(MatchError(context.DeadlineExceeded), "the request ended")
	g.Expect(vmids(other.ok("GET", "/cluster/resources"))).NotTo(ContainElement("300"), "the request took effect")
	other.ok("GET", "/nodes/pve1/status") // other hosts reach it
	c.admin(200, "DELETE", "/hosts/pve1/hang", "")
	hanging.ok("GET", "/version")
	c.admin(400, "POST", "/hosts/nosuch/hang", "")

	g.Expect(c.sim.HostDown("pve1", "refused")).To(Succeed())
	g.Expect(hanging.try(hanging.request("GET", "/version"))).Error().To(HaveOccurred())
	g.Expect(c.admin(200, "GET", "/hosts/pve2/url", "")).To(ContainSubstring(c.at("pve2").url))
	c.admin(400, "POST", "/partition", "")
	c.admin(200, "POST", "/partition", "hosts=pve1")
	c.admin(200, "DELETE", "/partition", "")
}

// powerScenario returns three hosts that vote; pve2 and pve3 can be woken.
func powerScenario() *pvesim.Scenario {
	s := pvesim.DefaultScenario(3)
	s.Votes = &pvesim.Votes{}
	for i := range s.Hosts {
		s.Hosts[i].ShutdownTime, s.Hosts[i].BootTime = pvesim.Duration(30*time.Second), pvesim.Duration(2*time.Minute)
	}
	s.Hosts[1].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:02"}
	s.Hosts[2].Config = map[string]string{"wakeonlan": "mac=BC:24:11:AA:00:03,bind-interface=eno1"}
	return s
}

// hostStatus returns the status of a host in the list of hosts.
func (c *client) hostStatus(host string) any {
	c.t.Helper()
	return row(c.ok("GET", "/nodes"), "node", host)["status"]
}

func TestSleepAndWake(t *testing.T) { simulated(t, testSleepAndWake) }

func testSleepAndWake(t *testing.T, g *WithT) {
	c := asRoot(t, powerScenario())
	eventually(t, "hosts have reported", func() bool { return c.hostStatus("pve2") == "online" })
	began := time.Now()
	g.Expect(c.ok("POST", "/nodes/pve2/status", "command", "shutdown")).To(BeNil(), "response of the shutdown")
	// The packet is lost: the host is still up.
	g.Expect(c.ok("POST", "/nodes/pve2/wakeonlan")).To(Equal("BC:24:11:AA:00:02"), "the packet was sent")
	eventually(t, "the host is off", func() bool { return c.hostStatus("pve2") == "offline" })
	g.Expect(time.Since(began)).To(BeNumerically(">=", 32*time.Second), "the shutdown took")
	g.Expect(row(c.ok("GET", "/cluster/resources"), "id", "qemu/102")["status"]).NotTo(Equal("running"))
	g.Expect(c.ok("GET", "/cluster/status")).To(ContainElements(fields("name", "pve2", "online", 0.0), fields("type", "cluster", "quorate", 1.0)))
	c.refused(595, "No route to host", "POST", "/nodes/pve2/status", "command", "shutdown")

	c.ok("POST", "/nodes/pve2/wakeonlan")
	c.ok("POST", "/nodes/pve2/wakeonlan")
	time.Sleep(time.Minute)
	g.Expect(c.hostStatus("pve2")).To(Equal("offline"), "the host is up before it has booted")
	time.Sleep(62 * time.Second)
	eventually(t, "the host is up", func() bool { return c.hostStatus("pve2") == "online" })
	g.Expect(row(c.ok("GET", "/cluster/resources"), "id", "qemu/102")).NotTo(BeNil(), "the guest with onboot is gone")
	c.ok("POST", "/nodes/pve2/status", "command", "reboot")
	eventually(t, "the host is off", func() bool { return c.hostStatus("pve2") == "offline" })
	time.Sleep(2 * time.Minute)
	eventually(t, "the host has rebooted", func() bool { return c.hostStatus("pve2") == "online" })
}

func TestWakeErrors(t *testing.T) { simulated(t, testWakeErrors) }

func testWakeErrors(t *testing.T, g *WithT) {
	c := startSim(t, powerScenario(), pvesim.Options{AdminListen: "127.0.0.1:0"})
	c.refused(403, "Permission check failed (/nodes/pve2, Sys.PowerMgmt)", "POST", "/nodes/pve2/wakeonlan")
	c.refused(403, "Permission check failed (/nodes/pve2, Sys.PowerMgmt)", "POST", "/nodes/pve2/status", "command", "shutdown")
	g.Expect(c.sim.SetRole(pvesim.Role{ID: "Karpenter", Privileges: []string{"Sys.PowerMgmt", "Sys.Audit"}})).To(Succeed())
	c.at("pve2").refused(500, "'pve2' is local node, cannot wake my self!", "POST", "/nodes/pve2/wakeonlan")
	c.at("pve2").refused(500, "No wake on LAN MAC address defined for 'pve1'!", "POST", "/nodes/pve1/wakeonlan")
	c.refused(500, "no such cluster node 'nope'", "POST", "/nodes/nope/wakeonlan")
	c.refused(400, "Parameter verification failed.", "POST", "/nodes/pve2/status", "command", "halt")

	c.admin(200, "POST", "/hosts/pve3/boot-failure", "")
	g.Expect(c.sim.HostDown("pve3", "noroute")).To(Succeed())
	c.ok("POST", "/nodes/pve3/wakeonlan")
	time.Sleep(time.Hour)
	g.Expect(c.hostStatus("pve3")).To(Equal("offline"), "the host booted")
	c.admin(200, "DELETE", "/hosts/pve3/boot-failure", "")
	g.Expect(c.ok("POST", "/nodes/pve3/wakeonlan")).To(Equal("BC:24:11:AA:00:03"), "the packet was sent")
	time.Sleep(3 * time.Minute)
	g.Expect(c.hostStatus("pve3")).To(Equal("online"), "the host did not boot")
	g.Expect(c.sim.SetBootFails("nope", true)).To(HaveOccurred(), "unknown host: no error")
}

func TestVotes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		hosts   int
		votes   int // of pve1
		qdevice bool
		down    []string
		quorate float64
	}{
		{"one_of_three_down", 3, 1, false, []string{"pve3"}, 1},
		{"two_of_three_down", 3, 1, false, []string{"pve2", "pve3"}, 0},
		{"half_down", 4, 1, false, []string{"pve3", "pve4"}, 0},
		{"half_down_with_qdevice", 4, 1, true, []string{"pve3", "pve4"}, 1},
		{"last_man_standing", 3, 1, true, []string{"pve2", "pve3"}, 1},
		{"host_with_more_votes_remains", 3, 3, false, []string{"pve2", "pve3"}, 1},
		{"host_with_more_votes_down", 3, 3, false, []string{"pve1"}, 0},
	} {
		runSimulated(t, test.name, func(t *testing.T, g *WithT) {
			s := pvesim.DefaultScenario(test.hosts)
			s.Votes = &pvesim.Votes{QDevice: test.qdevice}
			s.Hosts[0].Votes = test.votes
			c := asRoot(t, s)
			for _, host := range test.down {
				g.Expect(c.sim.HostDown(host, "noroute")).To(Succeed())
			}
			g.Expect(row(c.ok("GET", "/cluster/status"), "type", "cluster")["quorate"]).To(Equal(test.quorate))
			qdevice, _ := c.ok("GET", "/cluster/config/qdevice").(map[string]any)
			g.Expect(qdevice["State"] == "Connected").To(Equal(test.qdevice))
		})
	}
}

func TestJobsAndCeph(t *testing.T) { simulated(t, testJobsAndCeph) }

func testJobsAndCeph(t *testing.T, g *WithT) {
	s := powerScenario()
	s.Hosts[0].Ceph, s.Hosts[1].Ceph = []string{"mon", "mgr", "osd.0"}, []string{"mon", "osd.1"}
	s.BackupJobs = []pvesim.BackupJob{
		{ID: "nightly", Schedule: "02:00", NextRun: pvesim.Duration(time.Hour)}, {ID: "off", Schedule: "03:00", Host: "pve2", VMs: []int{102}, Disabled: true},
		{ID: "pool", Schedule: "04:00", Pool: "prod"}, {ID: "rest", Schedule: "05:00", Exclude: []int{101, 102}},
	}
	s.Pools = append(s.Pools, pvesim.Pool{ID: "prod"})
	s.ReplicationJobs = []pvesim.ReplicationJob{{VMID: 101, Target: "pve3"}}
	c := asRoot(t, s)
	backups := c.ok("GET", "/cluster/backup")
	g.Expect(backups).To(ContainElements(
		And(fields("id", "nightly", "all", 1.0), HaveKey("next-run")), fields("id", "off", "enabled", 0.0, "node", "pve2", "vmid", "102"),
		fields("id", "pool", "pool", "prod", "all", nil), fields("id", "rest", "exclude", "101,102", "all", 1.0)))
	g.Expect(row(c.ok("GET", "/cluster/replication"), "guest", 101)["target"]).To(Equal("pve3"))
	g.Expect(row(c.ok("GET", "/nodes/pve1/replication"), "id", "101-0")["source"]).To(Equal("pve1"))
	ceph := c.object("/cluster/ceph/metadata")
	g.Expect(ceph["mon"]).To(And(HaveLen(2), HaveKeyWithValue("pve2@pve2", fields("hostname", "pve2"))))
	g.Expect(row(ceph["osd"], "id", "1")["hostname"]).To(Equal("pve2"))
	c.ok("GET", "/nodes/pve2/ceph/status")
	c.refused(500, "binary not installed: /usr/bin/ceph-mon", "GET", "/nodes/pve3/ceph/status")
	c.at("pve3").refused(500, "binary not installed: /usr/bin/ceph-mon", "GET", "/cluster/ceph/metadata")
}

func TestHostConfig(t *testing.T) { simulated(t, testHostConfig) }

func testHostConfig(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Hosts[0].Config = map[string]string{"description": "Rack 7"}
	c := asRoot(t, s)
	const config = "/nodes/pve1/config"
	before := c.object(config)
	g.Expect(before["description"]).To(Equal("Rack 7\n"), "notes of the scenario")
	c.ok("PUT", config, "description", "Rack 8", "ballooning-target", "70", "digest", before["digest"].(string))
	c.refused(500, "detected modified configuration - file changed by other user? Try again.", "PUT", config, "description", "Rack 9", "digest", before["digest"].(string))
	g.Expect(c.object(config)).To(And(fields("description", "Rack 8\n"), HaveKey("ballooning-target"), HaveKeyWithValue("digest", Not(Equal(before["digest"])))))
	g.Expect(c.ok("GET", config, "property", "description")).To(fields("description", "Rack 8\n", "ballooning-target", nil), "one property")
	c.ok("PUT", config, "delete", "description")
	g.Expect(c.object(config)["description"]).To(BeNil(), "after the deletion")
	g.Expect(c.object("/nodes/pve2/config")).To(HaveLen(1), "config of the other host")
}
