// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func (c *client) fault(f pvesim.Fault) {
	c.t.Helper()
	NewWithT(c.t).Expect(c.sim.AddFault(f)).Error().NotTo(HaveOccurred())
}

func TestFaultsOfCalls(t *testing.T) { simulated(t, testFaultsOfCalls) }

func testFaultsOfCalls(t *testing.T, g *WithT) {
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
	for _, f := range []pvesim.Fault{
		{Task: "qmclone", Status: 500}, {Hang: true}, {Probability: 2}, {Status: 200}, {Path: "[", Status: 500},
	} {
		g.Expect(c.sim.AddFault(f)).Error().To(HaveOccurred(), "%+v was accepted", f)
	}

	const clone = "/nodes/{node}/qemu/{vmid}/clone"
	cloned := func(vmid string) bool {
		config, _ := c.do("GET", "/nodes/pve1/qemu/"+vmid+"/config").Data.(map[string]any)
		return config != nil && config["lock"] == nil
	}
	c.sim.ClearFaults()
	c.fault(pvesim.Fault{Method: "POST", Path: clone, Status: 596, AfterCall: true})
	c.refused(596, "Connection timed out", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "302")
	eventually(t, "the clone after a 596", func() bool { return cloned("302") })

	c.sim.ClearFaults()
	c.fault(pvesim.Fault{Method: "POST", Path: clone, Delay: pvesim.Duration(5 * time.Second)})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for c.sim.Faults()[0].Hits == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	g.Expect(c.try(c.request("POST", "/nodes/pve1/qemu/9000/clone", "newid", "303").WithContext(ctx))).Error().To(HaveOccurred(),
		"got a response although the client disconnected")
	eventually(t, "the clone of a client that disconnected", func() bool { return cloned("303") })

	drop := func(f pvesim.Fault, newid string) {
		c.sim.ClearFaults()
		f.Method, f.Path = "POST", clone
		c.fault(f)
		g.Expect(c.try(c.request("POST", "/nodes/pve1/qemu/9000/clone", "newid", newid))).Error().To(HaveOccurred())
	}
	drop(pvesim.Fault{DropBefore: true}, "300")
	drop(pvesim.Fault{DropAfter: true}, "301")
	eventually(t, "the clone whose connection was dropped after it took effect", func() bool { return cloned("301") })
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).NotTo(BeEquivalentTo(200), "call took effect although its connection was dropped before")
}

func TestFaultsOfTasks(t *testing.T) { simulated(t, testFaultsOfTasks) }

func testFaultsOfTasks(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "start failed: out of luck", Count: 1})
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/101/status/start")).To(Equal("start failed: out of luck"), "start ended")
	c.task("POST", "/nodes/pve1/qemu/101/status/start")
	c.fault(pvesim.Fault{Task: "imgdel", FailAfter: "unable to open file - No such file or directory"})
	g.Expect(c.exit(c.uploadISO("a.iso", []byte("iso")).Data)).To(Equal("OK"))
	g.Expect(c.ends("DELETE", "/nodes/pve1/storage/local/content/local:iso/a.iso")).To(Equal("unable to open file - No such file or directory"),
		"the task ended")
	g.Expect(row(c.ok("GET", "/nodes/pve1/storage/local/content"), "volid", "local:iso/a.iso")).To(BeNil(), "the volume exists")
	uploaded := c.lastTask("imgcopy")["upid"]
	c.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", CutUpload: true})
	g.Expect(c.try(c.uploadRequest("pve1", "local", "iso", "a.iso", []byte("iso")))).Error().To(HaveOccurred(), "got a response on a connection that was cut")
	eventually(t, "the task of the upload", func() bool { return c.lastTask("imgcopy")["upid"] != uploaded })
	g.Expect(c.exit(c.lastTask("imgcopy")["upid"])).To(HavePrefix("failed to stat '/var/tmp/pveupload-"), "the task ended")
	g.Expect(row(c.ok("GET", "/nodes/pve1/storage/local/content"), "volid", "local:iso/a.iso")).To(BeNil(), "the volume exists")
}

func TestFaultsAtRandom(t *testing.T) { simulated(t, testFaultsAtRandom) }

func testFaultsAtRandom(t *testing.T, g *WithT) {
	run := func(seed uint64, calls int, f pvesim.Fault) (pattern string) {
		c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: seed})
		f.Path, f.Status = "/version", 500
		c.fault(f)
		for range calls {
			pattern += map[bool]string{true: "x", false: "."}[c.do("GET", "/version").Status == 500]
		}
		return pattern
	}
	half := pvesim.Fault{Probability: 0.5}
	g.Expect(run(3, 20, half)).To(And(Equal(run(3, 20, half)), ContainSubstring("x"), ContainSubstring(".")))
	pattern := run(5, 60, pvesim.Fault{Probability: 0.2, InARow: 3})
	for _, series := range strings.FieldsFunc(strings.Trim(pattern, "x"), func(r rune) bool { return r == '.' }) {
		g.Expect(len(series)%3).To(BeZero(), "got hits %s, want series of three", pattern)
	}
	g.Expect(pattern).To(ContainSubstring("xxx"))
}

