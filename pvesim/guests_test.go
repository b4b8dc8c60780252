// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

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

func testGuestHardware(t *testing.T, g *WithT) {
	w := &recordingGuest{}
	scenario := pvesim.DefaultScenario(1)
	scenario.Hosts[0].Arch = "aarch64"
	c := startSim(t, scenario, pvesim.Options{Guests: w})
	iso := bytes.Repeat([]byte("iso"), 1000)
	g.Expect(c.exit(c.uploadISO("seed 1.iso", iso).Data)).To(Equal("OK"))
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	serial := base64.StdEncoding.EncodeToString([]byte("h=worker;i=300"))
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "cores", "4", "memory", "4096", "ide2", "local:iso/seed_1.iso,media=cdrom",
		"net0", "virtio,bridge=vmbr0,tag=7", "smbios1", "uuid=6f2a1c7e-0e5e-4d3a-9e57-0d2d9a2b6e11,serial="+serial+",base64=1")
	c.task("PUT", "/nodes/pve1/qemu/300/resize", "disk", "scsi0", "size", "30G")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	g.Expect(boots).To(HaveLen(1))
	m := boots[0]
	g.Expect([]any{m.Name, m.Arch, m.Cores, m.MemoryBytes, m.DiskBytes, m.UUID, m.SMBIOS["serial"], m.Cluster, m.Host}).
		To(Equal([]any{"worker", "aarch64", 4, int64(4 << 30), int64(30 << 30), "6f2a1c7e-0e5e-4d3a-9e57-0d2d9a2b6e11", "h=worker;i=300", "", "pve1"}))
	g.Expect(m.NICs).To(ConsistOf(And(HaveField("Bridge", "vmbr0"), HaveField("VLAN", 7), HaveField("MAC", Not(BeEmpty())))))
	g.Expect(m.CDROMs()).To(ConsistOf(And(HaveField("Slot", "ide2"), HaveField("Image", iso))))
	// An ISO can be deleted while it is inserted.
	c.task("DELETE", "/nodes/pve1/storage/local/content/local:iso/seed_1.iso")
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/300/status/start")).To(Equal("volume 'local:iso/seed_1.iso' does not exist"), "start ended")
}

func TestRebootResetStop(t *testing.T) { simulated(t, testRebootResetStop) }

func testRebootResetStop(t *testing.T, g *WithT) {
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
	g.Expect(ids).To(HaveLen(3), "boot IDs are not unique")
	g.Expect(first(boots[0].Disk.Read("boots"))).To(BeEquivalentTo("xxx"))
	g.Expect(boots[0].Arch).To(Equal("x86_64"))
	// A clone of the VM copies the content of its disk; a new clone of the template does not have it.
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "301")
	c.task("POST", "/nodes/pve1/qemu/301/status/start")
	boots, _ = w.seen()
	g.Expect(first(boots[len(boots)-1].Disk.Read("boots"))).To(BeEquivalentTo("xxxx"))
}

func TestCloudInitDrive(t *testing.T) { simulated(t, testCloudInitDrive) }

func testCloudInitDrive(t *testing.T, g *WithT) {
	w := &recordingGuest{}
	s := pvesim.DefaultScenario(1)
	s.Files = []pvesim.File{{Storage: "local", Name: "snippets/vendor.yaml", Text: "#cloud-config\nvendor: yes\n"}}
	c := startSim(t, s, pvesim.Options{Guests: w})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ciuser", "ubuntu", "ipconfig0", "ip=10.0.0.5/24,gw=10.0.0.1")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	g.Expect(boots[0].CDROMs()).To(ConsistOf(HaveField("Volid", "local-lvm:vm-300-cloudinit")))
	for _, text := range []string{"CIDATA", "HOSTNAME: WORKER", "USER: UBUNTU", "ADDRESS: '10.0.0.5'", "INSTANCE-ID: "} {
		g.Expect(strings.ToUpper(string(boots[0].CDROMs()[0].Image))).To(ContainSubstring(text))
	}
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "cicustom", "vendor=local:snippets/vendor.yaml,network=local:snippets/network.yaml")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/300/status/start")).To(Equal("volume 'local:snippets/network.yaml' does not exist"), "start ended")
	c.sim.PutFile(pvesim.File{Storage: "local", Host: "pve1", Name: "snippets/network.yaml", Text: "version: 2\nmine: yes\n"})
	g.Expect(row(c.ok("GET", "/nodes/pve1/storage/local/content", "content", "snippets"), "volid", "local:snippets/network.yaml")).NotTo(BeNil(),
		"file is not listed")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ = w.seen()
	image := boots[1].CDROMs()[0].Image
	for text, want := range map[string]bool{"vendor: yes": true, "mine: yes": true, "user: ubuntu": true, "type: nameserver": false} {
		g.Expect(bytes.Contains(image, []byte(text))).To(Equal(want), "ISO contains %q: %t", text, !want)
	}
	g.Expect(c.ok("GET", "/nodes/pve1/qemu/300/cloudinit/dump", "type", "network").(string)).NotTo(ContainSubstring("mine"), "dump contains snippets")
}

