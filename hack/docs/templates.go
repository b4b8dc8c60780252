// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// variablesFile declares what templates see. Commands here run from the root.
const variablesFile = "internal/bootdata/data.go"

// templates is the page about the words of boot data templates.
func templates() (string, error) {
	var b strings.Builder
	b.WriteString("# Words of boot data templates\n\n<!-- Written by \"make generate\" from internal/bootdata. -->\n\n" +
		"How to use them: [boot data](../boot-data.md).\n\n## Variables\n\n" +
		"`user-data` sees all of these. `meta-data` and `vendor-data` see what is below `.Metadata` as their root\n" +
		"(`{{ .Hostname }}`), `network-config` what is below `.Network`.\n\n| variable | meaning |\n|---|---|\n")
	structs, err := structsOf(variablesFile)
	if err != nil {
		return "", err
	}
	if err := variables(&b, structs, "Data", ""); err != nil {
		return "", err
	}
	b.WriteString("\n## Functions\n\nBesides [those of text/template](https://pkg.go.dev/text/template#hdr-Functions):\n\n| function | gives |\n|---|---|\n")
	for _, f := range bootdata.Functions() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.Usage, f.Returns)
	}
	return b.String(), nil
}

func structsOf(file string) (map[string]*ast.StructType, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("reading the variables, %w", err)
	}
	structs := map[string]*ast.StructType{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				structs[spec.Name.Name] = s
			}
		}
		return true
	})
	return structs, nil
}

// variables writes a row per field, and goes into the structs of the same file.
func variables(b *strings.Builder, structs map[string]*ast.StructType, name, prefix string) error {
	for _, field := range structs[name].Fields.List {
		for _, ident := range field.Names {
			path := prefix + "." + ident.Name
			doc := strings.Join(strings.Fields(field.Doc.Text()), " ")
			doc, ok := strings.CutPrefix(doc, ident.Name+" ")
			if !ok {
				return fmt.Errorf("%s: the comment of %s in %s must begin with its name", variablesFile, ident.Name, name)
			}
			for _, verb := range []string{"is ", "are ", "says ", "tells "} {
				doc = strings.TrimPrefix(doc, verb)
			}
			kind, below := field.Type, path
			if list, ok := kind.(*ast.ArrayType); ok {
				kind, below = list.Elt, path+"[]"
			}
			fmt.Fprintf(b, "| `%s` | %s |\n", path, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(doc))
			if inner, ok := kind.(*ast.Ident); ok && structs[inner.Name] != nil {
				if err := variables(b, structs, inner.Name, below); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
