// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	const token = "kubernetes@pve!karpenter"
	on := func(path string, names ...string) (out []privileges.Required) {
		for _, name := range names {
			out = append(out, privileges.Required{Path: path, Privilege: name})
		}
		return out
	}
	vm := privileges.OnVM("", "VM.Allocate", "VM.Config.CPU")
	for name, test := range map[string]struct {
		account  privileges.Account
		required []privileges.Required
		want     string
	}{
		"nothing_missing": {privileges.Account{User: token, Held: proxmox.Permissions{"/": {"VM.Allocate": true, "VM.Config.CPU": true}}},
			vm, ""},
		"role_on_root": {privileges.Account{User: token, Held: proxmox.Permissions{"/": {"VM.Allocate": true}, "/vms": {"VM.Allocate": true}}},
			vm,
			"API token " + token + " lacks VM.Config.CPU on /vms; " +
				`run: pveum role add Karpenter --privs "VM.Allocate VM.Config.CPU" && pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens '` + token + "'"},
		"role_exists": {privileges.Account{
			User: token, Held: proxmox.Permissions{"/": {"VM.Allocate": true}}, Roles: map[string][]string{"Karpenter": {"VM.Allocate", "VM.Audit"}},
		}, vm,
			"API token " + token + " lacks VM.Config.CPU on /vms; " +
				`run: pveum role modify Karpenter --append 1 --privs "VM.Config.CPU" && pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens '` + token + "'"},
		"role_is_complete_and_not_granted": {privileges.Account{
			User: token, Held: proxmox.Permissions{"/": {"VM.Allocate": true}}, Roles: map[string][]string{"Karpenter": {"VM.Allocate", "VM.Config.CPU"}},
		}, vm,
			"API token " + token + " lacks VM.Config.CPU on /vms; " +
				"run: pveum acl modify / --roles Karpenter --users kubernetes@pve --tokens '" + token + "'"},
		"HA": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{"/": {"VM.Allocate": true, "Sys.Audit": true}}},
			append(on("/", "Sys.Audit", "Sys.Console"), vm...),
			"user karpenter@pve lacks Sys.Console on /; VM.Config.CPU on /vms; " +
				`run: pveum role add Karpenter --privs "VM.Allocate VM.Config.CPU" && pveum role add KarpenterHA --privs "Sys.Audit Sys.Console" && ` +
				"pveum acl modify / --roles Karpenter --users karpenter@pve && pveum acl modify / --roles KarpenterHA --users karpenter@pve --propagate 0"},
		// What is granted on / without propagation does not apply to other paths, so nothing else
		// is granted there. The role Karpenter would grant all of its privileges on all objects.
		"HA_is_all_it_has": {privileges.Account{
			User: "karpenter@pve", Held: proxmox.Permissions{"/": {"Sys.Audit": false, "Sys.Console": false}},
			Roles: map[string][]string{"Karpenter": {"Datastore.Allocate", "VM.Allocate", "VM.Config.CPU"}, "KarpenterHA": {"Sys.Audit", "Sys.Console"}},
		},
			slices.Concat(on("/", "Sys.Audit", "Sys.Console"), on("/nodes/a", "Sys.Audit"), vm, on("/storage/x", "Datastore.AllocateSpace")),
			"user karpenter@pve lacks Sys.Audit on /nodes/a; VM.Allocate, VM.Config.CPU on /vms; Datastore.AllocateSpace on /storage/x; " +
				`run: pveum role add KarpenterHost --privs "Sys.Audit" && pveum role add KarpenterVM --privs "VM.Allocate VM.Config.CPU" && ` +
				`pveum role add KarpenterDisk --privs "Datastore.AllocateSpace" && pveum acl modify /nodes/a --roles KarpenterHost --users karpenter@pve && ` +
				"pveum acl modify /vms --roles KarpenterVM --users karpenter@pve && pveum acl modify /storage/x --roles KarpenterDisk --users karpenter@pve"},
		"HA_and_resource_pool": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{
			"/": {"Sys.Audit": false, "Sys.Console": false}, "/nodes": {"Sys.Audit": true}, "/pool/team": {"VM.Allocate": true},
		}},
			slices.Concat(on("/nodes/a", "Sys.Audit"), privileges.OnVM("team", "VM.Allocate", "VM.Config.CPU"), on("/vms/9000", "VM.Clone")),
			"user karpenter@pve lacks VM.Config.CPU on /pool/team; VM.Clone on /vms/9000; " +
				`run: pveum role add KarpenterVM --privs "VM.Allocate VM.Config.CPU" && pveum role add KarpenterTemplate --privs "VM.Clone" && ` +
				"pveum acl modify /pool/team --roles KarpenterVM --users karpenter@pve && pveum acl modify /vms/9000 --roles KarpenterTemplate --users karpenter@pve"},
		"HA_and_role_on_root": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{
			"/": {"Sys.Audit": true, "Sys.Console": false, "VM.Allocate": true}, "/vms": {"Sys.Audit": true, "VM.Allocate": true},
		}}, append(on("/", "Sys.Audit", "Sys.Console"), vm...),
			"user karpenter@pve lacks VM.Config.CPU on /vms; " +
				`run: pveum role add Karpenter --privs "VM.Allocate VM.Config.CPU" && pveum acl modify / --roles Karpenter --users karpenter@pve`},
		"startup": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{"/": {"VM.Allocate": true, "VM.Config.CPU": true}}},
			append(on("/", "Sys.Modify"), vm...),
			"user karpenter@pve lacks Sys.Modify on /; " +
				`run: pveum role add KarpenterStartup --privs "Sys.Modify" && pveum acl modify / --roles KarpenterStartup --users karpenter@pve --propagate 0`},
		// An account that may only read everything gets no other privilege on everything.
		"reader_of_the_cluster": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{
			"/": {"Pool.Audit": true, "Sys.Audit": true, "VM.Audit": true}, "/pool": {"Pool.Audit": true, "Sys.Audit": true, "VM.Audit": true},
		}},
			slices.Concat(on("/vms/9000", "VM.Audit", "VM.Clone"), privileges.OnVM("team", "VM.Allocate", "VM.Audit"), on("/nodes/a", "Sys.Audit")),
			"user karpenter@pve lacks VM.Clone on /vms/9000; VM.Allocate on /pool/team; " +
				`run: pveum role add KarpenterTemplate --privs "VM.Audit VM.Clone" && pveum role add KarpenterVM --privs "Pool.Audit VM.Allocate VM.Audit" && ` +
				"pveum acl modify /vms/9000 --roles KarpenterTemplate --users karpenter@pve && pveum acl modify /pool/team --roles KarpenterVM --users karpenter@pve"},
		"paths_without_privileges": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{}},
			append(append(on("/nodes/a", "Sys.Audit"), on("/nodes/b", "Sys.Audit")...), on("/storage/x", "Datastore.Audit", "Datastore.AllocateSpace")...),
			"user karpenter@pve lacks Sys.Audit on /nodes/a, /nodes/b; Datastore.AllocateSpace, Datastore.Audit on /storage/x; " +
				`run: pveum role add KarpenterHost --privs "Sys.Audit" && pveum role add KarpenterDisk --privs "Datastore.AllocateSpace Datastore.Audit" && ` +
				"pveum acl modify /nodes --roles KarpenterHost --users karpenter@pve && pveum acl modify /storage/x --roles KarpenterDisk --users karpenter@pve"},
		"one_host": {privileges.Account{Held: proxmox.Permissions{}}, on("/nodes/a", "Sys.Audit"),
			`the configured user lacks Sys.Audit on /nodes/a; run: pveum role add KarpenterHost --privs "Sys.Audit" && pveum acl modify /nodes/a --roles KarpenterHost --users USER`},
		// An ACL on the path replaces what is inherited, so the role contains it.
		"replaced_privileges": {privileges.Account{User: token, Held: proxmox.Permissions{
			"/vms": {"VM.Audit": true}, "/vms/9000": {"VM.Audit": true, "VM.Config.Disk": false},
		}}, on("/vms/9000", "VM.Audit", "VM.Clone"),
			"API token " + token + " lacks VM.Clone on /vms/9000; " +
				`run: pveum role add KarpenterTemplate --privs "VM.Audit VM.Clone" && pveum acl modify /vms/9000 --roles KarpenterTemplate --users kubernetes@pve --tokens '` + token + "'"},
		"resource_pool": {privileges.Account{User: token, Held: proxmox.Permissions{"/pool/team": {"VM.Allocate": true, "VM.Config.CPU": true}}},
			vm,
			"API token " + token + " lacks VM.Allocate, VM.Config.CPU on /vms; set spec.resourcePool to team, where it has them, or " +
				`run: pveum role add KarpenterVM --privs "VM.Allocate VM.Config.CPU" && pveum acl modify /vms --roles KarpenterVM --users kubernetes@pve --tokens '` + token + "'"},
		"denied": {privileges.Account{User: token, Held: proxmox.Permissions{
			"/": {"Sys.Audit": true}, "/nodes": {"Sys.Audit": true}, "/nodes/a": {},
		}}, append(on("/nodes/a", "Sys.Audit"), on("/nodes/b", "Sys.Audit")...),
			"API token " + token + " lacks Sys.Audit on /nodes/a; an ACL on /nodes/a cancels what it inherits there (pveum acl list); " +
				"run: pveum acl delete /nodes/a --roles NoAccess --users kubernetes@pve --tokens '" + token + "'"},
		"denied_above_and_not_inherited": {privileges.Account{User: "karpenter@pve", Held: proxmox.Permissions{"/": {"Sys.Audit": true}, "/nodes": {}, "/nodes/a": {}}},
			on("/nodes/a", "Sys.Audit", "Sys.AccessNetwork"),
			"user karpenter@pve lacks Sys.AccessNetwork, Sys.Audit on /nodes/a; an ACL on /nodes/a, /nodes cancels what it inherits there (pveum acl list); " +
				"run: pveum acl delete /nodes/a --roles NoAccess --users karpenter@pve && pveum acl delete /nodes --roles NoAccess --users karpenter@pve && " +
				`pveum role add KarpenterHost --privs "Sys.AccessNetwork Sys.Audit" && pveum acl modify /nodes/a --roles KarpenterHost --users karpenter@pve`},
		"required_anywhere": {privileges.Account{User: token, Held: proxmox.Permissions{"/vms/9000": {"VM.Clone": true}}},
			[]privileges.Required{{Path: "/vms", Privilege: "VM.Clone", Anywhere: true}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(test.account.Message(test.required)).To(Equal(test.want))
		})
	}
}

// Without a privilege for reading, objects seem not to exist.
func TestHidesObjects(t *testing.T) {
	t.Parallel()
	account := privileges.Account{Held: proxmox.Permissions{"/sdn": {"SDN.Audit": true}}}
	for required, want := range map[privileges.Required]bool{
		{Path: "/storage/local", Privilege: "Datastore.Audit"}:    true,
		{Path: "/storage/local", Privilege: "Datastore.Allocate"}: false,
		{Path: "/sdn/zones/a/b", Privilege: "SDN.Use"}:            false,
		{Path: "/mapping/dir/data", Privilege: "Mapping.Use"}:     true,
		{Path: "/vms", Privilege: "VM.Clone"}:                     false,
	} {
		NewWithT(t).Expect(account.HidesObjects([]privileges.Required{required})).To(Equal(want), "%v", required)
	}
}
