// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
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
		"Ceph daemon":     {"memory: 16G", "memory: 16G\n  ceph: [mon, nas]", `hosts[1].ceph[1]: "nas" is not one of mon, mgr, mds, osd`},
		"OSD number":      {"memory: 16G", "memory: 16G\n  ceph: [osd]", `hosts[1].ceph[0]: "osd" is not an OSD with its number, for example osd.0`},
		"backup job":      {"storages:", "backupJobs: [{schedule: daily}]\nstorages:", "backupJobs[0].id: a backup job needs an id"},
		"backup's host":   {"storages:", "backupJobs: [{id: x, host: z}]\nstorages:", `backupJobs[0].host: there is no host "z"`},
		"backup's pool":   {"storages:", "backupJobs: [{id: x, pool: p}]\nstorages:", `backupJobs[0].pool: there is no pool "p"`},
		"replica's guest": {"storages:", "replicationJobs: [{vmid: 7, target: a}]\nstorages:", "replicationJobs[0].vmid: there is no guest 7"},
		"replica's host":  {"storages:", "replicationJobs: [{vmid: 100, target: z}]\nstorages:", `replicationJobs[0].target: there is no host "z"`},
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
	s := pvesim.DefaultScenario(1)
	s.Version, s.Roles[0].Privileges = "9.2", []string{"VM.Monitor"}
	g.Expect(pvesim.New(s, pvesim.Options{})).Error().To(HaveOccurred(), "9.2 has no privilege VM.Monitor")
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

// A scenario is refused in one line, or a simulator can be built from it.
func FuzzReadScenario(f *testing.F) {
	f.Add(goodScenario)
	f.Add("version: '9.2'\nhosts: [{name: a, sockets: 1, cores: 1, memory: 99999999999999T}]\nstorages: [{id: local, type: dir, size: 1.5G}]\n")
	f.Add("version: '8.4'\nhosts: &a [{name: a, sockets: 1, cores: 1, memory: 1G, bridges: [{name: vmbr0, cidr: x}]}]\nguests: [{vmid: 100, host: a, config: {scsi0: 'local:1'}}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := pvesim.ReadScenario(strings.NewReader(text))
		if err != nil {
			if !strings.Contains(err.Error(), "reading scenario") {
				t.Errorf("the error is %q", err)
			}
			return
		}
		for _, h := range s.Hosts {
			if h.Memory < 0 || h.DownloadRate < 0 {
				t.Errorf("host %s has %d bytes of memory and a download rate of %d", h.Name, h.Memory, h.DownloadRate)
			}
		}
		if sim, err := pvesim.New(s, pvesim.Options{Speed: 1000}); err == nil {
			sim.Close()
		}
	})
}

// Every request gets a response of Proxmox's form: its body is JSON, or a text with an error.
func FuzzRequests(f *testing.F) {
	f.Add("GET", "cluster/resources", "type=vm&_dc=1", "", "")
	f.Add("POST", "nodes/pve1/qemu/9000/clone", "", "application/json", `{"newid":300,"full":false,"name":null}`)
	f.Add("PUT", "nodes/pve1/qemu/101/config", "", "application/x-www-form-urlencoded", "net0=virtio%2Cbridge=vmbr0&tags=a&tags=b&delete=%zz")
	f.Add("POST", "nodes/pve1/storage/local/upload", "", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--x\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n\r\na\r\n--x--\r\n")
	f.Add("DELETE", "nodes/pve1/qemu/101", "purge=1;force", "", "")
	f.Add("POST", "access/ticket", "", "", "username=root@pam&password=x")
	f.Add("PUT", "nodes/pve1/qemu/101/resize", "", "", "disk=scsi0&size=%2BNaN")
	f.Add("GET", "nodes/pve1/tasks", "limit=-1&start=x&since=9999999999999999999", "", "")
	scenario := pvesim.DefaultScenario(2)
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 1000})
	if err != nil {
		f.Fatal(err)
	}
	if err := sim.Start(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(sim.Close)
	api := httpClient(sim)
	api.Timeout = time.Minute
	api.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		address := url.URL{Path: "/" + path, RawQuery: strings.ToValidUTF8(query, "")}
		request, err := http.NewRequestWithContext(t.Context(), method, sim.URL()+address.String(), strings.NewReader(body))
		if err != nil {
			return
		}
		request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
		if contentType != "" {
			request.Header.Set("Content-Type", contentType)
		}
		resp, err := api.Do(request) //nolint:bodyclose // decode closes it
		if err != nil {
			if strings.Contains(err.Error(), "invalid") {
				return // net/http refuses to send it
			}
			t.Fatalf("%s %s?%s: %v", method, path, query, err)
		}
		a, err := decode(resp)
		if err != nil {
			t.Fatal(err)
		}
		text := []byte(a.Raw)
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && method != http.MethodHead && !json.Valid(text) {
			t.Errorf("%s %s: the body is not JSON: %q", method, path, text)
		}
		if resp.StatusCode < 300 && method != http.MethodHead && method != http.MethodOptions && !json.Valid(text) {
			t.Errorf("%s %s: %d with %q", method, path, resp.StatusCode, text)
		}
	})
}

// A test starts a cluster, injects a fault, and counts the calls.
func Example() {
	sim, err := pvesim.New(pvesim.DefaultScenario(3), pvesim.Options{Speed: 50})
	if err != nil {
		panic(err)
	}
	if err := sim.Start(context.Background()); err != nil {
		panic(err)
	}
	defer sim.Close()
	if _, err := sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/clone", Count: 1, Status: 596}); err != nil {
		panic(err)
	}
	clone := func() string {
		req, err := http.NewRequest(http.MethodPost, sim.URL()+"/nodes/pve2/qemu/9001/clone", strings.NewReader("newid=300&name=worker"))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := httpClient(sim).Do(req)
		if err != nil {
			panic(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.Status
	}
	fmt.Println(clone())
	fmt.Println(clone())
	fmt.Println(sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone"), "calls")
	// Output:
	// 596 Connection timed out
	// 200 OK
	// 2 calls
}

func TestScriptedGuests(t *testing.T) { simulated(t, testScriptedGuests) }

func testScriptedGuests(t *testing.T, g *WithT) {
	disks := make(chan pvesim.GuestDisk, 2)
	scenario := pvesim.DefaultScenario(1)
	scenario.Guests = []pvesim.Guest{
		{VMID: 100, Host: "pve1", Status: "running", Name: "builder"},
		{VMID: 101, Host: "pve1", Status: "running", Name: "other"},
	}
	c := startSim(t, scenario, pvesim.Options{Guests: pvesim.ScriptedGuests{Script: func(m *pvesim.Machine) *pvesim.Script {
		if m.Name != "builder" {
			return nil
		}
		disks <- m.Disk
		return &pvesim.Script{Files: map[string]string{"/prepared": "yes"}, PowerOff: true, After: 5 * time.Second}
	}}})
	time.Sleep(6 * time.Second)
	g.Expect(c.sim.Guests()).To(ConsistOf(
		And(HaveField("VMID", 100), HaveField("Status", "stopped")), And(HaveField("VMID", 101), HaveField("Status", "running"))))
	g.Expect(first((<-disks).Read("/prepared"))).To(BeEquivalentTo("yes"))
}
