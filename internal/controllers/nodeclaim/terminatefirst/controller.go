// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminatefirst replaces drifted Nodes where no Host has capacity for a Node and
// its replacement at the same time. Core launches the replacement first, and terminates
// first only for reserved capacity, so on full Hosts it never replaces a Node. The
// Controller deletes such a Node if its pods fit once its VM is deleted. It uses core's
// own rules for candidates, disruption budgets and the drain. NodePools opt in with an
// annotation.
package terminatefirst

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
)

const (
	// interval is how often drifted Nodes are checked.
	interval = 15 * time.Second
	// delay is the time for core to replace a drifted Node: it checks every ten seconds.
	delay = time.Minute
)

// Deps are the dependencies of the Controller.
type Deps struct {
	scheduler.Deps

	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	// CloudProvider returns Karpenter's cloud provider with the given instance types.
	CloudProvider func(*instancetype.Provider) corecloudprovider.CloudProvider
}

// Controller replaces drifted Nodes on full Hosts.
type Controller struct {
	deps Deps
	// terminated is the last Node of each NodePool that this process deleted. The annotation of
	// a cached NodePool may be older.
	terminated map[string]termination
}

// termination is a Node that was deleted. It is stored in an annotation of the NodePool, so a
// restarted controller knows it too.
type termination struct {
	At time.Time `json:"at"`
	// Owners are the controllers of its pods.
	Owners []types.UID `json:"owners"`
}

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{deps: deps, terminated: map[string]termination{}}
}

// Register registers the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Name returns the name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.terminatefirst.proxmox" }

// Reconcile deletes at most one drifted Node.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	pools, err := c.readyPools(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	if len(pools) == 0 || !c.deps.Cluster.Synced(ctx) {
		return reconciler.Result{RequeueAfter: interval}, nil
	}
	if err := c.terminateOne(ctx, pools); err != nil {
		return reconciler.Result{}, fmt.Errorf("replacing drifted nodes on full hosts: %w", err)
	}
	return reconciler.Result{RequeueAfter: interval}, nil
}

// readyPools returns the names of the NodePools that opted in, have drifted Nodes, and
// whose other Nodes are neither launched nor deleted.
func (c *Controller) readyPools(ctx context.Context) (map[string]bool, error) {
	list := &karpv1.NodePoolList{}
	if err := c.deps.Kube.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing NodePools: %w", err)
	}
	enabled := map[string]bool{}
	for i := range list.Items {
		if c.isEnabled(&list.Items[i]) {
			enabled[list.Items[i].Name] = true
		}
	}
	if len(enabled) == 0 {
		return nil, nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.deps.Kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	drifted, busy := map[string]bool{}, map[string]bool{}
	for i := range claims.Items {
		claim, pool := &claims.Items[i], claims.Items[i].Labels[karpv1.NodePoolLabelKey]
		conditions := claim.StatusConditions(status.WithObservedOnly())
		busy[pool] = busy[pool] || !claim.DeletionTimestamp.IsZero() || !conditions.Get(karpv1.ConditionTypeInitialized).IsTrue()
		drifted[pool] = drifted[pool] || enabled[pool] && c.isDrifted(claim)
	}
	maps.DeleteFunc(drifted, func(pool string, drifted bool) bool { return !drifted || busy[pool] })
	return drifted, nil
}

// isEnabled reports whether a NodePool opted in. Static NodePools are left to core, which
// terminates first at their limit with the feature gate TerminateFirstDrift.
func (c *Controller) isEnabled(pool *karpv1.NodePool) bool {
	value, ok := pool.Annotations[v1alpha1.AnnotationDriftTerminateFirst]
	ref := pool.Spec.Template.Spec.NodeClassRef
	if !ok || ref == nil || ref.Group != v1alpha1.Group {
		return false
	}
	if value != "true" && value != "false" {
		c.deps.Recorder.Publish(event.Warning(pool, v1alpha1.EventInvalidDriftTerminateFirst, fmt.Sprintf(
			"Annotation %s of NodePool %s is %q, want true or false; it is ignored", v1alpha1.AnnotationDriftTerminateFirst, pool.Name, value), value))
	}
	return value == "true" && pool.Spec.Replicas == nil
}

// isDrifted reports whether core had time to replace a drifted Node and did not.
func (c *Controller) isDrifted(claim *karpv1.NodeClaim) bool {
	condition := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeDrifted)
	return condition.IsTrue() && c.deps.Clock.Since(condition.LastTransitionTime.Time) >= delay
}

