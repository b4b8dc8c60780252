// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// published is the part of Proxmox's published schema that the simulator uses.
type published struct {
	Path     string                      `json:"path"`
	Info     map[string]*publishedMethod `json:"info"`
	Children []*published                `json:"children"`
}

type publishedMethod struct {
	AllowToken *int `json:"allowtoken"`
	Parameters struct {
		Properties map[string]*publishedProperty `json:"properties"`
	} `json:"parameters"`
	Permissions *struct {
		Check json.RawMessage `json:"check"`
		User  string          `json:"user"`
	} `json:"permissions"`
	ProxyTo   string          `json:"proxyto"`
	Protected json.RawMessage `json:"protected"`
}

type publishedProperty struct {
	Type       any                `json:"type"`
	Optional   json.RawMessage    `json:"optional"`
	Enum       []any              `json:"enum"`
	Pattern    string             `json:"pattern"`
	Minimum    any                `json:"minimum"`
	Maximum    any                `json:"maximum"`
	MinLength  any                `json:"minLength"`
	MaxLength  any                `json:"maxLength"`
	Format     json.RawMessage    `json:"format"`
	DefaultKey json.RawMessage    `json:"default_key"`
	Alias      string             `json:"alias"`
	KeyAlias   string             `json:"keyAlias"`
	Requires   string             `json:"requires"`
	Items      *publishedProperty `json:"items"`
}

// Compact reduces Proxmox's published schema to the listed methods, in the form that the simulator embeds.
func Compact(version string, tree []byte, list string) ([]byte, error) {
	var roots []*published
	if err := json.Unmarshal(tree, &roots); err != nil {
		return nil, fmt.Errorf("reading the published schema of %s: %w", version, err)
	}
	all := map[string]*publishedMethod{}
	for _, r := range roots {
		r.collect(all)
	}
	file := File{Version: version, Methods: map[string]*Method{}}
	seen := map[string]int{}
	for _, name := range strings.Fields(strings.ReplaceAll(list, " ", "\x00")) {
		name = strings.ReplaceAll(name, "\x00", " ")
		if strings.HasPrefix(name, "#") {
			continue
		}
		p, ok := all[name]
		if !ok {
			continue // only in the other version
		}
		m, err := file.method(p, seen)
		if err != nil {
			return nil, fmt.Errorf("describing %s of %s: %w", name, version, err)
		}
		file.Methods[name] = m
	}
	return file.render()
}

func (n *published) collect(into map[string]*publishedMethod) {
	for verb, m := range n.Info {
		into[verb+" "+n.Path] = m
	}
	for _, c := range n.Children {
		c.collect(into)
	}
}

func (f *File) method(p *publishedMethod, seen map[string]int) (*Method, error) {
	m := &Method{ProxyTo: p.ProxyTo, Protected: truthy(p.Protected), Refs: map[string]int{}}
	m.NoToken = p.AllowToken != nil && *p.AllowToken == 0
	if p.Permissions != nil {
		m.Check, m.User = p.Permissions.Check, p.Permissions.User
		if bytes.Equal(m.Check, []byte("null")) {
			m.Check = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Parameters.Properties)) {
		prop, err := p.Parameters.Properties[name].compact()
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", name, err)
		}
		key, err := json.Marshal(prop)
		if err != nil {
			return nil, err
		}
		ref, ok := seen[string(key)]
		if !ok {
			ref = len(f.Properties)
			seen[string(key)] = ref
			f.Properties = append(f.Properties, prop)
		}
		m.Refs[name] = ref
	}
	return m, nil
}

func (p *publishedProperty) compact() (*Property, error) {
	typ, _ := p.Type.(string)
	out := &Property{
		Type: typ, Optional: truthy(p.Optional), Minimum: parseNumber(p.Minimum), Maximum: parseNumber(p.Maximum),
		MinLength: parseInt(p.MinLength), MaxLength: parseInt(p.MaxLength), DefaultKey: truthy(p.DefaultKey), Alias: p.Alias, KeyAlias: p.KeyAlias, Requires: p.Requires,
		// Perl formats compiled patterns with a flag group that Go does not support.
		Pattern: strings.ReplaceAll(p.Pattern, "(?^", "(?"),
	}
	for _, e := range p.Enum {
		out.Enum = append(out.Enum, fmt.Sprint(e))
	}
	if p.Items != nil {
		items, err := p.Items.compact()
		if err != nil {
			return nil, err
		}
		out.Items = items
	}
	if len(p.Format) == 0 {
		return out, nil
	}
	if p.Format[0] == '"' {
		return out, json.Unmarshal(p.Format, &out.Format)
	}
	var fields map[string]*publishedProperty
	if err := json.Unmarshal(p.Format, &fields); err != nil {
		return nil, fmt.Errorf("reading a property string's format: %w", err)
	}
	out.Fields = map[string]*Property{}
	for name, f := range fields {
		c, err := f.compact()
		if err != nil {
			return nil, err
		}
		out.Fields[name] = c
	}
	return out, nil
}

// parseNumber parses a number that the published schema sometimes contains as a string.
func parseNumber(v any) *float64 {
	if v == nil {
		return nil
	}
	f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	if err != nil {
		return nil
	}
	return &f
}

func parseInt(v any) *int {
	f := parseNumber(v)
	if f == nil {
		return nil
	}
	n := int(*f)
	return &n
}

func truthy(raw json.RawMessage) bool {
	s := string(raw)
	return s != "" && s != "0" && s != "null" && s != "false" && s != `"0"`
}

// render returns the file with one property and one method per line, so diffs between releases are readable.
func (f *File) render() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"version\": %q,\n\"properties\": [\n", f.Version)
	for i, p := range f.Properties {
		if err := writeLine(&b, "", p, i == len(f.Properties)-1); err != nil {
			return nil, err
		}
	}
	b.WriteString("],\n\"methods\": {\n")
	names := slices.Sorted(maps.Keys(f.Methods))
	for i, n := range names {
		if err := writeLine(&b, fmt.Sprintf("%q: ", n), f.Methods[n], i == len(names)-1); err != nil {
			return nil, err
		}
	}
	b.WriteString("}}\n")
	return b.Bytes(), nil
}

func writeLine(b *bytes.Buffer, prefix string, v any, last bool) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b.WriteString(prefix)
	b.Write(raw)
	if !last {
		b.WriteByte(',')
	}
	b.WriteByte('\n')
	return nil
}
