// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

func TestInvalidValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ values, want string }{
		"unknown_setting":       {"settings: {proxmoxPolInterval: 5s}", "additional properties 'proxmoxPolInterval' not allowed"},
		"unknown_feature_gate":  {"settings: {featureGates: {nodeRepare: true}}", "additional properties 'nodeRepare' not allowed"},
		"number_as_duration":    {"settings: {batchMaxDuration: 10}", "at '/settings/batchMaxDuration': got number, want null or string"},
		"invalid_lease_name":    {"leaderElectionName: Karpenter", "at '/leaderElectionName': 'Karpenter' does not match pattern"},
		"unknown_metrics_type":  {"metrics: {type: podMonitor}", "at '/metrics/type': value must be one of 'annotation', 'service', 'serviceMonitor'"},
		"unknown_log_level":     {"logVerbosityLevel: trace", "at '/logVerbosityLevel': value must be one of 'debug', 'info', 'error'"},
		"text_as_number":        {"settings: {kubeClientQps: many}", "at '/settings/kubeClientQps': got string, want null or integer"},
		"text_as_bool":          {"settings: {enableProfiling: 'yes'}", "at '/settings/enableProfiling': got string, want null or boolean"},
		"port_as_text":          {"settings: {webPagePort: '0'}", "at '/settings/webPagePort': got string, want null or integer"},
		"unknown_config":        {"config: {cluster: []}", "at '/config': additional properties 'cluster' not allowed"},
		"unknown_feature":       {"config: {features: {provider: aws}}", "at '/config/features/provider': value must be one of 'default', 'capmox', <nil>"},
		"unknown_value":         {"replicas: 2", "additional properties 'replicas' not allowed"},
		"no_service_account":    {"serviceAccount: {create: false}", "serviceAccount.create is false: set serviceAccount.name"},
		"unknown_template_kind": {"customResources: {nodeTemplate: {default: {kind: ProxmoxImage}}}", "value must be one of 'ProxmoxUnmanagedTemplate', 'ProxmoxTemplate'"},
		"relative_config_file":  {"configFile: config.yaml", "at '/configFile': 'config.yaml' does not match pattern"},
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
	values, want := map[string]any{}, map[string]string{}
	for _, option := range operator.OptionTable() {
		switch option.Env {
		case operator.CloudConfigVariable:
			continue
		case "WEB_PAGE_PORT":
			values[option.ChartValue()] = 8443
		default:
			values[option.ChartValue()] = "v-" + option.Env
		}
		want[option.Env] = fmt.Sprint(values[option.ChartValue()])
	}
	checkEnvironment(t, values, want)
}

// checkEnvironment renders the chart with the settings, and checks the variables of the
// controller.
func checkEnvironment(t *testing.T, settings map[string]any, want map[string]string) objects {
	t.Helper()
	content, err := yaml.Marshal(map[string]any{"settings": settings})
	check(t, err)
	rendered, err := render(t, string(content))
	check(t, err)
	for name, value := range want {
		if found := rendered.read(t, "Deployment", environment(name)); found != value {
			t.Errorf("%s is %q, want %q", name, found, value)
		}
	}
	return rendered
}

// TestCoreSettings checks that the chart can set every setting of Karpenter's core: below
// settings, or with an argument or variable of its own.
func TestCoreSettings(t *testing.T) {
	t.Parallel()
	values, want := map[string]any{}, map[string]string{}
	for _, option := range operator.CoreOptions() {
		var value any
		switch option.Type.String() {
		case "bool":
			value = option.Default == "false" // the opposite
		case "int", "int64":
			value = 1234567
		case "time.Duration":
			value = "77s"
		default:
			value = map[string]string{"PREFERENCE_POLICY": "Ignore", "MIN_VALUES_POLICY": "BestEffort"}[option.Env]
			if value == "" {
				value = "v-" + option.Env
			}
		}
		values[option.ChartValue()], want[option.Env] = value, fmt.Sprint(value)
	}
	values["schedulerConfig"] = map[string]any{"podTopologySpread": map[string]any{"defaultConstraints": []any{}}}
	want["SCHEDULER_CONFIG"] = `{"podTopologySpread":{"defaultConstraints":[]}}`
	rendered := checkEnvironment(t, values, want)

	set := rendered.read(t, "Deployment", container+".args} "+container+".env[*].name}")
	flags := &coreoptions.FlagSet{FlagSet: flag.NewFlagSet("", flag.ContinueOnError)}
	new(coreoptions.Options).AddFlags(flags)
	flags.VisitAll(func(f *flag.Flag) {
		variable := strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		// Core does not use karpenter-service, and two controllers must not run.
		unset := f.Name == "karpenter-service" || f.Name == "disable-leader-election"
		if found := strings.Contains(set, "--"+f.Name+"=") || slices.Contains(strings.Fields(set), variable); found == unset {
			t.Errorf("the chart sets --%s or %s: %t, want %t", f.Name, variable, found, !unset)
		}
	})
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{chartDir, crdChartDir} {
		if _, err := helm(t, "", "lint", "--strict", dir); err != nil {
			t.Error(err)
		}
	}
}
