// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// auditPrivileges are those of a role for reading.
var auditPrivileges = []string{"Datastore.Audit", "Mapping.Audit", "Pool.Audit", "SDN.Audit", "Sys.Audit", "VM.Audit"}

// TestPreflightGrant runs the commands that preflight prints. Then a second run reports
// nothing: all missing privileges are found in one run, and the commands grant them.
func TestPreflightGrant(t *testing.T) {
	t.Parallel()
	role := func(path string, privileges ...string) func(*pvesim.Scenario) {
		return func(s *pvesim.Scenario) {
			s.Roles = []pvesim.Role{{ID: "Reader", Privileges: privileges}}
			s.ACLs = []pvesim.ACL{{Path: path, Role: "Reader", User: "kubernetes@pve"}}
		}
	}
	accounts := map[string]func(*pvesim.Scenario){
		"reader":       role("/", auditPrivileges...),
		"host_auditor": role("/", "Sys.Audit"),
		"guest_reader": role("/vms", "VM.Audit"),
		"high_availability": func(s *pvesim.Scenario) {
			role("/", "Sys.Audit", "Sys.Console")(s)
			s.ACLs[0].NoPropagate = true
		},
		"no_role": func(s *pvesim.Scenario) { s.Roles, s.ACLs = nil, nil },
		"own_roles_without_ACL": func(s *pvesim.Scenario) {
			pvesim.PoolScoped(s)
			s.ACLs = nil
		},
		"no_access": func(s *pvesim.Scenario) {
			role("/", auditPrivileges...)(s)
			deny("/nodes/pve2", "/sdn/zones/localnetwork/vmbr0")(s)
		},
		"separate_privileges": func(s *pvesim.Scenario) {
			role("/", auditPrivileges...)(s)
			s.Users[0].Tokens[0].Privsep = true
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/", Role: "Reader", Token: pvesim.DefaultTokenID})
		},
	}
	manifests := map[string]string{
		"managed":        managedNode,
		"unmanaged":      unmanagedNode,
		"cloud_init":     strings.Replace(unmanagedNode, "{type: cdrom, templatesRef: {name: boot, namespace: kube-system}}", "{type: cloudinit}", 1),
		"resource_pool":  strings.Replace(withClass(managedNode, "resourcePool: team"), "spec: {sourceImage:", "spec: {resourcePool: team, sourceImage:", 1),
		"devices":        strings.Replace(withClass(managedNode, "shares: [{mapping: data, mountPath: /data}]"), "spec: {sourceImage:", "spec: {pciDevices: [{mapping: gpu}], sourceImage:", 1),
		"tags":           withClass(managedNode, "tags: [karpenter]\n  securityGroups: [{name: kubernetes}]"),
		"boot_storage":   withClass(unmanagedNode, "bootDevice: {storage: local-lvm}"),
		"disks":          withClass(unmanagedNode, "disks: [{name: a, size: 1Gi, storages: [other, local-lvm]}, {name: b, size: 1Gi, storageSelector: \"storage.type == 'lvmthin'\"}]"),
		"separate_pools": withClass(managedNode, "resourcePool: team"),
		"none":           "",
	}
	for account, scenario := range accounts {
		for name, manifest := range manifests {
			testenv.RunSimulated(t, account+"/"+name, func(t *testing.T) {
				s := newSite(t, func(s *pvesim.Scenario) {
					separateStorages(s)
					scenario(s)
					s.Pools = []pvesim.Pool{{ID: "team"}, {ID: "karpenter"}}
					withMappings(s)
				})
				out, err := s.preflight(manifest)
				found := failures(out)
				if err == nil || len(found) != 1 || strings.Count(found[0], "run: ") != 1 {
					t.Fatalf("found %d failures, want one with a command\n%s", len(found), out)
				}
				if strings.Contains(found[0], "acl modify / ") {
					t.Errorf("found a role on everything for an account that may only read: %s", found[0])
				}
				if strings.Contains(found[0], "PVE") {
					t.Errorf("found a built-in role in %s", found[0])
				}
				_, commands, _ := strings.Cut(found[0], "run: ")
				admin := newPveum(t, s.sim)
				for _, command := range strings.Split(commands, " && ") {
					admin.run(t, command)
				}
				if out, err := s.preflight(manifest); err != nil {
					t.Errorf("after %s: %v\n%s", commands, err, out)
				}
			})
		}
	}
}

