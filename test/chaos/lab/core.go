// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecontrollers "sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/prediction"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/node/registration"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Durations of settings in a CoreProcess: its time is real, so the defaults are too long.
const (
	corePollInterval = 500 * time.Millisecond
	coreGrace        = 3 * time.Second
	coreRepairAfter  = 5 * time.Second
)

// connect returns a client of an API server that has the objects that boot data needs.
func connect(t testing.TB, apiServer *rest.Config) client.WithWatch {
	t.Helper()
	kube, err := client.NewWithWatch(apiServer, client.Options{Scheme: scheme.Scheme})
	testenv.Must(t, err)
	for _, o := range testenv.BootObjects(metav1.NamespaceSystem) {
		if err := kube.Create(t.Context(), o); !apierrors.IsAlreadyExists(err) {
			testenv.Must(t, err)
		}
	}
	return kube
}

// CreatePool creates the NodePool of the default class. Both are deleted at the end of the test.
func (e *Env) CreatePool() {
	e.t.Helper()
	ctx := e.t.Context()
	ready := e.Class.DeepCopy()
	testenv.Must(e.t, e.Kube.Get(ctx, client.ObjectKeyFromObject(ready), ready))
	ready.Status.SelectedZones = e.Class.Status.SelectedZones
	testenv.SetReady(ready)
	testenv.Must(e.t, e.Kube.Status().Update(ctx, ready))
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: e.Class.Name}}
	claim := testenv.NewNodeClaim("", e.Class.Name, "")
	pool.Spec.Template.Spec.NodeClassRef = claim.Spec.NodeClassRef
	pool.Spec.Template.Spec.Requirements = claim.Spec.Requirements
	pool.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: 10 * time.Second}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1s")
	testenv.Must(e.t, e.Kube.Create(ctx, pool))
	e.t.Cleanup(func() {
		for _, o := range []client.Object{pool, ready} {
			_ = e.Kube.Delete(context.Background(), o) // the API server ends with the tests
		}
	})
}

// AwaitPool waits until core has checked the NodePool. Before that, it would not provision pods
// for ten seconds.
func (e *Env) AwaitPool() {
	e.t.Helper()
	pool := &karpv1.NodePool{}
	for !pool.StatusConditions().Get(status.ConditionReady).IsTrue() {
		testenv.Must(e.t, e.Kube.Get(e.t.Context(), client.ObjectKey{Name: e.Class.Name}, pool))
		time.Sleep(50 * time.Millisecond)
	}
}

// CoreProcess is a Process that runs Karpenter's controllers, as the controller binary does.
type CoreProcess struct {
	*Process
}

// StartCore starts a CoreProcess. It acts on NodeClaims at once.
func (e *Env) StartCore() *CoreProcess {
	e.t.Helper()
	p := &CoreProcess{e.newProcess(ProcessOptions{})}
	options := coreOptions()
	m, err := ctrl.NewManager(e.apiServer, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
		GracefulShutdownTimeout: new(10 * time.Second),
		BaseContext: func() context.Context {
			return coreoptions.ToContext(context.Background(), options)
		},
		NewClient: func(c *rest.Config, o client.Options) (client.Client, error) {
			kube, err := client.NewWithWatch(c, o)
			if err != nil {
				return nil, err
			}
			return p.interruptible(kube), nil
		},
	})
	testenv.Must(e.t, err)
	p.kube = m.GetClient()
	claim := testenv.NewNodeClaim("", "", "")
	pool := &karpv1.NodePool{Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{NodeClassRef: claim.Spec.NodeClassRef}}}}
	testenv.IndexFields(e.t, m, claim, pool, &corev1.Pod{}, &corev1.Node{}, &storagev1.VolumeAttachment{})
	settings := coreSettings()
	removed := ProcessOptions{Settings: func(s *instance.Settings) { s.HostRemovedAfter = coreGrace }}
	p.addComponents(removed, settings, inventory.Options{PollInterval: corePollInterval, Clock: testenv.NewSteppedClock(1)})
	ctx := coreoptions.ToContext(p.ctx, options)
	for _, c := range p.controllers(ctx, m, settings) {
		testenv.Must(e.t, c.Register(ctx, m))
	}
	p.work.Go(func() {
		if err := m.Start(ctx); err != nil && p.ctx.Err() == nil {
			e.t.Errorf("running the manager: %v", err)
		}
	})
	p.runPeriodically()
	return p
}

