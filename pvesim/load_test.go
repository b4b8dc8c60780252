// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// request returns a request with parameters in the body.
func (c *client) request(method, path string, params ...string) *http.Request {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		values.Add(params[i], params[i+1])
	}
	req, err := http.NewRequest(method, c.sim.URL()+path, strings.NewReader(values.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

// lastTask returns the newest task of a type on pve1; nil if there is none.
func (c *client) lastTask(typ string) map[string]any {
	c.t.Helper()
	return row(c.ok("GET", "/nodes/pve1/tasks", "source", "all", "typefilter", typ), "type", typ)
}

func TestClientGone(t *testing.T) { simulated(t, testClientGone) }

func testClientGone(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Delay: pvesim.Duration(5 * time.Second)})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for c.sim.Faults()[0].Hits == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	g.Expect(c.try(c.request("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300").WithContext(ctx))).Error().To(HaveOccurred(),
		"got a response although the client disconnected")
	eventually(t, "the clone of a client that disconnected", func() bool { return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 })
}

func TestFaultInARow(t *testing.T) { simulated(t, testFaultInARow) }

func testFaultInARow(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Seed: 5})
	c.fault(pvesim.Fault{Path: "/version", Probability: 0.2, InARow: 3, Status: 596})
	pattern := ""
	for range 60 {
		pattern += map[bool]string{true: "x", false: "."}[c.do("GET", "/version").Status == 596]
	}
	for _, series := range strings.FieldsFunc(strings.Trim(pattern, "x"), func(r rune) bool { return r == '.' }) {
		g.Expect(len(series)%3).To(BeZero(), "got hits %s, want series of three", pattern)
	}
	g.Expect(pattern).To(ContainSubstring("xxx"))
}

func TestFaultAfterCall(t *testing.T) { simulated(t, testFaultAfterCall) }

func testFaultAfterCall(t *testing.T, _ *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Status: 596, AfterCall: true})
	c.refused(596, "Connection timed out", "POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	eventually(t, "the clone after a 596", func() bool { return c.do("GET", "/nodes/pve1/qemu/300/config").Status == 200 })
}

func TestFaultFailAfter(t *testing.T) { simulated(t, testFaultFailAfter) }

func testFaultFailAfter(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Task: "imgdel", FailAfter: "unable to open file - No such file or directory"})
	if exit := c.exit(c.uploadISO("a.iso", []byte("iso")).Data); exit != "OK" {
		t.Fatal(exit)
	}
	g.Expect(c.ends("DELETE", "/nodes/pve1/storage/local/content/local:iso/a.iso")).To(Equal("unable to open file - No such file or directory"),
		"the task ended")
	g.Expect(row(c.ok("GET", "/nodes/pve1/storage/local/content"), "volid", "local:iso/a.iso")).To(BeNil(), "the volume exists")
}

func TestFaultCutUpload(t *testing.T) { simulated(t, testFaultCutUpload) }

func testFaultCutUpload(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.fault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", CutUpload: true})
	g.Expect(c.try(c.uploadRequest("pve1", "local", "iso", "a.iso", []byte("iso")))).Error().To(HaveOccurred(), "got a response on a connection that was cut")
	eventually(t, "the task of the upload", func() bool { return c.lastTask("imgcopy") != nil })
	g.Expect(c.exit(c.lastTask("imgcopy")["upid"])).To(HavePrefix("failed to stat '/var/tmp/pveupload-"), "the task ended")
	g.Expect(row(c.ok("GET", "/nodes/pve1/storage/local/content"), "volid", "local:iso/a.iso")).To(BeNil(), "the volume exists")
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
func TestConfigDuringClone(t *testing.T) { simulated(t, testConfigDuringClone) }

func testConfigDuringClone(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Version = "9.2"
	c := startSim(t, s, pvesim.Options{})
	c.fault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(time.Second)})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/300.conf' does not exist", "GET", "/nodes/pve1/qemu/300/config")
	var config map[string]any
	eventually(t, "the config of the clone", func() bool {
		config, _ = c.do("GET", "/nodes/pve1/qemu/300/config").Data.(map[string]any)
		return config != nil
	})
	g.Expect(config).To(And(HaveLen(3), fields("lock", "clone", "description", " qmclone temporary file")))
	c.refused(500, "VM is locked (clone)", "PUT", "/nodes/pve1/qemu/300/config", "cores", "2")
	exit := c.exit(upid)
	g.Expect(exit).To(Equal("OK"), "%v", exit)
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "cores", "2")
}

// TestDestroyDuringStart destroys a VM that is not running yet when the request is checked.
func TestDestroyDuringStart(t *testing.T) { simulated(t, testDestroyDuringStart) }

func testDestroyDuringStart(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("POST", "/nodes/pve1/qemu/300/status/start")
	g.Expect(c.ends("DELETE", "/nodes/pve1/qemu/300")).To(Equal("VM 300 is running - destroy failed"), "the task ended")
	c.refused(500, "VM 300 is running - destroy failed", "DELETE", "/nodes/pve1/qemu/300")
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

func TestSuspendToDisk(t *testing.T) { simulated(t, testSuspendToDisk) }

func testSuspendToDisk(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	const vm = "/nodes/pve1/qemu/101"
	for _, wake := range []string{"start", "resume"} {
		c.task("POST", vm+"/status/suspend", "todisk", "1")
		status := c.object(vm + "/status/current")
		if c.lastTask("qmsuspend") == nil || status["status"] != "stopped" || status["lock"] != "suspended" {
			t.Fatalf("after suspend: %v", status)
		}
		c.refused(500, "VM is locked (suspended)", "PUT", vm+"/config", "cores", "2")
		c.task("POST", vm+"/status/"+wake)
		status = c.object(vm + "/status/current")
		g.Expect(status).To(fields("status", "running", "lock", nil), "after %s", wake)
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
