// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// applyDefaults sets the defaults of the CRD in a manifest of this provider, as the API
// server does. Other manifests are returned unchanged.
func applyDefaults(document []byte) ([]byte, error) {
	var object map[string]any
	if err := yaml.Unmarshal(document, &object); err != nil || object["apiVersion"] != v1alpha1.SchemeGroupVersion.String() {
		return document, err
	}
	if err := yaml.UnmarshalStrict(document, &map[string]any{}); err != nil {
		return nil, err // a repeated key
	}
	kind, _ := object["kind"].(string)
	if err := crds.SetDefaults(v1alpha1.SchemeGroupVersion.WithKind(kind), object); err != nil {
		return nil, err
	}
	return yaml.Marshal(object)
}
