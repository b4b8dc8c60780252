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
	found := reject(t, `
configFile: config.yaml
config: {cluster: [], features: {provider: aws}}
customResources: {nodeTemplate: {default: {kind: ProxmoxImage}}}
leaderElectionName: Karpenter
logVerbosityLevel: trace
metrics: {type: podMonitor}
replicas: 2
settings: {proxmoxPolInterval: 5s, batchMaxDuration: 10, kubeClientQps: many, enableProfiling: 'yes', webPagePort: '0', featureGates: {nodeRepare: true}}
`)
	for _, want := range []string{
		"at '/settings': additional properties 'proxmoxPolInterval' not allowed",
		"at '/settings/featureGates': additional properties 'nodeRepare' not allowed",
		"at '/settings/batchMaxDuration': got number, want null or string",
		"at '/settings/kubeClientQps': got string, want null or integer",
		"at '/settings/enableProfiling': got string, want null or boolean",
		"at '/settings/webPagePort': got string, want null or integer",
		"at '/leaderElectionName': 'Karpenter' does not match pattern",
		"at '/metrics/type': value must be one of 'annotation', 'service', 'serviceMonitor'",
		"at '/logVerbosityLevel': value must be one of 'debug', 'info', 'error'",
		"at '/config': additional properties 'cluster' not allowed",
		"at '/config/features/provider': value must be one of 'default', 'capmox', <nil>",
		"at '': additional properties 'replicas' not allowed",
		"at '/customResources/nodeTemplate/default/kind': value must be one of 'ProxmoxUnmanagedTemplate', 'ProxmoxTemplate'",
		"at '/configFile': 'config.yaml' does not match pattern",
	} {
		expect(t, strings.Contains(found, want), "helm does not report %q:\n%s", want, found)
	}
	found, want := reject(t, "serviceAccount: {create: false}"), "serviceAccount.create is false: set serviceAccount.name"
	expect(t, strings.Contains(found, want), "found %s, want %q", found, want)
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
	rendered := render(t, string(content))
	for name, value := range want {
		found := rendered.read(t, "Deployment", environment(name))
		expect(t, found == value, "%s is %q, want %q", name, found, value)
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
		found := strings.Contains(set, "--"+f.Name+"=") || slices.Contains(strings.Fields(set), variable)
		expect(t, found != unset, "the chart sets --%s or %s: %t, want %t", f.Name, variable, found, !unset)
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
