// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// Format is a language that user-data is written in.
type Format string

// The formats that are known, and therefore checked.
const (
	FormatCloudConfig Format = "cloud-config"
	FormatButane      Format = "Butane"
	FormatIgnition    Format = "Ignition"
	FormatTalos       Format = "Talos"
	// FormatOther is a script, a multi-part archive or anything else: the guest
	// may understand it, we do not.
	FormatOther Format = "other"
)

// cloudConfigHeader is the first line by which cloud-init knows YAML. Ignition
// passes over files that begin with it, Talos refuses them.
const cloudConfigHeader = "#cloud-config"

var (
	butaneHeader = regexp.MustCompile(`(?m)^variant:\s*\S`)
	talosHeader  = regexp.MustCompile(`(?m)^(machine:|version:\s*["']?v1alpha1\b|apiVersion:\s*["']?v1alpha1\b)`)
)

// FormatOf recognises the language of rendered user-data or vendor-data, as the
// guests themselves do: by how it begins, and by keys that no other has.
func FormatOf(content []byte) Format {
	trimmed := bytes.TrimSpace(content)
	switch {
	case bytes.HasPrefix(content, []byte(cloudConfigHeader)):
		return FormatCloudConfig
	case bytes.HasPrefix(trimmed, []byte("{")):
		return FormatIgnition
	case bytes.HasPrefix(content, []byte("#!")), bytes.HasPrefix(content, []byte("Content-Type:")):
		return FormatOther
	case butaneHeader.Match(content):
		return FormatButane
	case talosHeader.Match(content):
		return FormatTalos
	}
	return FormatOther
}

// finish turns a rendered file into what is put on the drive. Butane becomes
// Ignition; the rest stays as it is. A file that its reader could not parse is an
// error here: the VM would boot without it, and nothing would tell why the Node
// does not join.
func finish(name string, out *output) ([]byte, error) {
	content := out.Bytes()
	if name != UserDataFile && name != VendorDataFile {
		return content, checkYAML(name, out)
	}
	switch FormatOf(content) {
	case FormatCloudConfig:
		return content, checkYAML(name, out)
	case FormatButane:
		return transpile(name, out)
	case FormatIgnition:
		return content, checkIgnition(name, out)
	case FormatTalos:
		return content, checkTalos(name, out)
	}
	return content, nil
}

// checkYAML wants one YAML mapping, or nothing.
func checkYAML(name string, out *output) error {
	documents, err := yamlDocuments(name, out)
	if err != nil {
		return err
	}
	for _, document := range documents {
		if document.Kind != yamlv3.MappingNode {
			return &TemplateError{File: name, Reason: "does not render to a YAML mapping"}
		}
	}
	return nil
}

// yamlDocuments parses all documents of a file. Keys that stand twice in one
// mapping are faults: some readers refuse them, and cloud-init silently forgets
// the first.
func yamlDocuments(name string, out *output) ([]*yamlv3.Node, error) {
	decoder := yamlv3.NewDecoder(bytes.NewReader(out.Bytes()))
	var documents []*yamlv3.Node
	for {
		var document yamlv3.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, yamlFailure(name, out, err)
		}
		if key := duplicateKey(&document); key != nil {
			fault := &TemplateError{File: name, Reason: "does not render to valid YAML: the key stands twice in one mapping"}
			fault.Line, fault.Column = out.origin(key.Line, key.Column)
			return nil, fault
		}
		if len(document.Content) > 0 {
			documents = append(documents, document.Content[0])
		}
	}
}

func duplicateKey(node *yamlv3.Node) *yamlv3.Node {
	if node.Kind == yamlv3.AliasNode {
		return nil // what it stands for is looked at where it stands
	}
	seen := map[string]bool{}
	for i, child := range node.Content {
		if node.Kind == yamlv3.MappingNode && i%2 == 0 && child.Kind == yamlv3.ScalarNode && child.Tag != "!!merge" {
			if seen[child.Tag+child.Value] {
				return child
			}
			seen[child.Tag+child.Value] = true
		}
		if found := duplicateKey(child); found != nil {
			return found
		}
	}
	return nil
}

var yamlLine = regexp.MustCompile(`(?s)^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?(.*)$`)

// yamlFailure words a syntax error, and says where in the template it comes from.
// The one message of the parser that quotes the file is replaced: it may quote a
// secret.
func yamlFailure(name string, out *output, err error) error {
	match := yamlLine.FindStringSubmatch(err.Error())
	fault := &TemplateError{File: name, Reason: "does not render to valid YAML: " + withoutValues(match[2])}
	if strings.Contains(match[2], "unknown anchor") {
		fault.Reason = "does not render to valid YAML: a value that starts with * must be quoted"
	}
	if line, err := strconv.Atoi(match[1]); err == nil {
		fault.Line, fault.Column = out.origin(line, 0)
	}
	return fault
}

// quoted finds what parsers quote from a file, or repeat as a number.
var quoted = regexp.MustCompile("`[^`]*(`|$)|\"(?:[^\"\\\\]|\\\\.)*(\"|$)|'[^']*('|$)|number [0-9.eE+-]+")

// withoutValues blanks out what a parser's message may repeat from the file: it
// can be a secret.
func withoutValues(message string) string {
	first, _, _ := strings.Cut(message, "\n")
	return quoted.ReplaceAllString(first, "…")
}

// checkTalos finds what Talos refuses at boot, when it is too late: it would stay
// in maintenance mode.
func checkTalos(name string, out *output) error {
	documents, err := yamlDocuments(name, out)
	if err != nil {
		return err
	}
	for _, document := range documents {
		extra := lookup(lookup(lookup(document, "machine"), "kubelet"), "extraConfig")
		for _, forbidden := range []string{"apiVersion", "kind"} {
			if value := lookup(extra, forbidden); value != nil {
				fault := &TemplateError{File: name, Reason: "Talos takes no " + forbidden + " in machine.kubelet.extraConfig; " +
					`print {{ omit .Kubernetes.KubeletConfiguration "apiVersion" "kind" | toYaml }} there`}
				fault.Line, fault.Column = out.origin(value.Line, value.Column)
				return fault
			}
		}
	}
	return nil
}

// lookup returns the value of a key, or nil.
func lookup(mapping *yamlv3.Node, key string) *yamlv3.Node {
	if mapping == nil || mapping.Kind != yamlv3.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}
