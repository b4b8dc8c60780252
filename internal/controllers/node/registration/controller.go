// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration looks at each Node of a VM of ours when it registers. Boot data
// is written by users; what it gets wrong shows here first, and otherwise only as a
// Claim that is replaced after a quarter of an hour without a word.
package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Reasons of events.
const (
	ReasonInvalid = "RegistrationInvalid"
	// ReasonCloudProviderMissing: the kubelet waits for a cloud controller manager.
	ReasonCloudProviderMissing = "CloudControllerManagerMissing"
)

// cloudPatience is how long a cloud controller manager may take. Those that are
// there take seconds.
const cloudPatience = 3 * time.Minute

// Controller checks Nodes.
type Controller struct {
	kube     client.Client
	recorder events.Recorder
	clock    clock.PassiveClock
}

// NewController makes the Controller.
func NewController(kube client.Client, recorder events.Recorder, clock clock.PassiveClock) *Controller {
	return &Controller{kube: kube, recorder: recorder, clock: clock}
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("node.contract.proxmox").
		For(&corev1.Node{}, builder.WithPredicates(worthALook())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// worthALook passes Nodes that are not initialized, and of their changes only those
// that can matter: kubelets report their status all the time.
func worthALook() predicate.Predicate {
	young := func(o client.Object) bool { return o.GetLabels()[karpv1.NodeInitializedLabelKey] == "" }
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return young(e.Object) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Node)
			after, ok2 := e.ObjectNew.(*corev1.Node)
			return ok1 && ok2 && young(before) && (before.Spec.ProviderID != after.Spec.ProviderID ||
				before.Status.NodeInfo.SystemUUID != after.Status.NodeInfo.SystemUUID ||
				!slices.Equal(before.Spec.Taints, after.Spec.Taints) || !maps.Equal(before.Labels, after.Labels))
		},
	}
}

// Reconcile checks one Node.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	if !node.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	claim, err := c.claimOf(ctx, node)
	if err != nil || claim == nil || !claim.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, err
	}
	if found := breaches(node, claim); len(found) > 0 {
		c.report(ctx, claim, ReasonInvalid, fmt.Sprintf("node %s does not register as its boot data should have it: %s", node.Name, strings.Join(found, "; ")))
	}
	if !hasTaint(node, uninitializedTaint) {
		return reconcile.Result{}, nil
	}
	if left := node.CreationTimestamp.Add(cloudPatience).Sub(c.clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	c.report(ctx, claim, ReasonCloudProviderMissing, fmt.Sprintf("node %s has had the taint %s for more than %s: its kubelet was started with --cloud-provider=external, "+
		"and no cloud controller manager has come; install the Proxmox one, or leave the flag out of the boot data", node.Name, uninitializedTaint, cloudPatience))
	return reconcile.Result{RequeueAfter: cloudPatience}, nil
}

// claimOf finds the Claim whose VM the Node runs on: a Claim's UID is its VM's
// hardware UUID, which no boot data can get wrong. Before the kubelet has reported
// that one, the name has to do.
func (c *Controller) claimOf(ctx context.Context, node *corev1.Node) (*karpv1.NodeClaim, error) {
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims, %w", err)
	}
	uuid := node.Status.NodeInfo.SystemUUID
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Spec.NodeClassRef == nil || claim.Spec.NodeClassRef.Group != v1alpha1.Group || claim.Status.ProviderID == "" {
			continue
		}
		if strings.EqualFold(uuid, string(claim.UID)) || uuid == "" && node.Name == claim.Name {
			return claim, nil
		}
	}
	return nil, nil
}

// report tells the Claim, and once for all of its Claims the NodeClass, where the
// boot data can be mended.
func (c *Controller) report(ctx context.Context, claim *karpv1.NodeClaim, reason, message string) {
	c.recorder.Publish(events.Event{
		InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		DedupeValues: []string{string(claim.UID), message},
	})
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		log.FromContext(ctx).V(1).Info("the node class of a claim is not there to be told", "NodeClaim", klog.KObj(claim), "reason", err.Error())
		return
	}
	c.recorder.Publish(events.Event{
		InvolvedObject: class, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		DedupeValues: []string{string(class.UID), reason},
	})
}
