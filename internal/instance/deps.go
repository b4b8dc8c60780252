// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// Deps are the dependencies and the state of Claims that the operations share.
type Deps struct {
	Clients     Clients
	RootClients RootClients
	Inventory   *inventory.Inventory
	Kube        client.Client
	Clock       clock.WithTicker
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	Settings    Settings
	// Overlays are core's NodeOverlays.
	Overlays *nodeoverlay.InstanceTypeStore

	// State of Claims and tasks of this process, set by operations.New.
	Guard    *Guard
	Launches *LaunchTracker
	Tasks    *vm.Tasks
	HA       *HA
}

// Clients of the Clusters by region.
type Clients map[string]proxmox.Client

// Get returns the client of a region. A region that was removed from the cloud config
// does not mean that its VMs are deleted.
func (c Clients) Get(region string) (proxmox.Client, error) {
	client, ok := c[region]
	if !ok {
		return nil, fmt.Errorf("region %q is not in the cloud config: add it again, or delete its VMs by hand", region)
	}
	return client, nil
}

// RootClients are the clients with a root login, by region. They set options that no API
// token may set. Most regions have none.
type RootClients map[string]proxmox.Root

// ErrNoRoot means that an operation needs root, which the region has no login for.
var ErrNoRoot = errors.New("the cloud config has no login of root")

// Get returns the root login of a region, or ErrNoRoot.
func (r RootClients) Get(region string) (proxmox.Root, error) {
	root, ok := r[region]
	if !ok {
		return nil, fmt.Errorf("region %s: %w", region, ErrNoRoot)
	}
	return root, nil
}

// IsLaunched reports whether the launch of a Claim's VM has ended: this process saw the VM run, or its
// Node joined. What is left then, such as HA, is pending in the VM's mark.
func (d Deps) IsLaunched(claim *karpv1.NodeClaim) bool {
	_, launched := d.LaunchedAt(claim)
	return launched
}

// LaunchedAt returns a time when a Claim's VM was running for the first time, as far as this process
// knows; false if it was not launched.
func (d Deps) LaunchedAt(claim *karpv1.NodeClaim) (at time.Time, launched bool) {
	if at := d.Launches.Get(string(claim.UID)).CompletedAt; !at.IsZero() {
		return at, true
	}
	if claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByAdopted {
		return claim.CreationTimestamp.Time, true
	}
	return JoinedAt(claim)
}

// JoinedAt returns when the Node of a Claim joined; false if it did not, or if another controller
// launched its VM.
func JoinedAt(claim *karpv1.NodeClaim) (at time.Time, joined bool) {
	registered := claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeRegistered)
	if claim.Annotations[v1alpha1.AnnotationLaunchedBy] == "" || !registered.IsTrue() {
		return time.Time{}, false
	}
	return registered.LastTransitionTime.Time, true
}

// Annotate sets annotations of a Claim and changes nothing else, however old the given
// Claim is. An empty value removes one. It fails if the Claim was recreated with the same name.
func Annotate(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim, values map[string]string) error {
	annotations := map[string]any{}
	for key, value := range values {
		if annotations[key] = value; value == "" {
			annotations[key] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "annotations": annotations}})
	if err != nil {
		return fmt.Errorf("annotating NodeClaim %s: %w", claim.Name, err)
	}
	target := &karpv1.NodeClaim{}
	target.Name = claim.Name
	if err := kube.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}

// WriteResources writes the resources of the Node that a Claim becomes to the Claim's status.
func WriteResources(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim, resources NodeResources) error {
	changed := claim.DeepCopy()
	changed.Status.Capacity, changed.Status.Allocatable = resources.Capacity, resources.Allocatable
	if err := kube.Status().Patch(ctx, changed, client.MergeFrom(claim)); err != nil {
		return fmt.Errorf("writing the resources of NodeClaim %s: %w", claim.Name, err)
	}
	return nil
}
