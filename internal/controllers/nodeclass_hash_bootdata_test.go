// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// bootDataEnv is a class that replaces Nodes when its boot data changes.
type bootDataEnv struct {
	*testenv.Env
	class  *v1alpha1.ProxmoxNodeClass
	status *nodeclass.Controller
}

func newBootDataEnv(t *testing.T, change func(*v1alpha1.MetadataOptions)) bootDataEnv {
	t.Helper()
	w := testenv.New(t, testenv.NoPolling())
	template := w.Template()
	template.Status.Zones = testenv.Zones(1)
	template.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	w.Expect(w.Kube.Status().Update(t.Context(), template)).To(Succeed())
	return bootDataEnv{w, w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeReplace
		change(&c.Spec.MetadataOptions)
	}), nodeclass.NewController(w.Kube, w.Events, nodeclass.Deps{
		Inventory: w.Inventory, Types: w.Types, Boot: w.Boot, Health: w.Instances.Health, Clock: w.Clock,
	})}
}

// reconcile runs the controllers of the class when Secrets are read again.
func (w bootDataEnv) reconcile() {
	w.T.Helper()
	w.Clock.Advance(time.Minute)
	w.Expect(w.status.Reconcile(w.T.Context(), testenv.Reload(w.Env, w.class))).Error().NotTo(HaveOccurred())
	nodeClassHashReconcileClass(w.Env, w.class)
}

// createSecret creates a Secret that the class refers to.
func (w bootDataEnv) createSecret(name, key, value string) {
	w.T.Helper()
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}, Data: map[string][]byte{key: []byte(value)}})
}

func (w bootDataEnv) setSecret(name, key, value string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}}
	testenv.Modify(w.Env, secret, func(s *corev1.Secret) { s.Data[key] = []byte(value) })
}

func (w bootDataEnv) expectDrift(claim *karpv1.NodeClaim, want string, why ...any) {
	w.T.Helper()
	provider := cloudprovider.New(cloudprovider.Deps{Kube: w.Kube, VMs: w.Instances.VMs, Types: w.Types, Clock: w.Clock, BootDataHash: w.Boot.Hash})
	w.Expect(provider.IsDrifted(w.T.Context(), testenv.Reload(w.Env, claim))).To(BeEquivalentTo(want), why...)
}

func recorded(w *testenv.Env, claim *karpv1.NodeClaim) string {
	return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationBootDataHash]
}

func TestBootDataChanged(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) {
			o.ValuesRef = &v1alpha1.SecretReference{Namespace: o.TemplatesRef.Namespace, Name: "values"}
		})
		w.createSecret("values", "apiServer", "https://a")
		claim, earlier := w.Launched("a", w.class), w.Launched("earlier", w.class)
		first := recorded(w.Env, claim)
		w.Expect(first).To(HavePrefix(v1alpha1.BootDataHashPrefix))
		w.Annotate(earlier, map[string]string{v1alpha1.AnnotationBootDataHash: ""})
		w.SetTrue(earlier, karpv1.ConditionTypeRegistered)
		w.reconcile()
		w.Expect(recorded(w.Env, earlier)).To(Equal(first), "it was launched before the option was set")
		w.expectDrift(claim, "")

		w.setSecret("values", "apiServer", "https://b")
		w.reconcile()
		w.expectDrift(claim, "BootDataChanged")
		w.expectDrift(earlier, "BootDataChanged")
		later := w.Launched("later", w.class)
		w.Expect(recorded(w.Env, later)).NotTo(Equal(first))
		w.expectDrift(later, "")

		w.setSecret("values", "apiServer", "https://a")
		w.reconcile()
		w.expectDrift(claim, "", "the change was reverted")

		w.setSecret(testenv.TemplatesSecret, "user-data", "#cloud-config\nhostname: {{ .Metadata.Hostname }}\ntimezone: UTC\n")
		w.reconcile()
		w.expectDrift(claim, "BootDataChanged")

		testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeIgnore })
		w.reconcile()
		w.expectDrift(claim, "")
		w.Expect(recorded(w.Env, claim)).To(BeEmpty(), "enabling it again must not replace Nodes for this change")
		w.Expect(w.class.Status.BootDataHash).To(BeEmpty())
	})
}

