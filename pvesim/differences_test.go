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

func testAuthorizationHeader(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	for header, want := range map[string]string{"": "No ticket", "Basic abc": "Authentication failed!", "PVEAuthCookie=nonsense": "Authentication failed!"} {
		req := c.request("GET", "/version")
		req.Body, req.ContentLength = http.NoBody, 0
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		if a := c.as("").send(req); a.Status != 401 || a.Reason != want {
			t.Errorf("header %q: got %d %s, want 401 %s", header, a.Status, a.Reason, want)
		}
	}
	for _, header := range []string{"Cookie", "Authorization"} {
		if a := c.asRoot(header)("GET", "/version"); a.Status != 200 {
			t.Errorf("ticket in header %s: got %d %s", header, a.Status, a.Reason)
		}
	}
}

func TestErrorTexts(t *testing.T) { simulated(t, testErrorTexts) }

func testErrorTexts(t *testing.T) {
	c := onDir(t, "9.2")
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	const vm = "/nodes/pve1/qemu/300"
	c.refused(500, "pool 'nope' does not exist", "GET", "/pools", "poolid", "nope")
	c.refused(500, "unable to parse directory volume name 'iso/name'", "GET", "/nodes/pve1/storage/local/content/local:iso/name")
	c.refused(500, `lvcreate 'local-lvm/vm-300-disk-0' error:   Logical Volume "vm-300-disk-0" already exists in volume group "local-lvm"`,
		"POST", "/nodes/pve1/storage/local-lvm/content", "vmid", "300", "filename", "vm-300-disk-0", "size", "1G")
	a := c.do("POST", "/nodes/pve1/qemu", "vmid", "301", "scsi0", "local-lvm:0,import-from=/abs/path")
	if want := "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line "; a.Status != 500 || !strings.HasPrefix(a.Reason, want) {
		t.Errorf("got %d %s, want %s", a.Status, a.Reason, want)
	}
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
		if test.got.Status != 400 || test.got.Errors[test.name] != test.want {
			t.Errorf("got %d %s %q, want %q", test.got.Status, test.got.Reason, test.got.Errors, test.want)
		}
	}
	exit := c.exit(root("PUT", "/nodes/pve1/qemu/9100/resize", "disk", "scsi0", "size", "2G").Data)
	if !strings.Contains(exit, "qemu-img resize '--preallocation=metadata' -f qcow2 ") {
		t.Errorf("the resize of a base image ended with %q", exit)
	}
	null, err := http.NewRequest("PUT", c.sim.URL()+vm+"/config", strings.NewReader(`{"cores": null}`))
	if err != nil {
		t.Fatal(err)
	}
	null.Header.Set("Content-Type", "application/json")
	if a := c.send(null); a.Status != 500 || a.Reason != "unable to parse value of 'cores' - got undefined value" {
		t.Errorf("got %d %s for a null", a.Status, a.Reason)
	}
}

func TestChecksumBeforeAlgorithm(t *testing.T) { simulated(t, testChecksumBeforeAlgorithm) }

func testChecksumBeforeAlgorithm(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range [][2]string{{"content", "iso"}, {"checksum", "00"}, {"checksum-algorithm", "md5"}} {
		_ = w.WriteField(field[0], field[1])
	}
	_, _ = w.CreateFormFile("filename", "a.iso")
	_ = w.Close()
	req, err := http.NewRequest("POST", c.sim.URL()+"/nodes/pve1/storage/local/upload", &b)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	if a := c.send(req); a.Status != 400 || a.Raw != "" {
		t.Errorf("got %d %q, want 400 without a body", a.Status, a.Raw)
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		runSimulated(t, version, func(t *testing.T) {
			c := onDir(t, version)
			if options := c.ok("GET", "/cluster/options").(map[string]any); options["keyboard"] != nil {
				t.Errorf("options: %v", options)
			}
			fencing := row(c.ok("GET", "/cluster/ha/status/current"), "id", "fencing")
			if (fencing != nil) != (version == "9.2") || (fencing != nil && fencing["status"] != "standby (CRM watchdog standby)") {
				t.Errorf("fencing: %v", fencing)
			}
			model := row(c.ok("GET", "/nodes/pve1/capabilities/qemu/cpu"), "name", "x86-64-v2-AES")
			if (model["abstract"] == float64(1)) != (version == "9.2") {
				t.Errorf("CPU model: %v", model)
			}
			if models := c.do("GET", "/cluster/qemu/custom-cpu-models"); (models.Status == 200) != (version == "9.2") {
				t.Errorf("custom CPU models: %d %s", models.Status, models.Raw)
			}
			cpu := c.ok("GET", "/nodes/pve1/status").(map[string]any)["cpuinfo"].(map[string]any)
			if cpu["family"] == nil || cpu["vendor"] == nil {
				t.Errorf("cpuinfo: %v", cpu)
			}
			base := row(c.asRoot("Cookie")("GET", "/nodes/pve1/storage/local/content").Data, "volid", "local:9100/base-9100-disk-0.qcow2")
			if parent, ok := base["parent"]; !ok || parent != nil {
				t.Errorf("base image: %v", base)
			}
		})
	}
}

