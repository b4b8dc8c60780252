// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

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
		"no_role":               func(s *pvesim.Scenario) { s.Roles, s.ACLs = nil, nil },
		"own_roles_without_ACL": func(s *pvesim.Scenario) { pvesim.PoolScoped(s); s.ACLs = nil },
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
					s.Users[1].Tokens = []pvesim.Token{{ID: "admin", Secret: "admin"}} // of root
					withMappings(s)
				})
				out, err := s.preflight(manifest)
				found := failures(out)
				s.Expect(err).To(HaveOccurred())
				s.Expect(found).To(HaveLen(1), out)
				s.Expect(strings.Count(found[0], "run: ")).To(Equal(1), out)
				s.Expect(found[0]).NotTo(Or(ContainSubstring("acl modify / "), ContainSubstring("PVE")), "it may only read, and has no built-in role")
				_, commands, _ := strings.Cut(found[0], "run: ")
				for _, command := range strings.Split(commands, " && ") {
					s.pveum(command)
				}
				out, err = s.preflight(manifest)
				s.Expect(err).NotTo(HaveOccurred(), "after %s:\n%s", commands, out)
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

var words = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)

// pveum runs a command as root: pveum role add|modify NAME, or pveum acl modify|delete PATH.
func (s *site) pveum(command string) {
	s.t.Helper()
	args := words.FindAllString(command, -1)
	for n := range args {
		args[n] = strings.Trim(args[n], `"'`)
	}
	s.Expect(len(args)).To(BeNumerically(">=", 4), command)
	form := url.Values{}
	for n := 4; n+1 < len(args); n += 2 {
		form.Set(strings.TrimPrefix(args[n], "--"), args[n+1])
	}
	method, path := http.MethodPut, "/access/acl"
	switch strings.Join(args[:3], " ") {
	case "pveum role add":
		method, path = http.MethodPost, "/access/roles"
		form.Set("roleid", args[3])
	case "pveum role modify":
		path = "/access/roles/" + args[3]
	case "pveum acl modify":
		form.Set("path", args[3])
	case "pveum acl delete":
		form.Set("path", args[3])
		form.Set("delete", "1")
	default:
		s.t.Fatalf("found the command %q", command)
	}
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.sim.URL()+path, strings.NewReader(form.Encode()))
	s.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "PVEAPIToken=root@pam!admin=admin")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: s.sim.DialContext, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(response.Body.Close()).To(Succeed())
	s.Expect(response.StatusCode).To(Equal(http.StatusOK), command)
}
