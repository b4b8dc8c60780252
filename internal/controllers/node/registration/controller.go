// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration checks Nodes of our VMs when they register. Users write the boot
// data, and its mistakes show here first. Otherwise the only symptom is a NodeClaim that
// is replaced after 15 minutes. From then on, it records the memory that Nodes report.
package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
)

// cloudProviderTimeout is how long a cloud controller manager may take. It usually takes
// seconds.
const cloudProviderTimeout = 3 * time.Minute

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube      client.Client
	Types     *instancetype.Provider
	VMs       *instance.Provider
	Inventory instancetype.Viewer
	Recorder  events.Recorder
	Clock     clock.PassiveClock
}

// Controller checks Nodes.
type Controller struct{ deps Deps }

// NewController returns a Controller.
func NewController(deps Deps) *Controller { return &Controller{deps: deps} }

// uidField is the index of NodeClaims by UID, so the cost of a Node does not depend on
// the number of NodeClaims.
const uidField = "metadata.uid"

// Register registers the Controller with a manager. It has one worker because most Nodes
// share a NodeClass.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	err := m.GetFieldIndexer().IndexField(ctx, &karpv1.NodeClaim{}, uidField, func(o client.Object) []string { return []string{string(o.GetUID())} })
	if err != nil {
		return fmt.Errorf("indexing NodeClaims by UID: %w", err)
	}
	return ctrl.NewControllerManagedBy(m).
		Named("node.registration.proxmox").
		For(&corev1.Node{}, builder.WithPredicates(relevantNodes())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

func isInitialized(o client.Object) bool {
	return o.GetLabels()[karpv1.NodeInitializedLabelKey] == "true"
}

// relevantNodes selects changes that a Node registers or is initialized with, and those of its
// capacity: kubelets update the status all the time.
func relevantNodes() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc:  func(ctrlevent.DeleteEvent) bool { return false },
		GenericFunc: func(ctrlevent.GenericEvent) bool { return false },
		UpdateFunc: func(e ctrlevent.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Node)
			after, ok2 := e.ObjectNew.(*corev1.Node)
			if ok1 && ok2 && isInitialized(before) {
				return !equality.Semantic.DeepEqual(before.Status.Capacity, after.Status.Capacity)
			}
			return ok1 && ok2 && (before.Spec.ProviderID != after.Spec.ProviderID ||
				before.Status.NodeInfo.SystemUUID != after.Status.NodeInfo.SystemUUID ||
				!slices.Equal(before.Spec.Taints, after.Spec.Taints) || !maps.Equal(before.Labels, after.Labels))
		},
	}
}

// Reconcile checks one Node until it is initialized, and then records its capacity.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	if !node.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	claim, err := c.findClaim(ctx, node)
	if err != nil || claim == nil {
		return reconcile.Result{}, err
	}
	if isInitialized(node) {
		return c.recordCapacity(ctx, node, claim)
	}
	if !claim.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	if problems := findProblems(node, claim); len(problems) > 0 {
		c.report(ctx, claim, v1alpha1.EventRegistrationInvalid, fmt.Sprintf("node %s does not match its NodeClaim, fix the boot data: %s", node.Name, strings.Join(problems, "; ")))
	}
	if !hasTaint(node, uninitializedTaint) {
		return reconcile.Result{}, nil
	}
	if remaining := node.CreationTimestamp.Add(cloudProviderTimeout).Sub(c.deps.Clock.Now()); remaining > 0 {
		return reconcile.Result{RequeueAfter: remaining}, nil
	}
	c.report(ctx, claim, v1alpha1.EventCloudControllerManagerMissing, fmt.Sprintf("node %s has the taint %s for more than %s: its kubelet was started with --cloud-provider=external, "+
		"but no cloud controller manager initialized it; install the Proxmox one, or remove the flag from the boot data", node.Name, uninitializedTaint, cloudProviderTimeout))
	return reconcile.Result{RequeueAfter: cloudProviderTimeout}, nil
}

// findClaim returns the NodeClaim whose VM the Node runs on: the claim's UID is the
// hardware UUID of its VM, which does not depend on boot data. Until the kubelet reports
// the UUID, the name is compared.
func (c *Controller) findClaim(ctx context.Context, node *corev1.Node) (*karpv1.NodeClaim, error) {
	claim := &karpv1.NodeClaim{}
	if uuid := node.Status.NodeInfo.SystemUUID; uuid == "" {
		if err := c.deps.Kube.Get(ctx, client.ObjectKey{Name: node.Name}, claim); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
	} else {
		claims := &karpv1.NodeClaimList{}
		if err := c.deps.Kube.List(ctx, claims, client.MatchingFields{uidField: strings.ToLower(uuid)}); err != nil {
			return nil, fmt.Errorf("listing the NodeClaim with UID %s: %w", uuid, err)
		}
		if len(claims.Items) == 0 {
			return nil, nil
		}
		claim = &claims.Items[0]
	}
	if !instance.IsOurs(claim) || claim.Status.ProviderID == "" {
		return nil, nil
	}
	return claim, nil
}

// report emits the event on the NodeClaim, and once for all of its NodeClaims on the
// NodeClass, which refers to the boot data.
func (c *Controller) report(ctx context.Context, claim *karpv1.NodeClaim, reason, message string) {
	c.deps.Recorder.Publish(event.Warning(claim, reason, message, message))
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.deps.Kube.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		log.FromContext(ctx).V(1).Info("skipping event on NodeClass", "NodeClaim", klog.KObj(claim), "NodeClass", claim.Spec.NodeClassRef.Name, "reason", err.Error())
		return
	}
	c.deps.Recorder.Publish(event.Warning(class, reason, message))
}
