// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func (c *client) fault(f pvesim.Fault) {
	c.t.Helper()
	if _, err := c.sim.AddFault(f); err != nil {
		c.t.Fatal(err)
	}
}

func TestFaultCount(t *testing.T) { simulated(t, testFaultCount) }

func testFaultCount(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Method: "GET", Path: "/nodes/*/qemu", Skip: 1, Count: 2, Status: 500, Message: "got no worker upid - start worker failed"})
	var got []int
	for range 5 {
		got = append(got, c.do("GET", "/nodes/pve1/qemu").Status)
	}
	g.Expect(got).To(Equal([]int{200, 500, 500, 200, 200}))
	c.fault(pvesim.Fault{Path: "/nodes/{node}/status", Status: 596})
	g.Expect(c.refused(596, "Connection timed out", "GET", "/nodes/pve1/status").Raw).To(BeEmpty())
	g.Expect(c.sim.CountRequests("GET", "/nodes/{node}/qemu")).To(BeEquivalentTo(5))
}

func TestFaultDroppedConnection(t *testing.T) { simulated(t, testFaultDroppedConnection) }

func testFaultDroppedConnection(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	drop := func(f pvesim.Fault, newid string) error {
		c.sim.ClearFaults()
		f.Method, f.Path = "POST", "/nodes/{node}/qemu/{vmid}/clone"
		c.fault(f)
		req, err := http.NewRequest("POST", c.sim.URL()+"/nodes/pve1/qemu/9000/clone", strings.NewReader("newid="+newid))
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		_, err = c.try(req)
		return err
	}
	g.Expect(drop(pvesim.Fault{DropBefore: true}, "300")).NotTo(BeNil(), "got a response on a dropped connection")
	g.Expect(drop(pvesim.Fault{DropAfter: true}, "301")).NotTo(BeNil(), "got a response on a dropped connection")
	eventually(t, "the clone whose connection was dropped after it took effect", func() bool {
		conf, _ := c.do("GET", "/nodes/pve1/qemu/301/config").Data.(map[string]any)
		return conf != nil && conf["lock"] == nil
	})
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).NotTo(BeEquivalentTo(200), "call took effect although its connection was dropped before")
}

func TestFaultTasks(t *testing.T) { simulated(t, testFaultTasks) }

func testFaultTasks(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "start failed: out of luck", Count: 1})
	c.fault(pvesim.Fault{Task: "qmclone", TaskID: "9000", Hang: true, Count: 1})
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/101/status/start")).To(Equal("start failed: out of luck"), "start ended")
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300").(string)
	g.Expect(c.object("/nodes/pve1/tasks/" + upid + "/status")["status"]).To(Equal("running"), "task does not hang")
	c.ok("DELETE", "/nodes/pve1/tasks/"+upid)
	g.Expect(c.exit(upid)).NotTo(Equal("OK"), "stopped task succeeded")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
}

func TestFaultProbabilitySeed(t *testing.T) { simulated(t, testFaultProbabilitySeed) }

func testFaultProbabilitySeed(t *testing.T, g *WithT) {
	run := func() (pattern string) {
		c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: 3})
		c.fault(pvesim.Fault{Path: "/version", Probability: 0.5, Status: 500})
		for range 20 {
			pattern += map[bool]string{true: "x", false: "."}[c.do("GET", "/version").Status == 500]
		}
		return pattern
	}
	g.Expect(run()).To(And(Equal(run()), ContainSubstring("x"), ContainSubstring(".")))
}

func TestFaultInvalid(t *testing.T) { simulated(t, testFaultInvalid) }

func testFaultInvalid(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for _, f := range []pvesim.Fault{
		{Task: "qmclone", Status: 500}, {Hang: true}, {Probability: 2}, {Status: 200}, {Path: "[", Status: 500},
	} {
		g.Expect(c.sim.AddFault(f)).Error().To(HaveOccurred(), "%+v was accepted", f)
	}
}

func TestQuorumLost(t *testing.T) { simulated(t, testQuorumLost) }

func testQuorumLost(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.sim.SetQuorum(false)
	g.Expect(row(c.ok("GET", "/cluster/status"), "type", "cluster")["quorate"]).To(Equal(float64(0)))
	c.refused(500, "cluster not ready - no quorum?", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	c.refused(500, "cfs-lock 'firewall-vm-101' error: no quorum!", "POST", "/nodes/pve1/qemu/101/firewall/rules", "type", "in", "action", "ACCEPT")
	c.sim.SetQuorum(true)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
}

func TestStorageFull(t *testing.T) { simulated(t, testStorageFull) }

func testStorageFull(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	g.Expect(c.sim.SetStorageFull("local-lvm", true)).To(Succeed())
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")).To(ContainSubstring("free space in thin pool"), "clone ended")
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).NotTo(BeEquivalentTo(200), "failed clone leaked its config")
}

func TestHostUpStartsOnboot(t *testing.T) { simulated(t, testHostUpStartsOnboot) }

