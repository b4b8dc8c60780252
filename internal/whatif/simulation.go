// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/readiness"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/validation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
)

// instantClock does not wait: core's lifecycle controller sleeps after each launch.
type instantClock struct{ clock.RealClock }

func (instantClock) Sleep(time.Duration) {}

// simulation is Karpenter with this provider, without API server and Proxmox.
type simulation struct {
	ctx       context.Context
	kube      client.Client
	inventory *inventory.Inventory
	catalog   instancetype.Catalog
	types     *instancetype.Provider
	vms       *operations.Operations
	provider  corecloudprovider.CloudProvider
	cluster   *state.Cluster
	scheduler scheduler.Scheduler
	lifecycle *lifecycle.Controller
	recorder  events.Recorder
	overlays  *nodeoverlay.Controller
	roots     instance.RootClients
	// secrets has no Reader if the Secrets are not available.
	secrets boot.Source
}

// newSimulation returns a simulation of a State. Its objects are in the API, but unknown to
// core until addObjects is called.
func newSimulation(ctx context.Context, settings operator.Settings, core *coreoptions.Options, s *State) (*simulation, error) {
	ctx = log.IntoContext(injection.WithControllerName(coreoptions.ToContext(ctx, core), "provisioner"), logr.Discard())
	sim := &simulation{ctx: ctx, kube: newKube(s.Objects), catalog: settings.Catalog, roots: instance.RootClients{}, recorder: events.NewRecorder(&record.FakeRecorder{})}
	for _, region := range s.Roots {
		sim.roots[region] = nil // only whether there is one matters
	}
	options := settings.Options
	var err error
	sim.inventory, err = inventory.NewFixed(s.Snapshots, inventory.Options{
		Settings: settings.Hosts, DetailRange: observed.VMIDRange{From: options.ProxmoxVMID, To: options.ProxmoxVMIDMax},
	})
	if err != nil {
		return nil, err
	}
	hosts := &maintenance.ConfigMap{Namespace: options.SystemNamespace, Inventory: sim.inventory, Recorder: sim.recorder}
	if err := hosts.Read(ctx, sim.kube); err != nil {
		return nil, err
	}
	sleeping, err := power.Store{Kube: sim.kube, Namespace: options.SystemNamespace, KubeCluster: s.KubeCluster}.Load(ctx)
	if err != nil {
		return nil, err
	}
	for _, lost := range s.lost {
		delete(sleeping, lost) // it cannot be woken
	}
	sim.inventory.SetSleeping(sleeping)
	if sim.types, err = instancetype.New(settings.InstanceTypes(sim.inventory, s.Roots)); err != nil {
		return nil, err
	}
	sim.secrets = boot.Source{Reader: s.Secrets, Namespace: options.SystemNamespace, Version: boot.FixedVersion("v0.0.0")}
	sim.vms = operations.New(instance.Deps{
		Inventory: sim.inventory, Kube: sim.kube, Clock: clock.RealClock{}, KubeCluster: s.KubeCluster, Settings: options.InstanceSettings(),
	}, sim.types, boot.Source{Reader: sim.kube}, instance.Metrics{})
	sim.addCore(options)
	return sim, nil
}

// addCore adds the cloud provider and core's controllers.
func (s *simulation) addCore(options *operator.Options) {
	store := s.vms.Overlays
	own := cloudprovider.New(cloudprovider.Deps{
		Operations: s.vms, Settings: options.CloudProviderSettings(), Kube: s.kube, Types: s.types, Recorder: s.recorder,
		Clock: clock.RealClock{}, BootDataHash: s.bootDataHash,
	})
	s.provider = own
	if coreoptions.FromContext(s.ctx).FeatureGates.NodeOverlay {
		s.provider = overlay.Decorate(s.provider, s.kube, store)
	}
	clk := instantClock{}
	s.cluster = state.NewCluster(clk, s.kube, s.provider)
	s.scheduler = scheduler.New(scheduler.Deps{Kube: s.kube, Recorder: s.recorder, Cluster: s.cluster, Clock: clk}, s.provider)
	s.lifecycle = lifecycle.NewController(clk, s.kube, s.provider, s.recorder, s.cluster, nodepoolhealth.NewState(), nil)
	s.overlays = nodeoverlay.NewController(clk, s.kube, own, store, s.cluster)
}

