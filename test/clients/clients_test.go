// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	must(t, err)
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(strings.TrimSpace(string(out)))))
	helpers, err := os.ReadFile(filepath.Join("testdata", "goproxmox_helpers.go"))
	must(t, err)
	tests := filepath.Join(dir, "tests", "integration")
	must(t, os.WriteFile(filepath.Join(tests, "helpers_test.go"), helpers, 0o600))
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

// proxmoxAPIGo is the command line of Telmate's proxmox-api-go with a login.
type proxmoxAPIGo struct {
	binary string
	env    []string
}

// step is one command with its standard input, and a regular expression that the output matches. If its first argument
// is an action in camel case, it is one of the original command line.
type step struct{ args, input, want string }

// lifecycle is the life of a VM that is cloned from the default template.
var lifecycle = []step{
	{"version", "", `.`},
	{"list nodes", "", `"pve3"`},
	{"list guests", "", `(\{\},?){6}`},
	{"list storages", "", `"local-lvm"`},
	{"list resources", "", `"node/pve1"`},
	{"list pools", "", `\[`},
	{"getVersion", "", `"Major":\d`},
	{"getVmList", "", `"office-101"`},
	{"get id check 101", "", `in use: 101`},
	{"get id check 300", "", `free: 300`},
	{"get id next 300", "", `Free ID: 300`},
	{"get id max", "", `in use ID: 9002`},
	{"cloneQemu ubuntu pve1", `{"full": {"node": "pve1", "id": 300, "name": "cli-300", "storage": "local-lvm"}}`, `Created guest with ID: 300`},
	{"get guest config 300", "", `"cli-300"`},
	{"getConfig 300", "", `"cli-300"`},
	{"get guest feature 300", "", `[sS]napshot`},
	{"create pool cli", `{"comment": "of the command line", "guests": [300]}`, `\(cli\)`},
	{"get pool cli", "", `300`},
	{"delete pool cli", "", `\(cli\)`},
	{"create snapshot 300 before description", "", `\(before\)`},
	{"list snapshots 300", "", `"description"`},
	{"guest start 300", "", `\(300\)`},
	{"guest status 300", "", `running`},
	{"guest uptime 300", "", `is \d+`},
	{"guest qemu pause 300", "", `\(300\)`},
	{"guest qemu resume 300", "", `\(300\)`},
	{"guest qemu hibernate 300", "", `\(300\)`},
	{"guest start 300", "", `\(300\)`},
	{"guest shutdown 300", "", `\(300\)`},
	{"guest status 300", "", `stopped`},
	{"guest rollback 300 before", "", `\(before\)`},
	{"delete snapshot 300 before", "", `\(before\)`},
	{"list snapshots 300", "", `no snapshots`},
	{"migrate 300 pve2", "", `is moved`},
	{"start 300", "", ``},
	{"stop 300", "", ``},
	{"delete guest 300", "", ``},
	{"get id check 300", "", `free: 300`},
}

// TestProxmoxAPIGo runs commands of Telmate's proxmox-api-go with a password and with a token
// that it creates.
func TestProxmoxAPIGo(t *testing.T) {
	t.Parallel()
	binary := build(t, ".", "build", "github.com/Telmate/proxmox-api-go")
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			sim := start(t, version)
			client := func(user, password string) proxmoxAPIGo {
				return proxmoxAPIGo{binary: binary, env: sim.environ("PM_API_URL="+sim.url, "PM_USER="+user, "PM_PASS="+password)}
			}
			byPassword := client(rootUser, rootPassword)
			t.Run("password", func(t *testing.T) { byPassword.run(t, lifecycle) })
			secret := byPassword.command(t, step{"create token " + rootUser, `{"id": "cli", "privsep": false}`, `[0-9a-f-]{36}`})
			t.Run("token", func(t *testing.T) { client(rootUser+"!cli", strings.TrimSpace(secret)).run(t, lifecycle) })
		})
	}
}

func (c proxmoxAPIGo) run(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		c.command(t, s)
	}
}

var camelCase = regexp.MustCompile(`^([a-z]+[A-Z]\w*|start|stop|migrate)$`)

// command runs one command and returns its output.
func (c proxmoxAPIGo) command(t *testing.T, s step) string {
	t.Helper()
	args := strings.Fields(s.args)
	cmd := exec.CommandContext(t.Context(), c.binary, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = t.TempDir(), c.env, strings.NewReader(s.input)
	if !camelCase.MatchString(args[0]) {
		cmd.Env = append(c.env, "NEW_CLI=true")
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", s.args, err, &stdout, &stderr)
	}
	if out := stdout.String() + stderr.String(); !regexp.MustCompile(s.want).MatchString(out) {
		t.Errorf("%s: the output does not match %s:\n%s", s.args, s.want, out)
	}
	return stdout.String()
}

// simulator is a running pvesim with its default cluster.
type simulator struct {
	url, ca string
}

// rootUser and rootPassword are the login of the default cluster.
const (
	rootUser     = "root@pam"
	rootPassword = "pvesim"
)

var announcedURL = regexp.MustCompile(`^API: +(https://\S+) `)

// start runs pvesim as a version of Proxmox VE until the test ends. It skips the test without
// the binary.
func start(t *testing.T, version string) simulator {
	t.Helper()
	binary := os.Getenv("PVESIM")
	if binary == "" {
		t.Skip("SKIPPED: PVESIM must name the simulator's binary; make clients builds it and sets it")
	}
	s := simulator{ca: filepath.Join(t.TempDir(), "ca.pem")}
	cmd := exec.CommandContext(t.Context(), binary, "--listen", "127.0.0.1:0", "--admin-listen", "", "--ca-out", s.ca,
		"--pve-version", version, "--speed", "20", "--boot-time", "0s")
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // it was killed with the context
	// The announcement ends with the tokens, so the certificate is written when the URL is read.
	lines := bufio.NewScanner(stdout)
	for s.url == "" && lines.Scan() {
		if found := announcedURL.FindStringSubmatch(lines.Text()); found != nil {
			s.url = found[1]
		}
	}
	if s.url == "" {
		t.Fatal("pvesim did not announce its URL")
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// environ returns the environment of a child process with additional variables. The
// simulator's certificate is trusted.
func (s simulator) environ(variables ...string) []string {
	return append(append(os.Environ(), "SSL_CERT_FILE="+s.ca), variables...)
}

// build compiles a package of a module and returns the path of the binary.
func build(t *testing.T, dir string, args ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "client")
	cmd := exec.CommandContext(t.Context(), "go", append([]string{args[0], "-o", binary}, args[1:]...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return binary
}