func TestFirmwareFiles(t *testing.T) { simulated(t, testFirmwareFiles) }

func testFirmwareFiles(t *testing.T, g *WithT) {
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
	g.Expect(boots[0].Firmware).To(Equal(map[string][]byte{"opt/a": []byte(`{"ignition":{}}`), "opt/b": []byte("x,y")}))
	c.task("POST", "/nodes/pve1/qemu/300/status/stop")
	c.task("DELETE", "/nodes/pve1/storage/local/content/local:iso/a.iso")
	g.Expect(c.ends("POST", "/nodes/pve1/qemu/300/status/start")).To(Equal("start failed: QEMU exited with code 1"), "start without the file ended")
}

func TestAgent(t *testing.T) {
	t.Parallel()
	for version, privileges := range map[string][]string{"8.4": {"VM.Monitor"}, "9.2": {"VM.GuestAgent.Audit", "VM.GuestAgent.FileRead"}} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			files := map[string]string{"/run/cloud-init/status.json": `{"v1": {"stage": "init"}}`}
			eth0 := pvesim.AgentInterface{Name: "eth0", MAC: "BC:24:11:00:00:01", Addresses: []string{"10.0.0.5/24"}}
			w := &recordingGuest{agent: &pvesim.Agent{Interfaces: []pvesim.AgentInterface{eth0}, ReadFile: func(_ context.Context, name string) ([]byte, error) {
				if content, ok := files[name]; ok {
					return []byte(content), nil
				}
				return nil, fs.ErrNotExist
			}}}
			s := scenarioOf(version, 1)
			s.Roles = append(s.Roles, pvesim.Role{ID: "Agent", Privileges: privileges})
			for _, role := range []string{s.Roles[0].ID, "Agent"} {
				s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/vms/300", Role: role, User: "kubernetes@pve"})
			}
			c := startSim(t, s, pvesim.Options{Guests: w})
			c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
			const agent = "/nodes/pve1/qemu/300/agent/"
			c.refused(500, "VM 300 is not running", "GET", agent+"network-get-interfaces")
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
			g.Expect(c.object(agent + "network-get-interfaces")["result"]).To(ContainElement(And(fields("name", "eth0", "hardware-address", "bc:24:11:00:00:01"),
				HaveKeyWithValue("ip-addresses", ContainElement(HaveKeyWithValue("ip-address", "10.0.0.5"))))))

			const read = agent + "file-read?file="
			got := c.object(read + "/run/cloud-init/status.json")
			g.Expect(got["content"]).To(Equal(files["/run/cloud-init/status.json"]))
			g.Expect(got).To(HaveLen(1))
			c.refused(500, "Agent error: failed to open file '/etc/x' (mode: 'r'): No such file or directory", "GET", read+"/etc/x")
			c.refused(403, "Permission check failed (/vms/101, "+map[string]string{"8.4": "VM.Monitor", "9.2": "VM.GuestAgent.FileRead|VM.GuestAgent.Unrestricted"}[version]+")",
				"GET", "/nodes/pve1/qemu/101/agent/file-read?file=/etc/x")
			part := c.do("GET", read+"/run/cloud-init/status.json&offset=2&count=2&decode=0")
			if version == "8.4" {
				g.Expect(part.Status).To(Equal(400))
			} else {
				g.Expect(part.Raw).To(And(ContainSubstring(`"djE="`), ContainSubstring(`"truncated":1`)))
			}

			boots, _ := w.seen()
			boots[0].SetAgent(nil)
			start := time.Now()
			c.refused(500, "QEMU guest agent is not running", "GET", agent+"network-get-interfaces")
			g.Expect(time.Since(start)).To(BeNumerically(">=", 3*time.Second), "want it to block for three seconds")
		})
	}
}

