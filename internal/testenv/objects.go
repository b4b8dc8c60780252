// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"reflect"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/uuid"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// InstanceType is the instance type of claims: 2 CPUs, 6 GiB.
const InstanceType = "t1.2VCPU-6GB"

// TemplatesSecret has the boot data templates, in the namespace of the Env.
const TemplatesSecret = "templates"

func (w *Env) makeNamespace() {
	w.T.Helper()
	if !w.fake {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Name}})
	}
	w.Create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"},
	})
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: TemplatesSecret}, Data: map[string][]byte{
		"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\n"),
	}})
}

// Create creates an object.
func (w *Env) Create(o client.Object) {
	w.T.Helper()
	w.Expect(w.Kube.Create(w.T.Context(), o)).To(gomega.Succeed())
}

// Template creates a ProxmoxUnmanagedTemplate that matches the scenario's templates.
func (w *Env) Template(changes ...func(*v1alpha1.ProxmoxUnmanagedTemplate)) *v1alpha1.ProxmoxUnmanagedTemplate {
	w.T.Helper()
	template := &v1alpha1.ProxmoxUnmanagedTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("ubuntu")},
		Spec:       v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu"},
	}
	for _, change := range changes {
		change(template)
	}
	w.Create(template)
	return template
}

// NewClass creates a NodeClass that was not checked yet.
func (w *Env) NewClass(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	class := w.class()
	for _, change := range changes {
		change(class)
	}
	w.Create(class)
	return class
}

func (w *Env) class() *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("default")},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: "ProxmoxUnmanagedTemplate", Name: w.Named("ubuntu")},
			BootDevice:          v1alpha1.BootDevice{Size: "30G"},
			MetadataOptions: v1alpha1.MetadataOptions{
				Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: w.Name, Name: TemplatesSecret},
			},
			Tags: []string{"karpenter"},
		},
	}
}

// Class creates a NodeClass that is Ready on all Hosts of Region.
func (w *Env) Class(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	class := w.NewClass(changes...)
	class.Status.SelectedZones = w.zones()
	w.MarkReady(class)
	return class
}

// MarkReady sets the status of a class to Ready.
func (w *Env) MarkReady(class *v1alpha1.ProxmoxNodeClass) {
	w.T.Helper()
	for _, condition := range class.StatusConditions().List() {
		if condition.Type != status.ConditionReady {
			class.StatusConditions().SetTrue(condition.Type)
		}
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), class)).To(gomega.Succeed())
	w.Expect(class.StatusConditions().Get(status.ConditionReady).IsTrue()).To(gomega.BeTrue())
}

// Pool creates a NodePool of a class.
func (w *Env) Pool(class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodePool)) *karpv1.NodePool {
	w.T.Helper()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.Named("pool")}}
	pool.Spec.Template.Spec.NodeClassRef = ClassRef(class)
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{InstanceType},
	}}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	for _, change := range changes {
		change(pool)
	}
	w.Create(pool)
	return pool
}

// ClassRef returns a reference to a class.
func ClassRef(class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: class.Name}
}

// Claim creates a NodeClaim like core, before Create is called.
func (w *Env) Claim(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.T.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named(name), Labels: map[string]string{karpv1.NodePoolLabelKey: w.Named("pool")}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: ClassRef(class),
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
				Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{InstanceType},
			}},
		},
	}
	if w.fake {
		claim.UID = types.UID(uuid.NewString())
	}
	for _, change := range changes {
		change(claim)
	}
	w.Create(claim)
	return claim
}

// NewerIntent is an intent of a newer controller: the location is the same, the rest is
// unknown.
const NewerIntent = `{"v":2,"region":"region-1","host":"pve1","vmid":20123,"template":{"host":"pve1","id":9000},"shape":{"cores":2}}`

// ClaimWithIntent returns a claim with an intent for VM 20123.
func (w *Env) ClaimWithIntent(name, intent string) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim(name, w.NodeClass, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationLaunchIntent: intent}
	})
	claim.Status.ProviderID = "proxmox://" + Region + "/20123"
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(gomega.Succeed())
	return w.Stored(claim)
}

// Intent returns the intent of a claim.
func (w *Env) Intent(claim *karpv1.NodeClaim) instance.Intent {
	w.T.Helper()
	in, ok, err := instance.ReadIntent(claim)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(ok).To(gomega.BeTrue(), "nodeclaim %s has an intent", claim.Name)
	return in
}

// Reload updates an object to what is stored in the API.
func Reload[T client.Object](w *Env, o T) T {
	w.T.Helper()
	key := client.ObjectKeyFromObject(o)
	// Get does not reset fields that were removed.
	value := reflect.ValueOf(o).Elem()
	value.Set(reflect.Zero(value.Type()))
	w.Expect(w.Kube.Get(w.T.Context(), key, o)).To(gomega.Succeed())
	return o
}

// Stored returns a copy of a claim as it is stored in the API.
func (w *Env) Stored(claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.T.Helper()
	return Reload(w, claim.DeepCopy())
}

// IsDeleted reports whether an object was deleted from the API.
func (w *Env) IsDeleted(o client.Object) bool {
	w.T.Helper()
	stored, ok := o.DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	err := w.Kube.Get(w.T.Context(), client.ObjectKeyFromObject(o), stored)
	w.Expect(client.IgnoreNotFound(err)).NotTo(gomega.HaveOccurred())
	return apierrors.IsNotFound(err)
}

// Annotate sets annotations of an object; an empty value removes one.
func (w *Env) Annotate(o client.Object, values map[string]string) {
	w.T.Helper()
	stored, ok := o.DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	for key, value := range values {
		annotations[key] = value
		if value == "" {
			delete(annotations, key)
		}
	}
	o.SetAnnotations(annotations)
	w.Expect(w.Kube.Patch(w.T.Context(), o, client.MergeFrom(stored))).To(gomega.Succeed())
}

// Tokens returns the names of the claims that have a join token.
func (w *Env) Tokens() []string {
	w.T.Helper()
	tokens, err := w.Boot.Tokens.ListOwned(w.T.Context())
	w.Expect(err).NotTo(gomega.HaveOccurred())
	var out []string
	for _, token := range tokens {
		out = append(out, token.Claim.Name)
	}
	return out
}

// ExpectNoTokens checks that there is no join token.
func (w *Env) ExpectNoTokens() {
	w.T.Helper()
	secrets := &corev1.SecretList{}
	w.Expect(w.Kube.List(w.T.Context(), secrets)).To(gomega.Succeed())
	for _, secret := range secrets.Items {
		w.Expect(strings.HasPrefix(secret.Name, "bootstrap-token-")).To(gomega.BeFalse(), "orphaned token %s", secret.Name)
	}
}
