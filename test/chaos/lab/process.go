// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmupdate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// pollInterval is the product's default. orphanGrace and orphanMaxFraction allow to delete orphans that a
// step creates soon. firstPollTimeout is how long a Process waits for its first poll, in
// real time: the API of a host may hang.
const (
	pollInterval      = 10 * time.Second
	orphanGrace       = time.Minute
	orphanMaxFraction = 0.5
	firstPollTimeout  = time.Second
)

// Process is one run of the controller. Its in-memory state is lost when it is killed.
type Process struct {
	testenv.Components
	env       *Env
	quiet     bool
	kube      client.Client
	launch    *launch.Controller
	cleanup   *vmupdate.Controller
	health    *vmhealth.Controller
	collector *garbagecollection.Controller
	templates *templateControllers // nil in an Env without templates

	ctx    context.Context
	cancel context.CancelFunc
	killed atomic.Bool
	work   sync.WaitGroup
	// onWrite is called before and after each write to the Kubernetes API.
	onWrite atomic.Pointer[func(after bool)]

	mu sync.Mutex
	// busy, notBefore, failures and last are by controller and object.
	busy      map[job]bool
	notBefore map[job]time.Time
	failures  map[job]int
	last      map[job]error
	// healthRounds and collectorRounds count the completed reconciles.
	healthRounds, collectorRounds atomic.Int64
}

// ProcessOptions configure a Process. The zero value behaves as in production.
type ProcessOptions struct {
	// Quiet polls only once before Run, so calls can be counted.
	Quiet bool
	// Settings may change the defaults.
	Settings func(*instance.Settings)
}

// errKilled is what a killed Process gets from the Kubernetes API.
var errKilled = errors.New("the process was killed")

// StartProcess starts a Process with a new snapshot and empty state. It does not act on
// NodeClaims before Run.
func (e *Env) StartProcess(o ProcessOptions) *Process {
	e.t.Helper()
	p := &Process{env: e, quiet: o.Quiet, busy: map[job]bool{}, notBefore: map[job]time.Time{}, failures: map[job]int{}, last: map[job]error{}}
	p.ctx, p.cancel = context.WithCancel(e.t.Context())
	e.t.Cleanup(p.Kill)
	p.kube = p.interruptible(e.Kube)
	p.addComponents(o)
	return p
}

// addComponents adds everything that needs the Kubernetes API and polls the Cluster once.
func (p *Process) addComponents(o ProcessOptions) {
	e, defaults := p.env, operator.DefaultOptions()
	e.t.Helper()
	c := e.client(pvesim.DefaultTokenID, max(e.Clock.Real(45*time.Second), ResponseTimeout))
	s := defaults.InstanceSettings()
	s.VMIDs.From, s.VMIDs.To = testenv.FirstVMID, testenv.LastVMID
	// These two use real time.
	s.TaskTimeout = max(e.Clock.Real(s.TaskTimeout), 10*time.Second)
	s.OperationTimeout = max(e.Clock.Real(s.OperationTimeout), 5*time.Second)
	if o.Settings != nil {
		o.Settings(&s)
	}
	p.Components = testenv.NewComponents(e.t, instance.Deps{
		Clients: map[string]proxmox.Client{testenv.Region: c}, Kube: p.kube, Clock: e.Clock, KubeCluster: kubeCluster, Settings: s,
	}, boot.Source{Reader: p.kube, Namespace: metav1.NamespaceSystem, Tokens: &bootdata.Tokens{Client: p.kube}},
		inventory.Options{PollInterval: pollInterval, Clock: e.Clock}, instancetype.Deps{Pricing: defaults.Pricing()}, instance.Metrics{})
	if e.addresses != nil {
		p.Inventory.WatchAddresses() // as the class's status controller does
	}
	if !o.Quiet {
		p.work.Go(func() { _ = p.Inventory.Start(p.ctx) })
	}
	// A process that starts while Proxmox is unreachable continues without a snapshot.
	ctx, cancel := context.WithTimeout(p.ctx, firstPollTimeout)
	defer cancel()
	if o.Quiet {
		ctx = p.ctx
	}
	_ = p.Inventory.RefreshAll(ctx)
	p.newControllers(defaults, s.OperationTimeout)
	if e.builders != nil {
		p.newTemplateControllers(c)
	}
}

// newControllers creates the controllers that act on NodeClaims.
func (p *Process) newControllers(defaults *operator.Options, timeout time.Duration) {
	discarded, clock := &testenv.Recorder{}, p.env.Clock
	p.launch = launch.NewController(launch.Deps{
		Kube: p.kube, Launcher: p.Instances.Launcher, Health: p.Instances.Health, Types: p.Types, Recorder: discarded, Clock: clock,
		Pods: func(string) []types.NamespacedName { return nil }, FailureBackoff: operator.FailureBackoff(),
	})
	p.cleanup = vmupdate.NewController(p.kube, p.Instances.Updater, p.Instances.Adopter, p.Instances.Deleter, discarded)
	p.health = vmhealth.NewController(vmhealth.Deps{
		Kube: p.kube, VMs: p.Instances.VMs, Power: p.Instances.Power, Planner: p.Instances.Planner, Launches: p.Instances.Launches, Recorder: discarded, Clock: clock,
		PollInterval: pollInterval, Timeout: timeout, Restarts: defaults.RestartPolicy(),
	})
	rules := defaults.OrphanRules()
	rules.GracePeriod, rules.DeletionMaxFraction = orphanGrace, orphanMaxFraction
	p.collector = garbagecollection.NewController(garbagecollection.Deps{
		Kube: p.kube, Reader: p.kube, VMs: p.Instances.VMs, Deleter: p.Instances.Deleter, Planner: p.Instances.Planner, Inventory: p.Inventory,
		Tokens: p.Boot.Tokens, Recorder: discarded, Clock: clock, Rules: rules, PollInterval: pollInterval,
	})
}

