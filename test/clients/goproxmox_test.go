// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notSimulated lists the integration tests of go-proxmox that fail, with the reason.
var notSimulated = map[string]string{
	"TestClusterResources":       "expects no SDN zones, but hosts have the zone localnetwork since Proxmox VE 8",
	"TestStorage_VzTmpl":         "pvesim reports a container image without extension with another message",
	"TestNode_Appliances":        "the list of container images (aplinfo) comes from Proxmox's download server",
	"TestNode_DownloadAppliance": "the list of container images (aplinfo) comes from Proxmox's download server",
	"TestNode_TermProxy":         "needs a shell on the host",
	"TestNode_VncProxy":          "needs the display of a VM",
	"TestNode_NewVirtualMachine": "needs the serial console of a VM (termproxy)",
}

// TestGoProxmox runs the integration tests of go-proxmox. Their helpers are commented out in
// the module, so a file of testdata is added.
func TestGoProxmox(t *testing.T) {
	t.Parallel()
	sim := start(t, "8.4")
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/luthermonson/go-proxmox").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		t.Fatal(err)
	}
	helpers, err := os.ReadFile(filepath.Join("testdata", "goproxmox_helpers.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := filepath.Join(dir, "tests", "integration")
	if err := os.WriteFile(filepath.Join(tests, "helpers_test.go"), helpers, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := build(t, dir, "test", "-c", "-tags", "nodes containers vms", "./tests/integration")
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, append(args, "-test.v", "-test.timeout", "5m")...)
		cmd.Dir = tests
		cmd.Env = sim.environ("PROXMOX_URL="+sim.url, "PROXMOX_USERNAME="+rootUser, "PROXMOX_PASSWORD="+rootPassword,
			"PROXMOX_TOKENID=kubernetes@pve!karpenter", "PROXMOX_SECRET=11111111-2222-3333-4444-555555555555",
			"PROXMOX_NODE_NAME=pve1", "PROXMOX_NODE_STORAGE=local", "PROXMOX_VNC_VMID=101", "DOWNLOADS="+serveDownloads(t),
			"TZ=America/Phoenix") // that of the times in its tests
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	skipped := slices.Sorted(maps.Keys(notSimulated))
	if out, err := run("-test.skip", "^("+strings.Join(skipped, "|")+")$"); err != nil {
		t.Errorf("%v:\n%s", err, out)
	} else {
		t.Logf("%d tests of go-proxmox passed", strings.Count(out, "\n--- PASS: "))
	}
	for _, name := range skipped {
		if out, err := run("-test.run", "^"+name+"$"); err == nil {
			t.Errorf("%s passes, but is listed with %q: remove it from the list:\n%s", name, notSimulated[name], out)
		}
	}
}

// serveDownloads serves files for the simulator to download, and returns the URL. /endless
// never ends.
func serveDownloads(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "content")
		if strings.HasPrefix(r.URL.Path, "/endless") {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}
