// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const goodScenario = `version: "9.2"
cluster: lab
hosts:
- {name: a, sockets: 2, cores: 8, threads: 2, memory: 128GiB, bridges: [{name: vmbr0}]}
- name: b
  sockets: 1
  cores: 4
  memory: 16G
  offline: true
storages:
- {id: ceph, type: rbd, content: [images], size: 4TiB}
users:
- id: root@pam
  tokens: [{id: t, secret: s}]
guests:
- vmid: 100
  host: a
  status: running
  config: {memory: "1024", scsi0: "ceph:vm-100-disk-0,size=8G"}
`

func TestScenarioFile(t *testing.T) { simulated(t, testScenarioFile) }

func testScenarioFile(t *testing.T, g *WithT) {
	s, err := pvesim.ReadScenario(strings.NewReader(goodScenario))
	g.Expect(err).NotTo(HaveOccurred())
	c := startSim(t, s, pvesim.Options{}).as("root@pam!t=s")
	resources := c.ok("GET", "/cluster/resources")
	g.Expect(row(resources, "id", "node/a")).To(fields("maxcpu", float64(32), "maxmem", float64(128<<30)), "host a")
	g.Expect(row(resources, "id", "node/b")["status"]).To(Equal("offline"))
	g.Expect(row(resources, "id", "qemu/100")).To(fields("status", "running", "maxdisk", float64(8<<30)), "guest")
	g.Expect(c.object("/version")["release"]).To(Equal("9.2"))
}

func TestScenarioInvalid(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for name, tc := range map[string]struct{ old, new, want string }{
		"unknown field":   {"cluster: lab", "clutser: lab", "line 2: field clutser not found"},
		"bad version":     {`version: "9.2"`, `version: "7.4"`, `line 1: version: "7.4" is not one of 8.4, 9.2`},
		"bad size":        {"memory: 16G", "memory: lots", `line 8: "lots" is not a size`},
		"no cores":        {"  cores: 4", "  cores: 0", "line 7: hosts[1].cores: must be at least 1"},
		"storage type":    {"type: rbd", "type: floppy", `line 11: storages[0].type: "floppy" is not a storage type`},
		"content":         {"content: [images]", "content: [movies]", `storages[0].content[0]: "movies" is not one of`},
		"guest's status":  {"status: running", "status: walking", `guests[0].status: "walking" is not one of running, stopped`},
		"guest's host":    {"  host: a", "  host: z", `line 17: guests[0].host: there is no host "z"`},
		"VMID":            {"vmid: 100", "vmid: 7", "line 16: guests[0].vmid: 7 is not between 100 and 999999999"},
		"not a number":    {"sockets: 1", "sockets: one", "line 6: cannot unmarshal"},
		"guest's storage": {"ceph:vm-100", "cehp:vm-100", `guests[0]: adding guest 100: drive scsi0: there is no storage "cehp"`},
	} {
		text := strings.Replace(goodScenario, tc.old, tc.new, 1)
		s, err := pvesim.ReadScenario(strings.NewReader(text))
		if err == nil {
			_, err = pvesim.New(s, pvesim.Options{})
		}
		g.Expect(err).To(MatchError(ContainSubstring(tc.want)), name)
	}
	g.Expect(pvesim.ReadScenario(strings.NewReader(""))).Error().To(MatchError(ContainSubstring("empty")), "empty file")
}

func TestClose(t *testing.T) {
	g := NewWithT(t)
	// Not parallel because it counts goroutines.
	before := runtime.NumGoroutine()
	sim, err := pvesim.New(pvesim.DefaultScenario(3), pvesim.Options{Speed: 1, AdminListen: "127.0.0.1:0"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(context.Background())).To(Succeed())
	c := &client{t: t, sim: sim, url: sim.URL(), http: httpClient(sim), token: pvesim.DefaultTokenID + "=" + pvesim.DefaultTokenSecret}
	c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "full", "1")
	sim.Close()
	c.http.CloseIdleConnections()
	eventually(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	sim.Close() // a second Close has no effect
}

// cpuTime returns the CPU time that the process has used. Unlike the elapsed time, it does not depend on other processes.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	NewWithT(t).Expect(syscall.Getrusage(syscall.RUSAGE_SELF, &u)).To(Succeed())
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestLargeCluster(t *testing.T) {
	g := NewWithT(t)
	// Not parallel because it measures CPU time.
	s := pvesim.DefaultScenario(100)
	for i := range 5000 {
		host := fmt.Sprintf("pve%d", i%100+1)
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 20000 + i, Name: fmt.Sprintf("g%d", i), Host: host, Status: "running", Config: map[string]string{
			"memory": "2048", "cores": "2", "scsi0": fmt.Sprintf("local-lvm:vm-%d-disk-0,size=20G", 20000+i), "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		}})
	}
	start := cpuTime(t)
	c := startSim(t, s, pvesim.Options{})
	if took := cpuTime(t) - start; took > 2*time.Second && !raceDetector {
		t.Errorf("start took %v of CPU time", took)
	}
	const calls = 10
	start = cpuTime(t)
	for range calls {
		a := c.do(http.MethodGet, "/cluster/resources")
		rows, _ := a.Data.([]any)
		g.Expect(len(rows)).To(BeNumerically(">=", 5300))
	}
	took := (cpuTime(t) - start) / calls
	t.Logf("/cluster/resources with 5200 guests takes %v of CPU time, including the client", took)
	if took > 200*time.Millisecond && !raceDetector {
		t.Errorf("/cluster/resources took %v of CPU time", took)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	g.Expect(m.HeapAlloc).To(BeNumerically("<=", 500<<20), "heap size is %d MiB", m.HeapAlloc>>20)
}
