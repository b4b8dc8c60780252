// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"reflect"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Objects are the objects of an Env in the Kubernetes API.
type Objects struct {
	base
	// Name is the namespace, and is unique unless the API is fake.
	Name string
	// prefix is the start of the names of objects without a namespace.
	prefix string
	// Kube reads and writes the objects of this Env, and is not cached.
	Kube client.Client
	// NodeClass of a fake Env, ready on all Hosts. It is not stored in the API.
	NodeClass *v1alpha1.ProxmoxNodeClass
	zones     []string
}

// Named returns a name that is unique to this Env.
func (o *Objects) Named(name string) string { return o.prefix + name }

// Create creates an object.
func (o *Objects) Create(object client.Object) {
	o.T.Helper()
	o.Expect(o.Kube.Create(o.T.Context(), object)).To(gomega.Succeed())
}

// create creates an object after changes.
func create[T client.Object, F ~func(T)](o *Objects, object T, changes []F) T {
	o.T.Helper()
	for _, change := range changes {
		change(object)
	}
	o.Create(object)
	return object
}

// Template creates a ProxmoxUnmanagedTemplate that matches the scenario's templates.
func (o *Objects) Template(changes ...func(*v1alpha1.ProxmoxUnmanagedTemplate)) *v1alpha1.ProxmoxUnmanagedTemplate {
	o.T.Helper()
	return create(o, &v1alpha1.ProxmoxUnmanagedTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: o.Named("ubuntu")},
		Spec:       v1alpha1.ProxmoxUnmanagedTemplateSpec{TemplateName: "ubuntu"},
	}, changes)
}

// NewClass creates a NodeClass that was not checked yet.
func (o *Objects) NewClass(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	o.T.Helper()
	return create(o, NewNodeClass(o.Named("default"), o.Named("ubuntu"), o.Name), changes)
}

// Class creates a NodeClass that is Ready on all Hosts of Region.
func (o *Objects) Class(changes ...func(*v1alpha1.ProxmoxNodeClass)) *v1alpha1.ProxmoxNodeClass {
	o.T.Helper()
	class := o.NewClass(changes...)
	class.Status.SelectedZones = o.zones
	o.MarkReady(class)
	return class
}

// SetReady sets all conditions of a class to true.
func SetReady(class *v1alpha1.ProxmoxNodeClass) {
	for _, condition := range class.StatusConditions().List() {
		if condition.Type != status.ConditionReady {
			class.StatusConditions().SetTrue(condition.Type)
		}
	}
	class.RecordVersion()
}

// MarkReady sets the status of a class to Ready.
func (o *Objects) MarkReady(class *v1alpha1.ProxmoxNodeClass) {
	o.T.Helper()
	SetReady(class)
	o.Expect(o.Kube.Status().Update(o.T.Context(), class)).To(gomega.Succeed())
	o.Expect(class.StatusConditions().Get(status.ConditionReady).IsTrue()).To(gomega.BeTrue())
}

// Pool creates a NodePool of a class.
func (o *Objects) Pool(class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodePool)) *karpv1.NodePool {
	o.T.Helper()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: o.Named("pool")}}
	pool.Spec.Template.Spec.NodeClassRef = classRef(class.Name)
	pool.Spec.Template.Spec.Requirements = instanceTypes()
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	return create(o, pool, changes)
}

// Claim creates a NodeClaim like core, before Create is called.
func (o *Objects) Claim(name string, class *v1alpha1.ProxmoxNodeClass, changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	o.T.Helper()
	return create(o, NewNodeClaim(o.Named(name), class.Name, o.Named("pool")), changes)
}

// OnHost returns a change of a NodeClaim that requires a Host.
func OnHost(host string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) {
		claim.Spec.Requirements = append(claim.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{host},
		})
	}
}

// Node creates the Node of a claim, and records it in the status of the claim.
func (o *Objects) Node(claim *karpv1.NodeClaim) *corev1.Node {
	o.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	o.Create(node)
	claim.Status.NodeName = node.Name
	o.Expect(o.Kube.Status().Update(o.T.Context(), claim)).To(gomega.Succeed())
	return node
}

