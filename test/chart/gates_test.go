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
	var defaults map[string]bool
	t.Run("defaults", func(t *testing.T) {
		defaults = switches(gatesOf(t, ""))
		if want := switches(options.DefaultFeatureGates()); !reflect.DeepEqual(defaults, want) {
			t.Errorf("the chart's gates are %v, want Karpenter's defaults %v", defaults, want)
		}
	})
	if len(defaults) < 9 {
		t.Fatalf("found %d gates, want at least 9", len(defaults))
	}
	for gate, byDefault := range defaults {
		t.Run(gate, func(t *testing.T) {
			t.Parallel()
			value := strings.ToLower(gate[:1]) + gate[1:]
			for found, on := range switches(gatesOf(t, fmt.Sprintf("settings: {featureGates: {%s: %t}}", value, !byDefault))) {
				if want := defaults[found] != (found == gate); on != want {
					t.Errorf("with settings.featureGates.%s: %t, gate %s is %t, want %t", value, !byDefault, found, on, want)
				}
			}
		})
	}
}

// switches returns the gates by name.
func switches(gates options.FeatureGates) map[string]bool {
	out := map[string]bool{}
	value := reflect.ValueOf(gates)
	for i := range value.NumField() {
		if field := value.Type().Field(i); field.IsExported() && field.Type.Kind() == reflect.Bool {
			out[field.Name] = value.Field(i).Bool()
		}
	}
	return out
}
