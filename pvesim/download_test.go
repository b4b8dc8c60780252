// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestDownloadProgress(t *testing.T) {
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 80<<20)) }))
	t.Cleanup(images.Close)
	simulated(t, func(t *testing.T) { testDownloadProgress(t, images.URL) })
}

func testDownloadProgress(t *testing.T, image string) {
	t.Helper()
	s := pvesim.DefaultScenario(1)
	s.Hosts[0].DownloadRate = 16 * pvesim.MiB
	c := startSim(t, s, pvesim.Options{})
	task := c.ok("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", image).(string)
	if exit := c.exit(task); exit != "OK" {
		t.Fatalf("download ended with %q", exit)
	}
	log := c.logOf(task)
	for _, percent := range []string{" 40%", " 80%", "100%"} {
		if !slices.ContainsFunc(log, func(line string) bool { return strings.Contains(line, percent) }) {
			t.Errorf("log does not contain %s: %q", percent, log)
		}
	}
}

func TestDownloadStorageFull(t *testing.T) {
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("image")) }))
	t.Cleanup(images.Close)
	simulated(t, func(t *testing.T) { testDownloadStorageFull(t, images.URL) })
}

func testDownloadStorageFull(t *testing.T, image string) {
	t.Helper()
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	if err := c.sim.SetStorageFull("local", true); err != nil {
		t.Fatal(err)
	}
	task := c.ok("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", image).(string)
	if exit := c.exit(task); exit != "download failed: exit code 3" {
		t.Errorf("download ended with %q", exit)
	}
	if log := strings.Join(c.logOf(task), "\n"); !strings.Contains(log, "No space left on device") {
		t.Errorf("log does not contain the reason: %s", log)
	}
	if volumes := c.ok("GET", "/nodes/pve1/storage/local/content?content=import").([]any); len(volumes) != 0 {
		t.Errorf("unexpected volumes: %v", volumes)
	}
}

// logOf returns the lines of a task's log.
func (c *client) logOf(task string) []string {
	c.t.Helper()
	var lines []string
	for _, line := range c.ok("GET", "/nodes/pve1/tasks/"+url.PathEscape(task)+"/log").([]any) {
		lines = append(lines, line.(map[string]any)["t"].(string))
	}
	return lines
}
