// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// SetDefaults sets the fields of a custom resource that the API server would set. An object of
// another kind is not changed.
func SetDefaults(kind schema.GroupVersionKind, content map[string]any) error {
	all, err := definitions()
	if err != nil || all[kind] == nil {
		return err
	}

	d, err := all[kind]()
	if err != nil {
		return err
	}

	defaulting.Default(content, d.structural)

	return nil
}

// Validate returns an error if the API server would reject a new custom resource because of its
// kind or its fields. It accepts unknown fields, and objects of other API groups.
func Validate(ctx context.Context, kind schema.GroupVersionKind, content map[string]any) error {
	all, err := definitions()
	if err != nil {
		return err
	}

	if all[kind] == nil {
		return checkKind(all, kind)
	}

	d, err := all[kind]()
	if err != nil {
		return err
	}

	errs := validation.ValidateCustomResource(nil, content, d.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.structural, content)...)

	// Rules can fail with less helpful errors if the types of the fields are wrong.
	if rules := d.rules(); len(errs) == 0 && rules != nil {
		errs, _ = rules.Validate(ctx, nil, d.structural, content, nil, celconfig.RuntimeCELCostBudget)
	}

	return errs.ToAggregate()
}

// checkKind returns an error if the CRDs define other kinds in the API group of a kind.
func checkKind(all map[schema.GroupVersionKind]func() (definition, error), kind schema.GroupVersionKind) error {
	var known []string

	for other := range all {
		if other.Group == kind.Group {
			known = append(known, other.GroupVersion().String()+" "+other.Kind)
		}
	}

	if len(known) == 0 {
		return nil
	}

	slices.Sort(known)

	return fmt.Errorf("kind: found %s %s, which is unknown, want one of %s", kind.GroupVersion(), kind.Kind, strings.Join(known, ", "))
}

// definition is a version of a CRD as the API server uses it.
type definition struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
	// rules are the compiled CEL rules, or nil if there are none.
	rules func() *cel.Validator
}

// definitions returns the definitions by kind. Decoding the CRDs and compiling their rules takes
// tens of milliseconds, so each is done once, when it is needed.
var definitions = sync.OnceValues(func() (map[schema.GroupVersionKind]func() (definition, error), error) {
	all, err := All()
	if err != nil {
		return nil, err
	}

	out := map[schema.GroupVersionKind]func() (definition, error){}

	for _, crd := range all {
		for _, version := range crd.Spec.Versions {
			kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
			out[kind] = sync.OnceValues(func() (definition, error) { return newDefinition(kind, version.Schema) })
		}
	}

	return out, nil
})

func newDefinition(kind schema.GroupVersionKind, fields *apiextensionsv1.CustomResourceValidation) (definition, error) {
	var internal apiextensions.CustomResourceValidation

	err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(fields, &internal, nil)
	if err != nil {
		return definition{}, fmt.Errorf("reading the schema of %s: %w", kind.Kind, err)
	}

	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return definition{}, fmt.Errorf("reading the schema of %s: %w", kind.Kind, err)
	}

	validator, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
	if err != nil {
		return definition{}, fmt.Errorf("reading the schema of %s: %w", kind.Kind, err)
	}

	return definition{
		structural: structural,
		validator:  validator,
		rules:      sync.OnceValue(func() *cel.Validator { return cel.NewValidator(structural, true, celconfig.PerCallLimit) }),
	}, nil
}
