// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capacity records the memory that Nodes report in the status of their NodeClass.
// Instance types then have the capacity that new Nodes will report, instead of an
// estimate.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// unknownVMInterval is how often a Node is checked whose VM has not been read yet.
const unknownVMInterval = time.Minute

// Controller records the memory that Nodes report.
type Controller struct {
	kube      client.Client
	types     *instancetype.Provider
	vms       *instance.Provider
	inventory instancetype.Viewer
	recorder  events.Recorder
}

// NewController returns a Controller.
func NewController(kube client.Client, types *instancetype.Provider, vms *instance.Provider, inventory instancetype.Viewer, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, types: types, vms: vms, inventory: inventory, recorder: recorder}
}

// Register registers the Controller with a manager. It has one worker because most Nodes
// share a NodeClass.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("node.capacity.proxmox").
		For(&corev1.Node{}, builder.WithPredicates(reportedNodes())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// reportedNodes selects initialized Nodes when they become so, and when their capacity
// changes: kubelets update the status all the time.
func reportedNodes() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return isInitialized(e.Object) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Node)
			after, ok2 := e.ObjectNew.(*corev1.Node)
			return ok1 && ok2 && isInitialized(after) && (!isInitialized(before) || !equality.Semantic.DeepEqual(before.Status.Capacity, after.Status.Capacity))
		},
	}
}

func isInitialized(o client.Object) bool {
	return o.GetLabels()[karpv1.NodeInitializedLabelKey] == "true"
}

// Reconcile records what one Node reports.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	if !node.DeletionTimestamp.IsZero() || !isInitialized(node) {
		return reconcile.Result{}, nil
	}
	claim, err := c.findClaim(ctx, node)
	if err != nil || claim == nil {
		return reconcile.Result{}, err
	}
	in, ok := c.vms.Intent(claim)
	if !ok {
		return reconcile.Result{}, nil
	}
	vm, ok := c.inventory.View().Guest(in.Region, in.VMID)
	if !ok || vm.Config == nil {
		return reconcile.Result{RequeueAfter: unknownVMInterval}, nil
	}
	if in.TemplateID == 0 {
		return reconcile.Result{}, nil // adopted
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	observation := instancetype.Observation{
		Image: in.ImageID, InstanceType: in.InstanceType, CPUs: in.Cores, MemoryMiB: in.MemoryMiB, VM: *vm.Config, Capacity: node.Status.Capacity,
	}
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		observation.Slot = placement.Zone{Region: in.Region, Host: in.Host}
	}
	learned, err := c.types.Learn(class, observation)
	if err != nil {
		c.report(ctx, claim, node, err)
	}
	return c.store(ctx, class, learned)
}

// findClaim returns the NodeClaim of a Node; nil if it has none of this provider.
func (c *Controller) findClaim(ctx context.Context, node *corev1.Node) (*karpv1.NodeClaim, error) {
	if node.Spec.ProviderID == "" {
		return nil, nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims, nodeclaimutils.ForProviderID(node.Spec.ProviderID)); err != nil {
		return nil, fmt.Errorf("listing the NodeClaim with provider ID %s: %w", node.Spec.ProviderID, err)
	}
	if len(claims.Items) != 1 {
		return nil, nil
	}
	claim := &claims.Items[0]
	// The cache may not show the name yet.
	if isOther := claim.Status.NodeName != "" && claim.Status.NodeName != node.Name; isOther || !instance.IsOurs(claim) {
		return nil, nil
	}
	return claim, nil
}

// report reports what was ignored. A Node of an older image is expected while Nodes are
// replaced.
func (c *Controller) report(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node, err error) {
	if errors.Is(err, instancetype.ErrImageUnused) {
		log.FromContext(ctx).V(1).Info("ignoring capacity of Node", "NodeClaim", klog.KObj(claim), "Node", klog.KObj(node), "reason", err.Error())
		return
	}
	reason := strings.ReplaceAll(err.Error(), "\n", "; ")
	c.recorder.Publish(events.Event{
		InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: v1alpha1.EventNodeCapacityIgnored,
		Message:      fmt.Sprintf("the capacity of Node %s is not used to estimate that of new Nodes: %s", node.Name, reason),
		DedupeValues: []string{string(claim.UID), reason},
	})
}

// store writes what was learned to the status of the NodeClass.
func (c *Controller) store(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, learned []v1alpha1.MemoryOverhead) (reconcile.Result, error) {
	if equality.Semantic.DeepEqual(class.Status.MemoryOverhead, learned) {
		return reconcile.Result{}, nil
	}
	stored := class.DeepCopy()
	class.Status.MemoryOverhead = learned
	// The patch replaces the whole list, hence the optimistic lock.
	err := c.kube.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	log.FromContext(ctx).Info("recorded memory overhead of Nodes", "NodeClass", klog.KObj(class))
	return reconcile.Result{}, nil
}
