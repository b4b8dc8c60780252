// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"io/fs"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// prepared is the file that builder VMs write to the disk. It contains the boot data.
const prepared = "/prepared"

// builders runs the guests of builder VMs and renders their boot data.
type builders struct {
	pvesim.ScriptedGuests
	clock *testenv.Clock
	// minimum is how long a builder must run.
	minimum time.Duration

	mu sync.Mutex
	// content is that of the Secrets, err why they cannot be read.
	content string
	err     error
	// script is what guests do; by default they power off soon.
	script pvesim.Script
	// files are those that the guest agent of guests with one can read.
	files map[string]string
	// most is how many builders ran at once, booted how many were started.
	most, booted int
	data         bootdata.Data
	// sim runs the guests.
	sim *pvesim.Simulator
}

func newBuilders() *builders {
	b := &builders{
		clock: testenv.NewSteppedClock(testenv.Speed), content: "install", script: pvesim.Script{PowerOff: true, After: 2 * time.Second},
		files: map[string]string{},
	}
	b.Script = func(m *pvesim.Machine) *pvesim.Script {
		b.mu.Lock()
		defer b.mu.Unlock()
		script := b.script
		for _, cd := range m.CDROMs() {
			script.Files = map[string]string{prepared: string(cd.Image)}
			b.booted++
			return &script
		}
		return nil // not a builder
	}
	return b
}

// Boot counts the builders that run.
func (b *builders) Boot(ctx context.Context, m *pvesim.Machine) {
	if len(m.CDROMs()) > 0 {
		b.count()
	}
	b.ScriptedGuests.Boot(ctx, m)
}

func (b *builders) count() {
	running := 0
	for _, guest := range b.sim.Guests() {
		if guest.Name == templateName && guest.Status == "running" {
			running++
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = max(b.most, running)
}

func (b *builders) set(script pvesim.Script) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = script
}

// setFile writes a file in all guests.
func (b *builders) setFile(name, content string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[name] = content
}

// readFile reads a file as the guest agent does.
func (b *builders) readFile(_ context.Context, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if content, ok := b.files[name]; ok {
		return []byte(content), nil
	}
	return nil, fs.ErrNotExist
}

func (b *builders) render(_ context.Context, _ *v1alpha1.Preparation, data bootdata.Data) ([]byte, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = data
	return []byte(b.content), hashOf(b.content), b.err
}

// setContent changes the content of the Secrets, as the status controller reports it.
func (e *env) setContent(content string) {
	e.builders.mu.Lock()
	e.builders.content = content
	e.builders.mu.Unlock()
	e.object = e.object.DeepCopy()
	e.object.Status.Preparation = &v1alpha1.PreparationStatus{BootDataHash: hashOf(content)}
}

func hashOf(content string) string { return v1alpha1.BootDataHashPrefix + content }

// prepareTemplates adds a preparation to the ProxmoxTemplate.
func prepareTemplates(e *env, changes ...func(*v1alpha1.Preparation)) {
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Prepare = &v1alpha1.Preparation{TemplatesRef: v1alpha1.SecretReference{Name: "prepare", Namespace: "kube-system"}}
		for _, change := range changes {
			change(s.Prepare)
		}
	})
	e.setContent("install")
}

// bootDrives returns the boot drives of builder VMs.
func (e *env) bootDrives() []string {
	e.t.Helper()
	var out []string
	for _, entry := range e.listObjects() {
		if strings.Contains(entry, ":iso/karpenter-builder-") && !strings.Contains(entry, " map[") {
			out = append(out, entry)
		}
	}
	return out
}

// withAdmin adds the token of an administrator.
func withAdmin(s *pvesim.Scenario) {
	for i := range s.Users {
		if s.Users[i].ID == "root@pam" {
			s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
		}
	}
}

// asAdmin waits for a task that an administrator starts.
func (e *env) asAdmin(start func(c proxmox.Client) (proxmox.UPID, error)) {
	e.t.Helper()
	e.Expect(e.runAsAdmin(start).Err()).To(Succeed())
}

// runAsAdmin returns how a task ended that an administrator started.
func (e *env) runAsAdmin(start func(c proxmox.Client) (proxmox.UPID, error)) proxmox.TaskStatus {
	e.t.Helper()
	config := testenv.ClusterConfig(e.sim, region)
	config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
	c := testenv.NewClient(e.t, config, proxmox.Options{})
	task, err := start(c)
	e.Expect(err).NotTo(HaveOccurred())
	status, err := proxmox.WaitTask(e.t.Context(), c, task, proxmox.WaitOptions{Clock: e.builders.clock})
	e.Expect(err).NotTo(HaveOccurred())
	return status
}

func (e *env) stopByHand(vmid int) {
	e.t.Helper()
	e.asAdmin(func(c proxmox.Client) (proxmox.UPID, error) { return c.StopVM(e.t.Context(), "pve1", vmid) })
}
