// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Crds finishes the CustomResourceDefinitions that controller-gen wrote and puts them where the chart wants them, together
// with Karpenter's own. It is a step of "make generate":
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
		return fmt.Errorf("listing %s, %w", generatedDir, err)
	}

	if len(paths) == 0 {
		return fmt.Errorf("listing %s, no CRDs there: run controller-gen first", generatedDir)
	}

	chart, err := crds.Core()
	if err != nil {
		return err
	}

	for _, path := range paths {
		data, err := finish(path)
		if err != nil {
			return err
		}

		chart[filepath.Base(path)] = data
	}

	for name := range chart {
		if chart[name], err = keep(chart[name]); err != nil {
			return fmt.Errorf("marking %s, %w", name, err)
		}
	}

	for _, dir := range chartDirs {
		if err := fillChart(dir, chart); err != nil {
			return err
		}
	}

	return nil
}

// keep tells helm to leave the CRD when the release goes: with it would go every object of its kind, and their VMs.
func keep(data []byte) ([]byte, error) {
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

// finish rewrites one generated file in place with what markers cannot say, and returns its content.
func finish(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the generated CRD, %w", err)
	}

	crd := map[string]any{}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return nil, fmt.Errorf("decoding %s, %w", path, err)
	}

	if strings.HasSuffix(path, "_proxmoxtemplates.yaml") {
		if err := admitScalarFlags(crd); err != nil {
			return nil, fmt.Errorf("finishing %s, %w", path, err)
		}
	}

	data, err = yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("encoding %s, %w", path, err)
	}

	// What the API server would not understand must fail here and not in a user's cluster.
	if err := yaml.UnmarshalStrict(data, &apiextensionsv1.CustomResourceDefinition{}); err != nil {
		return nil, fmt.Errorf("checking %s, %w", path, err)
	}

	data = append([]byte("---\n"), data...)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return nil, fmt.Errorf("writing the CRD, %w", err)
	}

	return data, nil
}

// admitScalarFlags lets spec.cpu.flags be a list of strings or one string.
//
// A structural schema cannot name two types, and CEL cannot see a field without one. So the field gets no type, and value
// validations that only the wanted types can pass: they do not apply to other types than their own, a number cannot be
// below and above 0 and an object cannot be empty and not empty at once, and "not" excludes the booleans.
func admitScalarFlags(crd map[string]any) error {
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

// descend follows keys and indexes down to a map.
func descend(from any, steps ...any) (map[string]any, error) {
	at := from

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
			return nil, fmt.Errorf("finding %v, nothing at %v", steps, steps[:i+1])
		}
	}

	object, ok := at.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("finding %v, it is no object", steps)
	}

	return object, nil
}

// fillChart makes the directory hold exactly these files, and leaves those alone that are right already.
func fillChart(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the chart's directory, %w", err)
	}

	present, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return fmt.Errorf("listing %s, %w", dir, err)
	}

	for _, path := range present {
		if _, wanted := files[filepath.Base(path)]; !wanted {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("removing a CRD that is no more, %w", err)
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
		return fmt.Errorf("writing the chart's CRDs, %w", err)
	}

	return nil
}
