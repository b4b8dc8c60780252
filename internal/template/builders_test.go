// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"io/fs"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// builders runs the guests of builder VMs and renders their boot data.
type builders struct {
	pvesim.ScriptedGuests
	// minimum is how long a builder must run.
	minimum time.Duration
	// files are the contents of those that the guest agent of guests with one can read, by name.
	files sync.Map

	mu sync.Mutex
	// content is that of the Secrets, err why they cannot be read.
	content string
	err     error
	// script is what guests do; by default they power off soon.
	script pvesim.Script
	// most is how many builders ran at once, data what the last boot data was rendered from.
	most int
	data bootdata.Data
	// sim runs the guests.
	sim *pvesim.Simulator
}

func newBuilders() *builders {
	b := &builders{content: "install", script: pvesim.Script{PowerOff: true, After: 2 * time.Second}}
	b.Script = func(m *pvesim.Machine) *pvesim.Script {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(m.CDROMs()) == 0 {
			return nil // not a builder
		}
		script := b.script
		return &script
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

// seen returns how many builders ran at once, and what the last boot data was rendered from.
func (b *builders) seen() (most int, data bootdata.Data) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most, b.data
}

// readFile reads a file as the guest agent does.
func (b *builders) readFile(_ context.Context, name string) ([]byte, error) {
	if content, ok := b.files.Load(name); ok {
		return []byte(content.(string)), nil
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

// prepareForever adds a preparation whose builder VMs do not power off.
func prepareForever(e *env, changes ...func(*v1alpha1.Preparation)) {
	prepareTemplates(e, changes...)
	e.builders.set(pvesim.Script{})
}

// preparationFailures returns the events about failed preparations.
func (p *process) preparationFailures() []string {
	return p.events.Messages(v1alpha1.EventTemplatePreparationFailed)
}

const startPath = "/nodes/{node}/qemu/{vmid}/status/start"

// starts returns how often builder VMs were started.
func (e *env) starts() int { return e.Sim.CountRequests("POST", startPath) }

// failingDestroy makes the next destroy of a VM fail.
var failingDestroy = pvesim.Fault{Method: "DELETE", Path: "/nodes/*/qemu/*", Status: 500, Message: "can't lock file - got timeout", Count: 1}

func oneAtATime(p *v1alpha1.Preparation) { p.MaxConcurrent = 1 }

func timeout(d time.Duration) func(*v1alpha1.Preparation) {
	return func(p *v1alpha1.Preparation) { p.Timeout = &metav1.Duration{Duration: d} }
}

func notKept(p *v1alpha1.Preparation) { p.KeepFailed = &metav1.Duration{} }

// reconcileUntilRunning reconciles until a builder VM runs, and returns its VMID.
func (p *process) reconcileUntilRunning() int {
	p.env.T.Helper()
	vmid := 0
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("preparing: builder VM "))
		for _, guest := range p.env.Sim.Guests() {
			if guest.Name == templateName && guest.Status == "running" {
				vmid = guest.VMID
			}
		}
		g.Expect(vmid).NotTo(BeZero())
	})
	return vmid
}

// reconcileUntilListed reconciles until the inventory shows the configuration of a running VM.
func (p *process) reconcileUntilListed(vmid int) {
	p.env.T.Helper()
	p.reconcileUntil(func(g Gomega) {
		guest, _ := p.Inventory().View().Guest(region, vmid)
		g.Expect(guest.Config).NotTo(BeNil())
		g.Expect(guest.Status).To(Equal("running"))
	})
}

// withAdmin adds the token of an administrator.
func withAdmin(s *pvesim.Scenario) {
	for i := range s.Users {
		if s.Users[i].ID == "root@pam" {
			s.Users[i].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
		}
	}
}

// admin returns the client of an administrator.
func (e *env) admin() proxmox.Client {
	e.T.Helper()
	config := testenv.ClusterConfig(e.Sim, region)
	config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
	return testenv.NewClient(e.T, e.Sim, config)
}

func (e *env) stopByHand(vmid int) {
	e.T.Helper()
	e.Wait(e.admin().StopVM(e.T.Context(), "pve1", vmid))
}
