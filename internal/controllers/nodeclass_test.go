// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestReconcileHash(t *testing.T) {
	testenv.With(testenv.NeverPolled()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := checkClass(w, w.NewClass())
		hash := func() string { return class.Annotations[v1alpha1.AnnotationNodeClassHash] }
		first := hash()
		w.Expect(first).To(Equal(class.Hash()))
		w.Expect(class.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.HashVersion))

		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Tags = []string{"other"} })
		checkClass(w, class)
		w.Expect(hash()).To(Equal(first), "tags are written in place")
		resize(w, class, "50G")
		checkClass(w, class)
		w.Expect(hash()).NotTo(Equal(first))

		settled := class.ResourceVersion
		w.Expect(checkClass(w, class).ResourceVersion).To(Equal(settled), "nothing is written when nothing changed")
	})
}

// recordedClaim creates a claim with the hash of its class.
func recordedClaim(w *testenv.Env, name, class, hash, version string) *karpv1.NodeClaim {
	w.T.Helper()
	return w.Claim(name, &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}}, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: hash, v1alpha1.AnnotationNodeClassHashVersion: version}
	})
}

// TestReconcileOtherHashVersion: an upgrade finds hashes of an older version, a
// downgrade those of a newer one.
func TestReconcileOtherHashVersion(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{"upgrade": "v0", "downgrade": "v99"} {
		testenv.With(testenv.NeverPolled()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.NewClass()
			w.Annotate(class, map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: other})
			drifted := recordedClaim(w, "drifted", class.Name, "0", other)
			w.SetTrue(drifted, karpv1.ConditionTypeDrifted)
			claims := []struct {
				claim         *karpv1.NodeClaim
				hash, version string
				why           string
			}{
				{recordedClaim(w, "old", class.Name, "1", other), class.Hash(), v1alpha1.HashVersion, "it was up to date and stays so"},
				{drifted, "0", v1alpha1.HashVersion, "it stays drifted"},
				{recordedClaim(w, "current", class.Name, "7", v1alpha1.HashVersion), "7", v1alpha1.HashVersion, "hashes of this version can be compared"},
				{w.Claim("unhashed", class), "", "", "it was not created yet"},
				{recordedClaim(w, "unrelated", "another", "1", other), "1", other, "it belongs to another class"},
			}
			checkClass(w, class)
			for _, c := range claims {
				got := testenv.Reload(w, c.claim).Annotations
				w.Expect(got[v1alpha1.AnnotationNodeClassHash]).To(Equal(c.hash), c.claim.Name+": "+c.why)
				w.Expect(got[v1alpha1.AnnotationNodeClassHashVersion]).To(Equal(c.version), c.claim.Name+": "+c.why)
			}
		})
	}
}

// bootDataEnv is a class that replaces Nodes when its boot data changes.
type bootDataEnv struct {
	*testenv.Env
	class *v1alpha1.ProxmoxNodeClass
}

func newBootDataEnv(t *testing.T, change func(*v1alpha1.MetadataOptions)) bootDataEnv {
	t.Helper()
	w := testenv.New(t, testenv.NoPolling())
	setTemplateZones(w, testenv.Zones(1)...)
	return bootDataEnv{w, w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeReplace
		change(&c.Spec.MetadataOptions)
	})}
}

// expectDrift checks the class when Secrets are read again, and whether a claim is drifted.
func (w bootDataEnv) expectDrift(claim *karpv1.NodeClaim, want string, why ...any) {
	w.T.Helper()
	w.Clock.Advance(time.Minute)
	checkClass(w.Env, checkClass(w.Env, w.class)) // the change of the status causes another reconcile
	w.expectDriftNow(claim, want, why...)
}

func (w bootDataEnv) expectDriftNow(claim *karpv1.NodeClaim, want string, why ...any) {
	w.T.Helper()
	w.Expect(w.CloudProvider().IsDrifted(w.Context(), testenv.Reload(w.Env, claim))).To(BeEquivalentTo(want), why...)
}

