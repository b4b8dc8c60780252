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
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// onDir returns a client of a simulated Proxmox whose template 9100 has its disk on a directory.
func onDir(t *testing.T, version string) *client {
	t.Helper()
	s := scenarioOf(version, 1)
	for i := range s.Storages {
		s.Storages[i].Content = append(s.Storages[i].Content, "images")
	}
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100, Name: "dir", Host: "pve1", Config: map[string]string{
		"template": "1", "memory": "512", "scsi0": "local:9100/base-9100-disk-0.qcow2,size=1G", "boot": "order=scsi0",
	}})
	return startSim(t, s, pvesim.Options{})
}

// asRoot returns a client with the ticket of root@pam in the given header.
func (c *client) asRoot(header string) func(method, path string, params ...string) response {
	c.t.Helper()
	login := c.ok("POST", "/access/ticket", "username", "root@pam", "password", pvesim.RootPassword).(map[string]any)
	return func(method, path string, params ...string) response {
		c.t.Helper()
		req := c.request(method, path, params...)
		req.Header.Set(header, "PVEAuthCookie="+url.QueryEscape(login["ticket"].(string)))
		req.Header.Set("CSRFPreventionToken", login["CSRFPreventionToken"].(string))
		return c.as("").send(req)
	}
}

func TestErrorTexts(t *testing.T) { simulated(t, testErrorTexts) }

func testErrorTexts(t *testing.T, g *WithT) {
	c := onDir(t, "9.2")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	const vm = "/nodes/pve1/qemu/300"
	c.refused(500, "pool 'nope' does not exist", "GET", "/pools", "poolid", "nope")
	c.refused(500, "unable to parse directory volume name 'iso/name'", "GET", "/nodes/pve1/storage/local/content/local:iso/name")
	c.refused(500, `lvcreate 'local-lvm/vm-300-disk-0' error:   Logical Volume "vm-300-disk-0" already exists in volume group "local-lvm"`,
		"POST", "/nodes/pve1/storage/local-lvm/content", "vmid", "300", "filename", "vm-300-disk-0", "size", "1G")
	g.Expect(c.do("POST", "/nodes/pve1/qemu", "vmid", "301", "scsi0", "local-lvm:0,import-from=/abs/path")).To(And(HaveField("Status", 500),
		HaveField("Reason", HavePrefix("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line "))))
	root := c.asRoot("Cookie")
	for _, test := range []struct {
		name string
		got  response
		want string
	}{
		{"proto", c.do("POST", vm+"/firewall/rules", "type", "in", "action", "ACCEPT", "dport", "80"), "missing property - 'dport' requires this property"},
		{"scsi0", c.do("POST", "/nodes/pve1/qemu", "vmid", "301", "scsi0", "local-lvm:1,foo=1"),
			"invalid format - format error\nscsi0.foo: property is not defined in schema and the schema does not allow additional properties\n"},
		{"cpu", c.do("PUT", vm+"/config", "cpu", "custom-nope"), "invalid format - Custom cputype 'nope' not found\n"},
		{"hookscript", c.do("PUT", vm+"/config", "hookscript", "local:snippets/nope.pl"), "script '/var/lib/vz/snippets/nope.pl' does not exist"},
		{"hookscript", root("PUT", vm+"/config", "hookscript", "local:snippets/nope.pl"), "script '/var/lib/vz/snippets/nope.pl' does not exist"},
	} {
		g.Expect(test.got).To(And(HaveField("Status", 400), HaveField("Errors", HaveKeyWithValue(test.name, test.want))))
	}
	exit := c.exit(root("PUT", "/nodes/pve1/qemu/9100/resize", "disk", "scsi0", "size", "2G").Data)
	g.Expect(exit).To(ContainSubstring("qemu-img resize '--preallocation=metadata' -f qcow2 "), "the resize of a base image ended")
	g.Expect(c.send(c.requestWith("PUT", vm+"/config", "application/json", `{"cores": null}`))).
		To(answers(500, "unable to parse value of 'cores' - got undefined value"))

	// The algorithm of a checksum must be sent before it.
	const part, end = "--x\r\nContent-Disposition: form-data; name=", "--x--\r\n"
	body := part + "content\r\n\r\niso\r\n" + part + "checksum\r\n\r\n00\r\n" + part + "checksum-algorithm\r\n\r\nmd5\r\n" +
		part + "filename; filename=a.iso\r\n\r\n\r\n" + end
	g.Expect(c.send(c.requestWith("POST", "/nodes/pve1/storage/local/upload", "multipart/form-data; boundary=x", body))).
		To(And(HaveField("Status", 400), HaveField("Raw", BeEmpty())))
}

