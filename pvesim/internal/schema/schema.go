// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schema validates request parameters like Proxmox, with its error texts, against a compact description of its
// API.
//
// The description (methods-8.4.json, methods-9.2.json) is generated from Proxmox's own schema for the methods that the
// simulator serves; see the gen directory.
package schema

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed methods-*.json
var files embed.FS

// Property describes a parameter, or a key of a property string.
type Property struct {
	Type       string               `json:"type,omitempty"`
	Optional   bool                 `json:"optional,omitempty"`
	Enum       []string             `json:"enum,omitempty"`
	Pattern    string               `json:"pattern,omitempty"`
	Minimum    *float64             `json:"minimum,omitempty"`
	Maximum    *float64             `json:"maximum,omitempty"`
	MinLength  *int                 `json:"minLength,omitempty"`
	MaxLength  *int                 `json:"maxLength,omitempty"`
	Format     string               `json:"format,omitempty"`
	Fields     map[string]*Property `json:"fields,omitempty"` // a property string with these keys
	DefaultKey bool                 `json:"defaultKey,omitempty"`
	Alias      string               `json:"alias,omitempty"`
	KeyAlias   string               `json:"keyAlias,omitempty"`
	Requires   string               `json:"requires,omitempty"`
	Items      *Property            `json:"items,omitempty"`

	pattern *regexp.Regexp
}

// Method describes a verb of a path.
type Method struct {
	Verb      string               `json:"-"`
	Path      string               `json:"-"`
	Params    map[string]*Property `json:"-"`
	Refs      map[string]int       `json:"params,omitempty"`
	Check     json.RawMessage      `json:"check,omitempty"`
	User      string               `json:"user,omitempty"`
	ProxyTo   string               `json:"proxyto,omitempty"`
	Protected bool                 `json:"protected,omitempty"`
	NoToken   bool                 `json:"notoken,omitempty"`
}

// Name returns the verb and the path: "GET /version".
func (m *Method) Name() string { return m.Verb + " " + m.Path }

// File is the compact description of a version. Properties that several methods share are stored once.
type File struct {
	Version    string             `json:"version"`
	Properties []*Property        `json:"properties"`
	Methods    map[string]*Method `json:"methods"`
}

// Catalog is the description of a Proxmox version.
type Catalog struct {
	Version string
	// RequiresText is the error text for a parameter that another one requires.
	RequiresText string
	methods      map[string]*Method
	byVerb       map[string]*route
}

type route struct {
	children map[string]*route
	param    *route
	name     string
	rest     bool
	method   *Method
}

// catalogs caches the result of decode by version. Tests start thousands of simulators, and a catalog is never modified.
var catalogs sync.Map

// Load returns the description of a version, "8.4" or "9.2".
func Load(version string) (*Catalog, error) {
	once, _ := catalogs.LoadOrStore(version, sync.OnceValues(func() (*Catalog, error) { return decode(version) }))
	return once.(func() (*Catalog, error))()
}

func decode(version string) (*Catalog, error) {
	raw, err := files.ReadFile("methods-" + version + ".json")
	if err != nil {
		return nil, fmt.Errorf("loading the schema of version %q: %w", version, err)
	}
	var f File
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("reading the schema of version %s: %w", version, err)
	}
	c := &Catalog{Version: f.Version, methods: f.Methods, byVerb: map[string]*route{}}
	c.RequiresText = "missing property - '%s' requires this property"
	if strings.HasPrefix(version, "9") {
		c.RequiresText = "missing property required by '%s'"
	}
	for _, p := range f.Properties {
		if err := p.compile(); err != nil {
			return nil, fmt.Errorf("reading the schema of version %s: %w", version, err)
		}
	}
	for name, m := range f.Methods {
		m.Verb, m.Path, _ = strings.Cut(name, " ")
		m.Params = make(map[string]*Property, len(m.Refs))
		for param, ref := range m.Refs {
			m.Params[param] = f.Properties[ref]
		}
		c.addRoute(m)
	}
	return c, nil
}

