// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// admin sends a request to the admin API and returns the body of the response.
func (c *client) admin(status int, method, path, body string) string {
	c.t.Helper()
	g := NewWithT(c.t)
	req, err := http.NewRequest(method, c.sim.AdminURL()+path, strings.NewReader(body))
	g.Expect(err).NotTo(HaveOccurred())
	if strings.Contains(body, "=") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: c.sim.DialContext, DisableKeepAlives: true}}).Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(resp.Body)
	g.Expect(resp.StatusCode).To(Equal(status), "%s %s %q: %s", method, path, body, raw)
	return string(raw)
}

func TestAdminAPI(t *testing.T) { simulated(t, testAdminAPI) }

func testAdminAPI(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	g.Expect(c.admin(200, "POST", "/faults", `{"path": "/version", "count": 1, "status": 500, "message": "boom", "delay": "1s"}`)).To(ContainSubstring(`"id":1`))
	c.refused(500, "boom", "GET", "/version")
	c.ok("GET", "/version")
	body := c.admin(200, "GET", "/requests/counts", "")
	var counts map[string]int
	g.Expect(json.Unmarshal([]byte(body), &counts)).To(BeNil())
	g.Expect(counts["GET /version"]).To(BeEquivalentTo(2))
	for _, bad := range []string{`{"pfad": "/version"}`, `{"status": 200}`, `{`} {
		g.Expect(c.admin(400, "POST", "/faults", bad)).NotTo(BeEmpty())
	}
	c.admin(200, "POST", "/hosts/pve2/down", url.Values{"how": {"refused"}}.Encode())
	c.refused(595, "Connection refused", "GET", "/nodes/pve2/status")
	c.admin(400, "POST", "/hosts/nosuch/down", "")
	c.admin(200, "POST", "/guests/101/lock", "lock=backup")
	c.refused(500, "VM is locked (backup)", "PUT", "/nodes/pve1/qemu/101/config", "cores", "1")
}

func TestAdminStatusPage(t *testing.T) { simulated(t, testAdminStatusPage) }

func testAdminStatusPage(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(2)
	s.Guests[0].Name = "<b>ubuntu"
	c := startSim(t, s, pvesim.Options{AdminListen: "127.0.0.1:0"})
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "no luck"})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	c.exit(upid)
	page := c.admin(200, "GET", "/", "")
	for _, want := range []string{"pve2", "worker", "qmclone 9000", "task qmstart", "local-lvm", "&lt;b&gt;ubuntu", c.sim.URL()} {
		g.Expect(page).To(ContainSubstring(want))
	}
	g.Expect(page).NotTo(ContainSubstring("<b>ubuntu"), "guest name is not escaped")
}

func TestRestoreAndMigrate(t *testing.T) { simulated(t, testRestoreAndMigrate) }

func testRestoreAndMigrate(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "description", "mine", "full", "1")
	g.Expect(c.sim.RestoreCopy(300, 301)).To(Succeed())
	a, b := c.config("pve1", 300), c.config("pve1", 301)
	if a["smbios1"] != b["smbios1"] || b["description"] != "mine" || a["scsi0"] == b["scsi0"] {
		t.Errorf("300: %v\n301: %v", a, b)
	}
	g.Expect(c.sim.MigrateGuest(301, "pve2")).To(Succeed())
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/301.conf' does not exist", "GET", "/nodes/pve1/qemu/301/config")
	c.task("POST", "/nodes/pve2/qemu/301/status/start")
	c.task("POST", "/nodes/pve2/qemu/301/status/stop")
	c.task("DELETE", "/nodes/pve2/qemu/301")
	g.Expect(c.ok("GET", "/nodes/pve2/storage/local-lvm/content", "vmid", "301").([]any)).To(BeEmpty(), "leaked volumes")
}
