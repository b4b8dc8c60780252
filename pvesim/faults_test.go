// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func (c *client) fault(f pvesim.Fault) {
	c.t.Helper()
	if _, err := c.sim.AddFault(f); err != nil {
		c.t.Fatal(err)
	}
}

func TestFaultCount(t *testing.T) { simulated(t, testFaultCount) }

func testFaultCount(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Method: "GET", Path: "/nodes/*/qemu", Skip: 1, Count: 2, Status: 500, Message: "got no worker upid - start worker failed"})
	var got []int
	for range 5 {
		got = append(got, c.do("GET", "/nodes/pve1/qemu").Status)
	}
	if want := []int{200, 500, 500, 200, 200}; !equalInts(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c.fault(pvesim.Fault{Path: "/nodes/{node}/status", Status: 596})
	if a := c.refused(596, "Connection timed out", "GET", "/nodes/pve1/status"); a.Raw != "" {
		t.Errorf("596 has a body: %q", a.Raw)
	}
	if n := c.sim.CountRequests("GET", "/nodes/{node}/qemu"); n != 5 {
		t.Errorf("got %d recorded requests, want 5", n)
	}
}

func equalInts(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestFaultDroppedConnection(t *testing.T) { simulated(t, testFaultDroppedConnection) }

func testFaultDroppedConnection(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	drop := func(f pvesim.Fault, newid string) error {
		c.sim.ClearFaults()
		f.Method, f.Path = "POST", "/nodes/{node}/qemu/{vmid}/clone"
		c.fault(f)
		req, err := http.NewRequest("POST", c.sim.URL()+"/nodes/pve1/qemu/9000/clone", strings.NewReader("newid="+newid))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		_, err = c.try(req)
		return err
	}
	if drop(pvesim.Fault{DropBefore: true}, "300") == nil || drop(pvesim.Fault{DropAfter: true}, "301") == nil {
		t.Fatal("got a response on a dropped connection")
	}
	eventually(t, "the clone whose connection was dropped after it took effect", func() bool {
		conf, _ := c.do("GET", "/nodes/pve1/qemu/301/config").Data.(map[string]any)
		return conf != nil && conf["lock"] == nil
	})
	if a := c.do("GET", "/nodes/pve1/qemu/300/config"); a.Status == 200 {
		t.Error("call took effect although its connection was dropped before")
	}
}

func TestFaultTasks(t *testing.T) { simulated(t, testFaultTasks) }

func testFaultTasks(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "start failed: out of luck", Count: 1})
	c.fault(pvesim.Fault{Task: "qmclone", TaskID: "9000", Hang: true, Count: 1})
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/101/status/start")); exit != "start failed: out of luck" {
		t.Errorf("start ended with %q", exit)
	}
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300").(string)
	status := c.ok("GET", "/nodes/pve1/tasks/"+upid+"/status").(map[string]any)
	if status["status"] != "running" {
		t.Errorf("task does not hang: %v", status)
	}
	c.ok("DELETE", "/nodes/pve1/tasks/"+upid)
	if exit := c.exit(upid); exit == "OK" {
		t.Error("stopped task succeeded")
	}
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
}

func TestFaultProbabilitySeed(t *testing.T) { simulated(t, testFaultProbabilitySeed) }

func testFaultProbabilitySeed(t *testing.T) {
	run := func() (pattern string) {
		c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: 3})
		c.fault(pvesim.Fault{Path: "/version", Probability: 0.5, Status: 500})
		for range 20 {
			pattern += map[bool]string{true: "x", false: "."}[c.do("GET", "/version").Status == 500]
		}
		return pattern
	}
	a, b := run(), run()
	if a != b || !strings.Contains(a, "x") || !strings.Contains(a, ".") {
		t.Errorf("got hits %s and %s, want equal patterns of hits and misses", a, b)
	}
}

func TestFaultInvalid(t *testing.T) { simulated(t, testFaultInvalid) }

