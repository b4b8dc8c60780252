// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	templatecontroller "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// reconcileInterval is how often manage runs the controllers.
const reconcileInterval = 5 * time.Second

// manage runs all controllers of ProxmoxTemplates until the test ends. It returns their provider.
func manage(w *testenv.Env) *template.Provider {
	w.T.Helper()
	templates := w.Templates()
	lifecycle := templatecontroller.NewController(w.Kube, templates, w.Events, w.Boot.CheckPreparation)
	testenv.Go(w.T, func(ctx context.Context) error {
		builds := &builds{Controller: build.NewController(w.Kube, templates)}
		defer builds.Wait()
		for ; ctx.Err() == nil; time.Sleep(reconcileInterval) {
			observed, _ := build.Observe(ctx, w.Kube)
			for _, desired := range observed.Desired {
				current := &v1alpha1.ProxmoxTemplate{}
				if w.Kube.Get(ctx, types.NamespacedName{Name: desired.Name}, current) == nil {
					_, _ = lifecycle.Reconcile(ctx, current) // retried
				}
				for _, key := range templates.PendingHosts(desired) {
					builds.start(ctx, build.Request{Template: desired.Name, Region: key.Region, Host: key.Host})
				}
			}
		}
		return nil
	})
	return templates
}

// builds are the builds in progress, one per host.
type builds struct {
	*build.Controller
	sync.WaitGroup
	running sync.Map
}

func (b *builds) start(ctx context.Context, request build.Request) {
	if _, running := b.running.LoadOrStore(request, true); running {
		return
	}
	b.Go(func() {
		defer b.running.Delete(request)
		_, _ = b.Reconcile(ctx, request) // retried
	})
}

// buildCondition returns a condition of a template as "Status reason: message".
func buildCondition(w *testenv.Env, t *v1alpha1.ProxmoxTemplate, kind string) string {
	w.T.Helper()
	c := testenv.Reload(w, t).StatusConditions().Get(kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func waitForCondition(w *testenv.Env, t *v1alpha1.ProxmoxTemplate, kind string, want OmegaMatcher) {
	w.T.Helper()
	w.Eventually(func() string { return buildCondition(w, t, kind) }).Should(want)
}

func waitUntilUpToDate(w *testenv.Env, t *v1alpha1.ProxmoxTemplate) {
	w.T.Helper()
	waitForCondition(w, t, v1alpha1.ConditionTemplateUpToDate, HavePrefix("True"))
}

// images returns the images on pve1.
func images(w *testenv.Env) (out []string) {
	w.T.Helper()
	volumes, err := w.Client.Volumes(w.T.Context(), "pve1", "local", "import")
	w.Expect(err).NotTo(HaveOccurred())
	for _, volume := range volumes {
		out = append(out, strings.TrimPrefix(volume.ID, "local:import/"))
	}
	return out
}

// deleteTemplate deletes an object and waits until it is gone.
func deleteTemplate(w *testenv.Env, t *v1alpha1.ProxmoxTemplate) {
	w.T.Helper()
	w.Expect(w.Kube.Delete(w.T.Context(), t)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(t) }).Should(BeTrue())
}

// The manager's watches and requeues suffice.
func TestBuildUnderManager(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	templates := w.Templates()
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return build.NewController(kube, templates) },
		func(kube client.Client) testenv.Registrar {
			return templatecontroller.NewController(kube, templates, w.Events, w.Boot.CheckPreparation)
		},
	)
	object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL + "/noble.img")
	waitUntilUpToDate(w, object)
	first := object.Status.ImageID
	testenv.Modify(w, object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL += "?other" })
	w.Eventually(func() string { return testenv.Reload(w, object).Status.ImageID }).ShouldNot(Equal(first))
	waitUntilUpToDate(w, object)
	deleteTemplate(w, object)
	w.Expect(images(w)).To(BeEmpty())
}

// No host waits for another one: all downloads are requested before the first one ends.
func TestBuildConcurrently(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const hosts, image = 10, 64 << 10
		w := testenv.New(t, testenv.Hosts(hosts))
		images := testenv.ServeImages(t, image)
		release := images.Hold("/noble.img")
		t.Cleanup(release)
		manage(w)
		object := w.ManagedTemplate(images.URL + "/noble.img")
		w.Eventually(func() int { return w.Sim.CountRequests("POST", "/nodes/*/storage/*/download-url") }).Should(Equal(hosts))
		release()
		waitUntilUpToDate(w, object)
		w.Expect(object.Status.Zones).To(HaveLen(hosts))
		w.Expect(images.Fetched("/noble.img")).To(Equal(hosts*image), "once per host, because the storage is local")
	})
}

