// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
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

// The error of one storage is reported also while the deletion of an image on another one is in
// progress.
func TestDeleteStorageFailingWhileOtherInProgress(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, sharedStorage("nfs", "import"))
	p := e.process()
	p.reconcileUntilComplete()
	// The image remains when the template is deleted.
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "GET", Path: imagesPath, Status: 500, Message: "storage 'local' is not online"})
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	p.reconcileUntil(func(g Gomega) { g.Expect(p.Remaining(e.desired())).To(BeEmpty()) })
	e.sim.ClearFaults()
	_, images, _ := e.createdObjects()
	e.Expect(images).To(HaveLen(1))

	// No task ends, so this process need not wait for long.
	p.Provider = template.NewProvider(template.Deps{
		Clients: map[string]proxmox.Client{region: e.client()}, Inventory: p.Inventory(), Clock: e.builders.clock, KubeCluster: kubeCluster, Recorder: p.events,
		Settings: template.Settings{VMIDs: placement.Range{From: 1000, To: 19999}, Builds: 16, TaskTimeout: time.Second, HostRemovedAfter: time.Hour},
	})
	testenv.AddFault(t, e.sim, pvesim.Fault{Task: "imgdel", TaskID: "local", Hang: true})
	e.Expect(p.Cleanup(t.Context(), e.desired(), e.usage)).To(ConsistOf("pve1: the deletion of images is still in progress"))
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "GET", Path: "/nodes/pve1/storage/shared/content", Status: 500, Message: "storage 'shared' is not online"})
	_, err := p.Cleanup(t.Context(), e.desired(), e.usage)
	e.Expect(err).To(MatchError("pve1: listing the images on storage shared: storage 'shared' is not online"))
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
