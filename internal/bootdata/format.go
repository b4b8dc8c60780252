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

// Format is the format of user-data or vendor-data.
type Format string

// The formats that are recognized and checked.
const (
	FormatCloudConfig Format = "cloud-config"
	FormatButane      Format = "Butane"
	FormatIgnition    Format = "Ignition"
	FormatTalos       Format = "Talos"
	// FormatOther is a script, a multi-part archive or any other format. It is not
	// checked.
	FormatOther Format = "other"
)

// cloudConfigHeader is the first line that marks YAML for cloud-init. Ignition ignores
// files that begin with it, Talos rejects them.
const cloudConfigHeader = "#cloud-config"

var (
	butaneHeader = regexp.MustCompile(`(?m)^variant:\s*\S`)
	talosHeader  = regexp.MustCompile(`(?m)^(machine:|version:\s*["']?v1alpha1\b|apiVersion:\s*["']?v1alpha1\b)`)
)

// FormatOf detects the format of rendered user-data or vendor-data like the guests do:
// by its beginning, and by keys that no other format has.
func FormatOf(content []byte) Format {
	trimmed := bytes.TrimSpace(content)
	switch {
	case bytes.HasPrefix(content, []byte(cloudConfigHeader+"-archive")), bytes.HasPrefix(content, []byte(cloudConfigHeader+"-jsonp")):
		return FormatOther
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

// finalize converts a rendered file into the content of the drive: Butane is transpiled
// to Ignition, other formats are not changed. It fails if the guest could not parse the
// file, because the VM would boot without it and the Node would not join.
func finalize(name string, out *output) ([]byte, error) {
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

// checkYAML fails if a file contains anything but a YAML mapping. Cloud-init ignores a file
// with several documents.
func checkYAML(name string, out *output) error {
	documents, err := parseYAML(name, out)
	if err != nil {
		return err
	}
	if len(documents) > 1 {
		line, column := out.origin(documents[1].Line, 0)
		return &TemplateError{File: name, Line: line, Column: column, Reason: "renders to several YAML documents, but cloud-init reads only files with one"}
	}
	for _, document := range documents {
		if document.Kind != yamlv3.MappingNode {
			return &TemplateError{File: name, Reason: "does not render to a YAML mapping"}
		}
	}
	return nil
}

// parseYAML parses all documents of a file. It fails for duplicate keys in one mapping:
// some parsers reject them, and cloud-init silently ignores the first.
func parseYAML(name string, out *output) ([]*yamlv3.Node, error) {
	decoder := yamlv3.NewDecoder(bytes.NewReader(out.Bytes()))
	var documents []*yamlv3.Node
	for {
		var document yamlv3.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, newYAMLError(name, out, err)
		}
		if key := duplicateKey(&document); key != nil {
			templateErr := &TemplateError{File: name, Reason: "does not render to valid YAML: duplicate key in one mapping"}
			templateErr.Line, templateErr.Column = out.origin(key.Line, key.Column)
			return nil, templateErr
		}
		if len(document.Content) > 0 {
			documents = append(documents, document.Content[0])
		}
	}
}

func duplicateKey(node *yamlv3.Node) *yamlv3.Node {
	if node.Kind == yamlv3.AliasNode {
		return nil // its anchor is checked where it is defined
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

// newYAMLError describes a syntax error with its position in the template. The one
// message of the parser that quotes the file is replaced: it may quote a secret.
func newYAMLError(name string, out *output, err error) error {
	match := yamlLine.FindStringSubmatch(err.Error())
	templateErr := &TemplateError{File: name, Reason: "does not render to valid YAML: " + redactValues(match[2])}
	if strings.Contains(match[2], "unknown anchor") {
		templateErr.Reason = "does not render to valid YAML: a value that starts with * must be quoted"
	}
	if line, err := strconv.Atoi(match[1]); err == nil {
		templateErr.Line, templateErr.Column = out.origin(line, 0)
	}
	return templateErr
}

// quoted matches content of the file in messages of parsers.
var quoted = regexp.MustCompile("`[^`]*(`|$)|\"(?:[^\"\\\\]|\\\\.)*(\"|$)|'[^']*('|$)|number [0-9.eE+-]+")

// redactValues replaces content of the file in a parser's message: it may be a secret.
func redactValues(message string) string {
	first, _, _ := strings.Cut(message, "\n")
	return quoted.ReplaceAllString(first, "…")
}

// checkTalos fails for configuration that Talos rejects at boot: the VM would stay in
// maintenance mode.
func checkTalos(name string, out *output) error {
	documents, err := parseYAML(name, out)
	if err != nil {
		return err
	}
	for _, document := range documents {
		if value, reason := protectedTalosField(document); value != nil {
			templateErr := &TemplateError{File: name, Reason: reason}
			templateErr.Line, templateErr.Column = out.origin(value.Line, value.Column)
			return templateErr
		}
	}
	if value, reason := invalidTalosRouting(documents); value != nil {
		templateErr := &TemplateError{File: name, Reason: reason}
		templateErr.Line, templateErr.Column = out.origin(value.Line, value.Column)
		return templateErr
	}
	return nil
}

// protectedTalosFields are the fields of the kubelet that Talos 1.13 sets itself:
// ProtectedConfigurationFields in its package machinery/kubelet.
var protectedTalosFields = []string{
	"apiVersion", "kind", "authentication", "authorization", "cgroupRoot", "kubeletCgroups", "port", "protectKernelDefaults", "resolvConf",
	"rotateCertificates", "systemCgroups", "staticPodPath", "seccompDefault",
}

// protectedTalosField returns the first value in the kubelet's configuration that Talos
// rejects, and why; nil if there is none.
func protectedTalosField(document *yamlv3.Node) (*yamlv3.Node, string) {
	extra := lookup(lookup(lookup(document, "machine"), "kubelet"), "extraConfig")
	for _, field := range protectedTalosFields {
		value := lookup(extra, field)
		if value == nil {
			continue
		}
		reason := "Talos rejects " + field + " in machine.kubelet.extraConfig; "
		if field == "apiVersion" || field == "kind" { // the provider always sets them
			return value, reason + `use {{ omit .Kubernetes.KubeletConfiguration "apiVersion" "kind" | toYaml }}`
		}
		return value, reason + "remove it from spec.kubeletConfiguration of the NodeClass or from the template, because Talos sets it itself"
	}
	return nil, ""
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