func TestBuildProgressCondition(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const image = 64 << 20
		w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].DownloadRate = image / 600 }))
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, image).URL + "/noble.img")
		waitForCondition(w, object, v1alpha1.ConditionTemplateReady, Equal("False Building: pve1: downloading 50 %"))
		waitUntilUpToDate(w, object)
		w.Expect(object.Status.ImageID).To(MatchRegexp(`^noble-[0-9a-f]{24}\.qcow2$`))

		w.AddFault(pvesim.Fault{Task: "qmcreate", Delay: pvesim.Duration(time.Minute)})
		w.DestroyByHand("pve1", 1000)
		waitForCondition(w, object, v1alpha1.ConditionTemplateReady,
			Equal("False Building: pve1: template 1000 no longer exists and is recreated: importing the image to storage local"))
		waitUntilUpToDate(w, object)
	})
}

func TestBuildFailureOnOneHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Hosts(3))
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/pve2/qemu", Status: 500, Message: "unable to create VM 1000 - got error: No space left on device"})
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/pve3/storage/*/content", Delay: pvesim.Duration(2 * time.Minute)})
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL + "/noble.img")
		waitForCondition(w, object, v1alpha1.ConditionTemplateReady,
			And(HavePrefix("True"), ContainSubstring("pve2: creating VM"), ContainSubstring("storage local is full"), ContainSubstring("pve3: ")))
		w.Expect(object.Status.Zones).To(ConsistOf(MatchRegexp(`^region-1/pve1/1\d{3}$`)))

		w.Sim.ClearFaults()
		waitUntilUpToDate(w, object)
		w.Expect(object.Status.Zones).To(HaveLen(3))
	})
}

func TestBuildKeepsUnmanagedGuests(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Scenario(func(s *pvesim.Scenario) {
			unmanaged := s.Guests[0]
			unmanaged.VMID, unmanaged.Name = 1000, "managed"
			s.Guests = append(s.Guests, unmanaged)
		}))
		w.ResetForeignGuests()
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL + "/noble.img")
		waitUntilUpToDate(w, object)
		w.Expect(object.Status.Zones).To(ConsistOf("region-1/pve1/1001"), "VMID 1000 and its name belong to another guest")
		deleteTemplate(w, object)
		w.ExpectNoOrphans()
	})
}

// A template that was created while another one was built keeps its image.
func TestBuildTwoTemplates(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t)
		server := testenv.ServeImages(t, 64<<10)
		release := server.Hold("/first.img")
		t.Cleanup(release)
		manage(w)
		first := w.ManagedTemplate(server.URL + "/first.img")
		waitForCondition(w, first, v1alpha1.ConditionTemplateReady, ContainSubstring("downloading"))
		second := w.ManagedTemplate(server.URL+"/second.img", func(o *v1alpha1.ProxmoxTemplate) { o.Name += "-second" })
		waitUntilUpToDate(w, second)
		release()
		waitUntilUpToDate(w, first)
		deleteTemplate(w, first) // after all runs for the first template
		w.Expect(images(w)).To(ConsistOf(testenv.Reload(w, second).Status.ImageID))
	})
}

// A template is not Ready while its bridge is on no host. It is built on a host once the
// bridge exists there.
func TestBuildBridges(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Hosts(2))
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Network[0].Bridge = "vmbr7" })
		const missing = `bridge "vmbr7" of spec.network[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`
		expect := func(ready, upToDate string) {
			t.Helper()
			waitForCondition(w, object, v1alpha1.ConditionTemplateReady, HavePrefix(ready))
			waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix(upToDate))
		}
		setBridges := func(host string, bridges ...pvesim.Bridge) {
			t.Helper()
			w.Expect(w.Sim.SetBridges(host, append(bridges, pvesim.Bridge{Name: "vmbr0", Ports: "eno1"})...)).To(Succeed())
			w.Inventory.Invalidate(testenv.Region, inventory.FactBridges(host))
		}
		const onNoHost = "False NodeTemplateClassResolutionError: pve1, pve2: " + missing
		expect(onNoHost, onNoHost)
		w.Expect(w.Sim.CountRequests("POST", "/nodes/*/storage/*/download-url")).To(BeZero())
		setBridges("pve1", pvesim.Bridge{Name: "vmbr7"})
		expect("True ProxmoxVirtualMachineTemplateReady: pve2: "+missing, "False NodeTemplateClassResolutionError: pve2: "+missing)
		setBridges("pve2", pvesim.Bridge{Name: "vmbr7"})
		expect("True", "True")
		setBridges("pve1")
		setBridges("pve2")
		expect(onNoHost, onNoHost)
		w.Expect(testenv.Reload(w, object).Status.Zones).To(HaveLen(2), "the templates still exist")
	})
}
