// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io/fs"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// recordingGuest is a guest that records its boots and powers off on shutdown requests.
type recordingGuest struct {
	mu    sync.Mutex
	boots []*pvesim.Machine
	live  int
	agent *pvesim.Agent
}

func (w *recordingGuest) Boot(ctx context.Context, m *pvesim.Machine) {
	w.mu.Lock()
	if m.VMID >= 300 {
		w.boots = append(w.boots, m)
		w.live++
	}
	agent := w.agent
	w.mu.Unlock()
	m.SetAgent(agent)
	m.Disk.Write("boots", append(first(m.Disk.Read("boots")), 'x'))
	select {
	case <-ctx.Done():
	case <-m.ShutdownRequested():
	}
	if m.VMID >= 300 {
		w.mu.Lock()
		w.live--
		w.mu.Unlock()
	}
}

func first(b []byte, _ bool) []byte { return b }

func (w *recordingGuest) seen() (boots []*pvesim.Machine, live int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*pvesim.Machine(nil), w.boots...), w.live
}

func TestGuestHardware(t *testing.T) { simulated(t, testGuestHardware) }

func testGuestHardware(t *testing.T) {
	w := &recordingGuest{}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: w})
	iso := bytes.Repeat([]byte("iso"), 1000)
	if exit := c.exit(c.uploadISO("seed 1.iso", iso).Data); exit != "OK" {
		t.Fatalf("upload: %s", exit)
	}
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	serial := base64.StdEncoding.EncodeToString([]byte("h=worker;i=300"))
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "cores", "4", "memory", "4096", "ide2", "local:iso/seed_1.iso,media=cdrom",
		"net0", "virtio,bridge=vmbr0,tag=7", "smbios1", "uuid=6f2a1c7e-0e5e-4d3a-9e57-0d2d9a2b6e11,serial="+serial+",base64=1")
	c.task("PUT", "/nodes/pve1/qemu/300/resize", "disk", "scsi0", "size", "30G")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	if len(boots) != 1 {
		t.Fatalf("%d boots", len(boots))
	}
	m := boots[0]
	if m.Name != "worker" || m.Cores != 4 || m.MemoryBytes != 4<<30 || m.DiskBytes != 30<<30 || m.UUID != "6f2a1c7e-0e5e-4d3a-9e57-0d2d9a2b6e11" ||
		m.SMBIOS["serial"] != "h=worker;i=300" || m.Cluster != "" || m.Host != "pve1" {
		t.Errorf("hardware: %+v", m)
	}
	if len(m.NICs) != 1 || m.NICs[0].Bridge != "vmbr0" || m.NICs[0].VLAN != 7 || m.NICs[0].MAC == "" {
		t.Errorf("NICs: %+v", m.NICs)
	}
	if cds := m.CDROMs(); len(cds) != 1 || cds[0].Slot != "ide2" || !bytes.Equal(cds[0].Image, iso) {
		t.Errorf("CD drives: %v", cds)
	}
	// A medium can be ejected while the VM runs, and an ISO can be deleted while it is inserted.
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "none,media=cdrom")
	if cds := m.CDROMs(); len(cds) != 0 {
		t.Errorf("after eject: %v", cds)
	}
}

func TestGuestArchitecture(t *testing.T) { simulated(t, testGuestArchitecture) }

func testGuestArchitecture(t *testing.T) {
	scenario := pvesim.DefaultScenario(2)
	scenario.Hosts[1].Arch = "aarch64"
	w := &recordingGuest{}
	c := startSim(t, scenario, pvesim.Options{Guests: w})
	for vmid, clone := range map[string]string{"300": "/nodes/pve1/qemu/9000", "301": "/nodes/pve2/qemu/9001"} {
		c.task("POST", clone+"/clone", "newid", vmid)
		c.task("POST", strings.TrimSuffix(clone, path.Base(clone))+vmid+"/status/start")
	}
	boots, _ := w.seen()
	if len(boots) != 2 {
		t.Fatalf("%d boots", len(boots))
	}
	for _, m := range boots {
		if want := map[int]string{300: "x86_64", 301: "aarch64"}[m.VMID]; m.Arch != want {
			t.Errorf("the architecture of VM %d on %s is %q, want %q", m.VMID, m.Host, m.Arch, want)
		}
	}
}

