// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crds completes the CustomResourceDefinitions that controller-gen generated and writes them, together with
// Karpenter's own, to the charts. It is a step of "make generate":
//
//	crds api/crds charts/karpenter-provider-proxmox/crds charts/karpenter-provider-proxmox-crd/templates
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: crds GENERATED-DIR CHART-DIR...")
		os.Exit(2)
	}

	if err := run(os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintf(os.Stderr, "crds: %v\n", err)
		os.Exit(1)
	}
}

func run(generatedDir string, chartDirs ...string) error {
	paths, err := filepath.Glob(filepath.Join(generatedDir, "*.yaml"))
	if err != nil {
		return fmt.Errorf("listing %s: %w", generatedDir, err)
	}

	if len(paths) == 0 {
		return fmt.Errorf("listing %s: no CRDs found, run controller-gen first", generatedDir)
	}

	chart, err := crds.Core()
	if err != nil {
		return err
	}

	for _, path := range paths {
		data, err := complete(path)
		if err != nil {
			return err
		}

		chart[filepath.Base(path)] = data
	}

	for name := range chart {
		if chart[name], err = annotateKeep(chart[name]); err != nil {
			return fmt.Errorf("annotating %s: %w", name, err)
		}
	}

	for _, dir := range chartDirs {
		if err := syncChart(dir, chart); err != nil {
			return err
		}
	}

	return nil
}

// annotateKeep adds the annotation that makes helm keep the CRD when the release is uninstalled. Deleting the CRD would
// delete every object of its kind, and their VMs.
func annotateKeep(data []byte) ([]byte, error) {
	crd := map[string]any{}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, err
	}

	metadata, err := descend(crd, "metadata")
	if err != nil {
		return nil, err
	}

	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}

	annotations["helm.sh/resource-policy"] = "keep"
	data, err = yaml.Marshal(crd)

	return append([]byte("---\n"), data...), err
}

// complete rewrites a generated file in place with what markers cannot express, and returns its content.
func complete(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the generated CRD: %w", err)
	}

	crd := map[string]any{}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", path, err)
	}

	if strings.HasSuffix(path, "_proxmoxtemplates.yaml") {
		if err := allowScalarFlags(crd); err != nil {
			return nil, fmt.Errorf("completing %s: %w", path, err)
		}
	}

	data, err = yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", path, err)
	}

	// An invalid CRD must fail here and not in a user's cluster.
	if err := yaml.UnmarshalStrict(data, &apiextensionsv1.CustomResourceDefinition{}); err != nil {
		return nil, fmt.Errorf("validating %s: %w", path, err)
	}

	data = append([]byte("---\n"), data...)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return nil, fmt.Errorf("writing the CRD: %w", err)
	}

	return data, nil
}

// allowScalarFlags allows spec.cpu.flags to be a list of strings or one string.
//
// A structural schema cannot have two types, and CEL cannot access a field without a type. So the field gets no type but
// validations that only the desired types pass. A validation applies to its own type only: no number is at most 0 and at least 1,
// no object is both empty and not empty, and "not" excludes the booleans.
func allowScalarFlags(crd map[string]any) error {
	const flag = `[+-][a-zA-Z0-9_.-]+`

	cpu, err := descend(crd, "spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec", "properties",
		"cpu", "properties")
	if err != nil {
		return err
	}

	generated, err := descend(cpu, "flags")
	if err != nil {
		return err
	}

	cpu["flags"] = map[string]any{
		"description":                          generated["description"],
		"x-kubernetes-preserve-unknown-fields": true,

		"items":    map[string]any{"type": "string", "maxLength": 64, "pattern": "^" + flag + "$"},
		"maxItems": 10,

		"maxLength": 640,
		"pattern":   `^` + flag + `([;,\s]+` + flag + `){0,9}$`,

		"minimum":       1,
		"maximum":       0,
		"minProperties": 1,
		"maxProperties": 0,
		"not":           map[string]any{"enum": []any{true, false}},
	}

	return nil
}

// descend returns the map at a path of keys and indexes.
func descend(root any, steps ...any) (map[string]any, error) {
	at := root

	for i, step := range steps {
		var ok bool

		switch step := step.(type) {
		case string:
			var object map[string]any
			if object, ok = at.(map[string]any); ok {
				at, ok = object[step]
			}
		case int:
			var list []any
			if list, ok = at.([]any); ok {
				if ok = step < len(list); ok {
					at = list[step]
				}
			}
		}

		if !ok {
			return nil, fmt.Errorf("finding %v: %v does not exist", steps, steps[:i+1])
		}
	}

	object, ok := at.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("finding %v: it is not an object", steps)
	}

	return object, nil
}

// syncChart writes the files to the directory and deletes its other YAML files. It does not rewrite unchanged files.
func syncChart(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the chart's directory: %w", err)
	}

	present, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return fmt.Errorf("listing %s: %w", dir, err)
	}

	for _, path := range present {
		if _, ok := files[filepath.Base(path)]; !ok {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("deleting a stale CRD: %w", err)
			}
		}
	}

	var problems []error

	for name, data := range files {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}

		problems = append(problems, os.WriteFile(path, data, 0o644))
	}

	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("writing the chart's CRDs: %w", err)
	}

	return nil
}
