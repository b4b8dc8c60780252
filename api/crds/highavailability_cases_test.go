// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

func highAvailabilityCases() []admissionCase {
	return []admissionCase{
		{
			name: "HA_with_group",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {state: ignored, maxRestart: 3, maxRelocate: 0, group: rack1}}`,
		}, {
			name: "HA_with_rules",
			spec: `
instanceTemplateRef: {kind: ProxmoxTemplate, name: default}
placementStrategy: {poolAffinity: SeparateHosts}
highAvailability: {rules: [rack1, away-from-db], separateHosts: true}`,
		}, {
			name: "defaults_of_HA",
			spec: `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {}}`,
		}, {
			name:    "HA_state_stopped",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {state: stopped}}`,
			refusal: `spec.highAvailability.state: Unsupported value: "stopped"`,
		}, {
			name:    "HA_negative_restarts",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {maxRestart: -1}}`,
			refusal: "spec.highAvailability.maxRestart",
		}, {
			name:    "HA_group_and_rules",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {group: rack1, rules: [rack1]}}`,
			refusal: "group is for Proxmox VE 8, and rules and separateHosts are for Proxmox VE 9 or newer",
		}, {
			name:    "HA_rule_twice",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {rules: [rack1, rack1]}}`,
			refusal: "spec.highAvailability.rules[1]: Duplicate value",
		}, {
			name:    "HA_group_with_space",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {group: "rack 1"}}`,
			refusal: "spec.highAvailability.group",
		}, {
			name:    "HA_separate_hosts_without_placement",
			spec:    `{instanceTemplateRef: {kind: ProxmoxTemplate, name: default}, highAvailability: {separateHosts: true}}`,
			refusal: "highAvailability.separateHosts needs placementStrategy.poolAffinity SeparateHosts",
		},
	}
}