// controllers returns Karpenter's controllers and ours, except for the periodic ones.
func (p *CoreProcess) controllers(ctx context.Context, m manager.Manager, settings *operator.Options) []controller.Controller {
	e, recorder, store := p.env, &testenv.Recorder{}, p.Instances.Overlays
	cp := cloudprovider.New(cloudprovider.Deps{
		Operations: p.Instances, Settings: settings.CloudProviderSettings(), Kube: p.kube, Types: p.Types, Recorder: recorder, Clock: e.Clock,
	})
	matcher, err := health.NewRepairPolicyMatcher(ctx, cp)
	testenv.Must(e.t, err)
	cluster := state.NewCluster(e.Clock, p.kube, cp, state.WithRepairPolicyMatcher(matcher))
	return append(corecontrollers.NewControllers(ctx, m, e.Clock, operator.WithoutEmptyPatches(p.kube), recorder, cp, cp, cluster, store, prediction.NewStore()),
		p.launch, p.cleanup, registration.NewController(registration.Deps{
			Kube: p.kube, Types: p.Types, VMs: p.Instances.VMs, Inventory: p.Inventory, Recorder: recorder, Clock: e.Clock,
		}))
}

// coreOptions returns Karpenter's options with node repair.
func coreOptions() *coreoptions.Options {
	return &coreoptions.Options{
		CPURequests: 1000, BatchMaxDuration: 10 * time.Second, BatchIdleDuration: time.Second, IgnoreDRARequests: true,
		PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict,
		// Metrics of a killed process would be registered twice.
		DisableClusterStateObservability: true, FeatureGates: coreoptions.FeatureGates{NodeRepair: true},
	}
}

// coreSettings returns the default settings with durations that suit real time.
func coreSettings() *operator.Options {
	s := operator.DefaultOptions()
	s.OrphanGracePeriod = coreGrace
	s.RepairUnreadyToleration, s.HostDriftAfter = coreRepairAfter, coreRepairAfter
	return s
}

// coreTimeout is how long it may take until all invariants hold: Karpenter's own intervals of
// up to ten seconds pass in real time.
const coreTimeout = 6 * time.Minute

// MustConvergeCore waits until all invariants hold with Karpenter's controllers: those of
// Violations, one initialized Node for each NodeClaim, all pods on ready Nodes, and a ledger
// that equals the configured VMs. It returns how long that took.
func (e *Env) MustConvergeCore(p *CoreProcess, w *Workload, when string) time.Duration {
	e.t.Helper()
	began, logged := time.Now(), time.Now()
	for {
		violations := append(e.Violations(p.Process), w.violations(context.Background())...)
		if len(violations) == 0 {
			violations = append(e.nodeViolations(), e.ledgerViolations(p.Process)...)
		}
		took := time.Since(began)
		if len(violations) == 0 {
			return took
		}
		if took > coreTimeout {
			e.t.Fatalf("%s: violations after %s on %s:\n%s", when, took, e.Installation, strings.Join(violations, "\n"))
		}
		if time.Since(logged) > 15*time.Second {
			logged = time.Now()
			e.t.Logf("%s: waiting for:\n%s", when, strings.Join(violations, "\n"))
		}
		e.deleteLockedVMs()
		e.deleteReportedDisks()
		time.Sleep(300 * time.Millisecond)
	}
}

// nodeViolations compares Nodes with NodeClaims.
func (e *Env) nodeViolations() (violations []string) {
	nodes := &corev1.NodeList{}
	if err := e.Kube.List(context.Background(), nodes); err != nil {
		return []string{err.Error()}
	}
	claims := map[string]karpv1.NodeClaim{}
	for _, claim := range e.Claims() {
		claims[claim.Status.ProviderID] = claim
		if !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			violations = append(violations, fmt.Sprintf("claim %s is not initialized", claim.Name))
		}
	}
	seen := map[string]string{}
	for _, node := range nodes.Items {
		id := node.Spec.ProviderID
		if other := seen[id]; other != "" {
			violations = append(violations, fmt.Sprintf("nodes %s and %s have the same VM %s", other, node.Name, id))
		}
		seen[id] = node.Name
		if _, ok := claims[id]; !ok {
			violations = append(violations, fmt.Sprintf("node %s (%s) has no claim", node.Name, id))
		}
	}
	for id, claim := range claims {
		if seen[id] == "" {
			violations = append(violations, fmt.Sprintf("claim %s (%s) has no node", claim.Name, id))
		}
	}
	return violations
}

// ledgerViolations compares the capacity that a Process considers used with the configurations
// of all guests that its token can read.
func (e *Env) ledgerViolations(p *Process) (violations []string) {
	used, foreign := map[string]observed.Amount{}, e.foreign()
	for _, row := range e.guests() {
		if _, hidden := foreign[row.VMID]; row.Template || (hidden && e.Installation.PoolScoped) {
			continue
		}
		cfg, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		if err != nil {
			return []string{fmt.Sprintf("reading VM %d: %v", row.VMID, err)}
		}
		c := cfg.Compute()
		used[row.Host] = used[row.Host].Plus(observed.Amount{CPUs: c.Cores() * c.Sockets(), MemoryBytes: int64(c.MemoryMiB()) << 20})
	}
	for _, host := range p.Inventory.View().Hosts() {
		if got := host.Allocated.Plus(host.Reserved); got != used[host.Name] && host.Region == testenv.Region {
			violations = append(violations, fmt.Sprintf("the ledger of host %s has %+v, its guests use %+v", host.Name, got, used[host.Name]))
		}
	}
	return violations
}
