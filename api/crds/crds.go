// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crds contains the CustomResourceDefinitions that the provider needs as Go values. Tests and the demo install the
// same CRDs as the chart. "make generate" writes the YAML files in this directory.
package crds

import (
	"embed"
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// All returns the CustomResourceDefinitions of this provider and of Karpenter. The caller may modify the result.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := Own()
	if err != nil {
		return nil, err
	}

	core, err := Core()
	if err != nil {
		return nil, err
	}

	for _, name := range slices.Sorted(maps.Keys(core)) {
		crd, err := decode(name, core[name])
		if err != nil {
			return nil, err
		}

		all = append(all, crd)
	}

	return all, nil
}

// Own returns the CustomResourceDefinitions of this provider. The caller may modify the result.
func Own() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("listing embedded CRDs: %w", err)
	}

	own := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))

	for _, entry := range entries {
		data, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("reading embedded CRD: %w", err)
		}

		crd, err := decode(entry.Name(), data)
		if err != nil {
			return nil, err
		}

		own = append(own, crd)
	}

	return own, nil
}

func decode(name string, data []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		return nil, fmt.Errorf("decoding CRD %s: %w", name, err)
	}

	return crd, nil
}
