// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPermissions(t *testing.T) {
	t.Parallel()
	held := proxmox.Permissions{
		"/":               {"Sys.Audit": true, "VM.Clone": false},
		"/storage":        {"Datastore.Audit": true},
		"/storage/backup": {"Datastore.Allocate": false},
		"/vms/9000":       {"VM.Clone": true},
	}
	for _, c := range []struct {
		path, privilege string
		want            bool
		source          string
	}{
		{"/", "Sys.Audit", true, "/"},
		{"/nodes/pve1", "Sys.Audit", true, "/"},
		{"/", "VM.Clone", true, "/"},
		{"/vms/1", "VM.Clone", false, "/"},
		{"/vms/9000", "VM.Clone", true, "/vms/9000"},
		{"/vms/9000", "Sys.Audit", false, "/vms/9000"},
		{"/storage/local", "Datastore.Audit", true, "/storage"},
		{"/storage/local", "Sys.Audit", false, "/storage"},
		{"/storage/backup", "Datastore.Audit", false, "/storage/backup"},
		{"/storage/backup", "Datastore.Allocate", true, "/storage/backup"},
		{"/storage/backup/x", "Datastore.Allocate", false, "/storage/backup"},
	} {
		if got := held.Has(c.path, c.privilege); got != c.want {
			t.Errorf("%s on %s: found %t", c.privilege, c.path, got)
		}
		if got := held.Source(c.path); got != c.source {
			t.Errorf("privileges on %s come from %q, want %q", c.path, got, c.source)
		}
	}
	held.Deny("/nodes")
	if held.Has("/nodes/pve1", "Sys.Audit") || !held.IsDenied("/nodes") || held.IsDenied("/storage") || held.IsDenied("/sdn") {
		t.Error("a denied path inherits privileges")
	}
	delete(held, "/nodes")
	inherited := proxmox.Permissions{"/": {"VM.Audit": true}, "/vms": {"VM.Audit": true}, "/vms/1": {"VM.Clone": true}}
	for path, want := range map[string]string{"/vms/2": "/", "/vms": "/", "/": "/", "/vms/1": "/vms/1", "/nodes/pve1": "/"} {
		if got := inherited.Origin(path); got != want {
			t.Errorf("privileges on %s were granted on %q, want %q", path, got, want)
		}
	}
	partly := proxmox.Permissions{"/": {"Sys.Console": false, "VM.Audit": true}, "/vms": {"VM.Audit": true}}
	unpropagated := proxmox.Permissions{"/": {"Sys.Audit": false, "Sys.Console": false}, "/nodes": {"Sys.Audit": true}}
	for path, want := range map[string]string{"/": "/", "/nodes": "/nodes", "/nodes/pve1": "/nodes", "/vms/1": ""} {
		if got := unpropagated.Origin(path); got != want {
			t.Errorf("without propagation: privileges on %s were granted on %q, want %q", path, got, want)
		}
	}
	if got := partly.Origin("/vms/1"); got != "/" {
		t.Errorf("privileges that propagate were granted on %q, want /", got)
	}
	nothing := proxmox.Permissions{}
	if origin := nothing.Origin("/vms"); origin != "" {
		t.Errorf("found the origin %q without any privileges", origin)
	}
	if nothing.Has("/vms/1", "VM.Audit") || nothing.Source("/vms/1") != "" || nothing.HasBelow("/", "VM.Audit") {
		t.Error("found a privilege without any privileges")
	}
	if !held.HasBelow("/vms", "VM.Clone") || held.HasBelow("/pool", "VM.Clone") || !held.HasBelow("/nodes", "Sys.Audit") {
		t.Error("HasBelow returned a wrong result")
	}
}
