// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// applyDefaults sets the defaults of the CRD in a manifest of this provider, as the API
// server does. Other manifests are returned unchanged. The package of the API server for
// this depends on its validation and CEL.
func applyDefaults(document []byte) ([]byte, error) {
	var object map[string]any
	if err := yaml.Unmarshal(document, &object); err != nil || object["apiVersion"] != v1alpha1.SchemeGroupVersion.String() {
		return document, err
	}
	if err := yaml.UnmarshalStrict(document, &map[string]any{}); err != nil {
		return nil, err // a repeated key
	}
	definitions, err := crds.Own()
	if err != nil {
		return nil, err
	}
	for _, definition := range definitions {
		for _, version := range definition.Spec.Versions {
			if definition.Spec.Names.Kind != object["kind"] || version.Name != v1alpha1.SchemeGroupVersion.Version {
				continue
			}
			if err := setDefaults(object, version.Schema.OpenAPIV3Schema); err != nil {
				return nil, err
			}
		}
	}
	return yaml.Marshal(object)
}

// setDefaults sets the default of each field that is missing in a value.
func setDefaults(value any, schema *apiextensionsv1.JSONSchemaProps) error {
	switch value := value.(type) {
	case map[string]any:
		for name, property := range schema.Properties {
			if _, found := value[name]; !found && property.Default != nil {
				var fallback any
				if err := json.Unmarshal(property.Default.Raw, &fallback); err != nil {
					return fmt.Errorf("parsing the default of %s: %w", name, err)
				}
				value[name] = fallback
			}
			if err := setDefaults(value[name], &property); err != nil {
				return err
			}
		}
	case []any:
		if schema.Items == nil || schema.Items.Schema == nil {
			return nil
		}
		for _, item := range value {
			if err := setDefaults(item, schema.Items.Schema); err != nil {
				return err
			}
		}
	}
	return nil
}
