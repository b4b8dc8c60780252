// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
)

// Version describes a Proxmox release: all differences between the releases that are not in their schemas.
type Version struct {
	Release string // "8.4"
	Full    string // "8.4.21"
	RepoID  string
	QEMU    string
	// MissingMethods exist only in the other release.
	MissingMethods []string
	// EarlyLockCheck means that config writes check digest and lock also before they wait for the file lock.
	EarlyLockCheck bool
	// CloneAnnounced means that the log of a clone starts with the new VMID and contains each allocated volume.
	CloneAnnounced bool
	// HAGroupsMigrated means that rules replaced HA groups, and that the API of the groups always fails.
	HAGroupsMigrated bool
	// NetworkRows means that /cluster/resources has "network" rows instead of "sdn" rows.
	NetworkRows bool
	// HostRows means that /cluster/resources contains the HA state and the architecture of hosts.
	HostRows bool
	// HostMemory means that guests report memhost and pressure figures.
	HostMemory bool
	// BridgeErrorInTask means that a start task fails with the error of the bridge instead of the exit code of QEMU.
	BridgeErrorInTask bool
	// CreateChecksTags means that the create task checks restricted tags.
	CreateChecksTags bool
	// JSONLine and UploadLine are the line numbers in error texts of Proxmox's HTTP server.
	JSONLine, UploadLine int
	// AgentPingText is the line in the log of a shutdown if the guest agent does not answer.
	AgentPingText string
}

// Versions are the simulated releases.
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

func (v Version) isMissing(method string) bool { return slices.Contains(v.MissingMethods, method) }
