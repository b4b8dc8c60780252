// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// memoryDisk is an in-memory disk.
type memoryDisk struct {
	mu    sync.Mutex
	files map[string][]byte
}

func newDisk(files map[string]string) *memoryDisk {
	d := &memoryDisk{files: map[string][]byte{}}
	for name, content := range files {
		d.Write(name, []byte(content))
	}
	return d
}

func (d *memoryDisk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	content, ok := d.files[name]
	return bytes.Clone(content), ok
}

func (d *memoryDisk) Write(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[name] = bytes.Clone(data)
}

func (d *memoryDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files))
}

func (d *memoryDisk) text(name string) string {
	content, _ := d.Read(name)
	return string(content)
}

// well is the health of a healthy guest.
func well() (pvesim.Health, <-chan struct{}) { return pvesim.HealthWell, nil }

// newGuest returns the guest of a small machine with one network card.
func newGuest(disk *memoryDisk, images ...[]byte) *guest {
	r := NewRuntime(Options{})
	return &guest{
		hardware: hardware{
			vmid: 100, uuid: "6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c", bootID: "boot-1",
			cores: 2, memory: 4 << 30, disk: 30 << 30, macs: []string{"BC:24:11:00:00:01"},
			storage: disk, drives: func() [][]byte { return images }, setAgent: func(*pvesim.Agent) {}, health: well,
		},
		runtime: r, console: r.console(100),
	}
}

// cloudInit runs cloud-init with the guest's drive.
func (g *guest) cloudInit() (system, bool) {
	s, found := findSeed(g.drives(), g.console)
	return g.runCloudInit(s, found)
}

// newSeed creates a NoCloud drive with an ISO writer other than the controller's.
func newSeed(t testing.TB, label string, files map[string]string) []byte {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "seed.iso"))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(out.Close()).To(Succeed()) }()
	workspace := filepath.Join(dir, "files")
	g.Expect(os.Mkdir(workspace, 0o700)).To(Succeed())
	disc, err := iso9660.Create(file.New(out, false), 0, 0, 2048, workspace)
	g.Expect(err).NotTo(HaveOccurred())
	for name, content := range files {
		g.Expect(os.WriteFile(filepath.Join(workspace, name), []byte(content), 0o600)).To(Succeed())
	}
	g.Expect(disc.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: label})).To(Succeed())
	image, err := os.ReadFile(out.Name())
	g.Expect(err).NotTo(HaveOccurred())
	return image
}

// seedWith returns a drive with this user-data and instance ID.
func seedWith(t testing.TB, instanceID, userData string) []byte {
	t.Helper()
	return newSeed(t, "cidata", map[string]string{
		"user-data": userData,
		"meta-data": "instance-id: " + instanceID + "\nlocal-hostname: from-meta\n",
	})
}

func lines(text ...string) string { return strings.Join(text, "\n") + "\n" }

func newMachine(t *testing.T, name, userData string) *machine {
	t.Helper()
	r := NewRuntime(Options{HeartbeatInterval: 500 * time.Millisecond, RestartDelay: 200 * time.Millisecond, InstallTime: 100 * time.Millisecond})
	image := seedWith(t, "iid-"+name, userData)
	m := &machine{t: t, runtime: r, hardware: hardware{
		vmid: 100, arch: "amd64", uuid: "uuid-of-" + name, cores: 2, memory: 4 << 30, disk: 30 << 30,
		macs: []string{"BC:24:11:00:00:01"}, storage: newDisk(nil),
		drives: func() [][]byte { return [][]byte{image} }, setAgent: func(*pvesim.Agent) {}, health: well,
	}}
	t.Cleanup(func() {
		m.powerCut()
		if t.Failed() {
			t.Logf("console of %s:\n%s", name, r.Console(100))
		}
	})
	return m
}

func (m *machine) powerOn() {
	m.boots++
	ctx, cut := context.WithCancel(context.Background())
	m.cut, m.shutdown, m.done = cut, make(chan struct{}), make(chan struct{})
	hw, done := m.hardware, m.done
	hw.bootID = fmt.Sprintf("boot-%d", m.boots)
	hw.shutdown = m.shutdown
	go func() {
		defer close(done)
		m.runtime.boot(ctx, hw)
	}()
}

func (m *machine) powerCut() {
	if m.cut == nil {
		return
	}
	m.cut()
	NewWithT(m.t).Eventually(m.done, joinTimeout).Should(BeClosed(), "guest still running after power cut")
}

// shutDown requests a shutdown and waits until the guest has powered off.
func (m *machine) shutDown() {
	close(m.shutdown)
	NewWithT(m.t).Eventually(m.done, joinTimeout).Should(BeClosed())
}

// join boots a guest and waits until its Node is Ready.
func join(t *testing.T, p plane, name, tokenID, extraConfig string) *machine {
	t.Helper()
	m := newMachine(t, name, userData(p, name, p.token(t, tokenID), extraConfig))
	m.powerOn()
	expectReady(t, p, name)
	return m
}

func expectReady(t *testing.T, p plane, name string) {
	t.Helper()
	NewWithT(t).Eventually(p.ready(t, name), joinTimeout, polling).Should(Equal(corev1.ConditionTrue))
}

// plane is a real control plane: CSRs are signed by the real controller manager
// and Nodes admitted by the real authorizer.
type plane struct {
	client kubernetes.Interface
	server string
	ca     []byte
}

// startPlane runs the kubeplane binary until the test ends.
func startPlane(t *testing.T) plane {
	t.Helper()
	binary := os.Getenv("KUBEPLANE")
	if binary == "" {
		binary = filepath.Join("..", "..", ".cache", "bin", "kubeplane")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: no control plane at %s: build it with make, or set KUBEPLANE", binary)
	}
	g := NewWithT(t)
	readyFile := filepath.Join(t.TempDir(), "ready.json")
	up := exec.Command(binary, "up", "--quiet", "--exit-with-parent", "--ready-file", readyFile)
	up.Stdout, up.Stderr = os.Stderr, os.Stderr
	stdin, err := up.StdinPipe() // kubeplane exits when its stdin is closed, even if the test is killed
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(up.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
	})
	var ready struct{ Kubeconfig, Server, CAFile string }
	g.Eventually(func() error {
		raw, err := os.ReadFile(readyFile)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &ready)
	}, 2*time.Minute, 100*time.Millisecond).Should(Succeed())
	config, err := clientcmd.BuildConfigFromFlags("", ready.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	ca, err := os.ReadFile(ready.CAFile)
	g.Expect(err).NotTo(HaveOccurred())
	return plane{client: client, server: ready.Server, ca: ca}
}

// token creates a join token for one guest.
func (p plane) token(t *testing.T, id string) string {
	t.Helper()
	const secret = "0123456789abcdef"
	_, err := p.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret,
			"expiration":                     time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              "system:bootstrappers:karpenter:proxmox",
		},
	}, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return id + "." + secret
}

// node returns a Node, or nil if it does not exist.
func (p plane) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node, err := p.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return node
}

// ready returns a function that returns the status of the condition Ready.
func (p plane) ready(t *testing.T, name string) func() corev1.ConditionStatus {
	return func() corev1.ConditionStatus {
		if node := p.node(t, name); node != nil {
			return readiness(node)
		}
		return ""
	}
}
