// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
)

// Version is a Proxmox release as data: everything in which the two personalities differ beyond their schema.
type Version struct {
	Release string // "8.4"
	Full    string // "8.4.21"
	RepoID  string
	QEMU    string
	// MissingMethods are served in the other release only.
	MissingMethods []string
	// EarlyLockCheck: config writes look at digest and lock before they wait for the file lock, too.
	EarlyLockCheck bool
	// CloneAnnounced: the clone's log starts with the new id and names every allocated volume.
	CloneAnnounced bool
	// HAGroupsMigrated: the groups endpoints refuse; rules took their place.
	HAGroupsMigrated bool
	// NetworkRows: /cluster/resources has "network" rows instead of "sdn" rows.
	NetworkRows bool
	// HostRows: /cluster/resources tells the HA state and the architecture of hosts.
	HostRows bool
	// HostMemory: guests report memhost and pressure figures.
	HostMemory bool
	// BridgeErrorInTask: the start task fails with the bridge's own error instead of QEMU's exit code.
	BridgeErrorInTask bool
	// CreateChecksTags: creating a VM checks restricted tags, in the task.
	CreateChecksTags bool
	// JSONLine and UploadLine are the lines of Proxmox's HTTP server that its own error texts name.
	JSONLine, UploadLine int
	// AgentPingText is how the agent's absence shows in a shutdown's log.
	AgentPingText string
}

// Versions are the personalities by release.
var Versions = map[string]Version{
	"8.4": {
		Release: "8.4", Full: "8.4.21", RepoID: "2606ac85", QEMU: "9.2.0", JSONLine: 917, UploadLine: 1317,
		MissingMethods: []string{"GET /cluster/ha/rules", "POST /cluster/ha/rules", "GET /cluster/ha/rules/{rule}", "PUT /cluster/ha/rules/{rule}", "DELETE /cluster/ha/rules/{rule}"},
		AgentPingText:  "QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout",
	},
	"9.2": {
		Release: "9.2", Full: "9.2.11", RepoID: "7f0ec0b0", QEMU: "11.0.0", JSONLine: 934, UploadLine: 1370,
		EarlyLockCheck: true, CloneAnnounced: true, HAGroupsMigrated: true, NetworkRows: true, HostRows: true, HostMemory: true,
		BridgeErrorInTask: true, CreateChecksTags: true,
		AgentPingText: "QEMU Guest Agent is not running - VM %d qga command 'guest-ping' failed - got timeout",
	},
}

func (v Version) lacks(method string) bool { return slices.Contains(v.MissingMethods, method) }
