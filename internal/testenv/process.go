// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"time"

	"github.com/google/uuid"
	"github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Process is one process of the controller with its own state.
type Process struct {
	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	Boot      boot.Source
	Instances *operations.Operations
	env       *Env
}

// StartProcess starts a process of the controller with new state.
func (w *Env) StartProcess(options ...Option) *Process {
	w.T.Helper()
	s := w.setup
	for _, option := range options {
		option(&s)
	}
	if s.kube == nil {
		s.kube = w.Kube
	}
	if s.clock == nil {
		s.clock = w.Clock
	}
	if s.kubeCluster == "" {
		s.kubeCluster = w.KubeCluster
	}
	clients := make([]proxmox.Client, 0, len(w.Clients))
	for _, c := range w.Clients {
		clients = append(clients, c)
	}
	inv, err := inventory.New(clients, inventory.Options{
		Clock: unscaledClock{of: w.Clock}, PollInterval: 100 * time.Millisecond, DetailRange: inventory.VMIDRange{From: 20000, To: 99999}, Settings: s.hostSettings,
	})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	if !s.noPolling {
		w.run(inv.Start)
	}
	if !s.neverPolled {
		w.Expect(inv.RefreshAll(w.T.Context())).To(gomega.Succeed())
	}
	roots := w.roots(s)
	types, err := instancetype.New(instancetype.Deps{Inventory: inv, Pricing: instancetype.Pricing{PerVCPU: 0.025, PerGB: 0.001, PerNode: 0.005, PerDevice: 1}, Clock: w.Clock, CPULayouts: instancetype.CPULayouts{Roots: regions(roots)}})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	settings := instance.Settings{
		VMIDs: placement.Range{From: 20000, To: 99999}, CloneSlots: 4,
		TaskTimeout: 20 * time.Second, LaunchRetryTimeout: time.Minute, StaticCapacityTimeout: 5 * time.Minute,
		OperationTimeout: 15 * time.Second, HostRemovedAfter: 10 * time.Minute, CloneSlowAfter: 5 * time.Minute, CloneRefuseAfter: 10 * time.Minute,
	}
	for _, change := range s.settings {
		change(&settings)
	}
	source := boot.Source{Reader: w.Kube, Namespace: w.Name, Version: "v1.36.3", Tokens: &bootdata.Tokens{Client: w.Kube}}
	return &Process{env: w, Inventory: inv, Types: types, Boot: source, Instances: operations.New(instance.Deps{
		Clients: w.Clients, Roots: roots, Inventory: inv, Kube: s.kube, Clock: s.clock, KubeCluster: s.kubeCluster, Settings: settings,
	}, types, source, s.metrics)}
}

// Neighbor starts a process of another Kubernetes cluster on the same Proxmox.
func (w *Env) Neighbor() *Process {
	w.T.Helper()
	return w.StartProcess(KubeCluster(uuid.NewString()))
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

// Planned returns a claim that was planned: it has an intent and a providerID.
func (p *Process) Planned(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	p.env.T.Helper()
	claim := p.env.Claim(name, class, changes...)
	in, err := p.Instances.Planner.Plan(p.env.T.Context(), claim, class, nil)
	p.env.Expect(err).NotTo(gomega.HaveOccurred())
	return p.env.setPlanned(claim, in)
}

// Parked returns a claim that waits for capacity and has a providerID.
func (p *Process) Parked(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	p.env.T.Helper()
	in, err := p.Instances.Planner.Park(p.env.T.Context(), claim, class, nil)
	p.env.Expect(err).NotTo(gomega.HaveOccurred())
	return p.env.setPlanned(claim, in)
}

// setPlanned does what core does with the result of Create.
func (w *Env) setPlanned(claim *karpv1.NodeClaim, in instance.Intent) *karpv1.NodeClaim {
	w.T.Helper()
	Reload(w, claim)
	claim.Status.ProviderID, claim.Status.ImageID = in.ProviderID(), in.ImageID
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(gomega.Succeed())
	return claim
}

// Launched returns a claim whose VM was launched.
func (p *Process) Launched(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	p.env.T.Helper()
	claim := p.Planned(name, class, changes...)
	p.env.Expect(p.Instances.Launcher.Launch(p.env.T.Context(), claim, class)).To(gomega.Succeed())
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
		for _, vm := range vms {
			if vm.ClaimUID == string(claim.UID) && vm.Status == "running" {
				return true
			}
		}
		return false
	}).WithTimeout(10*time.Second).Should(gomega.BeTrue(), "the VM is in the snapshot")
	return claim
}

// Launch launches the VM of a claim.
func (p *Process) Launch(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	return p.Instances.Launcher.Launch(p.env.T.Context(), claim, class)
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
	}).WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}