func TestStartWithDeletedISO(t *testing.T) { simulated(t, testStartWithDeletedISO) }

func testStartWithDeletedISO(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.exit(c.uploadISO("seed.iso", []byte("x")).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "local:iso/seed.iso,media=cdrom")
	c.task("DELETE", "/nodes/pve1/storage/local/content/local:iso/seed.iso")
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/300/status/start")); exit != "volume 'local:iso/seed.iso' does not exist" {
		t.Errorf("start ended with %q", exit)
	}
}

func TestRebootResetStop(t *testing.T) { simulated(t, testRebootResetStop) }

func testRebootResetStop(t *testing.T) {
	w := &recordingGuest{}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: w})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	c.task("POST", "/nodes/pve1/qemu/300/status/reboot")
	eventually(t, "the second boot", func() bool { b, _ := w.seen(); return len(b) == 2 })
	c.task("POST", "/nodes/pve1/qemu/300/status/reset")
	eventually(t, "the third boot", func() bool { b, live := w.seen(); return len(b) == 3 && live == 1 })
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	eventually(t, "the guest to stop", func() bool { _, live := w.seen(); return live == 0 })
	boots, _ := w.seen()
	ids := map[string]bool{}
	for _, b := range boots {
		ids[b.BootID] = true
	}
	if len(ids) != 3 {
		t.Errorf("boot IDs are not unique: %v", ids)
	}
	if data, _ := boots[0].Disk.Read("boots"); string(data) != "xxx" {
		t.Errorf("disk contains %q", data)
	}
	// A clone of the VM copies the content of its disk; a new clone of the template does not have it.
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "301")
	c.task("POST", "/nodes/pve1/qemu/301/status/start")
	boots, _ = w.seen()
	if data, _ := boots[len(boots)-1].Disk.Read("boots"); string(data) != "xxxx" {
		t.Errorf("clone's disk contains %q", data)
	}
}

func TestCloudInitDrive(t *testing.T) { simulated(t, testCloudInitDrive) }

func testCloudInitDrive(t *testing.T) {
	w := &recordingGuest{}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: w})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ciuser", "ubuntu", "ipconfig0", "ip=10.0.0.5/24,gw=10.0.0.1")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	cds := boots[0].CDROMs()
	if len(cds) != 1 || cds[0].Volid != "local-lvm:vm-300-cloudinit" {
		t.Fatalf("CD drives: %v", cds)
	}
	for _, text := range []string{"CIDATA", "hostname: worker", "user: ubuntu", "address: '10.0.0.5'", "instance-id: "} {
		if !bytes.Contains(cds[0].Image, []byte(text)) && !bytes.Contains(bytes.ToUpper(cds[0].Image), []byte(strings.ToUpper(text))) {
			t.Errorf("ISO does not contain %q", text)
		}
	}
}

func TestCloudInitSnippets(t *testing.T) { simulated(t, testCloudInitSnippets) }

func testCloudInitSnippets(t *testing.T) {
	w := &recordingGuest{}
	s := pvesim.DefaultScenario(1)
	s.Files = []pvesim.File{{Storage: "local", Name: "snippets/vendor.yaml", Text: "#cloud-config\nvendor: yes\n"}}
	c := startSim(t, s, pvesim.Options{Guests: w})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "cicustom", "vendor=local:snippets/vendor.yaml,network=local:snippets/network.yaml", "ciuser", "ubuntu")
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/300/status/start")); exit != "volume 'local:snippets/network.yaml' does not exist" {
		t.Errorf("start ended with %q", exit)
	}
	c.sim.PutFile(pvesim.File{Storage: "local", Host: "pve1", Name: "snippets/network.yaml", Text: "version: 2\nmine: yes\n"})
	if row(c.ok("GET", "/nodes/pve1/storage/local/content", "content", "snippets"), "volid", "local:snippets/network.yaml") == nil {
		t.Error("file is not listed")
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	image := boots[0].CDROMs()[0].Image
	for text, want := range map[string]bool{"vendor: yes": true, "mine: yes": true, "user: ubuntu": true, "type: nameserver": false} {
		if bytes.Contains(image, []byte(text)) != want {
			t.Errorf("ISO contains %q: %t, want %t", text, !want, want)
		}
	}
	if dump := c.ok("GET", "/nodes/pve1/qemu/300/cloudinit/dump", "type", "network").(string); strings.Contains(dump, "mine") {
		t.Errorf("dump contains snippets: %s", dump)
	}
}