func TestBootDataChangedCloudInit(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSnGJxbYbIkqSpPmHhrpT2yQxjNwRw5q me@example.com"
		w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) {
			o.Type = v1alpha1.MetadataTypeCloudInit
			o.CloudInit = &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: o.TemplatesRef.Namespace, Name: "keys"}}
			o.TemplatesRef = nil
		})
		w.createSecret("keys", "authorized_keys", key)
		claim := w.Launched("a", w.class)
		w.setSecret("keys", "authorized_keys", "# only a comment\n"+key)
		w.reconcile()
		w.Expect(w.class.Status.BootDataHash).To(Equal(recorded(w.Env, claim)))
		w.expectDrift(claim, "", "the keys are the same")
		w.setSecret("keys", "authorized_keys", key+"2")
		w.reconcile()
		w.expectDrift(claim, "BootDataChanged")
	})
}

// The status may be older than a Claim that was launched after the change.
func TestBootDataStaleStatus(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newBootDataEnv(t, func(*v1alpha1.MetadataOptions) {})
		claim := w.Launched("a", w.class)
		testenv.Reload(w.Env, w.class).Status.BootDataHash = v1alpha1.BootDataHashPrefix + "stale"
		w.Expect(w.Kube.Status().Update(t.Context(), w.class)).To(Succeed())
		w.expectDrift(claim, "")
		w.setSecret(testenv.TemplatesSecret, "user-data", "#cloud-config\n")
		w.expectDrift(claim, v1alpha1.DriftBootData)
		w.Expect(w.Kube.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})).To(Succeed())
		w.expectDrift(claim, "", "without the Secret nothing is known")
	})
}

// A claim causes a reconcile of its class when its launch completed without a hash.
func TestBootDataRecordedAfterLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeReplace })
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return nodeclass.NewController(kube, w.Events, statusDeps(w))
	})
	w.Eventually(func() string { return testenv.Reload(w, class).Status.BootDataHash }).ShouldNot(BeEmpty())
	claim := w.Claim("a", class)
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByVersion})
	w.SetTrue(claim, karpv1.ConditionTypeRegistered)
	w.Eventually(func() string { return recorded(w, claim) }).Should(Equal(class.Status.BootDataHash))
}

// An invalid change makes the class not ready and replaces no Node. After the fix, Nodes with the
// old configuration are replaced.
func TestInvalidKubeletConfiguration(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) { o.OnChange = "" })
		claim := w.Launched("a", w.class)
		w.Annotate(claim, map[string]string{v1alpha1.AnnotationNodeClassHash: w.class.Hash(), v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion})
		w.reconcile()
		w.Expect(w.class.StatusConditions().Root().IsTrue()).To(BeTrue())
		for _, test := range []struct{ field, value string }{{"maxPod", "50"}, {"maxPods", `"cpu *"`}, {"maxPods", `"cpu - 50"`}, {"maxPods", `"cpu * 10"`}} {
			testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{Fields: map[string]string{test.field: test.value}}
			})
			w.reconcile()
			ready := w.class.StatusConditions().Root()
			w.Expect(ready.ObservedGeneration).To(Equal(w.class.Generation))
			if test.value == `"cpu * 10"` {
				w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
				w.expectDrift(claim, v1alpha1.DriftNodeClass)
				continue
			}
			w.Expect(ready.IsFalse()).To(BeTrue())
			w.Expect(ready.Message).To(HavePrefix("KubeletConfigurationValid: spec.kubeletConfiguration.maxPod"))
			w.expectDrift(claim, "", test.value)
		}
	})
}
