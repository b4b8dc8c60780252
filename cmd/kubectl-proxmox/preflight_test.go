// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// startSimulator starts a Proxmox cluster of two hosts. It returns the simulator and a
// directory with a cloud config and chart values for it.
func startSimulator(t *testing.T, change func(*pvesim.Scenario)) (*pvesim.Simulator, string) {
	t.Helper()
	scenario := pvesim.DefaultScenario(2)
	if change != nil {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	dir := t.TempDir()
	ca := write(t, dir, "ca.pem", string(sim.CAPEM()))
	config := fmt.Sprintf("clusters: [{region: home, url: %q, ca_file: %q, token_id: %q, token_secret: %q}]",
		sim.URL(), ca, pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
	write(t, dir, "config.yaml", config)
	write(t, dir, "values.yaml", "replicaCount: 2\nconfig: {"+config+"}\n")
	return sim, dir
}

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs the plugin and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// preflightArgs returns the arguments of preflight for a simulator in dir.
func preflightArgs(t *testing.T, dir, manifest string, more ...string) []string {
	t.Helper()
	args := append([]string{"preflight", "--values", filepath.Join(dir, "values.yaml")}, more...)
	if manifest != "" {
		args = append(args, "-f", write(t, dir, "manifest.yaml", manifest))
	}
	return args
}

// checkReadOnly checks that nothing was changed in Proxmox.
func checkReadOnly(t *testing.T, sim *pvesim.Simulator) {
	t.Helper()
	for _, request := range sim.Requests() {
		if request.Method != "GET" {
			t.Errorf("sent %s %s", request.Method, request.Path)
		}
	}
}

// withoutPrivilege removes a privilege of the token.
func withoutPrivilege(privilege string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == privilege })
	}
}

const managed = `
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxTemplate
metadata: {name: new}
spec: {sourceImage: {url: "https://example.com/new.img"}, storageIDs: [local, local-lvm], network: [{bridge: vmbr0}]}
---
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: new}
spec:
  instanceTemplateRef: {kind: ProxmoxTemplate, name: new}
  bootDevice: {size: 30G}
  metadataOptions: {type: none}
`

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
		"example_manifest":        {args: example, want: []string{"ProxmoxNodeClass kubeadm", "ok     InstanceTemplateReady", "ok     NetworkReady", "ok     InstanceMetadataOptionsReady"}},
		"missing_privilege_of_every_class": {scenario: withoutPrivilege("VM.Allocate"), fails: true,
			want: []string{"FAIL   " + lacks("VM.Allocate", "/vms")}},
		"missing_privilege_of_one_class": {scenario: withoutPrivilege("VM.Clone"), args: example, fails: true,
			want: []string{"FAIL   " + lacks("VM.Clone", "/vms/9000, /vms/9001"), "ok     StorageReady"}},
		"template_can_be_created": {manifest: managed,
			want: []string{"ok     host home/pve1: storage local for the image, storage local for the template", "ok     InstanceTemplateReady", "ok     CapacityAvailable"}},
		"template_cannot_be_created": {manifest: managed, fails: true,
			scenario: func(s *pvesim.Scenario) { s.Storages[0].Content = []string{"iso"} },
			want:     []string{"FAIL   home/pve1, home/pve2: no storage of spec.storageIDs takes import content", `skip   InstanceTemplateReady: ProxmoxTemplate "new" is on no host yet`}},
		"template_not_found": {manifest: strings.Replace(managed, "kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other", 1), fails: true,
			want: []string{`FAIL   InstanceTemplateReady: spec.instanceTemplateRef names ProxmoxTemplate "other", which does not exist; create it, or set one that is listed by: kubectl get proxmoxtemplates`}},
		"same_class_twice": {manifest: strings.Replace(managed, "kind: ProxmoxTemplate, name: new", "kind: ProxmoxTemplate, name: other", 1) + "---" + managed,
			want: []string{"ok     InstanceTemplateReady"}},
		"invalid_token": {scenario: func(s *pvesim.Scenario) { s.Users[0].Tokens[0].Secret = "another" }, fails: true, want: []string{"FAIL   checking region \"home\"", "rejects the credentials"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim, dir := startSimulator(t, test.scenario)
			out, err := run(t, preflightArgs(t, dir, test.manifest, test.args...)...)
			if (err != nil) != test.fails {
				t.Errorf("got error %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("the output does not contain %q", want)
				}
			}
			checkReadOnly(t, sim)
			if t.Failed() {
				t.Log("\n" + out)
			}
		})
	}
}

func TestPreflightInvalidFiles(t *testing.T) {
	t.Parallel()
	_, dir := startSimulator(t, nil)
	for want, args := range map[string][]string{
		"cloud-config values": {"preflight"},
		"line 6: config.clusters[0].token_secre: unknown field": {"preflight", "--values", write(t, dir, "lines.yaml", "replicaCount: 2\n\nconfig:\n  clusters:\n    - region: a\n      token_secre: b\n")},
		"token_secre: unknown field":                            {"preflight", "--values", write(t, dir, "typo.yaml", "config: {clusters: [{region: a, token_secre: b}]}")},
		"clusters: found none, want":                            {"preflight", "--values", write(t, dir, "none.yaml", "config: {clusters: []}")},
		"no such file":                                          {"preflight", "--values", filepath.Join(dir, "absent")},
		`unknown field "spec.instanceTempl"`:                    {"preflight", "--values", filepath.Join(dir, "values.yaml"), "-f", write(t, dir, "class.yaml", strings.Replace(managed, "instanceTemplateRef", "instanceTempl", 1))},
	} {
		if out, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want %q\n%s", args, err, want, out)
		}
	}
}