func TestFields(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			c := onDir(t, version)
			g.Expect(c.object("/cluster/options")["keyboard"]).To(BeNil())
			fencing := row(c.ok("GET", "/cluster/ha/status/current"), "id", "fencing")
			g.Expect(fencing["status"]).To(map[string]types.GomegaMatcher{"8.4": BeNil(), "9.2": Equal("standby (CRM watchdog standby)")}[version])
			model := row(c.ok("GET", "/nodes/pve1/capabilities/qemu/cpu"), "name", "x86-64-v2-AES")
			g.Expect(model["abstract"] == float64(1)).To(Equal(version == "9.2"))
			g.Expect(c.do("GET", "/cluster/qemu/custom-cpu-models").Status == 200).To(Equal(version == "9.2"), "custom CPU models")
			g.Expect(c.object("/nodes/pve1/status")["cpuinfo"]).To(And(HaveKeyWithValue("family", Not(BeNil())), HaveKeyWithValue("vendor", Not(BeNil()))))
			root := c.asRoot("Cookie")
			root("POST", "/storage", "storage", "aa", "type", "dir", "path", "/aa", "content", "iso", "shared", "1", "mkdir", "1")
			root("POST", "/storage", "storage", "bb", "type", "dir", "path", "/bb", "content", "iso")
			g.Expect(root("GET", "/storage").Data).To(ContainElements(fields("storage", "aa", "mkdir", 1.0), fields("storage", "bb", "mkdir", nil)))
			base := row(root("GET", "/nodes/pve1/storage/local/content").Data, "volid", "local:9100/base-9100-disk-0.qcow2")
			g.Expect(base).To(HaveKeyWithValue("parent", BeNil()))
		})
	}
}

// diskGuests copy the base of each disk to the disk and append their VMID, and report the result.
type diskGuests struct {
	content chan string
	updated chan *pvesim.Machine
}

func (d *diskGuests) Boot(ctx context.Context, m *pvesim.Machine) {
	var all []string
	for _, disk := range m.Disks() {
		data, err := os.ReadFile(disk.Path)
		if err != nil && disk.Base != "" {
			if data, err = os.ReadFile(disk.Base); err != nil {
				data = []byte(err.Error())
			}
		}
		text := fmt.Sprintf("%s+%d", data, m.VMID)
		if err := os.WriteFile(disk.Path, []byte(text), 0o600); err != nil {
			text = err.Error()
		}
		all = append(all, disk.Slot+"="+text)
	}
	slices.Sort(all)
	updated := m.Updated()
	d.content <- strings.Join(all, " ")
	for {
		select {
		case <-ctx.Done():
			return
		case <-updated:
			updated = m.Updated()
			d.updated <- m
		}
	}
}

func TestDisks(t *testing.T) { simulated(t, testDisks) }

func testDisks(t *testing.T, g *WithT) {
	dir, guests := t.TempDir(), &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: dir, Web: image("image")})
	<-guests.content // of the running VM of the scenario
	boot := func(vmid int, want string) {
		t.Helper()
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/start", vmid))
		g.Expect(<-guests.content).To(Equal(want), "VM %d", vmid)
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/stop", vmid))
	}
	g.Expect(c.exit(c.download())).To(Equal("OK"))
	c.task("POST", "/nodes/pve1/qemu", "vmid", "300", "scsi0", "local-lvm:0,import-from=local:import/a.raw", "scsi1", "local-lvm:1")
	boot(300, "scsi0=image+300 scsi1=+300")
	boot(300, "scsi0=image+300+300 scsi1=+300+300")
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "301", "full", "1")
	boot(300, "scsi0=image+300+300+300 scsi1=+300+300+300")
	boot(301, "scsi0=image+300+300+301 scsi1=+300+300+301")
	c.task("POST", "/nodes/pve1/qemu/300/template")
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "302")
	c.ok("DELETE", "/nodes/pve1/storage/local/content/local:import/a.raw")
	boot(302, "scsi0=image+300+300+300+302 scsi1=+300+300+300+302")
	for _, vmid := range []int{302, 300} {
		c.task("DELETE", fmt.Sprintf("/nodes/pve1/qemu/%d", vmid))
	}
	boot(301, "scsi0=image+300+300+301+301 scsi1=+300+300+301+301")
	c.task("DELETE", "/nodes/pve1/qemu/301")
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveEach(HaveField("Name()", Or(HavePrefix("image-"), HavePrefix("vm-101-")))), "the image and the disk of the running VM")
}