func testHostUpStartsOnboot(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300")
	c.task("POST", "/nodes/pve2/qemu/300/status/start")
	g.Expect(c.sim.HostDown("pve2", "noroute")).To(Succeed())
	c.refused(595, "No route to host", "GET", "/nodes/pve2/qemu/300/status/current")
	resources := c.ok("GET", "/cluster/resources")
	g.Expect(row(resources, "id", "node/pve2")["status"]).To(Equal("offline"))
	g.Expect(row(resources, "id", "qemu/300")["status"]).To(Equal("unknown"))
	g.Expect(c.sim.HostUp("pve2")).To(Succeed())
	for vmid, want := range map[string]string{"300": "stopped", "102": "running"} {
		g.Expect(c.object("/nodes/pve2/qemu/" + vmid + "/status/current")["status"]).To(Equal(want), "VM %s", vmid)
	}
}

func TestLateStorage(t *testing.T) { simulated(t, testLateStorage) }

func testLateStorage(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300")
	for _, step := range []func() error{
		func() error { return c.sim.HostDown("pve2", "noroute") },
		func() error { return c.sim.SetStorageActive("pve2", "local-lvm", false) },
		func() error { return c.sim.HostUp("pve2") },
	} {
		g.Expect(step()).To(Succeed())
	}
	g.Expect(c.ends("POST", "/nodes/pve2/qemu/300/status/start")).To(ContainSubstring("can't activate LV '/dev/local-lvm/vm-300-"), "start ended")
	g.Expect(c.object("/nodes/pve2/qemu/102/status/current")["status"]).To(Equal("stopped"))
	g.Expect(c.object("/nodes/pve2/storage/local-lvm/status")["active"]).To(BeEquivalentTo(0.0))
	status := func(host string) any {
		return row(c.ok("GET", "/cluster/resources"), "id", "storage/"+host+"/local-lvm")["status"]
	}
	eventually(t, "inactive storage is listed as unknown", func() bool { return status("pve2") == "unknown" && status("pve1") == "available" })
	g.Expect(c.sim.SetStorageActive("pve2", "local-lvm", true)).To(Succeed())
	c.task("POST", "/nodes/pve2/qemu/300/status/start")
	eventually(t, "active storage is listed as available", func() bool { return status("pve2") == "available" })
	g.Expect(c.sim.SetStorageActive("pve2", "nope", true)).To(HaveOccurred(), "unknown storage: no error")
}

// A failed clone leaves its disk if the storage is inactive.
func TestCloneInactiveStorage(t *testing.T) { simulated(t, testCloneInactiveStorage) }

func testCloneInactiveStorage(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	exists := func(volume string) bool {
		return row(c.do("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300").Data, "volid", volume) != nil
	}
	clone := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1")
	eventually(t, "the disk is allocated", func() bool { return exists("local-lvm:vm-300-disk-0") })
	g.Expect(c.sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
	g.Expect(c.exit(clone)).To(ContainSubstring("clone failed: can't activate LV"), "the clone ended")
	g.Expect(strings.Join(c.log(clone), "\n")).To(ContainSubstring("\ncan't activate LV '/dev/local-lvm/vm-300-disk-0'"))
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).NotTo(BeEquivalentTo(200), "the VM exists")
	g.Expect(c.sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
	g.Expect(exists("local-lvm:vm-300-disk-0")).To(BeTrue(), "the disks were removed")
	g.Expect(exists("local-lvm:vm-300-cloudinit")).To(BeTrue(), "the disks were removed")
}

func TestShutdownHost(t *testing.T) { simulated(t, testShutdownHost) }

func testShutdownHost(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(2))
	c.fault(pvesim.Fault{Task: "qmshutdown", TaskID: "102", Hang: true})
	g.Expect(c.sim.ShutdownHost("pve2")).To(Succeed())
	g.Expect(c.ok("GET", "/nodes/pve2/tasks", "source", "active", "typefilter", "stopall")).To(HaveLen(1))
	status := func() any { return row(c.ok("GET", "/nodes"), "node", "pve2")["status"] }
	g.Expect(status()).To(Equal("online"), "host is off before its guests are stopped")
	var shutdown map[string]any
	eventually(t, "guest is being shut down", func() bool {
		shutdown = row(c.ok("GET", "/nodes/pve2/tasks", "source", "active", "typefilter", "qmshutdown"), "id", "102")
		return shutdown != nil
	})
	c.ok("DELETE", "/nodes/pve2/tasks/"+shutdown["upid"].(string))
	eventually(t, "host is off", func() bool { return status() == "offline" })
	g.Expect(c.sim.ShutdownHost("nope")).To(HaveOccurred(), "unknown host: no error")
}

func TestRemoveHost(t *testing.T) { simulated(t, testRemoveHost) }

func testRemoveHost(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	g.Expect(c.admin(400, "DELETE", "/hosts/pve2", "")).To(ContainSubstring("online"))
	removed := c.at("pve2")
	g.Expect(c.sim.HostDown("pve2", "noroute")).To(Succeed())
	c.admin(200, "DELETE", "/hosts/pve2", "")
	resources := c.ok("GET", "/cluster/resources")
	g.Expect(row(resources, "id", "node/pve2")).To(BeNil())
	g.Expect(row(resources, "id", "qemu/102")).To(fields("node", "pve2", "status", "unknown"))
	g.Expect(row(c.ok("GET", "/cluster/status"), "name", "pve2")).To(BeNil())
	c.refused(500, "hostname lookup 'pve2' failed - failed to get address info for: pve2: Name or service not known", "GET", "/nodes/pve2/qemu/102/config")
	request, err := http.NewRequest("GET", removed.url+"/version", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(removed.try(request)).Error().To(HaveOccurred())
}