// bootDataHash returns the hash of a class's boot data. Without Secrets it fails, which
// means that nothing changed.
func (s *simulation) bootDataHash(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (string, error) {
	if s.secrets.Reader == nil {
		return "", errNoSecrets
	}
	return s.secrets.Hash(ctx, class)
}

var errNoSecrets = errors.New("a saved inventory contains no Secrets")

// addObjects does what core's informers and NodePool controllers do.
func (s *simulation) addObjects() error {
	claims, nodes, pods, daemons, pools := &karpv1.NodeClaimList{}, &corev1.NodeList{}, &corev1.PodList{}, &appsv1.DaemonSetList{}, &karpv1.NodePoolList{}
	for _, list := range []client.ObjectList{claims, nodes, pods, daemons, pools} {
		if err := s.kube.List(s.ctx, list); err != nil {
			return err
		}
	}
	problems := []error{s.dropParked(claims)}
	for i := range claims.Items {
		s.cluster.UpdateNodeClaim(&claims.Items[i])
	}
	for i := range nodes.Items {
		problems = append(problems, s.cluster.UpdateNode(s.ctx, &nodes.Items[i]))
	}
	for i := range pods.Items {
		problems = append(problems, s.cluster.UpdatePod(s.ctx, &pods.Items[i]))
	}
	for i := range daemons.Items {
		problems = append(problems, s.cluster.UpdateDaemonSet(s.ctx, &daemons.Items[i]))
	}
	s.vms.Planner.RestoreReservation(claims.Items...)
	if coreoptions.FromContext(s.ctx).FeatureGates.NodeOverlay {
		// It fails for NodePools without a class, which create no Nodes.
		_, _ = s.overlays.Reconcile(s.ctx, reconcile.Request{})
	}
	return errors.Join(append(problems, s.checkPools(pools.Items))...)
}

// dropParked deletes the NodeClaims of static NodePools that wait for capacity: they have no VM.
// The controller recreates them after a timeout, the plan at once.
func (s *simulation) dropParked(claims *karpv1.NodeClaimList) (err error) {
	claims.Items = slices.DeleteFunc(claims.Items, func(claim karpv1.NodeClaim) bool {
		if claim.Status.ProviderID == "" || len(claim.Status.Capacity) > 0 {
			return false
		}
		err = errors.Join(err, s.delete(&claim))
		return true
	})
	return err
}

// checkPools sets the conditions of NodePools with core's controllers.
func (s *simulation) checkPools(pools []karpv1.NodePool) error {
	var problems []error
	for i := range pools {
		_, err := validation.NewController(instantClock{}, s.kube, s.provider).Reconcile(s.ctx, &pools[i])
		problems = append(problems, err)
		_, err = readiness.NewController(instantClock{}, s.kube, s.provider).Reconcile(s.ctx, &pools[i])
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// maxRounds limits the scheduling rounds. Each round launches what fits; a NodeClaim is
// refused if another one of the round took its capacity.
const maxRounds = 50

// settle schedules, launches and binds pods until no more NodeClaims are launched, and
// returns the last scheduling results.
func (s *simulation) settle() (scheduling.Results, error) {
	for range maxRounds {
		results, err := s.schedule()
		if err != nil {
			return results, err
		}
		for _, node := range results.ExistingNodes {
			if node.Node == nil {
				continue // it has not joined yet
			}
			if err := s.bind(node.Node.Name, node.Pods); err != nil {
				return results, err
			}
		}
		launched := 0
		for _, planned := range results.NewNodeClaims {
			claim, err := s.launch(planned)
			if err != nil {
				return results, err
			}
			if claim == nil {
				continue
			}
			launched++
			if err := errors.Join(s.join(claim), s.bind(claim.Name, planned.Pods)); err != nil {
				return results, err
			}
		}
		if launched == 0 {
			return results, nil
		}
	}
	return scheduling.Results{}, fmt.Errorf("scheduling did not end after %d rounds", maxRounds)
}

// schedule runs core's scheduler. Without a dynamic NodePool that is ready it returns no results,
// so schedule does what the Kubernetes scheduler does: pods run on existing Nodes that fit.
func (s *simulation) schedule() (scheduling.Results, error) {
	results, err := s.scheduler.Schedule(s.ctx)
	if err != nil {
		return results, fmt.Errorf("scheduling: %w", err)
	}
	if len(results.NewNodeClaims)+len(results.ExistingNodes)+len(results.PodErrors) > 0 {
		return results, nil
	}
	pending, err := s.scheduler.GetPendingPods(s.ctx)
	if err != nil {
		return results, fmt.Errorf("listing pending pods: %w", err)
	}
	deleting, err := s.cluster.DeepCopyNodes().Deleting().CurrentlyReschedulablePods(s.ctx, s.kube, instantClock{}, s.recorder)
	if err != nil {
		return results, fmt.Errorf("listing the pods of deleted nodes: %w", err)
	}
	results, err = s.scheduleOn(s.cluster.DeepCopyNodes().Active(), append(pending, deleting...))
	for pod := range results.PodErrors {
		results.PodErrors[pod] = errors.New("no existing node fits, and no dynamic NodePool is ready to create one")
	}
	return results, err
}

// launch creates a NodeClaim and runs core's lifecycle until it is launched or refused. It
// returns nil if it was refused.
func (s *simulation) launch(planned *scheduling.NodeClaim) (*karpv1.NodeClaim, error) {
	name, err := s.scheduler.Create(s.ctx, planned)
	if err != nil {
		// A limit of the NodePool is reached. Core logs it and retries.
		return nil, nil //nolint:nilerr // the next round reports the pods
	}
	claim := &karpv1.NodeClaim{}
	for range 3 { // to add the finalizer, to launch, to finish a refused NodeClaim
		if err := s.kube.Get(s.ctx, client.ObjectKey{Name: name}, claim); err != nil {
			s.cluster.DeleteNodeClaim(name)
			return nil, client.IgnoreNotFound(err)
		}
		if _, err := s.lifecycle.Reconcile(s.ctx, claim); err != nil {
			return nil, fmt.Errorf("launching NodeClaim %s: %w", name, err)
		}
	}
	if err := s.kube.Get(s.ctx, client.ObjectKey{Name: name}, claim); err != nil {
		s.cluster.DeleteNodeClaim(name)
		return nil, client.IgnoreNotFound(err)
	}
	s.cluster.UpdateNodeClaim(claim)
	if claim.Status.ProviderID == "" {
		return nil, nil
	}
	return claim, nil
}
