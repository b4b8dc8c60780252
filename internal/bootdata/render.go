// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	_ "embed" // the default templates
	"errors"
	"fmt"
	"text/template"
)

// Names of the files on the boot drive and of the keys of a templates Secret.
const (
	UserDataFile      = "user-data"
	MetaDataFile      = "meta-data"
	NetworkConfigFile = "network-config"
	VendorDataFile    = "vendor-data"
)

// Limits of the rendered files. They equal those of the cloud-init drive of Proxmox, so
// boot data fits with every delivery method.
const (
	MaxFileBytes  = 1 << 20
	MaxTotalBytes = 3 << 20
)

// Templates are the user's text/template sources. An empty one is replaced by the default
// of that file; vendor-data has no default and is omitted.
type Templates struct {
	UserData, MetaData, NetworkConfig, VendorData string
}

// TemplatesFrom returns the templates in the data of a Secret.
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

// Render executes the templates. It returns the errors of all files joined, each a
// *TemplateError.
func Render(templates Templates, data Data) (Files, error) {
	return RenderParts([]Part{{Templates: templates}}, data)
}

// RenderParts is like Render for templates in several parts. The user-data of all parts is
// combined, and so is their vendor-data; meta-data and network-config are those of the last
// part that has them. Errors begin with the name of the part.
func RenderParts(parts []Part, data Data) (Files, error) {
	data = data.withDefaults()
	var (
		files Files
		errs  []error
		total int
	)
	for _, f := range []struct {
		name, fallback string
		root           any
		out            *[]byte
	}{
		{UserDataFile, defaultUserData, data, &files.UserData},
		{MetaDataFile, defaultMetaData, data.Metadata, &files.MetaData},
		{NetworkConfigFile, defaultNetworkConfig, data.Network, &files.NetworkConfig},
		{VendorDataFile, "", data.Metadata, &files.VendorData},
	} {
		var pieces []piece
		for _, source := range sourcesOf(parts, f.name, f.fallback) {
			rendered, err := renderFile(f.name, source.text, f.root, data)
			if err != nil {
				errs = append(errs, source.wrap(err))
			}
			pieces = append(pieces, piece{source, rendered})
		}
		if len(errs) > 0 {
			continue
		}
		combined, err := combine(f.name, pieces)
		if err != nil {
			errs = append(errs, err)
		}
		*f.out = combined
		total += len(combined)
	}
	if total > MaxTotalBytes {
		errs = append(errs, fmt.Errorf("the rendered files have %d bytes in total, the limit is %d", total, MaxTotalBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return Files{}, err
	}
	return files, nil
}

// RenderText executes a short template outside of boot data, whose root is Metadata. An
// error is a *TemplateError with that name.
func RenderText(name, source string, metadata Metadata) (string, error) {
	out, err := execute(name, source, metadata, Data{Metadata: metadata})
	if err != nil {
		return "", err
	}
	return out.String(), nil
}

func renderFile(name, source string, root any, data Data) ([]byte, error) {
	out, err := execute(name, source, root, data)
	if err != nil {
		return nil, err
	}
	return finalize(name, out)
}

func execute(name, source string, root any, data Data) (*output, error) {
	functions := funcMap()
	functions[stepFunction] = stepCounter()
	tmpl, err := template.New(name).Option("missingkey=error").Funcs(functions).Parse(source)
	if err != nil {
		return nil, newParseError(name, err)
	}
	rewrite(tmpl)
	out := newOutput(tmpl, source)
	if err := tmpl.Execute(out, root); err != nil {
		if out.isFull {
			return nil, &TemplateError{File: name, Reason: fmt.Sprintf("renders to more than the %d bytes allowed", MaxFileBytes)}
		}
		return nil, newExecutionError(name, data, err)
	}
	return out, nil
}
