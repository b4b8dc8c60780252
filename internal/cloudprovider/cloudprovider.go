// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudprovider is the thin adapter to Karpenter's CloudProvider
// interface: it resolves objects, keeps the readiness gates in one visible
// order, and translates errors. It asks Proxmox nothing by itself.
package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CloudProvider answers Karpenter.
type CloudProvider struct {
	kube      client.Client
	instances *instance.Provider
	types     *instancetype.Provider
	recorder  events.Recorder
	overlays  *nodeoverlay.InstanceTypeStore

	migratedDriftAfter time.Duration
	hostDriftAfter     time.Duration
	repair             RepairTolerations
}

var _ cloudprovider.CloudProvider = (*CloudProvider)(nil)

// Deps is what the adapter stands on.
type Deps struct {
	Kube      client.Client
	Instances *instance.Provider
	Types     *instancetype.Provider
	Recorder  events.Recorder
	Overlays  *nodeoverlay.InstanceTypeStore
	// MigratedDriftAfter is how long after a migration a Node drifts; 0 = never.
	MigratedDriftAfter time.Duration
	// HostDriftAfter is how long after its Host went away a Node drifts; 0 = never.
	HostDriftAfter time.Duration
	Repair         RepairTolerations
}

// New makes the adapter.
func New(deps Deps) *CloudProvider {
	return &CloudProvider{
		kube: deps.Kube, instances: deps.Instances, types: deps.Types, recorder: deps.Recorder, overlays: deps.Overlays,
		migratedDriftAfter: deps.MigratedDriftAfter, hostDriftAfter: deps.HostDriftAfter, repair: deps.Repair,
	}
}

// Name is the value of the provider label in metrics.
func (c *CloudProvider) Name() string { return "proxmox" }

// GetSupportedNodeClasses tells Karpenter which NodePools and Claims are ours.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ProxmoxNodeClass{}}
}

// Create plans a Claim's VM and answers at once; the launch controller carries
// the plan out. While a Claim has no providerID, core provisions and disrupts
// nothing for any NodePool, so that an answer is better than a wait, and any
// error but "no room" or "class not ready" would block everybody.
func (c *CloudProvider) Create(ctx context.Context, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	class, err := c.readyClass(ctx, claim)
	if err != nil {
		return nil, err
	}
	pool := c.pool(ctx, claim)
	overlay := c.overlayFor(claim)
	wanted := withoutAssumedSpot(claim, pool)
	intent, err := c.instances.Plan(ctx, wanted, class, overlay)
	var noRoom *instance.InsufficientCapacityError
	if errors.As(err, &noRoom) && pool != nil && pool.Spec.Replicas != nil {
		// Core makes a refused Claim of a static pool anew at once, without any pause.
		c.recorder.Publish(waitingForRoom(claim, noRoom))
		intent, err = c.instances.Park(ctx, wanted, class, overlay)
	}
	if errors.As(err, &noRoom) {
		return nil, cloudprovider.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, fmt.Errorf("planning the VM, %w", err)
	}
	return c.filledClaim(claim, class, intent)
}

// pool of a Claim; nil where it has none, or it cannot be read.
func (c *CloudProvider) pool(ctx context.Context, claim *karpv1.NodeClaim) *karpv1.NodePool {
	pool := &karpv1.NodePool{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: claim.Labels[karpv1.NodePoolLabelKey]}, pool); err != nil {
		return nil
	}
	return pool
}

// readyClass is the gate in front of every launch.
func (c *CloudProvider) readyClass(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.ProxmoxNodeClass, error) {
	class, err := c.class(ctx, claim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		// Nothing can be launched without it: let core plan anew.
		return nil, cloudprovider.NewInsufficientCapacityError(fmt.Errorf("resolving the nodeclass, %w", err))
	}
	if err != nil {
		return nil, fmt.Errorf("resolving the nodeclass, %w", err)
	}
	if _, planned, err := instance.ReadIntent(claim); err == nil && planned {
		// It was ready when the VM was planned, and that plan stands: dropping the
		// Claim now would leave a launch without an owner.
		return class, nil
	}
	ready := class.StatusConditions().Get(status.ConditionReady)
	switch {
	case !class.DeletionTimestamp.IsZero():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("nodeclass %s is being deleted", class.Name))
	case ready.IsUnknown():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("nodeclass %s was not checked yet", class.Name))
	case ready.IsFalse():
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("nodeclass %s: %s", class.Name, ready.Message))
	case ready.ObservedGeneration != class.Generation:
		return nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("nodeclass %s changed and was not checked again yet", class.Name))
	}
	return class, nil
}

func (c *CloudProvider) class(ctx context.Context, name string) (*v1alpha1.ProxmoxNodeClass, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return nil, err
	}
	return class, nil
}

// Delete removes a Claim's VM. nil means that the removal is under way: core
// asks again every few seconds until the VM is proven gone.
func (c *CloudProvider) Delete(ctx context.Context, claim *karpv1.NodeClaim) error {
	gone, err := c.instances.Delete(ctx, claim)
	if blocked, ok := errors.AsType[*instance.BlockedError](err); ok {
		c.recorder.Publish(removalBlocked(claim, blocked))
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting the VM, %w", err)
	}
	if gone {
		return cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf("VM %s is gone", claim.Status.ProviderID))
	}
	return nil
}

// Get finds a VM. Core drains nothing once we say "not found", so that it takes
// proof.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	id, err := v1alpha1.ParseProviderID(providerID)
	if err != nil {
		return nil, cloudprovider.NewNodeClaimNotFoundError(err)
	}
	vm, err := c.instances.Get(ctx, id)
	if errors.Is(err, proxmox.ErrNotFound) {
		return nil, cloudprovider.NewNodeClaimNotFoundError(err)
	}
	if err != nil {
		return nil, err
	}
	return claimOf(vm), nil
}

// List finds all VMs of this Kubernetes cluster, and adds the Claims whose VM a
// Snapshot does not show yet: core deletes what a list leaves out.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	vms, err := c.instances.List()
	if err != nil {
		return nil, err
	}
	out := make([]*karpv1.NodeClaim, 0, len(vms))
	seen := map[string]bool{}
	for _, vm := range vms {
		out = append(out, claimOf(vm))
		seen[vm.ProviderID()] = true
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims, %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.ProviderID != "" && !seen[claim.Status.ProviderID] && c.instances.MayExist(claim) {
			out = append(out, claim.DeepCopy())
		}
	}
	return out, nil
}

// GetInstanceTypes reads memory only.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	class, err := c.class(ctx, pool.Spec.Template.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolving the nodeclass, %w", err)
	}
	return c.types.List(class, pool.Name), nil
}
