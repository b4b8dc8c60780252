// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// onDir returns a client of a simulated Proxmox whose template 9100 has its disk on a directory.
func onDir(t *testing.T, version string) *client {
	t.Helper()
	s := pvesim.DefaultScenario(1)
	s.Version = version
	for i := range s.Storages {
		if s.Storages[i].ID == "local" {
			s.Storages[i].Content = append(s.Storages[i].Content, "images")
		}
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
		if method == http.MethodGet {
			req = c.request(method, path)
			req.Body, req.ContentLength = http.NoBody, 0
		}
		value := "PVEAuthCookie=" + url.QueryEscape(login["ticket"].(string))
		req.Header.Set(header, value)
		req.Header.Set("CSRFPreventionToken", login["CSRFPreventionToken"].(string))
		return c.as("").send(req)
	}
}

func TestAuthorizationHeader(t *testing.T) { simulated(t, testAuthorizationHeader) }

func testAuthorizationHeader(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for header, want := range map[string]string{"": "No ticket", "Basic abc": "Authentication failed!", "PVEAuthCookie=nonsense": "Authentication failed!"} {
		req := c.request("GET", "/version")
		req.Body, req.ContentLength = http.NoBody, 0
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		g.Expect(c.as("").send(req)).To(And(HaveField("Status", 401), HaveField("Reason", want)), "header %q", header)
	}
	for _, header := range []string{"Cookie", "Authorization"} {
		g.Expect(c.asRoot(header)("GET", "/version").Status).To(Equal(200), "ticket in header %s", header)
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
		g.Expect(test.got.Status).To(BeEquivalentTo(400), "got %d %s", test.got.Status, test.got.Reason)
		g.Expect(test.got.Errors[test.name]).To(Equal(test.want), "got %d %s", test.got.Status, test.got.Reason)
	}
	exit := c.exit(root("PUT", "/nodes/pve1/qemu/9100/resize", "disk", "scsi0", "size", "2G").Data)
	g.Expect(exit).To(ContainSubstring("qemu-img resize '--preallocation=metadata' -f qcow2 "), "the resize of a base image ended")
	null, err := http.NewRequest("PUT", c.sim.URL()+vm+"/config", strings.NewReader(`{"cores": null}`))
	g.Expect(err).NotTo(HaveOccurred())
	null.Header.Set("Content-Type", "application/json")
	g.Expect(c.send(null)).To(And(HaveField("Status", 500), HaveField("Reason", "unable to parse value of 'cores' - got undefined value")))
}

func TestChecksumBeforeAlgorithm(t *testing.T) { simulated(t, testChecksumBeforeAlgorithm) }

func testChecksumBeforeAlgorithm(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range [][2]string{{"content", "iso"}, {"checksum", "00"}, {"checksum-algorithm", "md5"}} {
		_ = w.WriteField(field[0], field[1])
	}
	_, _ = w.CreateFormFile("filename", "a.iso")
	_ = w.Close()
	req, err := http.NewRequest("POST", c.sim.URL()+"/nodes/pve1/storage/local/upload", &b)
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Content-Type", w.FormDataContentType())
	g.Expect(c.send(req)).To(And(HaveField("Status", 400), HaveField("Raw", BeEmpty())))
}

