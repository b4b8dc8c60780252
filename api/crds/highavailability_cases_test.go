// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

var highAvailabilityCases = admissionCases{
	"HA_with_group": {spec: `highAvailability: {state: ignored, maxRestart: 3, maxRelocate: 0, group: rack1}`},
	"HA_with_rules": {spec: `
placementStrategy: {poolAffinity: SeparateHosts}
highAvailability: {rules: [rack1, away-from-db], separateHosts: true}`},
	"defaults_of_HA": {spec: `highAvailability: {}`},
	"HA_state_stopped": {`highAvailability: {state: stopped}`,
		`spec.highAvailability.state: Unsupported value: "stopped"`},
	"HA_negative_restarts": {`highAvailability: {maxRestart: -1}`, "spec.highAvailability.maxRestart"},
	"HA_group_and_rules": {`highAvailability: {group: rack1, rules: [rack1]}`,
		"group is for Proxmox VE 8, and rules and separateHosts are for Proxmox VE 9 or newer"},
	"HA_rule_twice": {`highAvailability: {rules: [rack1, rack1]}`,
		"spec.highAvailability.rules[1]: Duplicate value"},
	"HA_group_with_space": {`highAvailability: {group: "rack 1"}`, "spec.highAvailability.group"},
	"HA_separate_hosts_without_placement": {`highAvailability: {separateHosts: true}`,
		"highAvailability.separateHosts needs placementStrategy.poolAffinity SeparateHosts"},
}