func TestStorageFull(t *testing.T) { simulated(t, testStorageFull) }

func testStorageFull(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	g.Expect(c.sim.SetStorageFull("local-lvm", true)).To(Succeed())
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")).To(ContainSubstring("free space in thin pool"), "clone ended")
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).NotTo(BeEquivalentTo(200), "failed clone leaked its config")
	g.Expect(c.sim.SetStorageFull("local-lvm", false)).To(Succeed())

	// A failed clone leaves its disk if the storage is inactive.
	exists := func(volume string) bool {
		return row(c.do("GET", "/nodes/pve1/storage/local-lvm/content", "vmid", "300").Data, "volid", volume) != nil
	}
	clone := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1")
	eventually(t, "the disk is allocated", func() bool { return exists("local-lvm:vm-300-disk-0") })
	g.Expect(c.sim.SetStorageActive("pve1", "local-lvm", false)).To(Succeed())
	g.Expect(c.exit(clone)).To(ContainSubstring("clone failed: can't activate LV"), "the clone ended")
	g.Expect(c.log(clone)).To(ContainElement(HavePrefix("can't activate LV '/dev/local-lvm/vm-300-disk-0'")))
	g.Expect(c.do("GET", "/nodes/pve1/qemu/300/config").Status).To(Equal(500), "the VM exists")
	g.Expect(c.sim.SetStorageActive("pve1", "local-lvm", true)).To(Succeed())
	g.Expect(exists("local-lvm:vm-300-disk-0")).To(BeTrue(), "the disks were removed")
	g.Expect(exists("local-lvm:vm-300-cloudinit")).To(BeTrue(), "the disks were removed")

	c = startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Web: image("image")})
	g.Expect(c.sim.SetStorageFull("local", true)).To(Succeed())
	task := c.download()
	g.Expect(c.exit(task)).To(Equal("download failed: exit code 3"))
	g.Expect(c.log(task)).To(ContainElement(ContainSubstring("No space left on device")))
	g.Expect(c.ok("GET", "/nodes/pve1/storage/local/content?content=import")).To(BeEmpty())
}

func TestHostUp(t *testing.T) { simulated(t, testHostUp) }

func testHostUp(t *testing.T, g *WithT) {
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

	// a storage that becomes active after its host
	g.Expect(c.sim.HostDown("pve2", "noroute")).To(Succeed())
	g.Expect(c.sim.SetStorageActive("pve2", "local-lvm", false)).To(Succeed())
	g.Expect(c.sim.HostUp("pve2")).To(Succeed())
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
	g.Expect(removed.try(removed.request("GET", "/version"))).Error().To(HaveOccurred())
}

// lastTask returns the newest task of a type on pve1; nil if there is none.
func (c *client) lastTask(typ string) map[string]any {
	c.t.Helper()
	return row(c.ok("GET", "/nodes/pve1/tasks", "source", "all", "typefilter", typ), "type", typ)
}

// TestUploadStall checks that the server closes the connection of a client that stalls in the middle of its upload.
func TestUploadStall(t *testing.T) { simulated(t, testUploadStall) }

func testUploadStall(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	conn := c.dialTLS()
	var b bytes.Buffer
	req := c.uploadRequest("pve1", "local", "iso", "a.iso", bytes.Repeat([]byte("iso"), 1000))
	req.Header.Set("Authorization", "PVEAPIToken="+c.token)
	g.Expect(req.Write(&b)).To(Succeed())
	g.Expect(conn.Write(b.Bytes()[:b.Len()/2])).Error().NotTo(HaveOccurred())
	start := time.Now()
	got, err := io.ReadAll(conn)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(BeEmpty())
	g.Expect(time.Since(start)).To(Equal(5 * time.Second))
	g.Expect(c.lastTask("imgcopy")).To(BeNil(), "the upload started a task")
}

