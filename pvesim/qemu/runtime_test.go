// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// bootSector is a program that counts its boots on its disk, prints "boot N" on the serial console, and powers off when
// it receives a character. It starts within a second under emulation.
func bootSector() []byte {
	code := []byte{
		0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0xfc, // ds = es = 0
		0xbb, 0x00, 0x7e, 0xb9, 0x02, 0x00, 0xb6, 0x00, // buffer 0x7e00, sector 2
		0xb8, 0x01, 0x02, 0xcd, 0x13, // read it
		0xfe, 0x06, 0x00, 0x7e, // increment its first byte
		0xb8, 0x01, 0x03, 0xcd, 0x13, // write it
		0xba, 0xf8, 0x03, 0xbe, 0, 0x7c, // serial port, message
		0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // print it
		0xa0, 0x00, 0x7e, 0x04, '0', 0xee, 0xb0, '\n', 0xee, // print the number
		0xfb, 0xf4, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf6, // wait for a character
		0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, // power off
		0xf4, 0xeb, 0xfd,
	}
	code[33] = byte(len(code))
	image := make([]byte, 1<<20)
	copy(image, append(code, "boot \x00"...))
	image[510], image[511] = 0x55, 0xaa
	return image
}

// lab is a simulator whose template contains the boot sector.
type lab struct {
	t       *testing.T
	sim     *pvesim.Simulator
	runtime *Runtime
	client  *http.Client
}

func requireQEMU(t *testing.T) {
	t.Helper()
	for program, name := range packages {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (Debian package %s)", program, name)
		}
	}
}

func newLab(t *testing.T) *lab {
	t.Helper()
	g := NewWithT(t)
	requireQEMU(t)
	runtime, err := NewRuntime(Options{Acceleration: "tcg", Log: func(message string) { t.Log(message) }})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(runtime.Close)
	sim, err := startSimulator(runtime)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(sim.Close)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(sim.CAPEM())
	return &lab{t: t, sim: sim, runtime: runtime, client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, IdleConnTimeout: 2 * time.Second}}}
}

// vmWithShares is a stopped VM with a virtiofs and a 9p share.
const vmWithShares = 150

func startSimulator(runtime *Runtime) (*pvesim.Simulator, error) {
	image := filepath.Join(runtime.Dir(), "boot-sector.raw")
	if err := os.WriteFile(image, bootSector(), 0o600); err != nil {
		return nil, err
	}
	scenario := pvesim.DefaultScenario(1)
	scenario.Files = append(scenario.Files, pvesim.File{Host: "pve1", Storage: "local", Name: "iso/empty.iso", Text: strings.Repeat(" ", 4096)})
	scenario.Guests = append(scenario.Guests, pvesim.Guest{VMID: vmWithShares, Host: "pve1", Config: map[string]string{
		"memory": "128", "ide2": "local:iso/empty.iso,media=cdrom", "virtiofs0": "dirid=data", "vga": "serial0",
		"args": "-virtfs local,path=" + runtime.Dir() + ",mount_tag=files,security_model=none,id=fs0",
	}})
	sim, err := pvesim.New(scenario, pvesim.Options{AdminListen: "127.0.0.1:0", Speed: 20, Guests: runtime, Dir: runtime.Dir(), TemplateImage: image})
	if err != nil {
		return nil, err
	}
	return sim, sim.Start(context.Background())
}

