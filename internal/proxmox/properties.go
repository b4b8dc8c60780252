// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"strconv"
	"strings"
)

// Property is one part of a property string. A bare part ("local-lvm:vm-1-disk-0",
// the default key's value) has an empty Key and Bare set.
type Property struct {
	Key   string
	Value string
	Bare  bool
}

// Properties is a parsed Proxmox property string
// ("virtio=BC:24:11:0:0:1,bridge=vmbr0"). It keeps order and unknown keys: Proxmox
// replaces the whole string on a write, so a missing key is lost.
type Properties []Property

// ParseProperties parses a property string. Every string is valid, and Encode returns
// it unchanged.
func ParseProperties(s string) Properties {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	properties := make(Properties, 0, len(parts))
	for _, part := range parts {
		key, value, keyed := strings.Cut(part, "=")
		if keyed {
			properties = append(properties, Property{Key: key, Value: value})
		} else {
			properties = append(properties, Property{Value: part, Bare: true})
		}
	}
	return properties
}

// Encode returns the property string.
func (p Properties) Encode() string {
	var b strings.Builder
	for i, property := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		if !property.Bare {
			b.WriteString(property.Key)
			b.WriteByte('=')
		}
		b.WriteString(property.Value)
	}
	return b.String()
}

// Get returns the value of a key. It returns false if the key is absent.
func (p Properties) Get(key string) (string, bool) {
	for _, property := range p {
		if !property.Bare && property.Key == key {
			return property.Value, true
		}
	}
	return "", false
}

// Value returns the value of a key, or "" if it is absent.
func (p Properties) Value(key string) string {
	value, _ := p.Get(key)
	return value
}

// With returns a copy in which key has that value. A new key is added at the end.
func (p Properties) With(key, value string) Properties {
	changed := make(Properties, len(p), len(p)+1)
	copy(changed, p)
	for i := range changed {
		if !changed[i].Bare && changed[i].Key == key {
			changed[i].Value = value
			return changed
		}
	}
	return append(changed, Property{Key: key, Value: value})
}

// Without returns a copy without the keys.
func (p Properties) Without(keys ...string) Properties {
	kept := make(Properties, 0, len(p))
	for _, property := range p {
		if property.Bare || !slices.Contains(keys, property.Key) {
			kept = append(kept, property)
		}
	}
	return kept
}

// bare returns the first part without a key.
func (p Properties) bare() (string, bool) {
	for _, property := range p {
		if property.Bare {
			return property.Value, true
		}
	}
	return "", false
}

// defaultValue returns the bare part, or else the value of the property string's
// default key.
func (p Properties) defaultValue(key string) string {
	if value, ok := p.bare(); ok {
		return value
	}
	return p.Value(key)
}

func (p Properties) withoutBare() Properties {
	kept := make(Properties, 0, len(p))
	for _, property := range p {
		if !property.Bare {
			kept = append(kept, property)
		}
	}
	return kept
}

func (p Properties) withText(key, value string) Properties {
	if value == "" {
		return p.Without(key)
	}
	return p.With(key, value)
}

func (p Properties) withNumber(key string, value int) Properties {
	if value == 0 {
		return p.Without(key)
	}
	return p.With(key, strconv.Itoa(value))
}

// withFlag keeps an explicit "off" that was read, but does not add one.
func (p Properties) withFlag(key string, on bool) Properties {
	if on {
		return p.With(key, "1")
	}
	if _, set := p.Get(key); set {
		return p.With(key, "0")
	}
	return p
}

// parseNumber parses an integer property. It returns 0 for anything else, since
// Proxmox validates the property on each write.
func parseNumber(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// isTrue parses a boolean as Proxmox's own parser does, which also accepts words.
func isTrue(s string) bool {
	switch strings.ToLower(s) {
	case "1", "on", "yes", "true":
		return true
	}
	return false
}

// EncodeBool returns the value of a flag in a configuration.
func EncodeBool(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
