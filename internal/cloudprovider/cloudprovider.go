// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudprovider adapts Karpenter's CloudProvider interface: it resolves objects,
// checks readiness in one place, and translates errors. It sends no requests to Proxmox
// itself.
package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CloudProvider implements Karpenter's CloudProvider.
type CloudProvider struct{ deps Deps }

var _ cloudprovider.CloudProvider = (*CloudProvider)(nil)

// Deps are the dependencies of the CloudProvider.
type Deps struct {
	*operations.Operations
	Settings

	Kube     client.Client
	Types    *instancetype.Provider
	Recorder events.Recorder
	Clock    clock.PassiveClock
	// BootDataHash reads the Secrets of a class and returns the hash of its boot data.
	BootDataHash func(context.Context, *v1alpha1.ProxmoxNodeClass) (string, error)
	// CapacityBuffers is whether core's feature gate for them is on.
	CapacityBuffers bool
}

// Settings of the CloudProvider.
type Settings struct {
	// HostDriftAfter is how long after its Host went offline a Node drifts; 0 = never.
	HostDriftAfter time.Duration
	// DrainMaintenance makes the Nodes of a Host in maintenance drift.
	DrainMaintenance bool
	Repair           RepairTolerations
	// ReplacementMaxFraction is the fraction of a region's VMs above which none that
	// disappeared counts as deleted.
	ReplacementMaxFraction instance.SafetyThreshold
}

// New returns the CloudProvider.
func New(deps Deps) *CloudProvider { return &CloudProvider{deps} }

// WithTypes returns a CloudProvider with other instance types, for simulations.
func (c *CloudProvider) WithTypes(types *instancetype.Provider) *CloudProvider {
	deps := c.deps
	deps.Types = types
	return New(deps)
}

// Name returns the value of the provider label in metrics.
func (c *CloudProvider) Name() string { return "proxmox" }

// GetSupportedNodeClasses returns the kinds of NodeClasses of this provider.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ProxmoxNodeClass{}}
}

// Create plans a Claim's VM and returns without waiting and without a write; the launch
// controller launches it when core has stored the result. While a Claim has no providerID, core provisions and disrupts nothing for any
// NodePool, so Create must not wait, and any error but "insufficient capacity" or
// "NodeClass not ready" blocks all NodePools.
func (c *CloudProvider) Create(ctx context.Context, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	stored, err := c.deps.Planner.Stored(ctx, claim.UID)
	if err != nil {
		return nil, fmt.Errorf("planning the VM: %w", err)
	}
	if stored != nil {
		return stored.DeepCopy(), nil
	}
	class, err := c.readyClass(ctx, claim)
	if err != nil {
		return nil, err
	}
	pool := c.nodePool(ctx, claim)
	requested := c.withoutAssumedSpot(claim, pool)
	fixedSize, err := c.needsFixedSize(ctx, claim, class, pool)
	if err != nil {
		return nil, err
	}
	intent, err := c.deps.Planner.Plan(ctx, requested, class, fixedSize)
	var insufficient *instance.InsufficientCapacityError
	if errors.As(err, &insufficient) && pool != nil && pool.Spec.Replicas != nil {
		// Core recreates a refused Claim of a static NodePool without delay.
		c.deps.Recorder.Publish(event.Warning(claim, v1alpha1.EventWaitingForCapacity, insufficient.Error()))
		intent, err = c.deps.Planner.Park(ctx, requested, class)
	}
	if errors.As(err, &insufficient) {
		return nil, cloudprovider.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, fmt.Errorf("planning the VM: %w", err)
	}
	return c.plannedClaim(claim, class, intent)
}

// nodePool returns the NodePool of a Claim; nil if it has none, or it cannot be read.
func (c *CloudProvider) nodePool(ctx context.Context, claim *karpv1.NodeClaim) *karpv1.NodePool {
	pool := &karpv1.NodePool{}
	if err := c.deps.Kube.Get(ctx, types.NamespacedName{Name: claim.Labels[karpv1.NodePoolLabelKey]}, pool); err != nil {
		return nil
	}
	return pool
}

// readyClass returns the NodeClass of a Claim, or the error that Create returns if it is
// not ready.
func (c *CloudProvider) readyClass(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.ProxmoxNodeClass, error) {
	class, err := c.nodeClass(ctx, claim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		// Nothing can be launched without it: core replaces the Claim.
		return nil, cloudprovider.NewInsufficientCapacityError(fmt.Errorf("resolving the NodeClass: %w", err))
	}
	if err != nil {
		return nil, fmt.Errorf("resolving the NodeClass: %w", err)
	}
	if c.deps.Planner.HasPlan(claim.UID) {
		return class, nil // it was ready when the VM was planned
	}
	ready := class.StatusConditions().Get(status.ConditionReady)
	switch {
	case !class.DeletionTimestamp.IsZero():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("NodeClass %s is being deleted", class.Name))
	case ready.IsUnknown():
		return nil, c.readinessUnknown(claim, "NodeClass %s was not checked yet", class.Name)
	case ready.ObservedGeneration != class.Generation:
		return nil, c.readinessUnknown(claim, "NodeClass %s changed and was not checked again yet", class.Name)
	case ready.IsFalse():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("NodeClass %s: %s", class.Name, ready.Message))
	}
	return class, nil
}

