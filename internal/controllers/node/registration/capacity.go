// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// recordCapacity records the memory that a Node reports in the status of its NodeClass. Instance
// types then have the capacity that new Nodes will report, instead of an estimate.
func (c *Controller) recordCapacity(ctx context.Context, node *corev1.Node, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	in, ok := c.deps.VMs.Intent(claim)
	// The cache may not show the name of the Node yet.
	if isOther := claim.Status.NodeName != "" && claim.Status.NodeName != node.Name; isOther || !ok || node.Spec.ProviderID != claim.Status.ProviderID {
		return reconcile.Result{}, nil
	}
	vm, ok := c.deps.Inventory.View().Guest(in.Region, in.VMID)
	if !ok || vm.Config == nil {
		return reconcile.Result{RequeueAfter: watch.Again}, nil
	}
	if in.TemplateID == 0 {
		return reconcile.Result{}, nil // adopted
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.deps.Kube.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	observation := instancetype.Observation{
		Image: in.ImageID, InstanceType: in.InstanceType, CPUs: in.Cores, MemoryMiB: in.MemoryMiB, VM: *vm.Config, Capacity: node.Status.Capacity,
	}
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		observation.Slot = placement.Zone{Region: in.Region, Host: in.Host}
	}
	learned, err := c.deps.Types.Learn(class, observation)
	if err != nil {
		c.reportIgnored(ctx, claim, node, err)
	}
	return c.store(ctx, class, learned)
}

// reportIgnored reports what was ignored. A Node of an older image is expected while Nodes are
// replaced.
func (c *Controller) reportIgnored(ctx context.Context, claim *karpv1.NodeClaim, node *corev1.Node, err error) {
	if errors.Is(err, instancetype.ErrImageUnused) {
		log.FromContext(ctx).V(1).Info("ignoring capacity of Node", "NodeClaim", klog.KObj(claim), "Node", klog.KObj(node), "reason", err.Error())
		return
	}
	reason := strings.ReplaceAll(err.Error(), "\n", "; ")
	c.deps.Recorder.Publish(event.Warning(claim, v1alpha1.EventNodeCapacityIgnored,
		fmt.Sprintf("the capacity of Node %s is not used to estimate that of new Nodes: %s", node.Name, reason), reason))
}

// store writes what was learned to the status of the NodeClass.
func (c *Controller) store(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, learned []v1alpha1.MemoryOverhead) (reconcile.Result, error) {
	if equality.Semantic.DeepEqual(class.Status.MemoryOverhead, learned) {
		return reconcile.Result{}, nil
	}
	stored := class.DeepCopy()
	class.Status.MemoryOverhead = learned
	// The patch replaces the whole list, hence the optimistic lock.
	err := c.deps.Kube.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: watch.Soon}, nil
	}
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	log.FromContext(ctx).Info("recorded memory overhead of Nodes", "NodeClass", klog.KObj(class))
	return reconcile.Result{}, nil
}
