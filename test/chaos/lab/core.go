// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
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
		Kube: p.kube, VMs: p.Instances.VMs, Planner: p.Instances.Planner, Deleter: p.Instances.Deleter, Power: p.Instances.Power,
		Types: p.Types, Recorder: recorder, Clock: e.Clock,
		HostDriftAfter: settings.HostDriftAfter, Repair: settings.RepairTolerations(),
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