func TestMachineUpdated(t *testing.T) { simulated(t, testMachineUpdated) }

func testMachineUpdated(t *testing.T, g *WithT) {
	guests := &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: t.TempDir()})
	<-guests.content
	c.task("POST", "/nodes/pve1/qemu/101/status/suspend")
	g.Expect((<-guests.updated).Paused()).To(BeTrue(), "not paused after suspend")
	c.task("POST", "/nodes/pve1/qemu/101/status/resume")
	g.Expect((<-guests.updated).Paused()).To(BeFalse(), "paused after resume")
	c.task("PUT", "/nodes/pve1/qemu/101/resize", "disk", "scsi0", "size", "30G")
	g.Expect((<-guests.updated).Disks()[0].Bytes).To(BeEquivalentTo(30<<30), "disks after resize")
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "description", "changed")
	g.Expect((<-guests.updated).Options()["description"]).To(Equal("changed"))
}

// image is a web server that responds to all requests with the same content.
type image []byte

func (i image) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(i)), ContentLength: int64(len(i))}, nil
}

// download starts to download an image and returns the task.
func (c *client) download() any {
	return c.ok("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", "https://images.example.com/a")
}

func TestDownloadProgress(t *testing.T) { simulated(t, testDownloadProgress) }

func testDownloadProgress(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Hosts[0].DownloadRate = 16 * pvesim.MiB
	c := startSim(t, s, pvesim.Options{Web: make(image, 80<<20)})
	task := c.download()
	g.Expect(c.exit(task)).To(Equal("OK"))
	g.Expect(c.log(task)).To(ContainElements(ContainSubstring(" 40%"), ContainSubstring(" 80%"), ContainSubstring("100%")))
}

func TestCDDrives(t *testing.T) { simulated(t, testCDDrives) }

func testCDDrives(t *testing.T, g *WithT) {
	w := &recordingGuest{}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: w})
	c.exit(c.uploadISO("a.iso", make([]byte, 81<<10)).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	// A CD drive can be on SCSI. Its medium can be ejected without hotplug of disks.
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "scsi30", "local:iso/a.iso,media=cdrom", "delete", "ide2", "boot", "order=scsi0;scsi30", "hotplug", "network")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	g.Expect(boots[0].CDROMs()).To(ConsistOf(HaveField("Slot", "scsi30")))
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "scsi30", "none,media=cdrom")
	g.Expect(boots[0].CDROMs()).To(BeEmpty(), "after eject")
	for _, entry := range c.ok("GET", "/nodes/pve1/qemu/300/pending").([]any) {
		g.Expect(entry.(map[string]any)["pending"]).To(BeNil())
	}

	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "301")
	c.task("POST", "/nodes/pve1/qemu/301/status/start")
	c.ok("PUT", "/nodes/pve1/qemu/301/config", "ide2", "local:iso/a.iso,media=cdrom", "boot", "order=scsi0;ide2")
	g.Expect(c.config("pve1", 301)["ide2"]).To(Equal("local:iso/a.iso,media=cdrom,size=81K"))
	c.ok("PUT", "/nodes/pve1/qemu/301/config", "delete", "ide2")
	g.Expect(row(c.ok("GET", "/nodes/pve1/qemu/301/pending"), "key", "boot")["pending"]).To(Equal("order=scsi0;ide2"), "want the pending order")

	// A protected VM keeps its drives, even if the same write removes the protection. Their volumes can be replaced.
	const protected = "/nodes/pve1/qemu/302/config"
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "302")
	c.ok("PUT", protected, "protection", "1")
	c.refused(500, "can't remove drive 'ide2' - protection mode enabled", "PUT", protected, "delete", "ide2", "protection", "0")
	c.ok("PUT", protected, "ide2", "none,media=cdrom", "protection", "0")
	c.ok("PUT", protected, "delete", "ide2")
}
