// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
)

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

// advance advances the clock and causes a reconcile: requeues wait in real time.
func advance(w *testenv.Env, object *v1alpha1.ProxmoxTemplate, d time.Duration) {
	w.T.Helper()
	w.Clock.Advance(d)
	w.Annotate(object, map[string]string{"example.com/time": w.Clock.Now().String()})
}

// setUserData writes the Secret with the boot data of builder VMs.
func setUserData(w *testenv.Env, text string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "prepare", Namespace: w.Name}, Data: map[string][]byte{"user-data": []byte(text)}}
	if err := w.Kube.Create(w.T.Context(), secret.DeepCopy()); err != nil {
		w.Expect(w.Kube.Update(w.T.Context(), secret)).To(Succeed())
	}
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.Guests(builderGuests()))
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	object := w.ManagedTemplate(images.URL+"/noble.img", withPreparation(w))
	expect := func(want OmegaMatcher) {
		t.Helper()
		w.Eventually(func() string {
			advance(w, object, time.Second)
			return condition(w, object, v1alpha1.ConditionTemplateUpToDate)
		}).WithTimeout(timeout).WithPolling(100 * time.Millisecond).Should(want)
	}
	expect(MatchRegexp(`^False NodeTemplateClassResolutionError: pve1, pve2, pve3: reading secret %s/prepare of spec\.prepare\.templatesRef: .*not found`, w.Name))
	setUserData(w, "#cloud-config\nhostname: {{ .Metadata.HostName }}\n")
	expect(MatchRegexp(`pve1, pve2, pve3: rendering secret %s/prepare of spec\.prepare\.templatesRef: .*user-data.*HostName`, w.Name))
	setUserData(w, "#cloud-config\npower_state: {mode: poweroff}\n# {{ .Metadata.Zone }} {{ .Kubernetes.Version }}\n")
	expect(HavePrefix("True"))
	w.Expect(w.Events.Messages(v1alpha1.EventTemplatePreparing)).To(HaveLen(3))
	w.Expect(w.Events.Messages(v1alpha1.EventTemplatePrepared)).To(ConsistOf(
		MatchRegexp(`^builder VM 100\d on host pve1 powered itself off after (\d+m)?\d+s and becomes the template$`), ContainSubstring("pve2"), ContainSubstring("pve3")))
	old := testenv.Reload(w, object).Status.Zones
	w.Expect(old).To(HaveLen(3))

	setUserData(w, "#cloud-config\npower_state: {mode: poweroff}\n# another\n")
	w.Eventually(func() []string {
		advance(w, object, time.Second)
		zones := testenv.Reload(w, object).Status.Zones
		w.Expect(zones).To(HaveLen(3), "each host can launch at every moment")
		return zones
	}).WithTimeout(timeout).WithPolling(100 * time.Millisecond).ShouldNot(ContainElements(old[0]))
	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() bool {
		w.Clock.Advance(10 * time.Second)
		return w.IsDeleted(object)
	}).WithTimeout(timeout).Should(BeTrue())
}

// A builder VM that does not power itself off is reported with its host and VMID.
func TestPrepareTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Guests(builderGuests()))
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	setUserData(w, "#cloud-config\n")
	object := w.ManagedTemplate(images.URL+"/noble.img", withPreparation(w))
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateReady) }).WithTimeout(timeout).
		Should(MatchRegexp(`^False Building: pve1: preparing: builder VM 1000 runs since [^ ]*Z, for at most 30m0s$`))
	w.Clock.Advance(31 * time.Minute)
	w.Eventually(func() []string { return w.Events.Messages(v1alpha1.EventTemplatePreparationFailed) }).WithTimeout(timeout).
		Should(ConsistOf(HavePrefix("pve1: preparing the template failed: builder VM 1000: it did not power itself off within spec.prepare.timeout 30m0s; ")))
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateReady) }).WithTimeout(timeout).
		Should(HavePrefix("False NodeTemplateClassResolutionError: pve1: preparing the template failed: builder VM 1000: "))
	w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(object) }).WithTimeout(timeout).Should(BeTrue())
}

func TestPrepareRefresh(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Guests(builderGuests()))
	images := testenv.ServeImages(t, 64<<10)
	manage(w)
	setUserData(w, "#cloud-config\npower_state: {mode: poweroff}\n")
	object := w.ManagedTemplate(images.URL+"/noble.img", withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
		t.Spec.Prepare.RefreshAfter = &metav1.Duration{Duration: 24 * time.Hour}
	})
	waitUntilUpToDate(w, object)
	old := testenv.Reload(w, object).Status.Zones
	w.Expect(testenv.Reload(w, object).Status.Preparation.RefreshedAt).To(BeNil())
	advance(w, object, 25*time.Hour)
	w.Eventually(func() []string {
		return testenv.Reload(w, object).Status.Zones
	}).WithTimeout(timeout).WithPolling(100*time.Millisecond).Should(And(HaveLen(1), Not(Equal(old))), func() string {
		return condition(w, object, v1alpha1.ConditionTemplateUpToDate)
	})
	w.Expect(testenv.Reload(w, object).Status.Preparation.RefreshedAt).NotTo(BeNil())
}

// A builder VM that boots with the recipe for kubeadm installs it and powers itself off.
func TestPrepareRecipe(t *testing.T) {
	t.Parallel()
	guests := guest.NewRuntime(guest.Options{InstallTime: time.Second})
	w := testenv.New(t, testenv.Guests(guests))
	images := testenv.ServeImages(t, 64<<10)
	raw, err := examples.Files.ReadFile("kubeadm/prepare.yaml")
	w.Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{}
	w.Expect(yaml.UnmarshalStrict(raw, secret)).To(Succeed())
	secret.Name, secret.Namespace = "prepare", w.Name
	w.Create(secret)
	manage(w)
	object := w.ManagedTemplate(images.URL+"/noble.img", withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
		t.Spec.Prepare.ValuesRef = &t.Spec.Prepare.TemplatesRef
	})
	waitUntilUpToDate(w, object)
	w.Expect(guests.Console(1000)).To(ContainSubstring("powered off by its boot data"))
	w.Expect(w.Events.Messages(v1alpha1.EventTemplatePrepared)).To(HaveLen(1))
}
