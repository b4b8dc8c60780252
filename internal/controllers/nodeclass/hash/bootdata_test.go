// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coredisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/hash"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// bootDataEnv is a class that replaces Nodes when its boot data changes, with core's drift
// controller.
type bootDataEnv struct {
	*testenv.Env
	class *v1alpha1.ProxmoxNodeClass
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
	})}
}

func (w bootDataEnv) start() {
	w.T.Helper()
	w.Pool(w.class)
	cp := cloudprovider.New(cloudprovider.Deps{Kube: w.Kube, VMs: w.Instances.VMs, Types: w.Types, Clock: w.Clock, BootDataHash: w.Boot.Hash})
	w.StartManager(
		func(kube client.Client) testenv.Registrar {
			return status.NewController(kube, status.Deps{
				Inventory: w.Inventory, Types: w.Types, Boot: w.Boot, Health: w.Instances.Health, CloneTimes: w.Instances.CloneTimes, Clock: w.Clock,
			})
		},
		func(kube client.Client) testenv.Registrar { return hash.NewController(kube) },
		func(kube client.Client) testenv.Registrar {
			return testenv.WithCoreOptions(coredisruption.NewController(clock.RealClock{}, kube, cp))
		},
	)
}

func (w bootDataEnv) launched(name string) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Launched(name, w.class, func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelInstanceTypeStable] = testenv.InstanceType })
	stored := claim.DeepCopy()
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	w.Expect(w.Kube.Status().Patch(w.T.Context(), claim, client.MergeFrom(stored))).To(Succeed())
	return claim
}

// recheck lets the time pass until Secrets are read again.
func (w bootDataEnv) recheck() {
	w.T.Helper()
	w.Clock.Advance(time.Minute)
	w.Annotate(testenv.Reload(w.Env, w.class), map[string]string{"example.com/now": fmt.Sprint(w.Clock.Now().UnixNano())})
}

func (w bootDataEnv) setSecret(name, key, value string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}}
	testenv.Modify(w.Env, secret, func(s *corev1.Secret) { s.Data[key] = []byte(value) })
}

func (w bootDataEnv) drift(claim *karpv1.NodeClaim) string {
	if condition := testenv.Reload(w.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted); condition != nil {
		return condition.Reason
	}
	return ""
}

func (w bootDataEnv) recorded(claim *karpv1.NodeClaim) string {
	return testenv.Reload(w.Env, claim).Annotations[v1alpha1.AnnotationBootDataHash]
}

func TestBootDataChanged(t *testing.T) {
	t.Parallel()
	w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) {
		o.ValuesRef = &v1alpha1.SecretReference{Namespace: o.TemplatesRef.Namespace, Name: "values"}
	})
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "values"}, Data: map[string][]byte{"apiServer": []byte("https://a")}})
	claim, earlier := w.launched("a"), w.launched("earlier")
	first := w.recorded(claim)
	w.Expect(first).To(HavePrefix(v1alpha1.BootDataHashPrefix))
	w.Annotate(earlier, map[string]string{v1alpha1.AnnotationBootDataHash: ""})
	w.start()
	w.Eventually(w.recorded).WithArguments(earlier).Should(Equal(first), "it was launched before the option was set")
	w.Expect(w.drift(claim)).To(BeEmpty())

	w.setSecret("values", "apiServer", "https://b")
	w.recheck()
	w.Eventually(w.drift).WithArguments(claim).Should(Equal("BootDataChanged"))
	w.Eventually(w.drift).WithArguments(earlier).Should(Equal("BootDataChanged"))
	later := w.launched("later")
	w.Expect(w.recorded(later)).NotTo(Equal(first))
	w.Expect(w.drift(later)).To(BeEmpty())

	w.setSecret("values", "apiServer", "https://a")
	w.recheck()
	w.Eventually(w.drift).WithArguments(claim).Should(BeEmpty(), "the change was reverted")

	w.setSecret(testenv.TemplatesSecret, "user-data", "#cloud-config\nhostname: {{ .Metadata.Hostname }}\ntimezone: UTC\n")
	w.recheck()
	w.Eventually(w.drift).WithArguments(claim).Should(Equal("BootDataChanged"))

	testenv.Modify(w.Env, w.class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.OnChange = v1alpha1.BootDataChangeIgnore })
	w.Eventually(w.drift).WithArguments(claim).Should(BeEmpty())
	w.Eventually(w.recorded).WithArguments(claim).Should(BeEmpty(), "enabling it again must not replace Nodes for this change")
	w.Eventually(func() string { return testenv.Reload(w.Env, w.class).Status.BootDataHash }).Should(BeEmpty())
}

func TestBootDataChangedCloudInit(t *testing.T) {
	t.Parallel()
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSnGJxbYbIkqSpPmHhrpT2yQxjNwRw5q me@example.com"
	w := newBootDataEnv(t, func(o *v1alpha1.MetadataOptions) {
		o.Type, o.CloudInit = v1alpha1.MetadataTypeCloudInit, &v1alpha1.CloudInit{SSHKeysRef: &v1alpha1.SecretReference{Namespace: o.TemplatesRef.Namespace, Name: "keys"}}
		o.TemplatesRef = nil
	})
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "keys"}, Data: map[string][]byte{"authorized_keys": []byte(key)}})
	claim := w.launched("a")
	w.start()
	w.setSecret("keys", "authorized_keys", "# only a comment\n"+key)
	w.recheck()
	w.Eventually(func() string { return testenv.Reload(w.Env, w.class).Status.BootDataHash }).Should(Equal(w.recorded(claim)))
	w.Expect(w.drift(claim)).To(BeEmpty(), "the keys are the same")
	w.setSecret("keys", "authorized_keys", key+"2")
	w.recheck()
	w.Eventually(w.drift).WithArguments(claim).Should(Equal("BootDataChanged"))
}

// The status may be older than a Claim that was launched after the change.
func TestBootDataStaleStatus(t *testing.T) {
	t.Parallel()
	w := newBootDataEnv(t, func(*v1alpha1.MetadataOptions) {})
	cp := cloudprovider.New(cloudprovider.Deps{Kube: w.Kube, VMs: w.Instances.VMs, Types: w.Types, Clock: w.Clock, BootDataHash: w.Boot.Hash})
	claim := w.launched("a")
	testenv.Reload(w.Env, w.class).Status.BootDataHash = v1alpha1.BootDataHashPrefix + "stale"
	w.Expect(w.Kube.Status().Update(t.Context(), w.class)).To(Succeed())
	w.Expect(cp.IsDrifted(t.Context(), claim)).To(BeEmpty())
	w.setSecret(testenv.TemplatesSecret, "user-data", "#cloud-config\n")
	w.Expect(cp.IsDrifted(t.Context(), claim)).To(BeEquivalentTo(v1alpha1.DriftBootData))
	w.Expect(w.Kube.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})).To(Succeed())
	w.Expect(cp.IsDrifted(t.Context(), claim)).To(BeEmpty(), "without the Secret nothing is known")
}