func TestFirmwareFiles(t *testing.T) { simulated(t, testFirmwareFiles) }

func testFirmwareFiles(t *testing.T) {
	w := &recordingGuest{}
	s := pvesim.DefaultScenario(1)
	s.Files = []pvesim.File{{Storage: "local", Name: "iso/a.iso", Text: `{"ignition":{}}`}}
	for i := range s.Guests {
		if s.Guests[i].VMID == 9000 {
			s.Guests[i].Config["args"] = "-no-hpet -fw_cfg name=opt/a,file=/var/lib/vz/template/iso/a.iso -fw_cfg opt/b,string=x,,y"
		}
	}
	c := startSim(t, s, pvesim.Options{Guests: w})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.refused(500, "only root can set 'args' config", "PUT", "/nodes/pve1/qemu/300/config", "args", "-foo")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	if got := boots[0].Firmware; string(got["opt/a"]) != `{"ignition":{}}` || string(got["opt/b"]) != "x,y" || len(got) != 2 {
		t.Errorf("firmware contains %q", got)
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	c.task("DELETE", "/nodes/pve1/storage/local/content/local:iso/a.iso")
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/300/status/start")); exit != "start failed: QEMU exited with code 1" {
		t.Errorf("start without the file ended with %q", exit)
	}
}

func TestAgent(t *testing.T) { simulated(t, testAgent) }

func testAgent(t *testing.T) {
	w := &recordingGuest{agent: &pvesim.Agent{Hostname: "worker", Interfaces: []pvesim.AgentInterface{{Name: "eth0", MAC: "BC:24:11:00:00:01", Addresses: []string{"10.0.0.5/24"}}}}}
	s := pvesim.DefaultScenario(1)
	s.Version = "9.2"
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "VM.GuestAgent.Audit")
	c := startSim(t, s, pvesim.Options{Guests: w})
	c.refused(500, "No QEMU guest agent configured", "GET", "/nodes/pve1/qemu/101/agent/network-get-interfaces")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.refused(500, "VM 300 is not running", "GET", "/nodes/pve1/qemu/300/agent/network-get-interfaces")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	result := c.ok("GET", "/nodes/pve1/qemu/300/agent/network-get-interfaces").(map[string]any)["result"]
	nic := row(result, "name", "eth0")
	if nic == nil || row(nic["ip-addresses"], "ip-address", "10.0.0.5") == nil || nic["hardware-address"] != "bc:24:11:00:00:01" {
		t.Errorf("interfaces: %v", result)
	}
	boots, _ := w.seen()
	boots[0].SetAgent(nil)
	start := time.Now()
	c.refused(500, "QEMU guest agent is not running", "POST", "/nodes/pve1/qemu/300/agent/ping")
	if took := time.Since(start); took < 3*time.Second {
		t.Errorf("ping responded after %v, want it to block for three seconds", took)
	}
}

