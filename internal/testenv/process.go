// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Components are the parts of the controller that act on VMs.
type Components struct {
	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	Boot      boot.Source
	Instances *operations.Operations
}

// NewComponents returns the components of a new process with the given dependencies except
// the inventory, and with the catalog and the pricing of offered. The Clusters were not polled.
func NewComponents(t testing.TB, deps instance.Deps, source boot.Source, polls inventory.Options, offered instancetype.Deps, metrics instance.Metrics) Components {
	t.Helper()
	if !inSimulation() {
		polls.ReadTimeout = time.Minute // a busy machine needs longer
	}
	polls.DetailRange = observed.VMIDRange{From: FirstVMID, To: LastVMID}
	inv, err := inventory.New(slices.Collect(maps.Values(deps.Clients)), polls)
	Must(t, err)
	offered.Inventory, offered.VMMemoryOverheadPercent, offered.Clock = inv, new(0.0), deps.Clock
	offered.CPULayouts = instancetype.CPULayouts{Roots: slices.Sorted(maps.Keys(deps.RootClients))}
	types, err := instancetype.New(offered)
	Must(t, err)
	deps.Inventory = inv
	source.Version = boot.FixedVersion("v1.36.3")
	return Components{Inventory: inv, Types: types, Boot: source, Instances: operations.New(deps, types, source, metrics)}
}

// Process is one process of the controller with its own state.
type Process struct {
	Components
	env *Env
}

// StartProcess starts a process of the controller with new state.
func (w *Env) StartProcess(options ...Option) *Process {
	w.T.Helper()
	s := w.setup
	s.kube, s.kubeCluster = w.Kube, w.KubeCluster
	for _, option := range options {
		option(&s)
	}
	settings := instance.Settings{
		SystemNamespace: "kube-system",
		VMIDs:           placement.Range{From: FirstVMID, To: LastVMID}, CloneSlots: 4, TaskTimeout: 20 * time.Second, LaunchRetryTimeout: time.Minute, StaticCapacityTimeout: 5 * time.Minute,
		OperationTimeout: 2 * time.Minute, HostRemovedAfter: 10 * time.Minute, CloneSlowAfter: 5 * time.Minute, CloneRefuseAfter: 10 * time.Minute,
	}
	for _, change := range s.settings {
		change(&settings)
	}
	p := &Process{env: w, Components: NewComponents(w.T, instance.Deps{
		Clients: w.Clients, RootClients: w.roots(s), Kube: s.kube, Clock: w.Clock, KubeCluster: s.kubeCluster, Settings: settings,
	}, boot.Source{Reader: w.Kube, Namespace: w.Name, Tokens: &bootdata.Tokens{Client: w.Kube}}, inventory.Options{
		Clock: w.Clock.unscaled(), PollInterval: w.Clock.Real(5 * time.Second), Settings: s.hostSettings,
	}, instancetype.Deps{
		Catalog: s.catalog, Pricing: instancetype.Pricing{PerVCPU: 0.025, PerGB: 0.001, PerNode: 0.005, PerDevice: 1},
	}, s.metrics)}
	if !s.noPolling {
		Go(w.T, p.Inventory.Start)
	}
	if !s.neverPolled {
		p.Refresh()
	}
	return p
}

// Restart replaces the Process by a new one. If poll is false, the Clusters are
// unreachable for the new one.
func (w *Env) Restart(poll bool) {
	w.T.Helper()
	w.setup.neverPolled, w.setup.noPolling = !poll, w.setup.noPolling || !poll
	w.Process = w.StartProcess()
}

// Refresh polls all Clusters. It fails the test if one is unreachable.
func (p *Process) Refresh() {
	p.env.T.Helper()
	p.env.Expect(p.Inventory.RefreshAll(p.env.T.Context())).To(gomega.Succeed())
}

// ApplySettings applies settings of Hosts in their file format.
func (p *Process) ApplySettings(content string) {
	p.env.T.Helper()
	settings, err := declared.ParseSettings([]byte(content))
	Must(p.env.T, err)
	p.Inventory.SetSettings(settings)
}

// Fence declares a Host of Region as powered off.
func (p *Process) Fence(host string) {
	p.Inventory.SetFences(map[observed.HostName]declared.Fence{{Region: Region, Host: host}: {Time: p.env.Clock.unscaled().Now()}})
}

// Planned returns a claim that was planned: it has an intent and a providerID.
func (p *Process) Planned(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	p.env.T.Helper()
	claim := p.env.Claim(name, class, changes...)
	in, err := p.Instances.Planner.Plan(p.env.T.Context(), claim, class, false)
	p.env.Expect(err).NotTo(gomega.HaveOccurred())
	return p.env.SetPlanned(claim, class, in)
}

// Intent returns what a claim's VM is: what its configuration shows, or else the plan that was stored.
func (w *Env) Intent(claim *karpv1.NodeClaim) instance.Intent {
	w.T.Helper()
	in, ok := instance.ReadIntent(claim)
	w.Expect(ok).To(gomega.BeTrue(), "nodeclaim %s has a VM", claim.Name)
	if plan, planned := w.plans.Load(claim.UID); planned && plan.(instance.Intent).VMID == in.VMID && plan.(instance.Intent).Parked == in.Parked {
		in = plan.(instance.Intent)
	}
	if w.Process != nil {
		if known, _ := w.Instances.VMs.Intent(claim); known.Known && known.Parked == in.Parked {
			in = known
		}
	}
	if in.Region != Region {
		return in
	}
	for _, guest := range w.Sim.Guests() {
		if guest.VMID != in.VMID {
			continue
		}
		cfg := proxmox.VMConfig{Options: guest.Options}
		if id, ok := instance.ReadIdentity(in.Region, cfg); ok && id.ClaimUID == string(claim.UID) && vmconfig.IsConfigured(cfg, in.VMID) {
			return instance.ObservedIntent(in, instance.NewVM(id, guest.Host, cfg), in.ResourcePool)
		}
	}
	return in
}

