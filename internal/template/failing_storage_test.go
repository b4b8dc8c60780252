// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A storage that fails does not stop the deletion on the others, and the error names each host
// and storage that failed.
func TestDeleteStoragesFailing(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, sharedStorage("nfs", "import"))
	p, _ := e.processWithGracePeriod()
	p.reconcileUntilComplete()
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local-lvm"} })
	p.reconcileUntilComplete()
	_, images, _ := e.createdObjects()
	e.Expect(images).To(ConsistOf(HavePrefix("pve1/local:import/"), HavePrefix("pve2/local:import/"), HavePrefix("shared/shared:import/")))

	testenv.AddFault(t, e.sim, pvesim.Fault{Task: "imgdel", TaskID: "local", Fail: "unlink: Input/output error"})
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	p.reconcileUntil(func(g Gomega) {
		_, err := p.Cleanup(t.Context(), e.desired(), e.usage)
		g.Expect(err).To(MatchError(MatchRegexp(
			"^pve1: deleting image local:import/noble-[^;]*: unlink: Input/output error; pve2: deleting image local:import/noble-[^;]*: unlink: Input/output error$")))
	})
	guests, images, _ := e.createdObjects()
	e.Expect(guests).To(BeEmpty())
	e.Expect(images).To(ConsistOf(HavePrefix("pve1/local:import/"), HavePrefix("pve2/local:import/")))
	e.sim.ClearFaults()
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// A template that cannot be destroyed does not stop the deletion of the others on its host.
func TestDeleteTemplatesFailing(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	failing := p.reconcileUntilComplete().Zones[0].VMID
	e.inUse[failing] = "3 nodes are linked clones of it"
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/plucky.img" })
	p.reconcileUntilComplete()
	delete(e.inUse, failing)
	testenv.AddFault(t, e.sim, pvesim.Fault{Task: "qmdestroy", TaskID: strconv.Itoa(failing), Fail: "lvremove: Input/output error"})
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	p.reconcileUntil(func(g Gomega) {
		remaining, err := p.Cleanup(t.Context(), e.desired(), e.usage)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remaining).To(ConsistOf(fmt.Sprintf("pve1: deleting template %d on host pve1: lvremove: Input/output error", failing)))
	})
	guests, images, _ := e.createdObjects()
	e.Expect(guests).To(HaveLen(1))
	e.Expect(images).To(BeEmpty())
	e.sim.ClearFaults()
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}
