// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

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
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL+"/noble.img", withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
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
		replaced := func() {
			t.Helper()
			old := testenv.Reload(w, object).Status.Zones
			w.Eventually(func() []string {
				zones := testenv.Reload(w, object).Status.Zones
				w.Expect(zones).To(HaveLen(3), "each host can launch at every moment")
				return zones
			}).ShouldNot(ContainElements(old[0]))
		}
		buildSetUserData(w, "#cloud-config\npower_state: {mode: poweroff}\n# another\n")
		replaced()
		w.Expect(object.Status.Preparation.RefreshedAt).To(BeNil())
		replaced()
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
		manage(w)
		object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL+"/noble.img", withPreparation(w), func(t *v1alpha1.ProxmoxTemplate) {
			t.Spec.Prepare.ValuesRef = &t.Spec.Prepare.TemplatesRef
		})
		waitUntilUpToDate(w, object)
		w.Expect(guests.Console(1000)).To(ContainSubstring("powered off by its boot data"))
		w.Expect(w.Events.Messages(v1alpha1.EventTemplatePrepared)).To(HaveLen(1))
	})
}