// call sends a request and returns the data of the response. If that is a task, it waits for its end.
func (l *lab) call(method, path string, params ...string) any {
	l.t.Helper()
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Set(params[i], params[i+1])
	}
	req, err := http.NewRequest(method, l.sim.URL()+path+"?"+form.Encode(), nil)
	g := NewWithT(l.t)
	g.Expect(err).NotTo(HaveOccurred())
	req.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
	resp, err := l.client.Do(req)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = resp.Body.Close() }()
	g.Expect(resp.StatusCode).To(Equal(http.StatusOK), "%s %s: %s", method, path, resp.Status)
	var body struct{ Data any }
	g.Expect(json.NewDecoder(resp.Body).Decode(&body)).To(Succeed())
	if task, ok := body.Data.(string); ok && strings.HasPrefix(task, "UPID:") {
		l.eventually("end of "+task, func() bool {
			status := l.call(http.MethodGet, "/nodes/pve1/tasks/"+url.PathEscape(task)+"/status").(map[string]any)
			g.Expect(status["exitstatus"]).To(Or(BeNil(), Equal("OK")), "%s %s: the task ended", method, path)
			return status["status"] == "stopped"
		})
	}
	return body.Data
}

func (l *lab) vm(method string, vmid int, path string, params ...string) any {
	l.t.Helper()
	return l.call(method, fmt.Sprintf("/nodes/pve1/qemu/%d%s", vmid, path), params...)
}

func (l *lab) status(vmid int) map[string]any {
	l.t.Helper()
	return l.vm(http.MethodGet, vmid, "/status/current").(map[string]any)
}

func (l *lab) eventually(what string, ok func() bool) { eventually(l.t, what, ok) }

// eventually waits until a condition holds. Emulation on a busy machine is slow.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(8 * time.Minute); !ok(); {
		NewWithT(t).Expect(time.Now().After(deadline)).To(BeFalse(), "timeout waiting for %s", what)
		time.Sleep(20 * time.Millisecond)
	}
}

// expectConsole waits until a VM has printed a text.
func (l *lab) expectConsole(vmid int, text string) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%q on the console of VM %d", text, vmid), func() bool { return strings.Contains(l.runtime.Console(vmid), text) })
}

// press sends a character to the console of a VM.
func (l *lab) press(vmid int) {
	l.t.Helper()
	conn, err := net.Dial("unix", l.runtime.ConsoleSocket(vmid))
	NewWithT(l.t).Expect(err).NotTo(HaveOccurred())
	NewWithT(l.t).Expect(io.WriteString(conn, "x")).Error().NotTo(HaveOccurred())
	_ = conn.Close()
}

// query returns what a command of a VM's monitor returns.
func (l *lab) query(vmid int, command string) string {
	l.t.Helper()
	guest, err := l.runtime.runningGuest(vmid)
	NewWithT(l.t).Expect(err).NotTo(HaveOccurred())
	var out json.RawMessage
	NewWithT(l.t).Expect(guest.monitor.execute(context.Background(), command, nil, &out)).To(Succeed())
	return string(out)
}

// admin returns a page of the admin API.
func (l *lab) admin(path string) string {
	l.t.Helper()
	resp, err := http.Get(l.sim.AdminURL() + path)
	NewWithT(l.t).Expect(err).NotTo(HaveOccurred())
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	NewWithT(l.t).Expect(err).NotTo(HaveOccurred())
	return string(page)
}

// files returns the files in the runtime's directory whose names contain a text.
func (l *lab) files(text string) []string {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.runtime.Dir(), "*"+text+"*"))
	NewWithT(l.t).Expect(err).NotTo(HaveOccurred())
	return files
}

func TestBoot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	l := newLab(t)
	l.vm("POST", 9000, "/clone", "newid", "200", "name", "a")
	l.vm("POST", 200, "/status/start")
	l.expectConsole(200, "boot 1")
	g.Expect(l.admin("/guests/200/console")).To(ContainSubstring("boot 1"))
	g.Expect(l.admin("/")).To(ContainSubstring(`<a href="/guests/200/console">a</a>`))
	l.vm("POST", 200, "/status/reset")
	l.expectConsole(200, "boot 2")
	l.vm("POST", 200, "/status/stop")
	l.vm("PUT", 200, "/resize", "disk", "scsi0", "size", "5G")
	l.vm("POST", 200, "/status/start")
	l.expectConsole(200, "boot 3")
	g.Expect(l.query(200, "query-block")).To(ContainSubstring(fmt.Sprint(int64(5<<30))), "no disk of 5 GiB")
	l.press(200)
	l.eventually("the guest's power-off", func() bool { return l.status(200)["status"] == "stopped" })

	// A copy contains what the guest wrote, and does not change with the original.
	l.vm("POST", 200, "/clone", "newid", "201", "full", "1", "name", "b")
	for _, vmid := range []int{200, 201} {
		l.vm("POST", vmid, "/status/start")
		l.expectConsole(vmid, "boot 4")
	}
	for _, vmid := range []int{200, 201} {
		l.vm("POST", vmid, "/status/stop")
		l.vm("DELETE", vmid, "")
	}
	g.Expect(l.files("vm-20[01]")).To(BeEmpty(), "files of deleted VMs")
}

