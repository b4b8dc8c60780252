// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package termination_test

import (
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/hash"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/termination"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestDeleteUnmanagedTemplateInUse(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	var cached client.Client
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return hash.NewUnmanaged(kube) },
		func(kube client.Client) testenv.Registrar {
			cached = kube
			return termination.NewUnmanaged(kube, w.Events)
		},
	)
	template := w.Template()
	w.Eventually(func() []string { return testenv.Reload(w, template).Finalizers }).Should(ConsistOf(v1alpha1.TerminationFinalizer))
	w.Eventually(func() map[string]string { return testenv.Reload(w, template).Annotations }).Should(HaveKeyWithValue(v1alpha1.AnnotationTemplateHash, template.Hash()))
	claim := w.Claim("node", w.Class())
	w.Eventually(func(g Gomega) {
		found := &v1alpha1.ProxmoxUnmanagedTemplate{}
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(template), found)).To(Succeed())
		g.Expect(found.ResourceVersion).To(Equal(testenv.Reload(w, template).ResourceVersion))
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(Succeed())
	}).Should(Succeed(), "the cache is current before the template is deleted")

	w.Expect(w.Kube.Delete(t.Context(), template)).To(Succeed())
	w.Eventually(func() []string { return w.Events.Messages("WaitingOnNodeClaimTermination") }).
		Should(ContainElement("template is in use by NodeClaims (1), for example " + claim.Name + "; it is deleted when they are gone"))
	for n := range 10 {
		w.Annotate(claim, map[string]string{"example.com/changed": strconv.Itoa(n)})
	}
	w.Consistently(func() bool { return w.IsDeleted(template) }).WithTimeout(300 * time.Millisecond).Should(BeFalse())
	w.Expect(len(w.Events.Messages("WaitingOnNodeClaimTermination"))).To(BeNumerically("<", 5), "a changed claim causes no reconcile")
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(template) }).Should(BeTrue())
}

// builtTemplate starts the controllers and returns a ProxmoxTemplate that they have built on all Hosts.
func builtTemplate(w *testenv.Env, hosts int) *v1alpha1.ProxmoxTemplate {
	w.T.Helper()
	images := testenv.ServeImages(w.T, 64<<10)
	templates := w.Templates()
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return build.NewController(kube, templates) },
		func(kube client.Client) testenv.Registrar {
			return status.NewController(kube, templates, w.Boot.CheckPreparation)
		},
		func(kube client.Client) testenv.Registrar { return termination.NewManaged(kube, templates, w.Events) },
	)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	w.Eventually(func() []string { return testenv.Reload(w, object).Status.Zones }).Should(HaveLen(hosts))
	return object
}

// An offline host may still have a template: the object waits and reports it.
func TestDeleteTemplateOnOfflineHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	object := builtTemplate(w, 2)
	w.Expect(w.Sim.HostDown("pve2", "refused")).To(Succeed())
	w.Eventually(func() bool {
		return w.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].Online
	}).Should(BeFalse())
	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() []string { return w.Events.Messages("WaitingOnTemplateDeletion") }).
		Should(ContainElement(MatchRegexp(`^waiting for templates to be deleted: pve2: template 100\d is on an offline host$`)))
	w.Expect(w.IsDeleted(object)).To(BeFalse())
	w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(object) }).Should(BeTrue())
}

// An event names the host, the storage and the error that blocks the deletion, which is retried.
func TestDeleteTemplateWithFailingStorage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	object := builtTemplate(w, 1)
	w.AddFault(pvesim.Fault{Task: "imgdel", TaskID: "local", Fail: "unlink: Input/output error"})
	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() []string { return w.Events.Messages(v1alpha1.EventWaitingOnTemplateDeletion) }).
		Should(ContainElement(MatchRegexp(`^deleting templates and images failed and is retried: pve1: deleting image local:import/noble-\S*: unlink: Input/output error$`)))
	w.Expect(w.IsDeleted(object)).To(BeFalse())
	w.Sim.ClearFaults()
	w.Eventually(func() bool { return w.IsDeleted(object) }).Should(BeTrue())
}
