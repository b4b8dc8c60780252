// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Manifests are read as kubectl apply does, with the defaults of the API server.
func TestReadManifests(t *testing.T) {
	t.Parallel()
	const class = "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\nspec: {securityGroups: [{name: web}]}\n"
	item := strings.ReplaceAll(strings.TrimSpace(class), "\n", "\n    ")
	for name, test := range map[string]struct {
		file, content string
		want          []string
		err           string
	}{
		"documents":    {file: "a.yaml", content: class + "---\n" + class, want: []string{"a", "a"}},
		"list":         {file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems:\n  - " + item + "\n", want: []string{"a"}},
		"nested_lists": {file: "a.yml", content: "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: List\n    items:\n    - " + strings.ReplaceAll(item, "\n", "\n  ") + "\n", want: []string{"a"}},
		"list_of_kind": {file: "a.yaml", content: "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClassList\nitems:\n- metadata: {name: b}\n  spec: {securityGroups: [{name: web}]}\n", want: []string{"b"}},
		"empty_list":   {file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems: []\n"},
		"JSON":         {file: "a.json", content: `{"apiVersion":"karpenter.proxmox.sinextra.dev/v1alpha1","kind":"ProxmoxNodeClass","metadata":{"name":"c"},"spec":{"securityGroups":[{"name":"web"}]}}`, want: []string{"c"}},
		"other_file":   {file: "README.md", content: class},
		"unknown_kind": {file: "a.yaml", content: "apiVersion: example.com/v1\nkind: Other\n"},
		"invalid_YAML": {file: "a.yaml", content: "kind: [A\n", err: "a.yaml: error converting YAML to JSON"},
		"repeated_key": {file: "a.yaml", content: class + "spec: {}\n", err: `key "spec" already set in map`},
		"unknown_field_in_list": {
			file: "a.yaml", content: "apiVersion: v1\nkind: List\nitems:\n  - " + strings.Replace(item, "securityGroups", "securityGroup", 1) + "\n",
			err: `items[0]: strict decoding error: unknown field "spec.securityGroup"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, test.file, test.content)
			objects, err := readManifests([]string{dir}, "kube-system")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("found error %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := objects.classes(); !slices.Equal(got, test.want) {
				t.Errorf("found %v, want %v", got, test.want)
			}
			for _, class := range objects.nodeClasses() {
				got := fmt.Sprint(class.Spec.SecurityGroups[0].Interface, class.Spec.BootDevice.Size, class.Spec.MetadataOptions.Type)
				if want := fmt.Sprint("net0", v1alpha1.DiskSize("30G"), v1alpha1.MetadataType("none")); got != want {
					t.Errorf("found the defaults %s, want %s", got, want)
				}
			}
		})
	}
}