// createSecret creates a Secret that the class refers to.
func (w bootDataEnv) createSecret(name, key, value string) {
	w.T.Helper()
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}, Data: map[string][]byte{key: []byte(value)}})
}

func setSecret(w *testenv.Env, name, key, value string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}}
	testenv.Modify(w, secret, func(s *corev1.Secret) { s.Data[key] = []byte(value) })
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
		w.expectDrift(claim, "")
		w.Expect(recorded(w.Env, earlier)).To(Equal(first), "it was launched before the option was set")

		setSecret(w.Env, "values", "apiServer", "https://b")
		w.expectDrift(claim, "BootDataChanged")
		w.expectDrift(earlier, "BootDataChanged")
		later := w.Launched("later", w.class)
		w.Expect(recorded(w.Env, later)).NotTo(Equal(first))
		w.expectDrift(later, "")
		setSecret(w.Env, "values", "apiServer", "https://a")
		w.expectDrift(claim, "", "the change was reverted")

		setSecret(w.Env, testenv.TemplatesSecret, "user-data", "#cloud-config\nhostname: {{ .Metadata.Hostname }}\ntimezone: UTC\n")
		w.expectDrift(claim, "BootDataChanged")
		testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeIgnore })
		w.expectDrift(claim, "")
		w.Expect(recorded(w.Env, claim)).To(BeEmpty(), "enabling it again must not replace Nodes for this change")
		w.Expect(w.class.Status.BootDataHash).To(BeEmpty())
	})
}

func TestBootDataChangedCloudInit(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSnGJxbYbIkqSpPmHhrpT2yQxjNwRw5q me@example.com"
		w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) {
			o.Type, o.TemplatesRef = v1alpha1.MetadataTypeCloudInit, nil
			o.CloudInit = &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: "kube-system", Name: "keys"}}
		})
		w.createSecret("keys", "authorized_keys", key)
		claim := w.Launched("a", w.class)
		setSecret(w.Env, "keys", "authorized_keys", "# only a comment\n"+key)
		w.expectDrift(claim, "", "the keys are the same")
		w.Expect(w.class.Status.BootDataHash).To(Equal(recorded(w.Env, claim)))
		setSecret(w.Env, "keys", "authorized_keys", key+"2")
		w.expectDrift(claim, "BootDataChanged")
	})
}

// The status may be older than a Claim that was launched after the change.
func TestBootDataStaleStatus(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newBootDataEnv(t, func(*v1alpha1.MetadataOptions) {})
		claim := w.Launched("a", w.class)
		testenv.ModifyStatus(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) { c.Status.BootDataHash = v1alpha1.BootDataHashPrefix + "stale" })
		w.expectDriftNow(claim, "")
		setSecret(w.Env, testenv.TemplatesSecret, "user-data", "#cloud-config\n")
		w.expectDriftNow(claim, v1alpha1.DriftBootData)
		w.Expect(w.Kube.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})).To(Succeed())
		w.expectDriftNow(claim, "", "without the Secret nothing is known")
	})
}

// A claim causes a reconcile of its class when its launch completed without a hash.
func TestBootDataRecordedAfterLaunch(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeReplace })
	w.StartManager(func(kube client.Client) testenv.Registrar { return newNodeClassController(w, kube) })
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
		set := func(value, drift string) {
			testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPods": value}}
			})
			w.expectDrift(claim, drift, value)
			w.Expect(w.class.StatusConditions().Root().ObservedGeneration).To(Equal(w.class.Generation))
			w.Expect(isReady(w.class)).To(Equal(drift != ""))
		}
		set(`"cpu *"`, "")
		set(`"cpu - 50"`, "")
		w.Expect(w.class.StatusConditions().Root().Message).To(HavePrefix("KubeletConfigurationValid: spec.kubeletConfiguration.maxPod"))
		set(`"cpu * 10"`, v1alpha1.DriftNodeClass)
	})
}