func TestAgentFileRead(t *testing.T) {
	t.Parallel()
	for version, privilege := range map[string]string{"8.4": "VM.Monitor", "9.2": "VM.GuestAgent.FileRead"} {
		runSimulated(t, version, func(t *testing.T) {
			files := map[string]string{"/run/cloud-init/status.json": `{"v1": {"stage": "init"}}`}
			w := &recordingGuest{agent: &pvesim.Agent{ReadFile: func(_ context.Context, name string) ([]byte, error) {
				if content, ok := files[name]; ok {
					return []byte(content), nil
				}
				return nil, fs.ErrNotExist
			}}}
			s := pvesim.DefaultScenario(1)
			s.Version = version
			s.Roles = append(s.Roles, pvesim.Role{ID: "Files", Privileges: []string{privilege}})
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/vms/300", Role: s.Roles[0].ID, User: "kubernetes@pve"}, pvesim.ACL{Path: "/vms/300", Role: "Files", User: "kubernetes@pve"})
			c := startSim(t, s, pvesim.Options{Guests: w})
			c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
			const path = "/nodes/pve1/qemu/300/agent/file-read?file="
			got := c.ok("GET", path+"/run/cloud-init/status.json").(map[string]any)
			if got["content"] != files["/run/cloud-init/status.json"] || len(got) != 1 {
				t.Errorf("read %v", got)
			}
			c.refused(500, "Agent error: failed to open file '/etc/x' (mode: 'r'): No such file or directory", "GET", path+"/etc/x")
			c.refused(403, "Permission check failed (/vms/101, "+map[string]string{"8.4": "VM.Monitor", "9.2": "VM.GuestAgent.FileRead|VM.GuestAgent.Unrestricted"}[version]+")",
				"GET", "/nodes/pve1/qemu/101/agent/file-read?file=/etc/x")
			part := c.do("GET", path+"/run/cloud-init/status.json&offset=2&count=2&decode=0")
			if version == "8.4" && part.Status != 400 || version == "9.2" && (part.Status != 200 || !strings.Contains(part.Raw, `"djE="`) || !strings.Contains(part.Raw, `"truncated":1`)) {
				t.Errorf("part: %d %s", part.Status, part.Raw)
			}
		})
	}
}

func TestShutdownUnresponsiveGuest(t *testing.T) { simulated(t, testShutdownUnresponsiveGuest) }

func testShutdownUnresponsiveGuest(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: pvesim.UnresponsiveGuests{}})
	if exit := c.exit(c.ok("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "5")); exit != "VM quit/powerdown failed - got timeout" {
		t.Errorf("shutdown ended with %q", exit)
	}
	c.task("POST", "/nodes/pve1/qemu/101/status/shutdown", "timeout", "5", "forceStop", "1")
	if s := c.ok("GET", "/nodes/pve1/qemu/101/status/current").(map[string]any)["status"]; s != "stopped" {
		t.Errorf("VM is %v", s)
	}
}

func TestPendingChanges(t *testing.T) { simulated(t, testPendingChanges) }

func testPendingChanges(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "memory", "8192", "description", "now")
	current := c.ok("GET", "/nodes/pve1/qemu/101/config", "current", "1").(map[string]any)
	merged := c.config("pve1", 101)
	if current["memory"] != "4096" || merged["memory"] != "8192" || current["description"] != "now" {
		t.Errorf("current %v, merged %v", current, merged)
	}
	if p := row(c.ok("GET", "/nodes/pve1/qemu/101/pending"), "key", "memory"); p["pending"] != "8192" || p["value"] != "4096" {
		t.Errorf("pending: %v", p)
	}
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	if got := c.ok("GET", "/nodes/pve1/qemu/101/config", "current", "1").(map[string]any)["memory"]; got != "8192" {
		t.Errorf("after stop: %v", got)
	}
}

func TestResourcesLag(t *testing.T) { simulated(t, testResourcesLag) }

func testResourcesLag(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	fresh := row(c.ok("GET", "/cluster/resources", "type", "vm"), "vmid", 300)
	if fresh == nil {
		t.Fatal("new VM is not listed")
	}
	if fresh["name"] == nil && fresh["status"] != "unknown" {
		t.Errorf("status of a row without usage must be unknown: %v", fresh)
	}
	eventually(t, "pvestatd's next cycle", func() bool {
		r := row(c.ok("GET", "/cluster/resources", "type", "vm"), "vmid", 300)
		return r["name"] == "worker" && r["status"] == "stopped" && r["maxmem"] != nil
	})
}