// PendingPod creates a pod that the Kubernetes scheduler found no Node for.
func (o *Objects) PendingPod(name, cpu string, changes ...func(*corev1.Pod)) *corev1.Pod {
	o.T.Helper()
	pod := create(o, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Name, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "example.com/none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}, changes)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	o.Expect(o.Kube.Status().Update(o.T.Context(), pod)).To(gomega.Succeed())
	return pod
}

// Reload updates an object to what is stored in the API.
func Reload[T client.Object](w *Env, object T) T {
	w.T.Helper()
	w.reload(object)
	return object
}

func (o *Objects) reload(object client.Object) {
	o.T.Helper()
	key := client.ObjectKeyFromObject(object)
	// Get does not reset fields that were removed.
	value := reflect.ValueOf(object).Elem()
	value.Set(reflect.Zero(value.Type()))
	o.Expect(o.Kube.Get(o.T.Context(), key, object)).To(gomega.Succeed())
}

// Modify changes an object as it is stored in the API. Fields that a controller writes at the same time are kept.
func Modify[T client.Object](w *Env, object T, change func(T)) {
	w.T.Helper()
	stored, ok := Reload(w, object).DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	change(object)
	w.Expect(w.Kube.Patch(w.T.Context(), object, client.MergeFrom(stored))).To(gomega.Succeed())
}

// ModifyStatus changes the status of an object as it is stored in the API.
func ModifyStatus[T client.Object](w *Env, object T, change func(T)) {
	w.T.Helper()
	stored, ok := Reload(w, object).DeepCopyObject().(client.Object)
	w.Expect(ok).To(gomega.BeTrue())
	change(object)
	w.Expect(w.Kube.Status().Patch(w.T.Context(), object, client.MergeFrom(stored))).To(gomega.Succeed())
}

// SetTrue sets conditions of a claim, as core does.
func (o *Objects) SetTrue(claim *karpv1.NodeClaim, conditions ...string) {
	o.T.Helper()
	o.reload(claim)
	for _, condition := range conditions {
		claim.StatusConditions().SetTrue(condition)
	}
	o.Expect(o.Kube.Status().Update(o.T.Context(), claim)).To(gomega.Succeed())
}

// Stored returns a copy of a claim as it is stored in the API.
func (o *Objects) Stored(claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	o.T.Helper()
	claim = claim.DeepCopy()
	o.reload(claim)
	return claim
}

// IsDeleted reports whether an object was deleted from the API.
func (o *Objects) IsDeleted(object client.Object) bool {
	o.T.Helper()
	stored, ok := object.DeepCopyObject().(client.Object)
	o.Expect(ok).To(gomega.BeTrue())
	err := o.Kube.Get(o.T.Context(), client.ObjectKeyFromObject(object), stored)
	o.Expect(client.IgnoreNotFound(err)).NotTo(gomega.HaveOccurred())
	return apierrors.IsNotFound(err)
}

// Annotate sets annotations of an object; an empty value removes one.
func (o *Objects) Annotate(object client.Object, values map[string]string) {
	o.T.Helper()
	stored, ok := object.DeepCopyObject().(client.Object)
	o.Expect(ok).To(gomega.BeTrue())
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	for key, value := range values {
		annotations[key] = value
		if value == "" {
			delete(annotations, key)
		}
	}
	object.SetAnnotations(annotations)
	o.Expect(o.Kube.Patch(o.T.Context(), object, client.MergeFrom(stored))).To(gomega.Succeed())
}

// ExpectNoTokens checks that there is no join token.
func (o *Objects) ExpectNoTokens() {
	o.T.Helper()
	secrets := &corev1.SecretList{}
	o.Expect(o.Kube.List(o.T.Context(), secrets)).To(gomega.Succeed())
	for _, secret := range secrets.Items {
		o.Expect(strings.HasPrefix(secret.Name, "bootstrap-token-")).To(gomega.BeFalse(), "orphaned token %s", secret.Name)
	}
}