var hugeRepeat = regexp.MustCompile(`\{(\d+),\d{4,}\}`)

func (p *Property) compile() error {
	if p.Pattern != "" {
		// Go does not support repeat counts above 1000. Length limits check the upper bound.
		re, err := regexp.Compile("^(?:" + hugeRepeat.ReplaceAllString(p.Pattern, "{$1,}") + ")$")
		if err != nil {
			return fmt.Errorf("compiling the pattern %q: %w", p.Pattern, err)
		}
		p.pattern = re
	}
	for _, f := range p.Fields {
		if err := f.compile(); err != nil {
			return err
		}
	}
	if p.Items != nil {
		return p.Items.compile()
	}
	return nil
}

func (c *Catalog) addRoute(m *Method) {
	root := c.byVerb[m.Verb]
	if root == nil {
		root = &route{children: map[string]*route{}}
		c.byVerb[m.Verb] = root
	}
	at := root
	for _, part := range splitPath(m.Path) {
		if strings.HasPrefix(part, "{") {
			if at.param == nil {
				at.param = &route{children: map[string]*route{}, name: strings.Trim(part, "{}")}
			}
			at = at.param
			// Volume names and networks can contain slashes and extend to the end of the path.
			at.rest = at.name == "volume" || at.name == "cidr"
			continue
		}
		next := at.children[part]
		if next == nil {
			next = &route{children: map[string]*route{}}
			at.children[part] = next
		}
		at = next
	}
	at.method = m
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// Find returns the method for a path below /api2/json, or nil, and the values of the placeholders in the path.
func (c *Catalog) Find(verb, path string) (*Method, map[string]string) {
	at := c.byVerb[verb]
	if at == nil {
		return nil, nil
	}
	values := map[string]string{}
	parts := splitPath(path)
	for i, part := range parts {
		if next := at.children[part]; next != nil {
			at = next
			continue
		}
		if at.param == nil {
			return nil, nil
		}
		at = at.param
		if at.rest {
			values[at.name] = strings.Join(parts[i:], "/")
			break
		}
		values[at.name] = part
	}
	if at.method == nil {
		return nil, nil
	}
	return at.method, values
}

// Method returns a method by its name, or nil.
func (c *Catalog) Method(name string) *Method { return c.methods[name] }

// Names returns all methods in order.
func (c *Catalog) Names() []string { return slices.Sorted(maps.Keys(c.methods)) }

// indexLimit is the number of instances of a numbered parameter, for example net0 to net31. The published schema
// contains only "net[n]".
var indexLimit = map[string]int{
	"net": 32, "scsi": 31, "virtio": 16, "sata": 6, "ide": 4, "ipconfig": 32, "numa": 8, "hostpci": 16, "usb": 14,
	"serial": 4, "parallel": 3, "unused": 256, "virtiofs": 10,
}

var numbered = regexp.MustCompile(`^([a-z]+)(0|[1-9][0-9]*)$`)

// Lookup returns the description of a parameter, or nil. Numbered parameters share one.
func (m *Method) Lookup(name string) *Property {
	if p := m.Params[name]; p != nil && !strings.HasSuffix(name, "[n]") {
		return p
	}
	g := numbered.FindStringSubmatch(name)
	if g == nil {
		return nil
	}
	n, err := strconv.Atoi(g[2])
	if err != nil || n >= indexLimit[g[1]] {
		return nil
	}
	return m.Params[g[1]+"[n]"]
}

// JSONValue returns the value of a parameter with the type of responses: a list for arrays, a number for integers and
// booleans, otherwise a string.
func JSONValue(m *Method, name, v string) any {
	p := m.Lookup(name)
	switch {
	case p != nil && p.Type == "array":
		return []string{v}
	case p != nil && (p.Type == "integer" || p.Type == "boolean"):
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return v
}