// TestConfigDuringClone reads and writes the config of a linked clone until its task ends.
func TestConfigDuringClone(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]types.GomegaMatcher{"8.4": HaveField("Status", 200), "9.2": answers(500, "VM is locked (clone)")} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			c := startSim(t, scenarioOf(version, 1), pvesim.Options{})
			c.fault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(time.Second)})
			upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
			second := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
			c.refused(500, "Configuration file 'nodes/pve1/qemu-server/300.conf' does not exist", "GET", "/nodes/pve1/qemu/300/config")
			var config map[string]any
			eventually(t, "the config of the clone", func() bool {
				config, _ = c.do("GET", "/nodes/pve1/qemu/300/config").Data.(map[string]any)
				return config != nil
			})
			g.Expect(config).To(And(HaveLen(3), fields("lock", "clone", "description", " qmclone temporary file")))
			g.Expect(c.do("PUT", "/nodes/pve1/qemu/300/config", "cores", "2")).To(want)
			g.Expect([]string{c.exit(upid), c.exit(second)}).To(ConsistOf("OK", "unable to create VM 300: config file already exists"))
			c.ok("PUT", "/nodes/pve1/qemu/300/config", "cores", "2")
		})
	}
}

func TestDestroyAndSuspend(t *testing.T) { simulated(t, testDestroyAndSuspend) }

func testDestroyAndSuspend(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("POST", "/nodes/pve1/qemu/300/status/start")
	g.Expect(c.ends("DELETE", "/nodes/pve1/qemu/300")).To(Equal("VM 300 is running - destroy failed"), "the task ended")
	c.refused(500, "VM 300 is running - destroy failed", "DELETE", "/nodes/pve1/qemu/300")

	const vm = "/nodes/pve1/qemu/101"
	for _, wake := range []string{"start", "resume"} {
		c.task("POST", vm+"/status/suspend", "todisk", "1")
		status := c.object(vm + "/status/current")
		g.Expect(c.lastTask("qmsuspend")).NotTo(BeNil())
		g.Expect(status).To(fields("status", "stopped", "lock", "suspended"))
		c.refused(500, "VM is locked (suspended)", "PUT", vm+"/config", "cores", "2")
		c.task("POST", vm+"/status/"+wake)
		status = c.object(vm + "/status/current")
		g.Expect(status).To(fields("status", "running", "lock", nil), "after %s", wake)
	}
}

// TestStopDurations checks that stops take either 0.6 or 1.65 seconds, as the seed determines.
func TestStopDurations(t *testing.T) { simulated(t, testStopDurations) }

func testStopDurations(t *testing.T, g *WithT) {
	pattern := func(seed uint64) (out string) {
		c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: seed})
		c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
		for range 6 {
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
			began := time.Now()
			c.task("POST", "/nodes/pve1/qemu/300/status/stop")
			out += map[bool]string{true: "L", false: "s"}[time.Since(began) > 1500*time.Millisecond]
		}
		return out
	}
	g.Expect(pattern(1)).To(And(Equal(pattern(1)), ContainSubstring("L"), ContainSubstring("s")))
}

func TestNetHotUnplug(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		guests pvesim.GuestRuntime
		net    string
		want   int
	}{
		"guest_that_ignores_ACPI":           {pvesim.UnresponsiveGuests{}, "virtio=BC:24:11:00:00:99,bridge=vmbr0", 400},
		"guest_that_ignores_ACPI_same_card": {pvesim.UnresponsiveGuests{}, "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=7", 200},
		"cooperative_guest":                 {pvesim.CooperativeGuests{}, "virtio=BC:24:11:00:00:99,bridge=vmbr0", 200},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: test.guests})
			c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
			c.ok("PUT", "/nodes/pve1/qemu/300/config", "net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0")
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
			a := c.do("PUT", "/nodes/pve1/qemu/300/config", "net0", test.net, "cores", "3")
			g.Expect(a.Status).To(Equal(test.want), "got %d %s %v", a.Status, a.Reason, a.Errors)
			g.Expect(a.Errors["net0"]).To(Equal(map[int]string{400: "hotplug problem - error on hot-unplugging device 'net0'"}[test.want]))
			g.Expect(c.object("/nodes/pve1/qemu/300/config", "current", "1")["net0"] == test.net).To(Equal(test.want == 200))
			g.Expect(c.config("pve1", 300)["net0"]).To(Equal(test.net))
		})
	}
}

// TestLoadFaults checks that the same seed hits the same calls, and that each kind of rule can hit.
func TestLoadFaults(t *testing.T) { simulated(t, testLoadFaults) }

func testLoadFaults(t *testing.T, g *WithT) {
	run := func() (pattern string) {
		c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: 7})
		g.Expect(c.sim.AddFaults(pvesim.LoadFaults())).To(Succeed())
		for range 300 {
			a, err := c.try(c.request("POST", "/nodes/pve1/qemu/9999/status/stop"))
			pattern += fmt.Sprintf("%d %v ", a.Status, err != nil)
		}
		return pattern
	}
	a, b := run(), run()
	g.Expect(a).To(Equal(b), "got different hits with the same seed:\n")
	for _, want := range []string{"200 false", "500 false", "596 false", "0 true"} {
		g.Expect(a).To(ContainSubstring(want))
	}
}