// SetPlanned stores a plan as core stores the result of Create.
func (w *Env) SetPlanned(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) *karpv1.NodeClaim {
	w.T.Helper()
	w.Expect(StorePlan(w.T.Context(), w.Kube, claim, class, in)).To(gomega.Succeed())
	w.plans.Store(claim.UID, in)
	return claim
}

// StorePlan is SetPlanned with any client, also one that fails.
func StorePlan(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) error {
	created := &karpv1.NodeClaim{}
	SetStored(created, class, in)
	return store(ctx, kube, claim, created)
}

// SetStored sets on a claim what Create returns with a plan.
func SetStored(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) {
	claim.Annotations, claim.Status.ProviderID, claim.Status.ImageID = in.Annotations(class), in.ProviderID(), in.ImageID
	if !in.IsUnplaceable() {
		claim.Labels = maps.Clone(claim.Labels)
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		maps.Copy(claim.Labels, in.Labels())
	}
	if !in.Parked {
		claim.Status.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewQuantity(int64(in.Cores), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(in.MemoryMiB)<<20, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(in.DiskBytes, resource.BinarySI),
		}
	}
}

// store does what core does with the result of Create: it patches first the metadata and then the
// status.
func store(ctx context.Context, kube client.Client, claim, created *karpv1.NodeClaim) error {
	if err := kube.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		return err
	}
	before := claim.DeepCopy()
	filled := lifecycle.PopulateNodeClaimDetails(claim.DeepCopy(), created)
	filled.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	status := filled.DeepCopy()
	if err := kube.Patch(ctx, filled, client.MergeFrom(before)); err != nil {
		return err
	}
	status.ResourceVersion = filled.ResourceVersion
	if err := kube.Status().Patch(ctx, status, client.MergeFrom(before)); err != nil {
		return err
	}
	status.DeepCopyInto(claim)
	return nil
}

// Launched returns a claim whose VM was launched.
func (p *Process) Launched(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	p.env.T.Helper()
	claim := p.Planned(name, class, changes...)
	p.MustLaunch(claim, class)
	return Reload(p.env, claim)
}

// Launched returns a claim whose VM runs and is in the Snapshot.
func (w *Env) Launched(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Process.Launched(name, class, changes...)
	w.Eventually(func() bool {
		w.Refresh()
		vms, err := w.Instances.VMs.List()
		w.Expect(err).NotTo(gomega.HaveOccurred())
		return slices.ContainsFunc(vms, func(vm instance.VM) bool { return vm.ClaimUID == string(claim.UID) && vm.Status == "running" })
	}).Should(gomega.BeTrue(), "the VM is in the snapshot")
	return claim
}

// Launch launches the VM of a claim.
func (p *Process) Launch(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	return p.Instances.Launcher.Launch(p.env.T.Context(), claim, class)
}

// MustLaunch launches the VM of a claim and retries transient errors, as the launch controller
// does.
func (p *Process) MustLaunch(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) {
	p.env.T.Helper()
	p.env.Eventually(func() error {
		err := p.Launch(p.env.Stored(claim), class)
		if final, ok := errors.AsType[*instance.LaunchError](err); ok {
			return gomega.StopTrying("the launch failed").Wrap(final)
		}
		return err
	}).Should(gomega.Succeed())
}

// CheckBootData checks the boot data of a class.
func (p *Process) CheckBootData(class *v1alpha1.ProxmoxNodeClass) error {
	return p.Boot.Check(p.env.T.Context(), p.Inventory.View(), class)
}

// Delete calls Delete as core does until the VM is deleted.
func (p *Process) Delete(claim *karpv1.NodeClaim) {
	p.env.T.Helper()
	p.env.Eventually(func(g gomega.Gomega) {
		deleted, err := p.Instances.Deleter.Delete(p.env.T.Context(), claim)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(deleted).To(gomega.BeTrue())
	}).Should(gomega.Succeed())
}

// DeleteAll deletes the VM of a claim, and checks that nothing of ours is left.
func (p *Process) DeleteAll(claim *karpv1.NodeClaim) {
	p.env.T.Helper()
	p.Delete(p.env.Stored(claim))
	p.env.ExpectNoOrphans()
}

// HaveReason matches an *instance.LaunchError or *instance.BlockedError.
func HaveReason(reason string) types.GomegaMatcher {
	return gomega.WithTransform(func(err error) string {
		if failed, ok := errors.AsType[*instance.LaunchError](err); ok {
			return failed.Reason
		}
		if blocked, ok := errors.AsType[*instance.BlockedError](err); ok {
			return blocked.Reason
		}
		return fmt.Sprint(err)
	}, gomega.Equal(reason))
}

// Tokens returns the names of the claims that have a join token.
func (p *Process) Tokens() []string {
	p.env.T.Helper()
	tokens, err := p.Boot.Tokens.ListOwned(p.env.T.Context())
	p.env.Expect(err).NotTo(gomega.HaveOccurred())
	var out []string
	for _, token := range tokens {
		out = append(out, token.Claim.Name)
	}
	return out
}
