// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	templatecontroller "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
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

func waitForCondition(w *testenv.Env, t *v1alpha1.ProxmoxTemplate, kind string, want OmegaMatcher) {
	w.T.Helper()
	w.Eventually(func() string { return condition(testenv.Reload(w, t), kind) }).Should(want)
}

func waitUntilUpToDate(w *testenv.Env, t *v1alpha1.ProxmoxTemplate) {
	w.T.Helper()
	waitForCondition(w, t, v1alpha1.ConditionTemplateUpToDate, HavePrefix("True"))
}

// manageTemplate runs the controllers, and creates a template.
func manageTemplate(w *testenv.Env, changes ...func(*v1alpha1.ProxmoxTemplate)) *v1alpha1.ProxmoxTemplate {
	w.T.Helper()
	manage(w)
	return w.ManagedTemplate(testenv.ServeImages(w.T, 64<<10).URL+"/noble.img", changes...)
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
	w.Expect(w.Volumes("pve1", "local", "import")).To(BeEmpty())
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
	testenv.With(testenv.Hosts(3)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/pve2/qemu", Status: 500, Message: "unable to create VM 1000 - got error: No space left on device"})
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/pve3/storage/*/content", Delay: pvesim.Duration(2 * time.Minute)})
		object := manageTemplate(w)
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
		object := manageTemplate(w)
		waitUntilUpToDate(w, object)
		w.Expect(object.Status.Zones).To(ConsistOf("region-1/pve1/1001"), "VMID 1000 and its name belong to another guest")
		deleteTemplate(w, object)
		w.ExpectNoOrphans()
	})
}

// A template is not Ready while its bridge is on no host. It is built on a host once the
// bridge exists there.
func TestBuildBridges(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		object := manageTemplate(w, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Network[0].Bridge = "vmbr7" })
		const missing = `bridge "vmbr7" of spec.network[0] is not on this host, which has vmbr0; create it (Host, System, Network), or set another one`
		expect := func(ready, upToDate string) {
			w.T.Helper()
			waitForCondition(w, object, v1alpha1.ConditionTemplateReady, HavePrefix(ready))
			waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix(upToDate))
		}
		setBridges := func(host string, bridges ...pvesim.Bridge) {
			w.T.Helper()
			w.Expect(w.Sim.SetBridges(host, append(bridges, pvesim.Bridge{Name: "vmbr0", Ports: "eno1"})...)).To(Succeed())
			w.Inventory.Invalidate(testenv.Region, poll.FactBridges(host))
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

// builderGuests power themselves off if their user-data says so.
func builderGuests() pvesim.GuestRuntime {
	return pvesim.ScriptedGuests{Script: func(m *pvesim.Machine) *pvesim.Script {
		for _, cd := range m.CDROMs() {
			return &pvesim.Script{PowerOff: strings.Contains(string(cd.Image), "mode: poweroff"), After: 2 * time.Second}
		}
		return nil
	}}
}

func withPreparation(w *testenv.Env) func(*v1alpha1.ProxmoxTemplate) {
	return func(t *v1alpha1.ProxmoxTemplate) {
		t.Spec.Prepare = &v1alpha1.Preparation{TemplatesRef: v1alpha1.SecretReference{Name: "prepare", Namespace: w.Name}}
	}
}

// buildSetUserData writes the Secret with the boot data of builder VMs.
func buildSetUserData(w *testenv.Env, text string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "prepare", Namespace: w.Name}, Data: map[string][]byte{"user-data": []byte(text)}}
	if err := w.Kube.Create(w.T.Context(), secret.DeepCopy()); err != nil {
		w.Expect(w.Kube.Update(w.T.Context(), secret)).To(Succeed())
	}
}

func TestPrepare(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.Hosts(3), testenv.Guests(builderGuests()))
		object := manageTemplate(w, withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
			t.Spec.Prepare.RefreshAfter = &metav1.Duration{Duration: 20 * time.Minute}
		})
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate,
			MatchRegexp(`^False NodeTemplateClassResolutionError: pve1, pve2, pve3: reading secret kube-system/prepare of spec\.prepare\.templatesRef: .*not found`))
		buildSetUserData(w, "#cloud-config\nhostname: {{ .Metadata.HostName }}\n")
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate,
			MatchRegexp(`pve1, pve2, pve3: rendering secret kube-system/prepare of spec\.prepare\.templatesRef: .*user-data.*HostName`))
		buildSetUserData(w, "#cloud-config\npower_state: {mode: poweroff}\n# {{ .Metadata.Zone }} {{ .Kubernetes.Version }}\n")
		waitUntilUpToDate(w, object)
		w.Expect(w.Events.Messages(v1alpha1.EventTemplatePreparing)).To(HaveLen(3))
		w.Expect(w.Events.Messages(v1alpha1.EventTemplatePrepared)).To(ConsistOf(
			MatchRegexp(`^builder VM 100\d on host pve1 powered itself off after (\d+m)?\d+s and becomes the template$`),
			ContainSubstring("pve2"), ContainSubstring("pve3")))
		w.Expect(object.Status.Preparation.RefreshedAt).To(BeNil())
		old := object.Status.Zones
		w.Eventually(func() []string {
			zones := testenv.Reload(w, object).Status.Zones
			w.Expect(zones).To(HaveLen(3), "each host can launch at every moment")
			return zones
		}).ShouldNot(ContainElements(old[0]))
		w.Expect(object.Status.Preparation.RefreshedAt).NotTo(BeNil())
		deleteTemplate(w, object)
	})
}

// A builder VM that boots with the recipe for kubeadm installs it and powers itself off.
func TestPrepareRecipe(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		guests := guest.NewRuntime(guest.Options{InstallTime: time.Second})
		w := testenv.New(t, testenv.Guests(guests))
		raw, err := examples.Files.ReadFile("kubeadm/prepare.yaml")
		w.Expect(err).NotTo(HaveOccurred())
		secret := &corev1.Secret{}
		w.Expect(yaml.UnmarshalStrict(raw, secret)).To(Succeed())
		secret.Name, secret.Namespace, secret.Data = "prepare", w.Name, map[string][]byte{}
		for key, value := range secret.StringData {
			secret.Data[key] = []byte(value)
		}
		w.Create(secret)
		object := manageTemplate(w, withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
			t.Spec.Prepare.ValuesRef = &t.Spec.Prepare.TemplatesRef
		})
		waitUntilUpToDate(w, object)
		w.Expect(guests.Console(1000)).To(ContainSubstring("powered off by its boot data"))
		w.Expect(w.Events.Messages(v1alpha1.EventTemplatePrepared)).To(HaveLen(1))
	})
}

// A deletion that waits is reported by an event, and is completed when it can be.
func TestDeleteTemplate(t *testing.T) {
	t.Parallel()
	inUse := func(w *testenv.Env, object *v1alpha1.ProxmoxTemplate) (end func() error) {
		claim := w.Claim("node", w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
		}))
		return func() error {
			w.Expect(w.Volumes("pve1", "local", "import")).To(HaveLen(1), "it is still needed")
			return w.Kube.Delete(w.T.Context(), claim)
		}
	}
	for name, test := range map[string]struct {
		begin        func(*testenv.Env, *v1alpha1.ProxmoxTemplate) (end func() error)
		reason, want string
	}{
		"in_use": {inUse, "WaitingOnNodeClaimTermination", `^template is in use by NodeClaims \(1\), for example node; it is deleted when they are gone$`},
		// An offline host may still have a template.
		"offline_host": {func(w *testenv.Env, _ *v1alpha1.ProxmoxTemplate) func() error {
			w.Expect(w.Sim.HostDown("pve2", "refused")).To(Succeed())
			return func() error { return w.Sim.HostUp("pve2") }
		}, v1alpha1.EventWaitingOnTemplateDeletion, `^waiting for templates to be deleted: pve2: template 100\d is on an offline host$`},
		"failing_storage": {
			func(w *testenv.Env, _ *v1alpha1.ProxmoxTemplate) func() error {
				w.AddFault(pvesim.Fault{Task: "imgdel", TaskID: "local", Fail: "unlink: Input/output error"})
				return func() error { w.Sim.ClearFaults(); return nil }
			}, v1alpha1.EventWaitingOnTemplateDeletion,
			`^deleting templates and images failed and is retried: pve1: deleting image local:import/noble-\S*: unlink: Input/output error`,
		},
	} {
		testenv.With(testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			object := manageTemplate(w)
			waitUntilUpToDate(w, object)
			end := test.begin(w, object)
			w.Expect(w.Kube.Delete(w.Context(), object)).To(Succeed())
			w.Eventually(func() []string { return w.Events.Messages(test.reason) }).Should(ContainElement(MatchRegexp(test.want)))
			w.Expect(w.IsDeleted(object)).To(BeFalse())
			w.Expect(end()).To(Succeed())
			w.Eventually(w.IsDeleted).WithArguments(object).Should(BeTrue())
			w.Expect(w.Volumes("pve1", "local", "import")).To(BeEmpty())
		})
	}
}
