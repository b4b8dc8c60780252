// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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
	resources, status := c.ok("GET", "/cluster/resources"), c.ok("GET", "/cluster/status")
	if row(resources, "id", "qemu/102")["status"] == "running" || row(status, "name", "pve2")["online"] != 0.0 || row(status, "type", "cluster")["quorate"] != 1.0 {
		t.Errorf("after the shutdown: %v %v", resources, status)
	}
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
	tests := []struct {
		name    string
		hosts   int
		votes   []int
		qdevice bool
		down    []string
		quorate bool
	}{
		{"one_of_three_down", 3, nil, false, []string{"pve3"}, true},
		{"two_of_three_down", 3, nil, false, []string{"pve2", "pve3"}, false},
		{"half_down", 4, nil, false, []string{"pve3", "pve4"}, false},
		{"half_down_with_qdevice", 4, nil, true, []string{"pve3", "pve4"}, true},
		{"last_man_standing", 3, nil, true, []string{"pve2", "pve3"}, true},
		{"host_with_more_votes_remains", 3, []int{3}, false, []string{"pve2", "pve3"}, true},
		{"host_with_more_votes_down", 3, []int{3}, false, []string{"pve1"}, false},
	}
	for _, test := range tests {
		runSimulated(t, test.name, func(t *testing.T, g *WithT) {
			s := pvesim.DefaultScenario(test.hosts)
			s.Votes = &pvesim.Votes{QDevice: test.qdevice}
			for i, votes := range test.votes {
				s.Hosts[i].Votes = votes
			}
			c := asRoot(t, s)
			for _, host := range test.down {
				g.Expect(c.sim.HostDown(host, "noroute")).To(Succeed())
			}
			want := 0.0
			if test.quorate {
				want = 1
			}
			g.Expect(row(c.ok("GET", "/cluster/status"), "type", "cluster")["quorate"]).To(Equal(want))
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
	if job := row(backups, "id", "nightly"); job["next-run"] == nil || job["all"] != 1.0 {
		t.Errorf("backup jobs: %v", backups)
	}
	g.Expect(row(backups, "id", "off")).To(fields("enabled", 0.0, "node", "pve2", "vmid", "102"), "backup jobs")
	g.Expect(row(backups, "id", "pool")).To(fields("pool", "prod", "all", nil), "backup jobs")
	g.Expect(row(backups, "id", "rest")).To(fields("exclude", "101,102", "all", 1.0), "backup jobs")
	if jobs := c.ok("GET", "/cluster/replication"); row(jobs, "guest", 101)["target"] != "pve3" {
		t.Errorf("replication jobs: %v", jobs)
	}
	if jobs := c.ok("GET", "/nodes/pve1/replication"); row(jobs, "id", "101-0")["source"] != "pve1" {
		t.Errorf("replication jobs of pve1: %v", jobs)
	}
	ceph := c.object("/cluster/ceph/metadata")
	if mons, _ := ceph["mon"].(map[string]any); len(mons) != 2 || mons["pve2@pve2"].(map[string]any)["hostname"] != "pve2" {
		t.Errorf("monitors: %v", ceph["mon"])
	}
	g.Expect(row(ceph["osd"], "id", "1")["hostname"]).To(Equal("pve2"))
	c.ok("GET", "/nodes/pve2/ceph/status")
	c.refused(500, "binary not installed: /usr/bin/ceph-mon", "GET", "/nodes/pve3/ceph/status")
	c.at("pve3").refused(500, "binary not installed: /usr/bin/ceph-mon", "GET", "/cluster/ceph/metadata")
}

func TestScenarioJobs(t *testing.T) {
	t.Parallel()
	const host = "version: \"9.2\"\nhosts:\n- {name: a, sockets: 1, cores: 1, memory: 1GiB%s}\n%s"
	for _, test := range []struct{ host, rest, want string }{
		{", ceph: [mon, nas]", "", `hosts[0].ceph[1]: "nas" is not one of mon, mgr, mds, osd`},
		{", ceph: [osd]", "", `hosts[0].ceph[0]: "osd" is not an OSD with its number, for example osd.0`},
		{"", "backupJobs: [{schedule: daily}]", "backupJobs[0].id: a backup job needs an id"},
		{"", "backupJobs: [{id: x, host: b}]", `backupJobs[0].host: there is no host "b"`},
		{"", "backupJobs: [{id: x, pool: p}]", `backupJobs[0].pool: there is no pool "p"`},
		{"", "replicationJobs: [{vmid: 100, target: a}]", "replicationJobs[0].vmid: there is no guest 100"},
		{"", "guests: [{vmid: 100, host: a}]\nreplicationJobs: [{vmid: 100, target: b}]", `replicationJobs[0].target: there is no host "b"`},
	} {
		text := strings.Replace(strings.Replace(host, "%s", test.host, 1), "%s", test.rest, 1)
		NewWithT(t).Expect(pvesim.ReadScenario(strings.NewReader(text))).Error().To(MatchError(HaveSuffix(test.want)), "%s %s", test.host, test.rest)
	}
}