func TestPendingChanges(t *testing.T) { simulated(t, testPendingChanges) }

func testPendingChanges(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "memory", "8192", "description", "now")
	g.Expect(c.object("/nodes/pve1/qemu/101/config", "current", "1")).To(fields("memory", "4096", "description", "now"))
	g.Expect(c.config("pve1", 101)["memory"]).To(Equal("8192"))
	g.Expect(row(c.ok("GET", "/nodes/pve1/qemu/101/pending"), "key", "memory")).To(fields("pending", "8192", "value", "4096"), "pending")
	c.task("POST", "/nodes/pve1/qemu/101/status/stop")
	g.Expect(c.object("/nodes/pve1/qemu/101/config", "current", "1")["memory"]).To(Equal("8192"), "after stop")
}

func TestResourcesLag(t *testing.T) { simulated(t, testResourcesLag) }

func testResourcesLag(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	fresh := row(c.ok("GET", "/cluster/resources", "type", "vm"), "vmid", 300)
	g.Expect(fresh).To(Or(HaveKey("name"), HaveKeyWithValue("status", "unknown")), "status of a row without usage")
	eventually(t, "pvestatd's next cycle", func() bool {
		r := row(c.ok("GET", "/cluster/resources", "type", "vm"), "vmid", 300)
		return r["name"] == "worker" && r["status"] == "stopped" && r["maxmem"] != nil
	})
}

// The config call accepts invalid NUMA settings; the start task rejects them.
func TestStartNUMA(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options map[string]string
		exit    string
	}{
		"existing node":        {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=1,memory=1024,policy=bind"}, "OK"},
		"two nodes":            {map[string]string{"numa": "1", "numa0": "cpus=0,hostnodes=0,memory=512,policy=bind", "numa1": "cpus=1,hostnodes=1,memory=512,policy=bind"}, "OK"},
		"several host nodes":   {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0-1,memory=1024,policy=interleave"}, "OK"},
		"ignored without numa": {map[string]string{"numa0": "cpus=0-1,hostnodes=7,memory=1,policy=bind"}, "OK"},
		"missing host node":    {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0;2,memory=1024,policy=bind"}, "host NUMA node2 doesn't exist"},
		"memory does not add up": {
			map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,memory=1000,policy=bind"}, "total memory for NUMA nodes must be equal to vm static memory",
		},
		"no memory":            {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,policy=bind"}, "missing NUMA node0 memory value"},
		"no policy":            {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,memory=1024"}, "you need to define a policy for hostnode 0"},
		"hugepages":            {map[string]string{"numa": "1", "hugepages": "1024", "numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind"}, "OK"},
		"hugepages by sockets": {map[string]string{"numa": "1", "hugepages": "2"}, "OK"},
		"hugepages, no numa":   {map[string]string{"hugepages": "1024"}, "numa needs to be enabled to use hugepages"},
		"hugepages, no cell":   {map[string]string{"numa": "1", "hugepages": "2", "numa0": "cpus=0-1,memory=1024"}, "numa hostnodes need to be defined to use hugepages"},
		"hugepages, two cells": {
			map[string]string{"numa": "1", "hugepages": "2", "numa0": "cpus=0-1,hostnodes=0-1,memory=1024,policy=bind"}, "only 1 hostnode value allowed per numa node with hugepages",
		},
		"partial page": {
			map[string]string{"numa": "1", "hugepages": "1024", "numa0": "cpus=0,hostnodes=0,memory=512,policy=bind", "numa1": "cpus=1,hostnodes=1,memory=512,policy=bind"},
			"Memory size 512 is not a multiple of the requested hugepages size 1024",
		},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			scenario := pvesim.DefaultScenario(1)
			scenario.Hosts[0].NUMA = 2
			options := map[string]string{"cores": "2", "memory": "1024"}
			maps.Copy(options, test.options)
			scenario.Guests = append(scenario.Guests, pvesim.Guest{VMID: 300, Host: "pve1", Name: "numa", Config: options})
			g.Expect(startSim(t, scenario, pvesim.Options{}).ends("POST", "/nodes/pve1/qemu/300/status/start")).To(Equal(test.exit), "start ended")
		})
	}
}
