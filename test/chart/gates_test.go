// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/karpenter/pkg/operator/options"
)

// gatesOf returns the feature gates that Karpenter parses from the rendered chart.
func gatesOf(t *testing.T, values string) options.FeatureGates {
	t.Helper()
	rendered := render(t, values)
	gates, err := options.ParseFeatureGates(rendered.read(t, "Deployment", environment("FEATURE_GATES")))
	check(t, err)
	return gates
}

// TestFeatureGates iterates over Karpenter's feature gates, so it covers those of later
// releases. Each must be what the chart's value sets, and no other may change.
func TestFeatureGates(t *testing.T) {
	t.Parallel()
	defaults := options.DefaultFeatureGates()
	found := gatesOf(t, "")
	expect(t, found == defaults, "the chart's gates are %v, want Karpenter's defaults %v", found, defaults)
	changed := 0
	for i := range reflect.TypeFor[options.FeatureGates]().NumField() {
		field, want := reflect.TypeFor[options.FeatureGates]().Field(i), defaults
		if !field.IsExported() || field.Type.Kind() != reflect.Bool {
			continue
		}
		changed++
		value := !reflect.ValueOf(defaults).Field(i).Bool()
		reflect.ValueOf(&want).Elem().Field(i).SetBool(value)
		t.Run(field.Name, func(t *testing.T) {
			t.Parallel()
			values := fmt.Sprintf("settings: {featureGates: {%s%s: %t}}", strings.ToLower(field.Name[:1]), field.Name[1:], value)
			found := gatesOf(t, values)
			expect(t, found == want, "with %s, the gates are %v, want %v", values, found, want)
		})
	}
	if changed < 9 {
		t.Fatalf("found %d gates, want at least 9", changed)
	}
}
