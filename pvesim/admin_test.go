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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func admin(t *testing.T, sim *pvesim.Simulator, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, sim.AdminURL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(body, "=") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: sim.DialContext, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw)
}

func TestAdminAPI(t *testing.T) { simulated(t, testAdminAPI) }

func testAdminAPI(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{AdminListen: "127.0.0.1:0"})
	if status, body := admin(t, c.sim, "POST", "/faults", `{"path": "/version", "count": 1, "status": 500, "message": "boom", "delay": "1s"}`); status != 200 || !strings.Contains(body, `"id":1`) {
		t.Fatalf("adding a fault: %d %s", status, body)
	}
	c.refused(500, "boom", "GET", "/version")
	c.ok("GET", "/version")
	_, body := admin(t, c.sim, "GET", "/requests/counts", "")
	var counts map[string]int
	if json.Unmarshal([]byte(body), &counts) != nil || counts["GET /version"] != 2 {
		t.Errorf("counts: %s", body)
	}
	for _, bad := range []string{`{"pfad": "/version"}`, `{"status": 200}`, `{`} {
		if status, text := admin(t, c.sim, "POST", "/faults", bad); status != 400 || text == "" {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
	if status, text := admin(t, c.sim, "POST", "/hosts/pve2/down", url.Values{"how": {"refused"}}.Encode()); status != 200 {
		t.Fatalf("host down: %d %s", status, text)
	}
	c.refused(595, "Connection refused", "GET", "/nodes/pve2/status")
	if status, _ := admin(t, c.sim, "POST", "/hosts/nosuch/down", ""); status != 400 {
		t.Errorf("unknown host: status %d", status)
	}
	admin(t, c.sim, "POST", "/guests/101/lock", "lock=backup")
	c.refused(500, "VM is locked (backup)", "PUT", "/nodes/pve1/qemu/101/config", "cores", "1")
}

func TestAdminStatusPage(t *testing.T) { simulated(t, testAdminStatusPage) }

func testAdminStatusPage(t *testing.T) {
	s := pvesim.DefaultScenario(2)
	s.Guests[0].Name = "<b>ubuntu"
	c := startSim(t, s, pvesim.Options{AdminListen: "127.0.0.1:0"})
	c.fault(pvesim.Fault{Task: "qmstart", Fail: "no luck"})
	upid := c.ok("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "name", "worker")
	c.exit(upid)
	status, page := admin(t, c.sim, "GET", "/", "")
	if status != 200 {
		t.Fatalf("%d %s", status, page)
	}
	for _, want := range []string{"pve2", "worker", "qmclone 9000", "task qmstart", "local-lvm", "&lt;b&gt;ubuntu", c.sim.URL()} {
		if !strings.Contains(page, want) {
			t.Errorf("page does not contain %q", want)
		}
	}
	if strings.Contains(page, "<b>ubuntu") {
		t.Error("guest name is not escaped")
	}
}

func TestRestoreAndMigrate(t *testing.T) { simulated(t, testRestoreAndMigrate) }

func testRestoreAndMigrate(t *testing.T) {
	c := startSim(t, pvesim.DefaultScenario(2), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300", "description", "mine", "full", "1")
	if err := c.sim.RestoreCopy(300, 301); err != nil {
		t.Fatal(err)
	}
	a, b := c.config("pve1", 300), c.config("pve1", 301)
	if a["smbios1"] != b["smbios1"] || b["description"] != "mine" || a["scsi0"] == b["scsi0"] {
		t.Errorf("300: %v\n301: %v", a, b)
	}
	if err := c.sim.MigrateGuest(301, "pve2"); err != nil {
		t.Fatal(err)
	}
	c.refused(500, "Configuration file 'nodes/pve1/qemu-server/301.conf' does not exist", "GET", "/nodes/pve1/qemu/301/config")
	c.task("POST", "/nodes/pve2/qemu/301/status/start")
	c.task("POST", "/nodes/pve2/qemu/301/status/stop")
	c.task("DELETE", "/nodes/pve2/qemu/301")
	if left := c.ok("GET", "/nodes/pve2/storage/local-lvm/content", "vmid", "301").([]any); len(left) != 0 {
		t.Errorf("leaked volumes: %v", left)
	}
}