// Rounds returns how often all of the Process's periodic work was done.
func (p *Process) Rounds() int { return int(min(p.healthRounds.Load(), p.collectorRounds.Load())) }

// Refresh polls the Cluster.
func (p *Process) Refresh() error { return p.Inventory.RefreshAll(p.ctx) }

// LastErrors returns the last result of each controller for an object.
func (p *Process) LastErrors(object types.UID) (text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for j, err := range p.last {
		if j.object == object {
			text += fmt.Sprintf("; %s: %v", j.controller, err)
		}
	}
	return text
}

// Context returns a context that ends when the Process is killed.
func (p *Process) Context() context.Context { return p.ctx }

// Abort ends the Process without waiting. It can be called from the Process's own calls; its
// further calls fail. Kill waits for its goroutines.
func (p *Process) Abort() {
	p.killed.Store(true)
	p.cancel()
}

// Kill ends the Process as kill -9 does and returns when all its goroutines have ended.
func (p *Process) Kill() {
	p.Abort()
	p.work.Wait()
}

// OnWrite sets a hook for writes to the Kubernetes API.
func (p *Process) OnWrite(hook func(after bool)) { p.onWrite.Store(&hook) }

// write runs one write unless the Process is killed before it. If it is killed after it, the
// write takes effect and the response is lost.
func (p *Process) write(do func() error) error {
	hook := p.onWrite.Load()
	if hook != nil {
		(*hook)(false)
	}
	if p.killed.Load() {
		return errKilled
	}
	err := do()
	if hook != nil {
		(*hook)(true)
	}
	if p.killed.Load() {
		return errKilled
	}
	return err
}

// interruptible returns a client that fails once the Process is killed. The fake client
// ignores contexts.
func (p *Process) interruptible(kube client.WithWatch) client.Client {
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
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return p.write(func() error { return c.SubResource(sub).Patch(ctx, o, patch, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return p.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// RemoveHost removes a host that is down from the Cluster. From then on, nothing that is on
// it is checked: it can be neither read nor deleted.
func (e *Env) RemoveHost(host string) error {
	if err := e.Sim.RemoveHost(host); err != nil {
		return err
	}
	e.Hosts = slices.DeleteFunc(slices.Clone(e.Hosts), func(name string) bool { return name == host })
	resources, err := e.resources()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed = append(e.removed, host)
	for _, row := range resources.Guests {
		if row.Host == host {
			e.lost[row.VMID] = true
			delete(e.foreignGuests, row.VMID)
		}
	}
	return nil
}

// isLost reports whether a guest is on a host that was removed.
func (e *Env) isLost(vmid int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost[vmid]
}

// StartForeignGuests starts guests of other users that a host could not start when it was
// powered on, because their storage was inactive.
func (e *Env) StartForeignGuests() error {
	foreign := e.foreign()
	resources, err := e.resources()
	for _, row := range resources.Guests {
		if strings.HasPrefix(foreign[row.VMID], "running ") {
			err = errors.Join(err, retry(func() error { return e.start(row) }))
		}
	}
	return err
}

// start starts a guest unless it is running.
func (e *Env) start(row proxmox.GuestRow) error {
	ctx := context.Background()
	status, err := e.admin.VMStatus(ctx, row.Host, row.VMID)
	if err != nil || status.Running {
		return err
	}
	task, err := e.admin.StartVM(ctx, row.Host, row.VMID)
	if err != nil {
		return err
	}
	ended, err := proxmox.WaitTask(ctx, e.admin, task, proxmox.WaitOptions{Clock: e.Clock})
	if err != nil {
		return err
	}
	return ended.Err()
}

// deleteReportedDisks does what the controller asks an admin to do if its token may not
// delete disks: it deletes those that Proxmox itself could not delete.
func (e *Env) deleteReportedDisks() {
	if !e.Installation.PoolScoped {
		return
	}
	ctx := context.Background()
	for _, host := range e.Hosts {
		volumes, err := e.admin.Volumes(ctx, host, "local-lvm", "images")
		if err != nil {
			continue // Violations reports it
		}
		for _, volume := range volumes {
			if _, foreign := e.foreign()[volume.VMID]; foreign || e.hasGuest(volume.VMID) || !e.hasFailedToDelete(host, volume.ID) {
				continue
			}
			e.t.Logf("deleting volume %s on host %s as root: Proxmox could not, and the token may not", volume.ID, host)
			_, _ = e.admin.DeleteVolume(ctx, host, volume.ID) // Violations reports a volume that remains
		}
	}
}

func (e *Env) hasGuest(vmid int) bool {
	return slices.ContainsFunc(e.guests(), func(row proxmox.GuestRow) bool { return row.VMID == vmid })
}

// hasFailedToDelete reports whether a destroy with warnings or a failed clone on a host names
// a volume in its log.
func (e *Env) hasFailedToDelete(host, volume string) bool {
	ctx := context.Background()
	tasks, err := e.admin.RecentTasks(ctx, host, "", time.Unix(0, 0))
	if err != nil {
		return false
	}
	for _, task := range tasks {
		destroyed := task.UPID.Kind() == instance.TaskDestroy && task.HasWarnings()
		cloned := task.UPID.Kind() == instance.TaskClone && task.Ended() && !task.Succeeded()
		if !destroyed && !cloned {
			continue
		}
		if lines, err := e.admin.TaskLog(ctx, task.UPID); err == nil && strings.Contains(strings.Join(lines, "\n"), path.Base(strings.ReplaceAll(volume, ":", "/"))) {
			return true
		}
	}
	return false
}
