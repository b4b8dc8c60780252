// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
)

// CloudProvider returns Karpenter's cloud provider of the Process.
func (w *Env) CloudProvider(changes ...func(*cloudprovider.Deps)) *cloudprovider.CloudProvider {
	deps := cloudprovider.Deps{
		Operations: w.Instances, Kube: w.Kube, Types: w.Types, Recorder: w.Events, Clock: w.Clock, BootDataHash: w.Boot.Hash,
	}
	for _, change := range changes {
		change(&deps)
	}
	return cloudprovider.New(deps)
}

// Created returns a claim as core stores it after Create.
func (w *Env) Created(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim(name, class, changes...)
	created, err := w.CloudProvider().Create(w.T.Context(), claim)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return w.Store(claim, created)
}

// Store stores the result of Create as core does.
func (w *Env) Store(claim, created *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	w.Expect(store(w.T.Context(), w.Kube, claim, created)).To(gomega.Succeed())
	if in, ok := w.Instances.VMs.Intent(claim); ok {
		w.plans.Store(claim.UID, in)
	}
	return claim
}
