// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

const (
	// InstanceType is the instance type of claims: 2 CPUs, 6 GiB. Seven fit on a Host.
	InstanceType = "t1.2VCPU-6GB"
	// TemplatesSecret has the boot data templates.
	TemplatesSecret = "templates"
	// SecurityGroup is a security group of the simulated Clusters.
	SecurityGroup = "kubernetes"
)

// NewFakeKube returns a fake Kubernetes API with the objects that boot data needs.
func NewFakeKube(t testing.TB) client.WithWatch {
	t.Helper()
	// The default tracker keeps managed fields, and creates a REST mapper for each write.
	tracker := clientgotesting.NewObjectTracker(scheme.Scheme, serializer.NewCodecFactory(scheme.Scheme).UniversalDecoder())
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjectTracker(tracker)
	for field, value := range map[string]func(*corev1.Event) string{
		"involvedObject.kind": func(e *corev1.Event) string { return e.InvolvedObject.Kind },
		"involvedObject.name": func(e *corev1.Event) string { return e.InvolvedObject.Name },
		"involvedObject.uid":  func(e *corev1.Event) string { return string(e.InvolvedObject.UID) },
		"reason":              func(e *corev1.Event) string { return e.Reason },
		"source":              func(e *corev1.Event) string { return e.Source.Component },
	} {
		builder.WithIndex(&corev1.Event{}, field, func(o client.Object) []string { return []string{value(o.(*corev1.Event))} })
	}
	return likeServer(builder.WithStatusSubresource(
		&karpv1.NodeClaim{}, &karpv1.NodePool{}, &karpv1alpha1.NodeOverlay{}, &corev1.Node{}, &corev1.Pod{},
		&v1alpha1.ProxmoxNodeClass{}, &v1alpha1.ProxmoxTemplate{}, &v1alpha1.ProxmoxUnmanagedTemplate{},
	).WithObjects(BootObjects(metav1.NamespaceSystem)...).Build())
}

// BootObjects returns the objects that boot data needs: the CA and the templates.
func BootObjects(namespace string) []client.Object {
	return []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: TemplatesSecret}, Data: map[string][]byte{
			"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\n"),
		}},
	}
}

// NewNodeClass returns a NodeClass with a boot drive and a disk that must grow.
func NewNodeClass(name, template, namespace string) *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: "ProxmoxUnmanagedTemplate", Name: template},
			BootDevice:          v1alpha1.BootDevice{Size: "30G"},
			MetadataOptions: v1alpha1.MetadataOptions{
				Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: namespace, Name: TemplatesSecret},
			},
			Tags: []string{"karpenter"},
		},
	}
}

// Zones returns the zones of a number of Hosts of Region, with the scenario's templates.
func Zones(hosts int) []string {
	var out []string
	for i := range hosts {
		out = append(out, fmt.Sprintf("%s/pve%d/%d", Region, i+1, 9000+i))
	}
	return out
}

// NewNodeClaim returns a NodeClaim like core's, before Create is called.
func NewNodeClaim(name, class, pool string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uuid.NewString()), Labels: map[string]string{karpv1.NodePoolLabelKey: pool}},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: classRef(class), Requirements: instanceTypes()},
	}
}

func classRef(class string) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: class}
}

func instanceTypes() []karpv1.NodeSelectorRequirementWithMinValues {
	return []karpv1.NodeSelectorRequirementWithMinValues{{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{InstanceType},
	}}
}