// An object that a NodeClaim uses is deleted after the claim.
func TestDeleteInUse(t *testing.T) {
	t.Parallel()
	for kind, create := range map[string]func(*testenv.Env, *v1alpha1.ProxmoxNodeClass) client.Object{
		"NodeClass": func(_ *testenv.Env, class *v1alpha1.ProxmoxNodeClass) client.Object { return class },
		"template":  func(w *testenv.Env, _ *v1alpha1.ProxmoxNodeClass) client.Object { return w.Template() },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
			var cached client.Client
			w.StartManager(
				func(kube client.Client) testenv.Registrar { return newNodeClassController(w, kube) },
				func(kube client.Client) testenv.Registrar {
					cached = kube
					return unmanagedtemplate.NewController(kube, w.Inventory, w.Events)
				},
			)
			class := w.NewClass()
			object, claim := create(w, class), w.Claim("user", class)
			other := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
				c.Name, c.Spec.InstanceTemplateRef.Name = w.Named("other"), "other"
			})
			unrelated := w.Claim("unrelated", other)
			w.Eventually(func(g Gomega) {
				found := object.DeepCopyObject().(client.Object)
				g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(object), found)).To(Succeed())
				g.Expect(found.GetFinalizers()).To(ContainElement(v1alpha1.TerminationFinalizer))
				g.Expect(found.GetResourceVersion()).To(Equal(testenv.Reload(w, object).GetResourceVersion()))
				g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(Succeed())
			}).Should(Succeed(), "the cache is current before the object is deleted")

			w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
			w.Eventually(w.Events.Messages).WithArguments("WaitingOnNodeClaimTermination").
				Should(ContainElement(kind + " is in use by NodeClaims (1), for example " + claim.Name + "; it is deleted when they are gone"))
			for n := range 10 {
				w.Annotate(claim, map[string]string{"example.com/changed": strconv.Itoa(n)})
			}
			w.Consistently(w.IsDeleted).WithArguments(object).WithTimeout(300 * time.Millisecond).Should(BeFalse())
			w.Expect(len(w.Events.Messages("WaitingOnNodeClaimTermination"))).To(BeNumerically("<", 5), "a changed claim causes no reconcile")
			w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
			w.Eventually(w.IsDeleted).WithArguments(object).Should(BeTrue())
			w.Expect(w.IsDeleted(other)).To(BeFalse())
			w.Expect(w.IsDeleted(unrelated)).To(BeFalse())
		})
	}
}

func TestDeleteUnusedNodeClass(t *testing.T) {
	testenv.With(testenv.NeverPolled()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := checkClass(w, w.NewClass())
		w.Expect(w.Kube.Delete(w.Context(), class)).To(Succeed())
		w.Expect(w.IsDeleted(class)).To(BeFalse(), "the finalizer holds it")
		w.Expect(testenv.Reconcile(w, newNodeClassController(w, w.Kube), class)).To(BeZero())
		w.Expect(w.IsDeleted(class)).To(BeTrue())
		w.Expect(w.Events.Reasons(class)).To(BeEmpty())
	})
}

// Another controller that writes the class at the same time is not an error.
func TestConflict(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	controller := newNodeClassController(w, w.Kube)
	class := w.NewClass()
	outdated := class.DeepCopy()
	w.Annotate(class, map[string]string{"example.com/changed": "meanwhile"})
	w.Expect(controller.Reconcile(t.Context(), outdated)).To(HaveField("RequeueAfter", BeNumerically(">", 0)))
	w.Expect(testenv.Reload(w, class).Finalizers).To(BeEmpty())
	w.Expect(controller.Reconcile(t.Context(), class)).Error().NotTo(HaveOccurred())
	w.Expect(testenv.Reload(w, class).Finalizers).To(ContainElement(v1alpha1.TerminationFinalizer))
}
