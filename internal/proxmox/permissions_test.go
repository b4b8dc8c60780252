// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPermissions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
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
		g.Expect(held.Has(c.path, c.privilege)).To(Equal(c.want), "%s on %s", c.privilege, c.path)
		g.Expect(held.Source(c.path)).To(Equal(c.source), "privileges on %s come", c.path)
	}
	held.Deny("/nodes")
	denied := []bool{held.Has("/nodes/pve1", "Sys.Audit"), held.IsDenied("/nodes"), held.IsDenied("/storage"), held.IsDenied("/sdn")}
	g.Expect(denied).To(Equal([]bool{false, true, false, false}))
	delete(held, "/nodes")
	inherited := proxmox.Permissions{"/": {"VM.Audit": true}, "/vms": {"VM.Audit": true}, "/vms/1": {"VM.Clone": true}}
	for path, want := range map[string]string{"/vms/2": "/", "/vms": "/", "/": "/", "/vms/1": "/vms/1", "/nodes/pve1": "/"} {
		g.Expect(inherited.Origin(path)).To(Equal(want), "privileges on %s were granted on", path)
	}
	partly := proxmox.Permissions{"/": {"Sys.Console": false, "VM.Audit": true}, "/vms": {"VM.Audit": true}}
	unpropagated := proxmox.Permissions{"/": {"Sys.Audit": false, "Sys.Console": false}, "/nodes": {"Sys.Audit": true}}
	for path, want := range map[string]string{"/": "/", "/nodes": "/nodes", "/nodes/pve1": "/nodes", "/vms/1": ""} {
		g.Expect(unpropagated.Origin(path)).To(Equal(want), "without propagation: privileges on %s were granted on", path)
	}
	g.Expect(partly.Origin("/vms/1")).To(Equal("/"), "privileges that propagate were granted on")
	nothing := proxmox.Permissions{}
	g.Expect(nothing.Origin("/vms")).To(BeEmpty())
	g.Expect([]any{nothing.Has("/vms/1", "VM.Audit"), nothing.Source("/vms/1"), nothing.HasBelow("/", "VM.Audit")}).To(HaveEach(BeZero()))
	below := []bool{held.HasBelow("/vms", "VM.Clone"), held.HasBelow("/pool", "VM.Clone"), held.HasBelow("/nodes", "Sys.Audit")}
	g.Expect(below).To(Equal([]bool{true, false, true}))
}
