// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/bootstrapcleanup"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// pollInterval and orphanGrace are the product's defaults.
const (
	pollInterval = 10 * time.Second
	orphanGrace  = time.Minute
)

// Process is one run of the controller: what it knows dies with it.
type Process struct {
	instances *operations.Operations
	world     *World
	inventory *inventory.Inventory
	quiet     bool
	kube      client.Client
	launch    *launch.Controller
	handover  *bootstrapcleanup.Controller
	presence  *vmhealth.Controller
	collector *garbagecollection.Controller

	ctx  context.Context
	die  context.CancelFunc
	dead atomic.Bool
	work sync.WaitGroup
	// onWrite is asked before and after each write to the Kubernetes API.
	onWrite atomic.Pointer[func(after bool)]

	mu sync.Mutex
	// busy and notBefore are by controller and Claim.
	busy      map[job]bool
	notBefore map[job]time.Time
	failures  map[job]int
	last      map[job]error
	// rounds counts how often presence and the collector have looked at everything.
	presenceRounds, collectorRounds atomic.Int64
}

// Start says how a Process starts. The zero value is as in real life.
type Start struct {
	// Quiet polls only once before Run, so that calls can be counted.
	Quiet bool
	// Settings may change the defaults.
	Settings func(*instance.Settings)
	// Client may put something between the Process and Proxmox.
	Client func(proxmox.Client) proxmox.Client
}

// errDead is what a dead Process gets from the Kubernetes API.
var errDead = errors.New("the process is dead")

// Process starts one anew: its view is fresh, its memory empty. Nothing happens to
// Claims before Run.
func (w *World) Process(start Start) *Process {
	w.t.Helper()
	p := &Process{world: w, quiet: start.Quiet, busy: map[job]bool{}, notBefore: map[job]time.Time{}, failures: map[job]int{}, last: map[job]error{}}
	p.ctx, p.die = context.WithCancel(w.t.Context())
	w.t.Cleanup(p.Kill)
	p.kube = p.mortal(w.Kube)
	c := w.client(pvesim.DefaultTokenID, max(w.Clock.Real(45*time.Second), ResponseTimeout))
	if start.Client != nil {
		c = start.Client(c)
	}
	inv, err := inventory.New([]proxmox.Client{c}, inventory.Options{
		Interval: pollInterval, DetailRange: inventory.VMIDRange{From: FirstVMID, To: LastVMID}, Clock: w.Clock,
	})
	must(w.t, err)
	p.inventory = inv
	if w.addresses != nil {
		inv.WatchAddresses() // as the class's status controller does
	}
	if !start.Quiet {
		p.work.Go(func() { _ = inv.Start(p.ctx) })
	}
	// A process that starts while nobody answers goes on without a view.
	_ = p.Refresh()
	instanceTypes, err := instancetype.New(instancetype.Deps{Inventory: inv, Clock: w.Clock})
	must(w.t, err)
	s := instance.DefaultSettings()
	s.VMIDs.From, s.VMIDs.To = FirstVMID, LastVMID
	// These two are waited for in real time.
	s.TaskTimeout = max(w.Clock.Real(s.TaskTimeout), 10*time.Second)
	s.OperationTimeout = max(w.Clock.Real(s.OperationTimeout), 5*time.Second)
	if start.Settings != nil {
		start.Settings(&s)
	}
	source := boot.Source{Reader: p.kube, Namespace: "kube-system", Version: "v1.36.3", Tokens: &bootdata.Tokens{Client: p.kube}}
	p.instances = operations.New(instance.Deps{
		Clients: map[string]proxmox.Client{Region: c}, Inventory: inv, Kube: p.kube, Clock: w.Clock, KubeCluster: kubeCluster, Settings: s,
	}, instanceTypes, source, instance.Metrics{})
	p.launch = launch.NewController(launch.Deps{
		Kube: p.kube, Launcher: p.instances.Launcher, Health: p.instances.Health, Types: instanceTypes, Recorder: silence{}, Clock: w.Clock,
		Pods: func(string) []types.NamespacedName { return nil }, FailureBackoff: launch.DefaultFailureBackoff(),
	})
	p.handover = bootstrapcleanup.NewController(p.instances.Deleter)
	p.presence = vmhealth.NewController(vmhealth.Deps{
		Kube: p.kube, VMs: p.instances.VMs, Power: p.instances.Power, Planner: p.instances.Planner, Recorder: silence{}, Clock: w.Clock,
		Interval: pollInterval, Timeout: s.OperationTimeout, Restarts: vmhealth.DefaultRestartPolicy(),
	})
	rules := garbagecollection.DefaultRules()
	rules.GracePeriod = orphanGrace
	p.collector = garbagecollection.NewController(garbagecollection.Deps{
		Kube: p.kube, Reader: p.kube, VMs: p.instances.VMs, Deleter: p.instances.Deleter, Planner: p.instances.Planner, Inventory: inv,
		Tokens: source.Tokens, Recorder: silence{}, Clock: w.Clock, Rules: rules, Interval: pollInterval,
	})
	return p
}

// Rounds is how often all of the Process's periodic work was done.
func (p *Process) Rounds() int { return int(min(p.presenceRounds.Load(), p.collectorRounds.Load())) }

// Refresh reads the Cluster now.
func (p *Process) Refresh() error { return p.inventory.RefreshAll(p.ctx) }

// View is what the Process knows of the Cluster.
func (p *Process) View() inventory.View { return p.inventory.View() }

// Last is what the controllers said when they last worked on a Claim.
func (p *Process) Last(claim types.UID) (said string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for j, err := range p.last {
		if j.claim == claim {
			said += fmt.Sprintf("; %s: %v", j.controller, err)
		}
	}
	return said
}

// Context ends when the Process dies.
func (p *Process) Context() context.Context { return p.ctx }

// Cut ends the Process at once, from any of its own calls: what it still asks of
// anybody fails. Kill waits for the rest.
func (p *Process) Cut() {
	p.dead.Store(true)
	p.die()
}

// Kill ends the Process as kill -9 does, and returns when nothing of it runs.
func (p *Process) Kill() {
	p.Cut()
	p.work.Wait()
}

// OnWrite hooks into writes to the Kubernetes API.
func (p *Process) OnWrite(hook func(after bool)) { p.onWrite.Store(&hook) }

// write does one write, unless the Process dies before it; when it dies after it,
// the effect stays and the answer is lost.
func (p *Process) write(do func() error) error {
	hook := p.onWrite.Load()
	if hook != nil {
		(*hook)(false)
	}
	if p.dead.Load() {
		return errDead
	}
	err := do()
	if hook != nil {
		(*hook)(true)
	}
	if p.dead.Load() {
		return errDead
	}
	return err
}

// mortal is the Kubernetes API as the Process reaches it: not at all once it is
// dead. The fake client knows nothing of contexts.
func (p *Process) mortal(kube client.WithWatch) client.Client {
	return interceptor.NewClient(kube, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return p.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return p.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return p.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return p.write(func() error { return c.Patch(ctx, o, patch, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return p.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// silence takes events that nobody reads.
type silence struct{}

func (silence) Publish(...events.Event) {}
