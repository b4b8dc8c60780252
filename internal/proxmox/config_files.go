// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// inlineFields are the fields with the content of a file, by the field with its path.
var inlineFields = map[string]string{
	"ca_file": "ca", "token_id_file": "token_id", "token_secret_file": "token_secret", "password_file": "password",
}

// ParseConfigWithFiles parses a cloud config whose files are not on this machine: it
// replaces each path by the content of the file.
func ParseConfigWithFiles(content []byte, readFile func(path string) ([]byte, error)) (Config, error) {
	root, err := parseYAML(content)
	if err != nil {
		return Config{}, err
	}
	if err := inlineFiles(root, readFile); err != nil {
		return Config{}, err
	}
	return readConfig(root, "")
}

func inlineFiles(n *yaml.Node, readFile func(path string) ([]byte, error)) error {
	for i, child := range n.Content {
		if field, ok := inlineFields[child.Value]; ok && n.Kind == yaml.MappingNode && i%2 == 0 && n.Content[i+1].Value != "" {
			file, err := readFile(n.Content[i+1].Value)
			if err != nil {
				return fmt.Errorf("line %d: %s: %w", child.Line, child.Value, err)
			}
			child.Value = field
			n.Content[i+1].SetString(strings.TrimSpace(string(file)))
		}
		if err := inlineFiles(child, readFile); err != nil {
			return err
		}
	}
	return nil
}