func TestRunning(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.vm("POST", 9000, "/clone", "newid", "200", "name", "a")
	l.sim.PutFile(pvesim.File{Host: "pve1", Storage: "local", Name: "iso/a.iso", Text: strings.Repeat("a", 4096)})
	l.vm("PUT", 200, "/config", "ide0", "local:iso/a.iso,media=cdrom", "delete", "ide2")
	l.vm("POST", 200, "/status/start")
	l.expectConsole(200, "boot 1")

	l.vm("POST", 200, "/status/suspend")
	l.eventually("pause", func() bool { return strings.Contains(l.query(200, "query-status"), `"paused"`) })
	l.vm("POST", 200, "/status/resume")
	l.eventually("resume", func() bool { return strings.Contains(l.query(200, "query-status"), `"running": true`) })

	NewWithT(t).Expect(l.query(200, "query-block")).To(ContainSubstring("ide0-local_iso_a.iso"))
	l.vm("PUT", 200, "/config", "ide0", "none,media=cdrom")
	l.eventually("eject", func() bool { return !strings.Contains(l.query(200, "query-block"), "ide0-local_iso_a.iso") })
	l.vm("PUT", 200, "/config", "ide0", "local:iso/a.iso,media=cdrom")
	l.eventually("insertion", func() bool { return strings.Contains(l.query(200, "query-block"), "ide0-local_iso_a.iso") })

	l.vm("PUT", 200, "/resize", "disk", "scsi0", "size", "6G")
	l.eventually("resize", func() bool { return strings.Contains(l.query(200, "query-block"), fmt.Sprint(int64(6<<30))) })
}

// TestKill kills a process with a runtime. The child is this test binary.
func TestKill(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	requireQEMU(t)
	child := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
	child.Env = append(os.Environ(), "PVESIM_KILL_CHILD=1")
	var stderr bytes.Buffer
	child.Stderr = &stderr
	stdout, err := child.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(child.Start()).To(Succeed())
	var dir string
	if _, err := fmt.Fscanf(stdout, "running %s\n", &dir); err != nil {
		_ = child.Process.Kill()
		t.Fatalf("reading the output of the child: %v\n%s", err, stderr.String())
	}
	g.Expect(processes(t, dir)).NotTo(BeZero(), "no QEMU process")
	_ = child.Process.Kill()
	_ = child.Wait()
	eventually(t, "end of QEMU and of the cleanup", func() bool { return processes(t, dir) == 0 })
	g.Expect(dir).NotTo(BeADirectory())
}

// TestKillChild is the child of TestKill.
func TestKillChild(t *testing.T) {
	if os.Getenv("PVESIM_KILL_CHILD") == "" {
		t.Skip("run by TestKill")
	}
	l := newLab(t)
	l.vm("POST", 9000, "/clone", "newid", "200", "name", "a")
	l.vm("POST", 200, "/status/start")
	l.expectConsole(200, "boot 1")
	fmt.Printf("running %s\n", l.runtime.Dir())
	select {}
}

// processes returns the number of processes with a text in their command line.
func processes(t *testing.T, text string) (n int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, file := range lines {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(text)) {
			n++
		}
	}
	return n
}
