// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

func TestInvalidValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ values, want string }{
		"unknown_setting":        {"settings: {proxmoxPolInterval: 5s}", "additional properties 'proxmoxPolInterval' not allowed"},
		"unknown_feature_gate":   {"settings: {featureGates: {nodeRepare: true}}", "additional properties 'nodeRepare' not allowed"},
		"number_as_duration":     {"settings: {batchMaxDuration: 10}", "at '/settings/batchMaxDuration': got number, want string"},
		"invalid_lease_name":     {"leaderElectionName: Karpenter", "at '/leaderElectionName': 'Karpenter' does not match pattern"},
		"unknown_metrics_type":   {"metrics: {type: podMonitor}", "at '/metrics/type': value must be one of 'annotation', 'service', 'serviceMonitor'"},
		"unknown_log_level":      {"logVerbosityLevel: trace", "at '/logVerbosityLevel': value must be one of 'debug', 'info', 'error'"},
		"cluster_without_region": {"config: {clusters: [{url: 'https://a'}]}", "at '/config/clusters/0': missing property 'region'"},
		"URL_without_scheme":     {"config: {clusters: [{region: a, url: 'pve1:8006'}]}", "at '/config/clusters/0/url': 'pve1:8006' does not match pattern"},
		"unknown_value":          {"replicas: 2", "additional properties 'replicas' not allowed"},
		"no_service_account":     {"serviceAccount: {create: false}", "serviceAccount.create is false: set serviceAccount.name"},
		"unknown_template_kind":  {"customResources: {nodeTemplate: {default: {kind: ProxmoxImage}}}", "value must be one of 'ProxmoxUnmanagedTemplate', 'ProxmoxTemplate'"},
		"relative_config_file":   {"configFile: config.yaml", "at '/configFile': 'config.yaml' does not match pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := render(t, c.values); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: found %v, want %q", c.values, err, c.want)
			}
		})
	}
}

// TestSettings checks that the chart can set every environment variable of the controller.
func TestSettings(t *testing.T) {
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
			t.Errorf("settings.%s sets %s to %q", option.ChartValue(), option.Env, found)
		}
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{chartDir, crdChartDir} {
		if _, err := helm(t, "", "lint", "--strict", dir); err != nil {
			t.Error(err)
		}
	}
}