// terminateOne deletes the Node that drifted first, among those that core would replace if
// there was capacity, and whose pods fit after its deletion.
func (c *Controller) terminateOne(ctx context.Context, pools map[string]bool) error {
	s := c.newSimulator()
	candidates, err := disruption.GetCandidates(ctx, c.deps.Cluster, c.deps.Kube, c.deps.Recorder, c.deps.Clock, s.cloudProvider,
		func(_ context.Context, candidate *disruption.Candidate) bool {
			return pools[candidate.NodePool.Name] && c.isDrifted(candidate.NodeClaim)
		}, disruption.EventualDisruptionClass, s.newQueue())
	if err != nil || len(candidates) == 0 {
		return err
	}
	budgets, err := disruption.BuildDisruptionBudgetMapping(ctx, c.deps.Cluster, c.deps.Clock, c.deps.Kube, s.cloudProvider, c.deps.Recorder, karpv1.DisruptionReasonDrifted)
	if err != nil {
		return err
	}
	pending, err := s.scheduler.GetPendingPods(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(candidates, func(a, b *disruption.Candidate) int { return driftedAt(a).Compare(driftedAt(b)) })
	for _, candidate := range candidates {
		if budgets[candidate.NodePool.Name] == 0 {
			continue
		}
		last := c.lastTermination(ctx, candidate.NodePool)
		if slices.ContainsFunc(pending, last.mayHaveEvicted) {
			continue
		}
		command, ok, err := s.simulate(ctx, candidate)
		if err != nil {
			return err
		}
		if ok {
			return c.execute(ctx, s, command)
		}
	}
	return nil
}

func driftedAt(c *disruption.Candidate) time.Time {
	return c.NodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrifted).LastTransitionTime.Time
}

// lastTermination returns the last Node of a NodePool that was deleted; the zero value if none was.
func (c *Controller) lastTermination(ctx context.Context, pool *karpv1.NodePool) termination {
	if last, ok := c.terminated[pool.Name]; ok {
		return last
	}
	var last termination
	if text := pool.Annotations[v1alpha1.AnnotationDriftTerminatedFirst]; text != "" {
		if err := json.Unmarshal([]byte(text), &last); err != nil {
			log.FromContext(ctx).Error(err, "ignoring invalid annotation", "annotation", v1alpha1.AnnotationDriftTerminatedFirst, "NodePool", klog.KObj(pool))
			return termination{}
		}
	}
	return last
}

// mayHaveEvicted reports whether a pending pod may be of the Node. Then another guest may use the
// capacity, and to delete more Nodes would not help.
func (t termination) mayHaveEvicted(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && slices.Contains(t.Owners, owner.UID) && !pod.CreationTimestamp.Time.Before(t.At.Truncate(time.Second))
}

// recordTermination records that a Node is deleted.
func (c *Controller) recordTermination(ctx context.Context, candidate *disruption.Candidate) error {
	pods, err := node.GetPods(ctx, c.deps.Kube, candidate.Node.Name)
	if err != nil {
		return err
	}
	last := termination{At: c.deps.Clock.Now().UTC()}
	for _, pod := range pods {
		if owner := metav1.GetControllerOf(pod); owner != nil && !slices.Contains(last.Owners, owner.UID) {
			last.Owners = append(last.Owners, owner.UID)
		}
	}
	raw, err := json.Marshal(last)
	if err != nil {
		return fmt.Errorf("encoding the deletion of a node: %w", err)
	}
	recorded := candidate.NodePool.DeepCopy()
	metav1.SetMetaDataAnnotation(&recorded.ObjectMeta, v1alpha1.AnnotationDriftTerminatedFirst, string(raw))
	if err := c.deps.Kube.Patch(ctx, recorded, client.MergeFrom(candidate.NodePool)); err != nil {
		return fmt.Errorf("recording the deletion of a node of NodePool %s: %w", recorded.Name, err)
	}
	c.terminated[recorded.Name] = last
	return nil
}

// execute deletes the Node of a command with core's queue, which taints it first.
func (c *Controller) execute(ctx context.Context, s *simulator, command *disruption.Command) error {
	candidate := command.Candidates[0]
	log.FromContext(ctx).Info("replacing drifted node without overlap, no host has capacity for both",
		"NodeClaim", klog.KObj(candidate.NodeClaim), "NodePool", klog.KObj(candidate.NodePool))
	if err := c.recordTermination(ctx, candidate); err != nil {
		return err
	}
	queue := s.newQueue()
	if err := queue.StartCommand(ctx, command); err != nil {
		return err
	}
	_, err := queue.Reconcile(ctx, candidate.NodeClaim)
	if !command.Succeeded {
		// Core removes the taint of a Node that is not marked any more.
		queue.CompleteCommand(command)
		return err
	}
	for _, object := range []client.Object{candidate.NodeClaim, candidate.Node} {
		c.deps.Recorder.Publish(event.Normal(object, v1alpha1.EventDriftTerminatingFirst,
			fmt.Sprintf("Node is drifted and no host has capacity for its replacement; it is deleted before its replacement is launched, as annotation %s of NodePool %s requests",
				v1alpha1.AnnotationDriftTerminateFirst, candidate.NodePool.Name)))
	}
	return err
}
