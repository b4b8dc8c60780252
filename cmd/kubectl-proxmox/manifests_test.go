// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Manifests are read as kubectl apply does, with the defaults of the API server.
func TestReadManifests(t *testing.T) {
	t.Parallel()
	const class = "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\nspec: {instanceTemplateRef: {kind: ProxmoxTemplate, name: a}, securityGroups: [{name: web}]}\n"
	item := strings.ReplaceAll(strings.TrimSpace(class), "\n", "\n    ")
	for name, test := range map[string]struct {
		file, content string
		want          []string
		err           string
	}{
		"documents":                    {file: "a.yaml", content: class + "---\n" + strings.Replace(class, "{name: a}", "{name: b}", 1), want: []string{"a", "b"}},
		"same_object":                  {file: "a.yaml", content: class + "---\n" + class, want: []string{"a"}},
		"list":                         {file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems:\n  - " + item + "\n", want: []string{"a"}},
		"nested_lists":                 {file: "a.yml", content: "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: List\n    items:\n    - " + strings.ReplaceAll(item, "\n", "\n  ") + "\n", want: []string{"a"}},
		"list_of_kind":                 {file: "a.yaml", content: "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClassList\nitems:\n- metadata: {name: b}\n  spec: {instanceTemplateRef: {kind: ProxmoxTemplate, name: a}, securityGroups: [{name: web}]}\n", want: []string{"b"}},
		"empty_list":                   {file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems: []\n"},
		"JSON":                         {file: "a.json", content: `{"apiVersion":"karpenter.proxmox.sinextra.dev/v1alpha1","kind":"ProxmoxNodeClass","metadata":{"name":"c"},"spec":{"instanceTemplateRef":{"kind":"ProxmoxTemplate","name":"a"},"securityGroups":[{"name":"web"}]}}`, want: []string{"c"}},
		"other_file":                   {file: "README.md", content: class},
		"unknown_kind":                 {file: "a.yaml", content: "apiVersion: example.com/v1\nkind: Other\n"},
		"invalid_YAML":                 {file: "a.yaml", content: "kind: [A\n", err: "a.yaml: yaml: line 1: did not find expected ',' or ']'"},
		"invalid_YAML_after_documents": {file: "a.yaml", content: class + "---\n---\n\n--- # another one\nkind: A\n b: c\n", err: "a.yaml: yaml: line 10: mapping values are not allowed"},
		"list_of_values":               {file: "a.yaml", content: "- a\n", err: "found a list or a single value, want an object with apiVersion and kind"},
		"repeated_key":                 {file: "a.yaml", content: class + "spec: {}\n", err: `key "spec" already set in map`},
		"misspelled_kind": {file: "a.yaml", content: strings.Replace(class, "ProxmoxNodeClass", "ProxmoxNodClass", 1),
			err: "ProxmoxNodClass a: kind: found karpenter.proxmox.sinextra.dev/v1alpha1 ProxmoxNodClass, which is unknown, want one of karpenter.proxmox.sinextra.dev/v1alpha1 ProxmoxNodeClass, "},
		"another_version": {file: "a.yaml", content: strings.Replace(class, "v1alpha1", "v1beta1", 1), err: "kind: found karpenter.proxmox.sinextra.dev/v1beta1 ProxmoxNodeClass, which is unknown"},
		"missing_field":   {file: "a.yaml", content: strings.Replace(class, "instanceTemplateRef: {kind: ProxmoxTemplate, name: a}, ", "", 1), err: "ProxmoxNodeClass a: spec.instanceTemplateRef: Required value"},
		"unknown_value": {file: "a.yaml", content: strings.Replace(class, "securityGroups:", "metadataOptions: {type: cdrm}, securityGroups:", 1),
			err: `ProxmoxNodeClass a: spec.metadataOptions.type: Unsupported value: "cdrm": supported values: `},
		"value_of_another_type": {file: "a.yaml", content: strings.Replace(class, "[{name: web}]", "web", 1), err: "ProxmoxNodeClass a: spec.securityGroups: Invalid value: "},
		"number_in_secret": {file: "a.yaml", content: "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {installKubernetes: 1.36}\n",
			err: "Secret a: stringData: found a number, want a string"},
		"boolean_as_name": {file: "a.yaml", content: strings.Replace(class, "{name: a}", "{name: y}", 1), err: "ProxmoxNodeClass : metadata.name: found a bool, want a string"},
		"rule_of_the_CRD": {file: "a.yaml", content: "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxUnmanagedTemplate\nmetadata: {name: a}\nspec: {region: b}\n",
			err: "ProxmoxUnmanagedTemplate a: spec: Invalid value: set templateName, tags or both"},
		"unknown_field_in_list": {
			file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems:\n  - " + strings.Replace(item, "securityGroups", "securityGroup", 1) + "\n",
			err: `items[0]: ProxmoxNodeClass a: strict decoding error: unknown field "spec.securityGroup"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, test.file, test.content)
			objects, err := readManifests([]string{dir}, "kube-system")
			g := NewWithT(t)
			if test.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(objects.classes()).To(HaveExactElements(test.want))
			for _, class := range objects.nodeClasses() {
				defaults := []any{class.Spec.SecurityGroups[0].Interface, class.Spec.BootDevice.Size, class.Spec.MetadataOptions.Type}
				g.Expect(defaults).To(HaveExactElements(BeEquivalentTo("net0"), BeEquivalentTo("30G"), BeEquivalentTo("none")))
			}
		})
	}
}
