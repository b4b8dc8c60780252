// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

//go:embed specs.yaml
var listsFile []byte

// lists are the specs that are treated differently.
type lists struct {
	// Allowed are specs that do not pass, with the reason.
	Allowed []allowed `json:"allowed"`
	// Representative are the specs of a short run.
	Representative []string `json:"representative"`
}

// allowed is a spec that may fail or be skipped.
type allowed struct {
	Spec   string `json:"spec"`
	Reason string `json:"reason"`
}

func readLists() (lists, error) {
	var l lists
	if err := yaml.UnmarshalStrict(listsFile, &l); err != nil {
		return l, fmt.Errorf("reading specs.yaml: %w", err)
	}
	for _, a := range l.Allowed {
		if a.Reason == "" {
			return l, fmt.Errorf("reading specs.yaml: allowed spec %q has no reason", a.Spec)
		}
	}
	return l, nil
}

// reason returns why a spec may fail. It is empty if the spec must pass.
func (l lists) reason(s Spec) string {
	if s.Kwok {
		return "the kwok provider is only compared"
	}
	for _, a := range l.Allowed {
		if a.Spec == s.String() {
			return a.Reason
		}
	}
	return ""
}

// check returns an error for an entry of the given suites that names no spec.
func (l lists) check(suites []string, specs []Spec) error {
	named := slices.Clone(l.Representative)
	for _, a := range l.Allowed {
		named = append(named, a.Spec)
	}
	for _, name := range named {
		suite := suiteOf(name)
		if !slices.Contains(suites, suite) {
			continue
		}
		if !slices.ContainsFunc(specs, func(s Spec) bool { return s.String() == name }) {
			return fmt.Errorf("reading specs.yaml: suite %s has no spec %q", suite, name)
		}
	}
	return nil
}
