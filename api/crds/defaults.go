// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// SetDefaults sets the fields of a custom resource that the API server would set. An object of
// another kind is not changed. The API server's own package for this depends on its validation
// and on CEL.
func SetDefaults(kind schema.GroupVersionKind, content map[string]any) error {
	all, err := schemas()
	if err != nil {
		return err
	}

	fields, ok := all[kind]
	if !ok {
		return nil
	}

	if err := setDefaults(content, fields); err != nil {
		return fmt.Errorf("setting the defaults of a %s: %w", kind.Kind, err)
	}

	return nil
}

// schemas returns the schemas of all kinds. Decoding the CRDs takes tens of milliseconds, so it is done once.
var schemas = sync.OnceValues(func() (map[schema.GroupVersionKind]*apiextensionsv1.JSONSchemaProps, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}

	out := map[schema.GroupVersionKind]*apiextensionsv1.JSONSchemaProps{}

	for _, crd := range all {
		for _, version := range crd.Spec.Versions {
			kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
			out[kind] = version.Schema.OpenAPIV3Schema
		}
	}

	return out, nil
})

// setDefaults sets the default of each field that is missing below a value.
func setDefaults(value any, fields *apiextensionsv1.JSONSchemaProps) error {
	switch value := value.(type) {
	case map[string]any:
		if err := setMissing(value, fields); err != nil {
			return err
		}

		for name, field := range value {
			below, ok := fields.Properties[name]
			if !ok && fields.AdditionalProperties != nil && fields.AdditionalProperties.Schema != nil {
				below = *fields.AdditionalProperties.Schema
			}

			if err := setDefaults(field, &below); err != nil {
				return err
			}
		}
	case []any:
		if fields.Items == nil || fields.Items.Schema == nil {
			return nil
		}

		for _, item := range value {
			if err := setDefaults(item, fields.Items.Schema); err != nil {
				return err
			}
		}
	}

	return nil
}

// setMissing sets the fields of an object that are missing.
func setMissing(object map[string]any, fields *apiextensionsv1.JSONSchemaProps) error {
	for name, field := range fields.Properties {
		if _, found := object[name]; found || field.Default == nil {
			continue
		}

		var value any
		if err := json.Unmarshal(field.Default.Raw, &value); err != nil {
			return fmt.Errorf("parsing the default of %s: %w", name, err)
		}

		object[name] = value
	}

	return nil
}
