// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
)

func example(name string) string { return filepath.Join("..", "..", "examples", name) }

func TestRenderExamples(t *testing.T) {
	t.Parallel()
	formats := map[string]string{"talos": "Talos", "flatcar": "Ignition", "fedora-coreos": "Ignition"}
	for _, recipe := range examples.Recipes() {
		g := NewWithT(t)
		out, notes, err := execute(t, &kubeCluster{}, "render", "-f", example(recipe))
		g.Expect(err).NotTo(HaveOccurred(), recipe)
		g.Expect(out).To(And(ContainSubstring("==> user-data <=="), ContainSubstring("==> meta-data <=="), ContainSubstring("==> network-config <==")))
		g.Expect(out).NotTo(ContainSubstring("{{"))
		format := cmp.Or(formats[recipe], "cloud-config")
		g.Expect(notes).To(ContainSubstring("ProxmoxNodeClass " + recipe + ", user-data is " + format + "; the join token is a sample"))
	}
}

func TestRenderFiles(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), filepath.Join(t.TempDir(), "out")
	g.Expect(run(t, "render", "kubeadm", "-f", example("kubeadm"), "-o", dir)).To(BeEmpty())
	for _, name := range []string{"user-data", "meta-data", "network-config"} {
		g.Expect(os.Stat(filepath.Join(dir, name))).To(HaveField("Mode()", BeEquivalentTo(0o600)))
	}
	image := filepath.Join(dir, "boot.iso")
	g.Expect(run(t, "render", "-f", example("kubeadm"), "--iso", image)).To(BeEmpty())
	g.Expect(os.ReadFile(image)).To(ContainSubstring("cidata"))
	g.Expect(run(t, "render", "-f", example("kubeadm"), "--file", "meta-data")).To(HavePrefix("instance-id:"))
}

func TestRenderInvalid(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), t.TempDir()
	secret := func(userData string) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ns}\nstringData: {user-data: '" + userData + "'}\n"
	}
	class := func(options string) string {
		return "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\n" +
			"spec:\n  instanceTemplateRef: {kind: ProxmoxTemplate, name: t}\n  metadataOptions: " + options + "\n"
	}
	const refers = "{type: cdrom, templatesRef: {name: s, namespace: ns}}"
	invalid, ignition := secret("#cloud-config\n\n    a: {{ .Values.b }}"), secret(`{"ignition": {"version": "3.4.0"}}`)
	firmware := write(t, dir, "firmware.yaml", class(strings.Replace(refers, "cdrom", "fwcfg", 1))+ignition)
	for want, args := range map[string][]string{
		"specify a proxmoxnodeclass: the manifests contain 0":                           {"-f", write(t, dir, "none.yaml", invalid)},
		"reading ProxmoxNodeClass x":                                                    {"x", "-f", write(t, dir, "some.yaml", class(refers))},
		`ProxmoxNodeClass c has metadataOptions.type "none": its VMs get no boot drive`: {"-f", write(t, dir, "off.yaml", class("{type: none}"))},
		`ProxmoxNodeClass c has metadataOptions.type "cloudinit": Proxmox generates the boot data`: {
			"-f", write(t, dir, "own.yaml", class("{type: cloudinit}"))},
		"there is no boot drive, remove --iso":                     {"-f", firmware, "--iso", filepath.Join(dir, "x.iso")},
		"reading secret ns/s of spec.metadataOptions.templatesRef": {"-f", write(t, dir, "nosecret.yaml", class(refers))},
		`rendering secret ns/s of spec.metadataOptions.templatesRef: user-data: line 2, column 13: missing key "b"; valuesRef has no keys`: {
			"-f", write(t, dir, "bad.yaml", class(refers)+invalid)},
		`--file is "userdata": want user-data, meta-data, network-config or vendor-data`: {"-f", example("k3s"), "--file", "userdata"},
		"no such file or directory": {"-f", filepath.Join(dir, "absent")},
		"reading NodeClaim x":       {"-f", example("k3s"), "--nodeclaim", "x"},
	} {
		g.Expect(errorOf(run(t, append([]string{"render"}, args...)...))).To(MatchError(ContainSubstring(want)))
	}
	g.Expect(run(t, "render", "-f", firmware)).To(And(HavePrefix("==> user-data <=="), Not(ContainSubstring("network-config"))), "fwcfg passes only user-data")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(run(t, "--help")).To(And(ContainSubstring("kubectl proxmox"), ContainSubstring("render"), ContainSubstring("completion")))
}
