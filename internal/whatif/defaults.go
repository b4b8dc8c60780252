// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

// setDefaults sets the fields of a custom resource that the API server would set. Without
// them the hash of a NodeClass would differ, and all its Nodes would count as drifted.
func setDefaults(object client.Object) error {
	kind, err := apiutil.GVKForObject(object, scheme.Scheme)
	if err != nil {
		return fmt.Errorf("setting the defaults of %s: %w", object.GetName(), err)
	}
	all, err := crds.All()
	if err != nil {
		return err
	}
	for _, crd := range all {
		if crd.Spec.Group != kind.Group || crd.Spec.Names.Kind != kind.Kind {
			continue
		}
		for _, version := range crd.Spec.Versions {
			if version.Name != kind.Version {
				continue
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err == nil {
				err = applyDefaults(content, version.Schema.OpenAPIV3Schema)
			}
			if err == nil {
				err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, object)
			}
			if err != nil {
				return fmt.Errorf("setting the defaults of %s %s: %w", kind.Kind, object.GetName(), err)
			}
		}
	}
	return nil
}

// applyDefaults sets missing fields of a value to the defaults of its schema.
func applyDefaults(value any, schema *apiextensionsv1.JSONSchemaProps) error {
	switch value := value.(type) {
	case map[string]any:
		for name := range schema.Properties {
			property := schema.Properties[name]
			if _, ok := value[name]; !ok && property.Default != nil {
				var content any
				if err := json.Unmarshal(property.Default.Raw, &content); err != nil {
					return fmt.Errorf("default of %s: %w", name, err)
				}
				value[name] = content
			}
			if err := applyDefaults(value[name], &property); err != nil {
				return err
			}
		}
		if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
			for name := range value {
				if err := applyDefaults(value[name], schema.AdditionalProperties.Schema); err != nil {
					return err
				}
			}
		}
	case []any:
		if schema.Items == nil || schema.Items.Schema == nil {
			return nil
		}
		for i := range value {
			if err := applyDefaults(value[i], schema.Items.Schema); err != nil {
				return err
			}
		}
	}
	return nil
}
