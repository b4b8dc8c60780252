// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	_ "embed" // the default templates
	"errors"
	"fmt"
	"maps"
	"strings"
	"text/template"

	yamlv3 "go.yaml.in/yaml/v3"
)

// Names of the files on the boot drive, and of the keys of a templates Secret.
const (
	UserDataFile      = "user-data"
	MetaDataFile      = "meta-data"
	NetworkConfigFile = "network-config"
	VendorDataFile    = "vendor-data"
)

// Limits on the rendered files. They are those of Proxmox's own cloud-init
// drive, so that boot data fits whichever way it is delivered.
const (
	MaxFileBytes  = 1 << 20
	MaxTotalBytes = 3 << 20
)

// Templates are the user's text/template sources. An empty one is replaced by
// the default of that file; vendor-data has none and is then left out.
type Templates struct {
	UserData, MetaData, NetworkConfig, VendorData string
}

// TemplatesFrom takes the templates out of a Secret's data.
func TemplatesFrom(secret map[string][]byte) Templates {
	return Templates{
		UserData:      string(secret[UserDataFile]),
		MetaData:      string(secret[MetaDataFile]),
		NetworkConfig: string(secret[NetworkConfigFile]),
		VendorData:    string(secret[VendorDataFile]),
	}
}

// Files are the rendered boot data.
type Files struct {
	UserData, MetaData, NetworkConfig, VendorData []byte
}

var (
	//go:embed defaults/user-data.tmpl
	defaultUserData string
	//go:embed defaults/meta-data.tmpl
	defaultMetaData string
	//go:embed defaults/network-config.tmpl
	defaultNetworkConfig string
)

// Render executes the templates. All faults of all files come back at once,
// each a *TemplateError.
func Render(templates Templates, data Data) (Files, error) {
	data = data.completed()
	var (
		files Files
		errs  []error
		total int
	)
	for _, f := range []struct {
		name, source, fallback string
		root                   any
		out                    *[]byte
	}{
		{UserDataFile, templates.UserData, defaultUserData, data, &files.UserData},
		{MetaDataFile, templates.MetaData, defaultMetaData, data.Metadata, &files.MetaData},
		{NetworkConfigFile, templates.NetworkConfig, defaultNetworkConfig, data.Network, &files.NetworkConfig},
		{VendorDataFile, templates.VendorData, "", data.Metadata, &files.VendorData},
	} {
		source := f.source
		if strings.TrimSpace(source) == "" {
			source = f.fallback
		}
		rendered, err := renderFile(f.name, source, f.root, data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		*f.out = rendered
		total += len(rendered)
	}
	if total > MaxTotalBytes {
		errs = append(errs, fmt.Errorf("the rendered files have %d bytes together, more than the %d allowed", total, MaxTotalBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return Files{}, err
	}
	return files, nil
}

func renderFile(name, source string, root any, data Data) ([]byte, error) {
	functions := functions()
	maps.Copy(functions, template.FuncMap{stepFunction: stepCounter()})
	tmpl, err := template.New(name).Option("missingkey=error").Funcs(functions).Parse(source)
	if err != nil {
		return nil, parseFailure(name, err)
	}
	prepare(tmpl)
	out := &boundedBuffer{}
	if err := tmpl.Execute(out, root); err != nil {
		if out.full {
			return nil, &TemplateError{File: name, Reason: fmt.Sprintf("renders to more than the %d bytes allowed", MaxFileBytes)}
		}
		return nil, executionFailure(name, data, err)
	}
	if err := checkYAML(name, out.Bytes()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// boundedBuffer ends a template that writes without end.
type boundedBuffer struct {
	bytes.Buffer
	full bool
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxFileBytes {
		b.full = true
		return 0, errors.New("too large")
	}
	return b.Buffer.Write(p)
}

// cloudConfigHeader is the first line by which cloud-init knows YAML; user-data
// with another one (a script, Ignition, a Talos config) is not ours to judge.
const cloudConfigHeader = "#cloud-config"

// checkYAML finds files that cloud-init could not parse. It would boot the VM
// without them, and nothing would ever tell why the Node does not join.
func checkYAML(name string, content []byte) error {
	switch name {
	case UserDataFile, VendorDataFile:
		if !bytes.HasPrefix(content, []byte(cloudConfigHeader)) {
			return nil
		}
	}
	var node yamlv3.Node
	if err := yamlv3.Unmarshal(content, &node); err != nil {
		return &TemplateError{File: name, Reason: "does not render to valid YAML: " + yamlFault(err)}
	}
	if len(node.Content) > 0 && node.Content[0].Kind != yamlv3.MappingNode {
		return &TemplateError{File: name, Reason: "does not render to a YAML mapping"}
	}
	return nil
}

// yamlFault words a syntax error; its lines count in the rendered file. The one
// message of the parser that quotes the file is replaced: it may quote a secret.
func yamlFault(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.Contains(text, "unknown anchor") {
		return "a value that starts with * must be quoted"
	}
	return "rendered " + text
}
