// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"fmt"
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

// manage runs all controllers of ProxmoxTemplates, and returns their cached client.
func manage(w *testenv.Env) (cached client.Client) {
	w.T.Helper()
	templates := w.Templates()
	w.StartManager(
		func(kube client.Client) testenv.Registrar {
			cached = kube
			return build.NewController(kube, templates)
		},
		func(kube client.Client) testenv.Registrar {
			return status.NewController(kube, templates, w.Boot.CheckPreparation)
		},
		func(kube client.Client) testenv.Registrar { return hash.NewManaged(kube) },
		func(kube client.Client) testenv.Registrar { return termination.NewManaged(kube, templates, w.Events) },
	)
	return cached
}

// condition returns a condition of a template as "Status reason: message".
func condition(w *testenv.Env, t *v1alpha1.ProxmoxTemplate, kind string) string {
	w.T.Helper()
	c := testenv.Reload(w, t).StatusConditions().Get(kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

const timeout = 2 * time.Minute

func waitUntilUpToDate(w *testenv.Env, t *v1alpha1.ProxmoxTemplate) {
	w.T.Helper()
	w.Eventually(func() string { return condition(w, t, v1alpha1.ConditionTemplateUpToDate) }).
		WithTimeout(timeout).WithPolling(20 * time.Millisecond).Should(HavePrefix("True"))
}

// No host waits for another one: all downloads are requested before the first one ends.
func TestBuildOnTenHostsConcurrently(t *testing.T) {
	t.Parallel()
	const hosts, image = 10, 64 << 10
	w := testenv.New(t, testenv.Hosts(hosts))
	images := testenv.ServeImages(t, image)
	release := images.Hold("/noble.img")
	t.Cleanup(release)
	manage(w)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	w.Eventually(func() int { return w.Sim.CountRequests("POST", "/nodes/*/storage/*/download-url") }).WithTimeout(timeout).Should(Equal(hosts))
	release()
	waitUntilUpToDate(w, object)
	w.Expect(object.Status.Zones).To(HaveLen(hosts))
	w.Expect(images.Fetched("/noble.img")).To(Equal(hosts*image), "once per host, because the storage is local")
}

func TestDownloadProgressCondition(t *testing.T) {
	t.Parallel()
	const image = 160 << 20
	// The download takes 12 seconds of real time, in which the condition must be read once.
	w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = image / 600 }))
	images := testenv.ServeImages(t, image)
	manage(w)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateReady) }).
		WithTimeout(timeout).WithPolling(10 * time.Millisecond).Should(MatchRegexp(`^False Building: pve1: downloading [1-9]\d %$`))
	waitUntilUpToDate(w, object)
	w.Expect(object.Status.ImageID).To(MatchRegexp(`^noble-[0-9a-f]{24}\.qcow2$`))
}

func TestBuildFailureOnOneHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3))
	images := testenv.ServeImages(t, 64<<10)
	_, err := w.Sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/pve2/qemu", Status: 500, Message: "unable to create VM 1000 - got error: No space left on device"})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = w.Sim.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/pve3/storage/*/content", Delay: pvesim.Duration(30 * time.Minute)})
	w.Expect(err).NotTo(HaveOccurred())
	manage(w)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	w.Eventually(func() []string { return testenv.Reload(w, object).Status.Zones }).
		WithTimeout(timeout).Should(ConsistOf(MatchRegexp(`^region-1/pve1/1\d{3}$`)))
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateReady) }).WithTimeout(timeout).
		Should(And(HavePrefix("True"), ContainSubstring("pve2: creating VM"), ContainSubstring("storage local is full"), ContainSubstring("pve3: ")))

	w.Sim.ClearFaults()
	w.Clock.Advance(10 * time.Minute)
	testenv.Modify(w, object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Description = "retry" })
	waitUntilUpToDate(w, object)
	w.Expect(object.Status.Zones).To(HaveLen(3))
}

func TestBuildKeepsUnmanagedGuests(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) {
		unmanaged := s.Guests[0]
		unmanaged.VMID, unmanaged.Name = 1000, ""
		s.Guests = append(s.Guests, unmanaged)
	}))
	c := w.Client
	before, err := c.VMConfig(t.Context(), "pve1", 1000)
	w.Expect(err).NotTo(HaveOccurred())
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	object := w.ManagedTemplate(images.URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) {
		w.Expect(c.UpdateVM(t.Context(), "pve1", 1000, configName(o.Name))).To(Succeed())
	})
	before.Options["name"] = object.Name
	waitUntilUpToDate(w, object)
	w.Expect(object.Status.Zones).To(ConsistOf("region-1/pve1/1001"), "VMID 1000 and its name belong to another guest")
	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(object) }).WithTimeout(timeout).Should(BeTrue())
	after, err := c.VMConfig(t.Context(), "pve1", 1000)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(after.Options).To(Equal(before.Options))
}

