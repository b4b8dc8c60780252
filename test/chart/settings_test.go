// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

func TestBadValuesAreRefused(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"settings: {proxmoxPolInterval: 5s}":                  "additional properties 'proxmoxPolInterval' not allowed",
		"settings: {featureGates: {nodeRepare: true}}":        "additional properties 'nodeRepare' not allowed",
		"settings: {batchMaxDuration: 10}":                    "at '/settings/batchMaxDuration': got number, want string",
		"metrics: {type: podMonitor}":                         "at '/metrics/type': value must be one of 'annotation', 'service', 'serviceMonitor'",
		"logVerbosityLevel: trace":                            "at '/logVerbosityLevel': value must be one of 'debug', 'info', 'error'",
		"config: {clusters: [{url: 'https://a'}]}":            "at '/config/clusters/0': missing property 'region'",
		"config: {clusters: [{region: a, url: 'pve1:8006'}]}": "at '/config/clusters/0/url': 'pve1:8006' does not match pattern",
		"replicas: 2":                     "additional properties 'replicas' not allowed",
		"serviceAccount: {create: false}": "serviceAccount.create is false: give serviceAccount.name",
		"customResources: {nodeTemplate: {default: {kind: ProxmoxImage}}}": "value must be one of 'ProxmoxUnmanagedTemplate', 'ProxmoxTemplate'",
		"configFile: config.yaml": "at '/configFile': 'config.yaml' does not match pattern",
	} {
		t.Run(values, func(t *testing.T) {
			t.Parallel()
			if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("found %v, want %q", err, want)
			}
		})
	}
}

// TestEverySettingReachesTheController: what the controller reads from its environment the chart can set.
func TestEverySettingReachesTheController(t *testing.T) {
	t.Parallel()
	var values strings.Builder
	values.WriteString("settings:\n")
	for _, option := range operator.OptionTable() {
		if option.Env != operator.CloudConfigVariable {
			values.WriteString("  " + option.ChartValue() + ": v-" + option.Env + "\n")
		}
	}
	rendered, err := render(t, values.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range operator.OptionTable() {
		if option.Env == operator.CloudConfigVariable {
			continue
		}
		if found := rendered.read(t, "Deployment", environment(option.Env)); found != "v-"+option.Env {
			t.Errorf("settings.%s makes %s %q", option.ChartValue(), option.Env, found)
		}
	}
}

func TestChartsLintClean(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{chartDir, crdChartDir} {
		if _, err := helm(t, "", "lint", "--strict", dir); err != nil {
			t.Error(err)
		}
	}
}
