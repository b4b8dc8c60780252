// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestMigrationFields checks that each field of our kinds and of NodePools in the tables of the
// migration page exists. The kind is the last one before the field in the same cell.
func TestMigrationFields(t *testing.T) {
	t.Parallel()
	_, tables, found := strings.Cut(read(t, "docs/migration.md"), "\n## From other tools\n")
	if !found {
		t.Fatal("docs/migration.md has no tables")
	}
	all, err := crds.All()
	testenv.Must(t, err)
	schemas := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, crd := range all {
		schemas[crd.Spec.Names.Kind] = *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	}
	schemas["NodeClass"] = schemas["ProxmoxNodeClass"]
	token := regexp.MustCompile("\\b(NodeClass|NodePool|ProxmoxTemplate|ProxmoxUnmanagedTemplate) |`(spec\\.[^` ]+)`")
	checked := 0
	for line := range strings.Lines(tables) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		kind := ""
		for _, match := range token.FindAllStringSubmatch(cells[2], -1) {
			if match[1] != "" {
				kind = match[1]
				continue
			}
			checked++
			if !hasField(schemas[kind], match[2]) {
				t.Errorf("docs/migration.md: %q has the field %s of a %s, which does not exist", strings.TrimSpace(cells[1]), match[2], kind)
			}
		}
	}
	expect(t, checked >= 80, "found %d fields, want those of three tables", checked)
}

// hasField reports whether a schema has a field, in the format of the reference: spec.disks[].size.
func hasField(schema apiextensionsv1.JSONSchemaProps, path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		name, isList := strings.CutSuffix(name, "[]")
		field, ok := schema.Properties[name]
		if !ok || isList && field.Items == nil {
			return false
		}
		if schema = field; isList {
			schema = *field.Items.Schema
		}
	}
	return true
}