// deny adds ACLs that cancel inherited privileges of the token.
func deny(paths ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for _, path := range paths {
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: path, Role: "NoAccess", User: "kubernetes@pve"})
		}
	}
}

// accessFaults are privileges that an ACL cancels, which Proxmox does not list.
func accessFaults() map[string]fault {
	denied := func(path, privileges, paths string) []string {
		const token = "kubernetes@pve!karpenter"
		return []string{fmt.Sprintf("PrivilegesSufficient: region home: API token %s lacks %s on %s; an ACL on %s cancels what it inherits there (pveum acl list); "+
			"run: pveum acl delete %s --roles NoAccess --users kubernetes@pve --tokens '%s'", token, privileges, paths, path, path, token)}
	}
	const storage, disk, bridge = "/storage/local", "/storage/local-lvm", "/sdn/zones/localnetwork/vmbr0"
	return map[string]fault{
		"no_access_to_one_host": {scenario: deny("/nodes/pve2"), want: denied("/nodes/pve2", "Sys.AccessNetwork, Sys.Audit", "/nodes/pve2")},
		"no_access_to_hosts":    {scenario: deny("/nodes"), want: denied("/nodes", "Sys.AccessNetwork, Sys.Audit", "/nodes/pve1, /nodes/pve2")},
		"no_access_to_image_storage": {scenario: deny(storage),
			want: denied(storage, "Datastore.Allocate, Datastore.AllocateSpace, Datastore.AllocateTemplate, Datastore.Audit", storage)},
		"no_access_to_disk_storage": {scenario: deny(disk), manifest: unmanagedNode, want: denied(disk, "Datastore.AllocateSpace, Datastore.Audit", disk)},
		"no_access_to_bridge":       {scenario: deny(bridge), want: denied(bridge, "SDN.Use", bridge)},
	}
}

// pveum runs commands of Proxmox's tool for users against a simulator, as root.
type pveum struct {
	client *http.Client
	url    string
	header http.Header
}

func newPveum(t *testing.T, sim *pvesim.Simulator) *pveum {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: sim.DialContext}
	p := &pveum{url: sim.URL(), client: &http.Client{Transport: transport}, header: http.Header{}}
	t.Cleanup(p.client.CloseIdleConnections)
	var login struct{ Ticket, CSRFPreventionToken string }
	p.call(t, "POST", "/access/ticket", url.Values{"username": {"root@pam"}, "password": {pvesim.RootPassword}}, &login)
	p.header.Set("Cookie", "PVEAuthCookie="+login.Ticket)
	p.header.Set("CSRFPreventionToken", login.CSRFPreventionToken)
	return p
}

func (p *pveum) call(t *testing.T, method, path string, form url.Values, out any) {
	t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, p.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = p.header.Clone()
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := p.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data := struct{ Data any }{out}
	if err := json.NewDecoder(response.Body).Decode(&data); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s %v: %s %v", method, path, form, response.Status, err)
	}
}

var words = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)

// run runs one command: pveum role add|modify NAME, or pveum acl modify|delete PATH.
func (p *pveum) run(t *testing.T, command string) {
	t.Helper()
	args := words.FindAllString(command, -1)
	for n := range args {
		args[n] = strings.Trim(args[n], `"'`)
	}
	if len(args) < 4 || args[0] != "pveum" {
		t.Fatalf("found the command %q", command)
	}
	form := url.Values{}
	for n := 4; n+1 < len(args); n += 2 {
		form.Set(strings.TrimPrefix(args[n], "--"), args[n+1])
	}
	switch action := fmt.Sprintf("%s %s", args[1], args[2]); action {
	case "role add":
		form.Set("roleid", args[3])
		p.call(t, "POST", "/access/roles", form, nil)
	case "role modify":
		p.call(t, "PUT", "/access/roles/"+args[3], form, nil)
	case "acl modify", "acl delete":
		form.Set("path", args[3])
		form.Set("delete", map[bool]string{true: "1", false: "0"}[args[2] == "delete"])
		p.call(t, "PUT", "/access/acl", form, nil)
	default:
		t.Fatalf("found the command %q", command)
	}
}

var fingerprint = regexp.MustCompile(`([0-9A-F]{2}:){31}[0-9A-F]{2}`)
