// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The cloud config is read node by node instead of into a struct, so errors contain
// the field (clusters[1].url) and the line, but never a value that may be a secret.

// reader reads the value of a field.
type reader func(n *yaml.Node, field string) error

// fieldError returns an error that begins with line and field.
func fieldError(n *yaml.Node, field, format string, args ...any) error {
	position := fmt.Sprintf("line %d: ", n.Line)
	if field != "" {
		position += field + ": "
	}
	return fmt.Errorf("%s", position+fmt.Sprintf(format, args...))
}

// readMapping reads the fields of a mapping. Unknown and repeated fields are errors.
func readMapping(n *yaml.Node, field string, readers map[string]reader) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return fieldError(n, field, "found %s, want fields: %s", kindOf(n), fieldNames(readers))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		if field != "" {
			name = field + "." + key.Value
		}
		read, ok := readers[key.Value]
		switch {
		case !ok:
			return fieldError(key, name, "unknown field, known fields: %s", fieldNames(readers))
		case seen[key.Value]:
			return fieldError(key, name, "found twice, want one")
		}
		seen[key.Value] = true
		if value.Tag == "!!null" {
			continue // "url:" without a value
		}
		if err := read(value, name); err != nil {
			return err
		}
	}
	return nil
}

func readList(n *yaml.Node, field string, read reader) error {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		return fieldError(n, field, "found %s, want a list", kindOf(n))
	}
	for i, item := range n.Content {
		if err := read(item, field+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	return nil
}

func text(into *string) reader {
	return func(n *yaml.Node, field string) error {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode {
			return fieldError(n, field, "found %s, want a text", kindOf(n))
		}
		*into = strings.TrimSpace(n.Value)
		return nil
	}
}

func secret(into *Secret) reader {
	return func(n *yaml.Node, field string) error {
		var value string
		err := text(&value)(n, field)
		*into = Secret(value)
		return err
	}
}

func texts(into *[]string) reader {
	return func(n *yaml.Node, field string) error {
		return readList(n, field, func(n *yaml.Node, field string) error {
			var value string
			err := text(&value)(n, field)
			*into = append(*into, value)
			return err
		})
	}
}

func boolean(into *bool) reader {
	return func(n *yaml.Node, field string) error {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode || n.Decode(into) != nil {
			return fieldError(n, field, "found %s, want true or false", kindOf(n))
		}
		return nil
	}
}

func oneOf(into *string, values ...string) reader {
	return func(n *yaml.Node, field string) error {
		if err := text(into)(n, field); err != nil {
			return err
		}
		if !slices.Contains(values, *into) {
			return fieldError(n, field, "found %q, want %s", *into, strings.Join(values, " or "))
		}
		return nil
	}
}

// lineOf returns the line of the field that an error begins with ("url: ...",
// "urls[1]: ..."), or the first line of the mapping if it has no such field.
func lineOf(n *yaml.Node, err error) int {
	n = resolve(n)
	name, _, _ := strings.Cut(err.Error(), ":")
	name, _, _ = strings.Cut(name, "[")
	for i := 0; i < len(n.Content); i += 2 {
		// Errors name a single URL "url", whether it is set in url or in urls.
		if key := n.Content[i]; key.Value == name || (name == "url" && key.Value == "urls") {
			return key.Line
		}
	}
	return n.Line
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a text"
}

func fieldNames(readers map[string]reader) string {
	return strings.Join(slices.Sorted(maps.Keys(readers)), ", ")
}

// yamlMessage returns the message of a syntax error without the library's name.
func yamlMessage(err error) string {
	return oneLine(strings.TrimPrefix(err.Error(), "yaml: "))
}