func TestFields(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T, g *WithT) {
			c := onDir(t, version)
			g.Expect(c.object("/cluster/options")["keyboard"]).To(BeNil())
			fencing := row(c.ok("GET", "/cluster/ha/status/current"), "id", "fencing")
			if (fencing != nil) != (version == "9.2") || (fencing != nil && fencing["status"] != "standby (CRM watchdog standby)") {
				t.Errorf("fencing: %v", fencing)
			}
			model := row(c.ok("GET", "/nodes/pve1/capabilities/qemu/cpu"), "name", "x86-64-v2-AES")
			g.Expect(model["abstract"] == float64(1)).To(Equal(version == "9.2"))
			models := c.do("GET", "/cluster/qemu/custom-cpu-models")
			g.Expect(models.Status == 200).To(Equal(version == "9.2"), "custom CPU models: %d %s", models.Status, models.Raw)
			cpu := c.object("/nodes/pve1/status")["cpuinfo"].(map[string]any)
			g.Expect(cpu["family"]).NotTo(BeNil())
			g.Expect(cpu["vendor"]).NotTo(BeNil())
			base := row(c.asRoot("Cookie")("GET", "/nodes/pve1/storage/local/content").Data, "volid", "local:9100/base-9100-disk-0.qcow2")
			g.Expect(base).To(HaveKeyWithValue("parent", BeNil()))
		})
	}
}

func TestISOSize(t *testing.T) { simulated(t, testISOSize) }

func testISOSize(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.exit(c.uploadISO("a.iso", make([]byte, 81<<10)).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "local:iso/a.iso,media=cdrom")
	g.Expect(c.config("pve1", 300)["ide2"]).To(Equal("local:iso/a.iso,media=cdrom,size=81K"))
}

func TestPendingBootOrder(t *testing.T) { simulated(t, testPendingBootOrder) }

func testPendingBootOrder(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.exit(c.uploadISO("a.iso", []byte("iso")).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "local:iso/a.iso,media=cdrom", "boot", "order=scsi0;ide2")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "delete", "ide2")
	g.Expect(row(c.ok("GET", "/nodes/pve1/qemu/300/pending"), "key", "boot")["pending"]).To(Equal("order=scsi0;ide2"), "want the pending order")
}

func TestMissingTaskLog(t *testing.T) { simulated(t, testMissingTaskLog) }

func testMissingTaskLog(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300").(string)
	a := c.do("GET", "/nodes/pve1/tasks/"+url.PathEscape(upid)+"/log")
	g.Expect(a.Raw).To(Equal(`{"data":{"n":1,"t":"unable to open file - No such file or directory"},"total":1}`), "got %d", a.Status)
}

func TestStorageMkdir(t *testing.T) { simulated(t, testStorageMkdir) }

func testStorageMkdir(t *testing.T, g *WithT) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	c.ok("POST", "/storage", "storage", "aa", "type", "dir", "path", "/aa", "content", "iso", "shared", "1", "mkdir", "1")
	c.ok("POST", "/storage", "storage", "bb", "type", "dir", "path", "/bb", "content", "iso")
	g.Expect(c.ok("GET", "/storage")).To(ContainElements(fields("storage", "aa", "mkdir", 1.0), fields("storage", "bb", "mkdir", nil)))
}

// TestFullCloneLog checks that the copy of a disk reports its end twice, unless it is so small that it reports it once.
func TestFullCloneLog(t *testing.T) { simulated(t, testFullCloneLog) }

func testFullCloneLog(t *testing.T, g *WithT) {
	c := onDir(t, "9.2")
	for source, want := range map[string]int{"9100": 1, "9000": 2} {
		upid := c.ok("POST", "/nodes/pve1/qemu/"+source+"/clone", "newid", "1"+source, "full", "1")
		c.exit(upid)
		g.Expect(strings.Count(strings.Join(c.log(upid), "\n"), "(100.00%)")).To(Equal(want), "log of the clone of %s:\n", source)
	}
}

func TestResizeLog(t *testing.T) { simulated(t, testResizeLog) }

func testResizeLog(t *testing.T, g *WithT) {
	c := onDir(t, "9.2")
	c.task("POST", "/nodes/pve1/qemu/9100/clone", "newid", "300", "full", "1")
	for _, running := range []bool{false, true} {
		if running {
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
		}
		upid := c.ok("PUT", "/nodes/pve1/qemu/300/resize", "disk", "scsi0", "size", "+1G")
		c.exit(upid)
		g.Expect(slices.Contains(c.log(upid), "Image resized.")).NotTo(Equal(running), "resize with running")
	}
}
