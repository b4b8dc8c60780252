// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
)

// call runs the plugin and returns its standard output and standard error.
func call(t *testing.T, args ...string) (out, notes string, err error) {
	t.Helper()
	root := newRoot()
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func example(name string) string { return filepath.Join("..", "..", "examples", name) }

func TestRenderExamples(t *testing.T) {
	formats := map[string]string{"talos": "Talos", "flatcar": "Ignition", "fedora-coreos": "Ignition"}
	for _, recipe := range examples.Recipes() {
		g := NewWithT(t)
		out, notes, err := call(t, "render", "-f", example(recipe))
		g.Expect(err).NotTo(HaveOccurred(), recipe)
		g.Expect(out).To(And(ContainSubstring("==> user-data <=="), ContainSubstring("==> meta-data <=="), ContainSubstring("==> network-config <==")))
		g.Expect(out).NotTo(ContainSubstring("{{"))
		format := formats[recipe]
		if format == "" {
			format = "cloud-config"
		}
		g.Expect(notes).To(ContainSubstring("ProxmoxNodeClass " + recipe + ", user-data is " + format + "; the join token is a sample"))
	}
}

func TestRenderFilePermissions(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "out")
	out, _, err := call(t, "render", "kubeadm", "-f", example("kubeadm"), "-o", dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(BeEmpty())
	for _, name := range []string{"user-data", "meta-data", "network-config"} {
		info, err := os.Stat(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600))
	}
	image := filepath.Join(dir, "boot.iso")
	_, _, err = call(t, "render", "-f", example("kubeadm"), "--iso", image)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(image)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(ContainSubstring("cidata"))
	one, _, err := call(t, "render", "-f", example("kubeadm"), "--file", "meta-data")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one).To(HavePrefix("instance-id:"))
}

func TestRenderInvalid(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		return path
	}
	class := func(options string) string {
		return "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\nspec:\n  instanceTemplateRef: {kind: ProxmoxTemplate, name: t}\n  metadataOptions: " + options + "\n"
	}
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\nstringData:\n  user-data: |\n    #cloud-config\n    a: {{ .Values.b }}\n"
	ignition := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\nstringData:\n  user-data: '{\"ignition\": {\"version\": \"3.4.0\"}}'\n"
	refers := "{type: cdrom, templatesRef: {name: s, namespace: ns}}"
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no_class":         {[]string{"-f", write("none.yaml", secret)}, "specify a proxmoxnodeclass: the manifests contain 0"},
		"unknown_class":    {[]string{"x", "-f", write("some.yaml", class(refers))}, `reading ProxmoxNodeClass x`},
		"no_drive":         {[]string{"-f", write("off.yaml", class("{type: none}"))}, `ProxmoxNodeClass c has metadataOptions.type "none": its VMs get no boot drive`},
		"cloudinit_drive":  {[]string{"-f", write("own.yaml", class("{type: cloudinit}"))}, `ProxmoxNodeClass c has metadataOptions.type "cloudinit": Proxmox generates the boot data`},
		"ISO_with_fwcfg":   {[]string{"-f", write("fw.yaml", class(strings.Replace(refers, "cdrom", "fwcfg", 1))+"---\n"+ignition), "--iso", filepath.Join(dir, "x.iso")}, "there is no boot drive, remove --iso"},
		"no_secret":        {[]string{"-f", write("nosecret.yaml", class(refers))}, "reading secret ns/s of spec.metadataOptions.templatesRef"},
		"invalid_template": {[]string{"-f", write("bad.yaml", class(refers)+"---\n"+secret)}, `rendering secret ns/s of spec.metadataOptions.templatesRef: user-data: line 2, column 13: missing key "b"; valuesRef has no keys`},
		"unknown_field":    {[]string{"-f", write("typo.yaml", class("{typ: cdrom}"))}, `unknown field "spec.metadataOptions.typ"`},
		"unknown_file":     {[]string{"-f", example("k3s"), "--file", "userdata"}, `--file is "userdata": want user-data, meta-data, network-config or vendor-data`},
		"path_not_found":   {[]string{"-f", filepath.Join(dir, "absent")}, "no such file or directory"},
		"claim_not_found":  {[]string{"-f", example("k3s"), "--nodeclaim", "x"}, "reading NodeClaim x"},
	} {
		_, _, err := call(t, append([]string{"render"}, test.args...)...)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)), name)
	}
	out, _, err := call(t, "render", "-f", filepath.Join(dir, "fw.yaml"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(out).To(And(HavePrefix("==> user-data <=="), Not(ContainSubstring("network-config"))), "fwcfg passes only user-data")
}

func TestHelp(t *testing.T) {
	out, _, err := call(t, "--help")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(out).To(And(ContainSubstring("kubectl proxmox"), ContainSubstring("render")))
	NewWithT(t).Expect(strings.Contains(out, "completion")).To(BeTrue())
}