func TestRebuildAfterManualDeletion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	waitUntilUpToDate(w, object)
	image := object.Status.ImageID
	id, err := w.Sim.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(10 * time.Minute)})
	w.Expect(err).NotTo(HaveOccurred())
	w.DestroyByHand("pve1", 1000)
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateReady) }).WithTimeout(timeout).WithPolling(10 * time.Millisecond).
		Should(Equal("False Building: pve1: template 1000 no longer exists and is recreated: importing the image to storage local"))
	w.Sim.RemoveFault(id)
	waitUntilUpToDate(w, object)
	w.Expect(object.Status.Zones).To(HaveLen(1))
	w.Expect(object.Status.ImageID).To(Equal(image))
	w.Expect(images.Fetched("/noble.img")).To(Equal(64 << 10))
}

func TestDeleteTemplateInUse(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	images := testenv.ServeImages(t, 64<<10)
	cached := manage(w)
	object := w.ManagedTemplate(images.URL + "/noble.img")
	waitUntilUpToDate(w, object)
	class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
	})
	class.Status.SelectedZones = object.Status.Zones
	w.MarkReady(class)
	claim := w.Launched("node", class)
	w.Expect(w.Intent(claim).TemplateID).To(Equal(1000))
	w.Eventually(func(g Gomega) {
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(class), &v1alpha1.ProxmoxNodeClass{})).To(Succeed())
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(Succeed())
	}).Should(Succeed(), "the cache is current before the template is deleted")

	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() []string { return w.Events.Messages("WaitingOnNodeClaimTermination") }).WithTimeout(timeout).
		Should(ContainElement(ContainSubstring("template is in use by NodeClaims (1), for example " + claim.Name)))
	w.Expect(w.IsDeleted(object)).To(BeFalse())
	_, err := w.Client.VMConfig(t.Context(), "pve1", 1000)
	w.Expect(err).NotTo(HaveOccurred())

	w.Eventually(func() bool {
		gone, err := w.Instances.Deleter.Delete(t.Context(), claim)
		return gone && err == nil
	}).WithTimeout(timeout).Should(BeTrue())
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(object) }).WithTimeout(timeout).Should(BeTrue())
	volumes, err := w.Client.Volumes(t.Context(), "pve1", "local", "import")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(volumes).To(BeEmpty())
}

// A template that was created while another one was built keeps its image.
func TestBuildTwoTemplates(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	images := testenv.ServeImages(t, 64<<10)
	release := images.Hold("/first.img")
	t.Cleanup(release)
	manage(w)
	first := w.ManagedTemplate(images.URL + "/first.img")
	w.Eventually(func() string { return condition(w, first, v1alpha1.ConditionTemplateReady) }).
		WithTimeout(timeout).Should(ContainSubstring("downloading"))
	second := w.ManagedTemplate(images.URL+"/second.img", func(o *v1alpha1.ProxmoxTemplate) { o.Name += "-second" })
	waitUntilUpToDate(w, second)
	release()
	waitUntilUpToDate(w, first)
	// All runs for the first template end before it is deleted.
	w.Expect(w.Kube.Delete(t.Context(), first)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(first) }).WithTimeout(timeout).Should(BeTrue())
	volumes, err := w.Client.Volumes(t.Context(), "pve1", "local", "import")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(volumes).To(ConsistOf(HaveField("ID", HaveSuffix(testenv.Reload(w, second).Status.ImageID))))
}

func TestHashAnnotations(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	manage(w)
	object := w.ManagedTemplate("https://images.example.com/noble.qcow2")
	w.Eventually(func() map[string]string { return testenv.Reload(w, object).Annotations }).Should(And(
		HaveKeyWithValue(v1alpha1.AnnotationTemplateHash, object.Hash()),
		HaveKeyWithValue(v1alpha1.AnnotationTemplateHashVersion, v1alpha1.HashVersion),
		HaveKeyWithValue(v1alpha1.AnnotationTemplateInPlaceUpdateHash, object.InPlaceHash()),
	))
}
