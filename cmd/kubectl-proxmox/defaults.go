// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// applyDefaults sets the defaults of the CRD in a manifest of this provider or of Karpenter,
// as the API server does. Other manifests are returned unchanged.
func applyDefaults(document []byte) ([]byte, error) {
	var object map[string]any
	if err := yaml.Unmarshal(document, &object); err != nil {
		return document, err
	}
	apiVersion, _ := object["apiVersion"].(string)
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil || version.Group != v1alpha1.Group && version.Group != karpapis.Group {
		return document, nil //nolint:nilerr // the decoder reports it
	}
	if err := yaml.UnmarshalStrict(document, &map[string]any{}); err != nil {
		return nil, err // a repeated key
	}
	kind, _ := object["kind"].(string)
	if err := crds.SetDefaults(version.WithKind(kind), object); err != nil {
		return nil, err
	}
	return yaml.Marshal(object)
}