func TestISOSize(t *testing.T) { simulated(t, testISOSize) }

func testISOSize(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.exit(c.uploadISO("a.iso", make([]byte, 81<<10)).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "local:iso/a.iso,media=cdrom")
	if got := c.config("pve1", 300)["ide2"]; got != "local:iso/a.iso,media=cdrom,size=81K" {
		t.Errorf("got %v", got)
	}
}

func TestPendingBootOrder(t *testing.T) { simulated(t, testPendingBootOrder) }

func testPendingBootOrder(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.exit(c.uploadISO("a.iso", []byte("iso")).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "local:iso/a.iso,media=cdrom", "boot", "order=scsi0;ide2")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "delete", "ide2")
	if pending := row(c.ok("GET", "/nodes/pve1/qemu/300/pending"), "key", "boot"); pending["pending"] != "order=scsi0;ide2" {
		t.Errorf("got %v, want the pending order", pending)
	}
}

func TestMissingTaskLog(t *testing.T) { simulated(t, testMissingTaskLog) }

func testMissingTaskLog(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	upid := c.ok("POST", "/nodes/pve2/qemu/9001/clone", "newid", "300").(string)
	a := c.do("GET", "/nodes/pve1/tasks/"+url.PathEscape(upid)+"/log")
	if want := `{"data":{"n":1,"t":"unable to open file - No such file or directory"},"total":1}`; a.Raw != want {
		t.Errorf("got %d %s, want %s", a.Status, a.Raw, want)
	}
}

func TestStorageMkdir(t *testing.T) { simulated(t, testStorageMkdir) }

func testStorageMkdir(t *testing.T) {
	c := asRoot(t, pvesim.DefaultScenario(1))
	c.ok("POST", "/storage", "storage", "aa", "type", "dir", "path", "/aa", "content", "iso", "shared", "1", "mkdir", "1")
	c.ok("POST", "/storage", "storage", "bb", "type", "dir", "path", "/bb", "content", "iso")
	rows := c.ok("GET", "/storage")
	if a, b := row(rows, "storage", "aa"), row(rows, "storage", "bb"); a["mkdir"] != 1.0 || b["mkdir"] != nil {
		t.Errorf("storages: %v %v", a, b)
	}
}

// TestFullCloneLog checks that the copy of a disk reports its end twice, unless it is so small that it reports it once.
func TestFullCloneLog(t *testing.T) { simulated(t, testFullCloneLog) }

func testFullCloneLog(t *testing.T) {
	c := onDir(t, "9.2")
	for source, want := range map[string]int{"9100": 1, "9000": 2} {
		upid := c.ok("POST", "/nodes/pve1/qemu/"+source+"/clone", "newid", "1"+source, "full", "1")
		c.exit(upid)
		if log := strings.Join(c.log(upid), "\n"); strings.Count(log, "(100.00%)") != want {
			t.Errorf("log of the clone of %s:\n%s", source, log)
		}
	}
}

func TestResizeLog(t *testing.T) { simulated(t, testResizeLog) }

func testResizeLog(t *testing.T) {
	c := onDir(t, "9.2")
	c.task("POST", "/nodes/pve1/qemu/9100/clone", "newid", "300", "full", "1")
	for _, running := range []bool{false, true} {
		if running {
			c.task("POST", "/nodes/pve1/qemu/300/status/start")
		}
		upid := c.ok("PUT", "/nodes/pve1/qemu/300/resize", "disk", "scsi0", "size", "+1G")
		c.exit(upid)
		if log := c.log(upid); slices.Contains(log, "Image resized.") == running {
			t.Errorf("resize with running %v: %q", running, log)
		}
	}
}
