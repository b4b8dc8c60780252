// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// site is a Proxmox cluster of two hosts without Kubernetes, and a directory with a cloud config and chart values for it.
type site struct {
	*WithT
	t   *testing.T
	sim *pvesim.Simulator
	dir string
}

func newSite(t *testing.T, change func(*pvesim.Scenario)) *site {
	t.Helper()
	scenario := pvesim.DefaultScenario(2)
	if change != nil {
		change(scenario)
	}
	s := &site{NewWithT(t), t, testenv.StartSimulator(t, scenario, pvesim.Options{}), t.TempDir()}
	config := fmt.Sprintf("clusters: [{region: home, url: %q, ca_file: %q, token_id: %q, token_secret: %q}]",
		s.sim.URL(), s.write("ca.pem", string(s.sim.CAPEM())), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
	s.write("config.yaml", config)
	s.write("values.yaml", "replicaCount: 2\nconfig: {"+config+"}\n")
	return s
}

func (s *site) write(name, content string) string {
	s.t.Helper()
	return write(s.t, s.dir, name, content)
}

// run runs the plugin and returns its output.
func (s *site) run(args ...string) (string, error) {
	s.t.Helper()
	out, _, err := execute(s.t, &kubeCluster{proxmox: testenv.ClientOptions(s.sim)}, args...)
	return out, err
}

// preflight runs preflight with the chart values and manifests.
func (s *site) preflight(manifest string, more ...string) (string, error) {
	s.t.Helper()
	args := append([]string{"preflight", "--values", filepath.Join(s.dir, "values.yaml")}, more...)
	if manifest != "" {
		args = append(args, "-f", s.write("manifest.yaml", manifest))
	}
	return s.run(args...)
}

// checkReadOnly checks that nothing was changed in Proxmox.
func (s *site) checkReadOnly() {
	s.t.Helper()
	for _, request := range s.sim.Requests() {
		if request.Method != "GET" {
			s.t.Errorf("sent %s %s", request.Method, request.Path)
		}
	}
}

// withPrivilege adds a privilege of the token.
func withPrivilege(privilege string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { s.Roles[0].Privileges = append(s.Roles[0].Privileges, privilege) }
}

// withoutPrivilege removes a privilege of the token.
func withoutPrivilege(privilege string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == privilege })
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	example := []string{"-f", "../../examples/kubeadm"}
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		args     []string
		manifest string
		want     []string
		fails    bool
	}{
		"cluster_only":  {want: []string{"ok     region home: Proxmox VE 8.4", "ok     host home/pve2: 14 of 16 CPUs", "ok     PrivilegesSufficient"}},
		"resource_pool": {scenario: pvesim.PoolScoped, want: []string{"ok     PrivilegesSufficient: region home: API token kubernetes@pve!karpenter has all required privileges for VMs in resource pool karpenter; set spec.resourcePool to it in each NodeClass"}},
		"resource_pool_without_a_privilege": {scenario: func(s *pvesim.Scenario) {
			pvesim.PoolScoped(s)
			withoutPrivilege("VM.Config.CPU")(s)
		}, fails: true, want: []string{"FAIL   PrivilegesSufficient: region home: API token kubernetes@pve!karpenter lacks VM.Config.CPU on /pool/karpenter; " +
			`run: pveum role modify KarpenterVM --append 1 --privs "VM.Config.CPU" && pveum acl modify /pool/karpenter --roles KarpenterVM --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'`}},
		"resource_pool_missing_in_class": {scenario: pvesim.PoolScoped, manifest: unmanagedNode, fails: true,
			want: []string{"VM.Allocate, VM.Audit, VM.Config.CDROM, VM.Config.CPU, VM.Config.Cloudinit, VM.Config.Disk, VM.Config.HWType, VM.Config.Memory, VM.Config.Network, VM.PowerMgmt on /vms; set spec.resourcePool to karpenter, where it has them, or run: pveum acl modify /vms --roles KarpenterVM --users kubernetes@pve --tokens 'kubernetes@pve!karpenter'"}},
		"no_object_in_manifest": {manifest: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", fails: true,
			want: []string{"FAIL   the manifests contain no ProxmoxNodeClass and no template"}},
		"unmanaged_template_only": {manifest: strings.Split(unmanagedNode, "---")[0], want: []string{"ok     found on home/pve1/9000, home/pve2/9001"}},
		"example_manifest": {args: example, want: []string{
			"ProxmoxNodeClass kubeadm", "ok     InstanceTemplateReady", "ok     NetworkReady", "ok     StorageReady", "ok     InstanceMetadataOptionsReady"}},
		"missing_privilege_of_every_class": {scenario: withoutPrivilege("VM.Allocate"), fails: true,
			want: []string{"FAIL   " + lacks("VM.Allocate", "/vms")}},
		"template_can_be_created": {manifest: managedNode,
			want: []string{"ok     host home/pve1: storage local for the image, storage local for the template", "ok     InstanceTemplateReady", "ok     CapacityAvailable"}},
		"template_cannot_be_created": {manifest: managedNode, fails: true,
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso"} },
			want:     []string{"FAIL   home/pve1, home/pve2: no storage of spec.storageIDs takes import content", `skip   InstanceTemplateReady: ProxmoxTemplate "new" is on no host yet`}},
		"same_class_twice": {manifest: strings.Replace(managedNode, "kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other", 1) + "---" + managedNode,
			want: []string{"ok     InstanceTemplateReady"}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			s := newSite(t, test.scenario)
			out, err := s.preflight(test.manifest, test.args...)
			s.Expect(err != nil).To(Equal(test.fails), "found error %v", err)
			for _, want := range test.want {
				s.Expect(out).To(ContainSubstring(want))
			}
			s.checkReadOnly()
		})
	}
}

func TestPreflightInvalidFiles(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		s := newSite(t, nil)
		s.Expect(errorOf(s.run("preflight"))).To(MatchError(ContainSubstring("cloud-config values")))
		valid := filepath.Join(s.dir, "values.yaml")
		invalid := strings.Replace(managedNode, "instanceTemplateRef", "instanceTempl", 1)
		for want, args := range map[string][]string{
			"line 6: config.clusters[0].token_secre: unknown field": {
				s.write("typo.yaml", "replicaCount: 2\n\nconfig:\n  clusters:\n    - region: a\n      token_secre: b\n")},
			"clusters: found none, want":         {s.write("none.yaml", "config: {clusters: []}")},
			"no such file":                       {filepath.Join(s.dir, "absent")},
			`unknown field "spec.instanceTempl"`: {valid, "-f", s.write("class.yaml", invalid)},
		} {
			s.Expect(errorOf(s.run(append([]string{"preflight", "--values"}, args...)...))).To(MatchError(ContainSubstring(want)))
		}
	})
}