func testFaultInvalid(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for _, f := range []pvesim.Fault{
		{Task: "qmclone", Status: 500}, {Hang: true}, {Probability: 2}, {Status: 200}, {Path: "[", Status: 500},
	} {
		if _, err := c.sim.AddFault(f); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

func TestQuorumLost(t *testing.T) { simulated(t, testQuorumLost) }

func testQuorumLost(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.sim.SetQuorum(false)
	status := c.ok("GET", "/cluster/status")
	if row(status, "type", "cluster")["quorate"] != float64(0) {
		t.Errorf("status: %v", status)
	}
	c.refused(500, "cluster not ready - no quorum?", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	c.refused(500, "cfs-lock 'firewall-vm-101' error: no quorum!", "POST", "/nodes/pve1/qemu/101/firewall/rules", "type", "in", "action", "ACCEPT")
	c.sim.SetQuorum(true)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
}

func TestStorageFull(t *testing.T) { simulated(t, testStorageFull) }

func testStorageFull(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	if err := c.sim.SetStorageFull("local-lvm", true); err != nil {
		t.Fatal(err)
	}
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")); !strings.Contains(exit, "free space in thin pool") {
		t.Errorf("clone ended with %q", exit)
	}
	if a := c.do("GET", "/nodes/pve1/qemu/300/config"); a.Status == 200 {
		t.Error("failed clone leaked its config")
	}
}

func TestHostUpStartsOnboot(t *testing.T) { simulated(t, testHostUpStartsOnboot) }

func testHostUpStartsOnboot(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300")
	c.task("POST", "/nodes/pve2/qemu/300/status/start")
	if err := c.sim.HostDown("pve2", "noroute"); err != nil {
		t.Fatal(err)
	}
	c.refused(595, "No route to host", "GET", "/nodes/pve2/qemu/300/status/current")
	resources := c.ok("GET", "/cluster/resources")
	if row(resources, "id", "node/pve2")["status"] != "offline" || row(resources, "id", "qemu/300")["status"] != "unknown" {
		t.Errorf("resources: %v", resources)
	}
	if err := c.sim.HostUp("pve2"); err != nil {
		t.Fatal(err)
	}
	for vmid, want := range map[string]string{"300": "stopped", "102": "running"} {
		if got := c.ok("GET", "/nodes/pve2/qemu/"+vmid+"/status/current").(map[string]any)["status"]; got != want {
			t.Errorf("VM %s is %v, want %s", vmid, got, want)
		}
	}
}

func TestLateStorage(t *testing.T) { simulated(t, testLateStorage) }

func testLateStorage(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300")
	for _, step := range []func() error{
		func() error { return c.sim.HostDown("pve2", "noroute") },
		func() error { return c.sim.SetStorageActive("pve2", "local-lvm", false) },
		func() error { return c.sim.HostUp("pve2") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if exit := c.exit(c.ok("POST", "/nodes/pve2/qemu/300/status/start")); !strings.Contains(exit, "can't activate LV '/dev/local-lvm/vm-300-") {
		t.Errorf("start ended with %q", exit)
	}
	if got := c.ok("GET", "/nodes/pve2/qemu/102/status/current").(map[string]any)["status"]; got != "stopped" {
		t.Errorf("VM 102 with onboot is %v, want stopped", got)
	}
	if got := c.ok("GET", "/nodes/pve2/storage/local-lvm/status").(map[string]any)["active"]; got != 0.0 {
		t.Errorf("active: %v, want 0", got)
	}
	status := func(host string) any {
		return row(c.ok("GET", "/cluster/resources"), "id", "storage/"+host+"/local-lvm")["status"]
	}
	eventually(t, "inactive storage is listed as unknown", func() bool { return status("pve2") == "unknown" && status("pve1") == "available" })
	if err := c.sim.SetStorageActive("pve2", "local-lvm", true); err != nil {
		t.Fatal(err)
	}
	c.task("POST", "/nodes/pve2/qemu/300/status/start")
	eventually(t, "active storage is listed as available", func() bool { return status("pve2") == "available" })
	if err := c.sim.SetStorageActive("pve2", "nope", true); err == nil {
		t.Error("unknown storage: no error")
	}
}

// A failed clone leaves its disk if the storage is inactive.
func TestCloneInactiveStorage(t *testing.T) { simulated(t, testCloneInactiveStorage) }

func testCloneInactiveStorage(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	exists := func(volume string) bool {
		return row(c.do("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300").Data, "volid", volume) != nil
	}
	clone := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1")
	eventually(t, "the disk is allocated", func() bool { return exists("local-lvm:vm-300-disk-0") })
	if err := c.sim.SetStorageActive("pve1", "local-lvm", false); err != nil {
		t.Fatal(err)
	}
	if exit := c.exit(clone); !strings.Contains(exit, "clone failed: can't activate LV") {
		t.Errorf("the clone ended with %q", exit)
	}
	if log := strings.Join(c.log(clone), "\n"); !strings.Contains(log, "\ncan't activate LV '/dev/local-lvm/vm-300-disk-0'") {
		t.Errorf("log of the clone:\n%s", log)
	}
	if a := c.do("GET", "/nodes/pve1/qemu/300/config"); a.Status == 200 {
		t.Error("the VM exists")
	}
	if err := c.sim.SetStorageActive("pve1", "local-lvm", true); err != nil {
		t.Fatal(err)
	}
	if !exists("local-lvm:vm-300-disk-0") || !exists("local-lvm:vm-300-cloudinit") {
		t.Error("the disks were removed")
	}
}

func TestShutdownHost(t *testing.T) { simulated(t, testShutdownHost) }

func testShutdownHost(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(2))
	c.fault(pvesim.Fault{Task: "qmshutdown", TaskID: "102", Hang: true})
	if err := c.sim.ShutdownHost("pve2"); err != nil {
		t.Fatal(err)
	}
	tasks := c.ok("GET", "/nodes/pve2/tasks", "source", "active", "typefilter", "stopall")
	if rows, ok := tasks.([]any); !ok || len(rows) != 1 {
		t.Errorf("running stopall tasks: %v", tasks)
	}
	status := func() any { return row(c.ok("GET", "/nodes"), "node", "pve2")["status"] }
	if status() != "online" {
		t.Error("host is off before its guests are stopped")
	}
	var shutdown map[string]any
	eventually(t, "guest is being shut down", func() bool {
		shutdown = row(c.ok("GET", "/nodes/pve2/tasks", "source", "active", "typefilter", "qmshutdown"), "id", "102")
		return shutdown != nil
	})
	c.ok("DELETE", "/nodes/pve2/tasks/"+shutdown["upid"].(string))
	eventually(t, "host is off", func() bool { return status() == "offline" })
	if err := c.sim.ShutdownHost("nope"); err == nil {
		t.Error("unknown host: no error")
	}
}

func TestRemoveHost(t *testing.T) { simulated(t, testRemoveHost) }

func testRemoveHost(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	if status, text := admin(t, c.sim, "DELETE", "/hosts/pve2", ""); status != 400 || !strings.Contains(text, "online") {
		t.Errorf("removing a host that is online: %d %s", status, text)
	}
	removed := c.at("pve2")
	if err := c.sim.HostDown("pve2", "noroute"); err != nil {
		t.Fatal(err)
	}
	if status, text := admin(t, c.sim, "DELETE", "/hosts/pve2", ""); status != 200 {
		t.Fatalf("removing a host: %d %s", status, text)
	}
	resources := c.ok("GET", "/cluster/resources")
	if guest := row(resources, "id", "qemu/102"); row(resources, "id", "node/pve2") != nil || guest["node"] != "pve2" || guest["status"] != "unknown" {
		t.Errorf("resources: %v", resources)
	}
	if status := c.ok("GET", "/cluster/status"); row(status, "name", "pve2") != nil {
		t.Errorf("status: %v", status)
	}
	c.refused(500, "hostname lookup 'pve2' failed - failed to get address info for: pve2: Name or service not known", "GET", "/nodes/pve2/qemu/102/config")
	request, err := http.NewRequest("GET", removed.url+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := removed.try(request); err == nil {
		t.Errorf("response of the removed host: %+v", a)
	}
}
