// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of this package's kinds, and the domain of all labels and annotations.
const Group = "karpenter.proxmox.sinextra.dev"

// Kinds that a NodePool's nodeClassRef or a NodeClass's instanceTemplateRef refers to.
const (
	ProxmoxNodeClassKind         = "ProxmoxNodeClass"
	ProxmoxTemplateKind          = "ProxmoxTemplate"
	ProxmoxUnmanagedTemplateKind = "ProxmoxUnmanagedTemplate"
)

var (
	// SchemeGroupVersion is the group and version of every kind in this package.
	SchemeGroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&ProxmoxNodeClass{}, &ProxmoxNodeClassList{},
		&ProxmoxTemplate{}, &ProxmoxTemplateList{},
		&ProxmoxUnmanagedTemplate{}, &ProxmoxUnmanagedTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)

	return nil
}