// maxReadinessWait limits how long a Claim waits for the first check of its NodeClass.
const maxReadinessWait = time.Minute

// readinessUnknown returns an error on which core retries Create: it would delete the
// Claim of a NodeClass that is not ready. The status controller sets Ready to true or
// false within seconds. If it cannot, the Claim does not wait: it would block all
// NodePools.
func (c *CloudProvider) readinessUnknown(claim *karpv1.NodeClaim, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if c.deps.Clock.Since(claim.CreationTimestamp.Time) > maxReadinessWait {
		return cloudprovider.NewNodeClassNotReadyError(err)
	}
	return cloudprovider.NewCreateError(err, v1alpha1.ReasonNodeClassReadinessUnknown, err.Error())
}

func (c *CloudProvider) nodeClass(ctx context.Context, name string) (*v1alpha1.ProxmoxNodeClass, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.deps.Kube.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return nil, err
	}
	return class, nil
}

// Delete deletes a Claim's VM. nil means that the deletion is in progress: core calls
// Delete again every few seconds until it returns NodeClaimNotFound.
func (c *CloudProvider) Delete(ctx context.Context, claim *karpv1.NodeClaim) error {
	deleted, err := c.deps.Deleter.Delete(ctx, claim)
	if blocked, ok := errors.AsType[*instance.BlockedError](err); ok {
		c.deps.Recorder.Publish(event.Warning(claim, blocked.Reason, blocked.Message))
		return nil
	}
	if abandoned, ok := errors.AsType[*instance.AbandonedError](err); ok {
		c.deps.Recorder.Publish(event.Warning(claim, v1alpha1.EventVMAbandoned, abandoned.Message))
		err = nil
	}
	if err != nil {
		return fmt.Errorf("deleting the VM: %w", err)
	}
	if deleted {
		return cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf("VM %s is deleted or abandoned", claim.Status.ProviderID))
	}
	return nil
}

// Get returns a VM as a NodeClaim. It returns NodeClaimNotFound only if the deletion of
// the VM is confirmed: core does not drain its Node after that. Core does not drain it
// after another error either, so what cannot be read counts as existing, as of the last
// Snapshot or, without one, of the Claim. Delete then reports what is wrong.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	id, err := v1alpha1.ParseProviderID(providerID)
	if err != nil {
		return nil, cloudprovider.NewNodeClaimNotFoundError(err)
	}
	vm, err := c.deps.VMs.GetLastKnown(ctx, id)
	if errors.Is(err, proxmox.ErrNotFound) {
		return nil, cloudprovider.NewNodeClaimNotFoundError(err)
	}
	if err == nil {
		return vmClaim(vm), nil
	}
	claims := &karpv1.NodeClaimList{}
	if listErr := c.deps.Kube.List(ctx, claims, nodeclaimutils.ForProviderID(providerID)); listErr != nil {
		return nil, errors.Join(err, fmt.Errorf("listing NodeClaims: %w", listErr))
	}
	if len(claims.Items) == 0 {
		return nil, err
	}
	log.FromContext(ctx).V(1).Info("reading VM failed, using its NodeClaim", "NodeClaim", klog.KObj(&claims.Items[0]), "vmid", id.VMID, "region", id.Region, "cause", err.Error())
	return claims.Items[0].DeepCopy(), nil
}

// List returns all VMs of this Kubernetes cluster as NodeClaims, the Claims whose VM a
// Snapshot does not show yet, and those whose VMs disappeared together with too many
// others: core deletes Claims and Nodes that are missing in the list.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	vms, err := c.deps.VMs.List()
	if err != nil {
		return nil, err
	}
	out := make([]*karpv1.NodeClaim, 0, len(vms))
	listed, byClaim := map[string]bool{}, make(map[string]instance.VM, len(vms))
	for _, vm := range vms {
		out = append(out, vmClaim(vm))
		listed[vm.ProviderID()], byClaim[vm.ClaimUID] = true, vm
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.deps.Kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing NodeClaims: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.ProviderID != "" && !listed[claim.Status.ProviderID] && c.deps.VMs.MayExist(claim) {
			out = append(out, claim.DeepCopy())
		}
	}
	for _, r := range c.deps.VMs.Compare(claims.Items, byClaim) {
		if c.deps.ReplacementMaxFraction.IsExceeded(len(r.Missing), r.Launched) {
			for _, claim := range r.Missing {
				out = append(out, claim.DeepCopy())
			}
		}
	}
	return out, nil
}

// GetInstanceTypes returns the instance types of a NodePool from the last Snapshots. It fails
// if the NodeClass does not exist: with an empty list, core would replace the Nodes of the
// NodePool. Core skips a NodePool with an error.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	if !nodepoolutils.IsManaged(pool, c) {
		// Core reads the prices of all NodePools, also of those of another provider, and
		// would retry an error forever.
		return nil, nil
	}
	class, err := c.nodeClass(ctx, pool.Spec.Template.Spec.NodeClassRef.Name)
	if err != nil {
		return nil, fmt.Errorf("resolving the NodeClass: %w", err)
	}
	if err := c.refreshNodes(ctx); err != nil {
		return nil, err
	}
	return c.deps.Types.List(class, pool.Name), nil
}
